//! Values of attributes. A few have two readings, so that no spelling avoids a rule.

use std::borrow::Cow;

use crate::path::{normalised_path, path_with_slashes_decoded};

/// The value of an attribute, of any bytes.
///
/// `Request::with` takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value<'a>(Readings<'a>);

/// The readings of a value. Two are rare, so they are kept apart and all other values stay small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Readings<'a> {
    One(Cow<'a, [u8]>),
    Two(Box<TwoReadings>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct TwoReadings {
    /// The reading by which keys name a subject.
    subject: Box<[u8]>,
    other: Box<[u8]>,
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

    /// Makes the value of a header field or parameter that a client may repeat; `None` without a value.
    ///
    /// Some servers take the first of several values and some the last, so a client could choose its subject by the
    /// other ones. All requests with several values therefore share the subject `several values`. Rules match by that,
    /// or by all values in their order, joined by commas.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Value;
    /// let one = Value::of_repeated([&b"a"[..], b"a"]).unwrap();
    /// let several = Value::of_repeated([&b"a"[..], b"b"]).unwrap();
    /// assert_eq!(one.as_bytes(), b"a");
    /// assert_eq!(several.as_bytes(), b"several values");
    /// assert_eq!(several.other_reading(), Some(&b"a,b"[..]));
    /// ```
    pub fn of_repeated(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Value<'a>> {
        let mut values = values.into_iter();
        let first = values.next()?;
        let mut joined: Vec<u8> = Vec::new();
        let mut is_one = true;
        for value in values {
            if joined.is_empty() {
                joined.extend_from_slice(first);
            }
            is_one &= value == first;
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(if is_one { Value::from(first) } else { Value::of_readings(SEVERAL, joined) })
    }

    /// Makes a value whose subject has another name than what rules also match.
    pub(crate) fn of_readings(subject: impl Into<Vec<u8>>, other: impl Into<Vec<u8>>) -> Value<'a> {
        let (subject, other) = (subject.into(), other.into());
        Value(match subject == other {
            true => Readings::One(Cow::Owned(subject)),
            false => Readings::Two(Box::new(TwoReadings {
                subject: subject.into(),
                other: other.into(),
            })),
        })
    }

    /// Returns the value with bytes of its own.
    pub fn into_owned(self) -> Value<'static> {
        Value(match self.0 {
            Readings::One(value) => Readings::One(Cow::Owned(value.into_owned())),
            Readings::Two(readings) => Readings::Two(readings),
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

    /// Returns the bytes of the value. Of a value with two readings it is the one by which keys name a subject.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Readings::One(value) => value,
            Readings::Two(readings) => &readings.subject,
        }
    }

    /// Returns the other reading by which rules match, if there is one: of a path that with `%2F` kept.
    #[inline]
    pub fn other_reading(&self) -> Option<&[u8]> {
        match &self.0 {
            Readings::One(_) => None,
            Readings::Two(readings) => Some(&readings.other),
        }
    }

    /// Returns all readings.
    #[inline]
    pub(crate) fn readings(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.as_bytes()).chain(self.other_reading())
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

/// The subject of requests that repeat a header field or parameter with several values.
const SEVERAL: &[u8] = b"several values";
