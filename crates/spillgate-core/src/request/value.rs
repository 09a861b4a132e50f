//! Values of attributes. A few have several readings, so that no spelling avoids a rule.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::path::{normalised_path, path_with_slashes_decoded, paths_with_dots_kept};

/// The value of an attribute, of any bytes.
///
/// `Request::with` takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value<'a>(Readings<'a>);

/// The readings of a value. Several are rare, so they are kept apart and all other values stay small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Readings<'a> {
    One(Cow<'a, [u8]>),
    /// The first is the one by which keys name a subject.
    Several(Box<[Box<[u8]>]>),
}

impl<'a> Value<'a> {
    /// Makes the value of a path: [`normalised_path`], and if the path has `%2F`, also
    /// [`path_with_slashes_decoded`]. With dot segments it has further readings that keep them, since some servers do not
    /// resolve these. A rule matches by any reading, and a key uses the one with all slashes decoded and all dots resolved.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Value;
    /// assert_eq!(Value::of_path("//login?x").as_bytes(), b"/login");
    /// let path = Value::of_path("/login/../x");
    /// assert_eq!(path.as_bytes(), b"/x");
    /// assert_eq!(path.other_readings().collect::<Vec<_>>(), [b"/login/../x"]);
    /// ```
    pub fn of_path<T: AsRef<[u8]> + ?Sized>(target: &'a T) -> Value<'a> {
        let kept = normalised_path(target);
        let with_dots = paths_with_dots_kept(target.as_ref());
        match path_with_slashes_decoded(target) {
            Some(decoded) => {
                Value::of_readings(decoded, [kept.into_owned()].into_iter().chain(with_dots))
            }
            None => match kept {
                Cow::Borrowed(kept) => kept.into(),
                Cow::Owned(kept) => Value::of_readings(kept, with_dots),
            },
        }
    }

    /// Makes the value of a header field or parameter that a client may repeat; `None` without a value.
    ///
    /// Some servers take the first of several values and some the last, so a client could choose its subject by the
    /// other ones. All requests with several values therefore share the subject `several values`. Rules match by that, by
    /// each of the values, or by all in their order, joined by commas.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Value;
    /// let one = Value::of_repeated([&b"a"[..], b"a"]).unwrap();
    /// let several = Value::of_repeated([&b"a"[..], b"b"]).unwrap();
    /// assert_eq!(one.as_bytes(), b"a");
    /// assert_eq!(several.as_bytes(), b"several values");
    /// assert_eq!(several.other_readings().collect::<Vec<_>>(), [&b"a,b"[..], b"a", b"b"]);
    /// ```
    pub fn of_repeated(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Value<'a>> {
        let values: SmallVec<[&[u8]; 1]> = values.into_iter().collect();
        let (first, others) = values.split_first()?;
        if others.iter().all(|other| other == first) {
            return Some(Value::from(*first));
        }
        let mut each: Vec<Vec<u8>> = values.iter().map(|value| value.to_vec()).collect();
        each.sort_unstable();
        Some(Value::of_readings(SEVERAL, [values.join(&b',')].into_iter().chain(each)))
    }

    /// Makes a value whose subject has another name than what rules also match.
    pub(crate) fn of_readings<T: Into<Vec<u8>>>(
        subject: impl Into<Vec<u8>>,
        others: impl IntoIterator<Item = T>,
    ) -> Value<'a> {
        let mut readings = vec![subject.into().into_boxed_slice()];
        for other in others {
            let other = other.into().into_boxed_slice();
            // Equal ones follow each other, but for the first.
            if readings.first() != Some(&other) && readings.last() != Some(&other) {
                readings.push(other);
            }
        }
        Value(match readings.len() {
            1 => Readings::One(Cow::Owned(readings.swap_remove(0).into_vec())),
            _ => Readings::Several(readings.into()),
        })
    }

    /// Returns the value with bytes of its own.
    pub fn into_owned(self) -> Value<'static> {
        Value(match self.0 {
            Readings::One(value) => Readings::One(Cow::Owned(value.into_owned())),
            Readings::Several(readings) => Readings::Several(readings),
        })
    }

    /// Returns the value without copying its bytes, unless it has several readings.
    #[inline]
    pub fn borrowed(&self) -> Value<'_> {
        match &self.0 {
            Readings::One(value) => Value::from(&**value),
            Readings::Several(_) => Value(self.0.clone()),
        }
    }

    /// Returns the bytes of the value. Of several readings it is the one by which keys name a subject.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Readings::One(value) => value,
            Readings::Several(readings) => &readings[0],
        }
    }

    /// Returns the other readings by which rules match: of a path, those that keep `%2F` or dot segments.
    #[inline]
    pub fn other_readings(&self) -> impl Iterator<Item = &[u8]> {
        let others = match &self.0 {
            Readings::One(_) => &[],
            Readings::Several(readings) => &readings[1..],
        };
        others.iter().map(|reading| &**reading)
    }

    /// Returns all readings.
    #[inline]
    pub(crate) fn readings(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.as_bytes()).chain(self.other_readings())
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
