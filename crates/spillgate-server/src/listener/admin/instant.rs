//! Instants in the text form of RFC 3339, such as `2027-01-31T18:00:00Z`.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use crate::listener::http::json::Text;

pub struct Instant(pub SystemTime);

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Instant, String> {
        let instant = text.parse::<Timestamp>().map_err(|_| {
            format!(
                "{text:?} is not a valid instant up to {LAST}; write one such as \"2027-01-31T18:00:00Z\""
            )
        })?;
        Ok(Instant(instant.into()))
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An instant after the year 9999 has no text. Only the library can set one, since it cannot be parsed either.
        Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX).fmt(f)
    }
}

/// The last second that [`Timestamp`] has.
const LAST: &str = "9999-12-30T22:00:00Z";
