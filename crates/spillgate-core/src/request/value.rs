//! Values of attributes. A few have two readings, so that no spelling avoids a rule.

use std::borrow::Cow;

use crate::path::{normalised_path, path_with_slashes_decoded};

/// The value of an attribute, of any bytes.
///
/// `Request::with` takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value<'a>(Readings<'a>);

/// The readings of a value: two only for a path with `%2F`, so that all others stay small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Readings<'a> {
    One(Cow<'a, [u8]>),
    Two(Box<TwoReadings>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct TwoReadings {
    /// With `%2F` decoded. Keys use it.
    decoded: Box<[u8]>,
    /// With `%2F` kept.
    kept: Box<[u8]>,
}

impl<'a> Value<'a> {
    /// Makes the value of a path: [`normalised_path`], and if the path has `%2F`, also
    /// [`path_with_slashes_decoded`]. A rule matches by either, and a key uses the second.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Value;
    /// assert_eq!(Value::of_path("//login?x").as_bytes(), b"/login");
    /// assert_eq!(Value::of_path("/x%2F..%2Flogin").as_bytes(), b"/login");
    /// ```
    pub fn of_path<T: AsRef<[u8]> + ?Sized>(target: &'a T) -> Value<'a> {
        let kept = normalised_path(target);
        match path_with_slashes_decoded(target) {
            Some(decoded) => Value::of_readings(decoded, &*kept),
            None => match kept {
                Cow::Borrowed(kept) => kept.into(),
                Cow::Owned(kept) => kept.into(),
            },
        }
    }

    /// Makes a value that has another reading with `%2F` kept.
    pub(crate) fn of_readings(decoded: impl Into<Vec<u8>>, kept: impl Into<Vec<u8>>) -> Value<'a> {
        let (decoded, kept) = (decoded.into(), kept.into());
        Value(match decoded == kept {
            true => Readings::One(Cow::Owned(decoded)),
            false => {
                Readings::Two(Box::new(TwoReadings { decoded: decoded.into(), kept: kept.into() }))
            }
        })
    }

    /// Returns the value without copying its bytes, unless it has two readings.
    #[inline]
    pub fn borrowed(&self) -> Value<'_> {
        match &self.0 {
            Readings::One(value) => Value::from(&**value),
            Readings::Two(_) => Value(self.0.clone()),
        }
    }

    /// Returns the bytes of the value. Of a path with `%2F` it is the reading in which that is a slash.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Readings::One(value) => value,
            Readings::Two(readings) => &readings.decoded,
        }
    }

    /// Returns the reading with `%2F` kept, if it is another one.
    #[inline]
    pub fn kept(&self) -> Option<&[u8]> {
        match &self.0 {
            Readings::One(_) => None,
            Readings::Two(readings) => Some(&readings.kept),
        }
    }

    /// Returns all readings.
    #[inline]
    pub(crate) fn readings(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.as_bytes()).chain(self.kept())
    }
}

impl<'a> From<&'a str> for Value<'a> {
    #[inline]
    fn from(value: &'a str) -> Value<'a> {
        Value::from(value.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    #[inline]
    fn from(value: &'a [u8]) -> Value<'a> {
        Value(Readings::One(Cow::Borrowed(value)))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    #[inline]
    fn from(value: &'a String) -> Value<'a> {
        Value::from(value.as_bytes())
    }
}

impl From<String> for Value<'_> {
    #[inline]
    fn from(value: String) -> Self {
        Value::from(value.into_bytes())
    }
}

impl From<Vec<u8>> for Value<'_> {
    #[inline]
    fn from(value: Vec<u8>) -> Self {
        Value(Readings::One(Cow::Owned(value)))
    }
}
