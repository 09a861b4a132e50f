//! Values of attributes. A few have several readings, so that no spelling avoids a rule.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::path::{has_fragment, normalised_path, readings, subject_of};

/// The value of an attribute, of any bytes.
///
/// `Request::with` takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value<'a>(Readings<'a>);

/// The readings of a value. Several are rare, so they are kept apart and all other values stay small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Readings<'a> {
    One(Cow<'a, [u8]>),
    /// At least two readings of different bytes.
    Several(Box<[Reading]>),
    /// The values of a repeated field, which have no type yet: joined, then each once.
    Repeated(Box<[Box<[u8]>]>),
}

/// One reading of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Reading {
    /// The bytes by which rules match.
    value: Box<[u8]>,
    /// The bytes by which keys name the subject.
    subject: Box<[u8]>,
}

impl<'a> Value<'a> {
    /// Makes the value of a path: [`normalised_path`], and every other reading of it that a server may make.
    ///
    /// Servers differ about `%2F`, dot segments, `#` and a newline at the end, so a path with any of these has several
    /// readings. A rule matches by any of them, and its key uses the reading that matched, with all slashes decoded, all
    /// dots resolved and no final newline.
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
        let target = target.as_ref();
        match normalised_path(target) {
            Cow::Borrowed(path) if path.len() == target.len() || !has_fragment(target) => {
                path.into()
            }
            _ => Value::of_readings(readings(target).into_iter().map(|reading| {
                let subject = subject_of(&reading).into_bytes();
                (reading.into_bytes(), subject)
            })),
        }
    }

    /// Makes the value of a header field or parameter that a client may repeat; `None` without a value.
    ///
    /// Some servers take the first of several values and some the last, so a client could choose its subject by the
    /// other ones. All requests with several values therefore share the subject `several values`. Rules match by that, by
    /// each of the values, or by all in their order, joined by commas. The type of the attribute applies to each value.
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
        let mut each: Vec<Box<[u8]>> = values.iter().map(|value| Box::from(*value)).collect();
        each.sort_unstable();
        each.dedup();
        each.insert(0, values.join(&b',').into());
        Some(Value(Readings::Repeated(each.into())))
    }

    /// Makes a value of its readings, each with its subject.
    fn of_readings(each: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Value<'a> {
        let mut readings: Vec<Reading> = Vec::new();
        for (value, subject) in each {
            if !readings.iter().any(|known| *known.value == *value) {
                readings.push(Reading { value: value.into(), subject: subject.into() });
            }
        }
        Value(match readings.len() {
            1 => Readings::One(Cow::Owned(readings.swap_remove(0).value.into_vec())),
            _ => Readings::Several(readings.into()),
        })
    }

    /// Gives the value one spelling for all that mean the same. A repeated field has every reading of each of its values
    /// and the subject `shared`, or is a single value if all mean the same.
    pub(crate) fn respelled(
        &self,
        read: impl Fn(&[u8]) -> Value<'static>,
        fold: impl Fn(&[u8]) -> Vec<u8>,
        shared: &[u8],
    ) -> Value<'static> {
        let each = match &self.0 {
            Readings::One(value) => return read(value),
            Readings::Several(readings) => {
                let folded = |one: &Reading| (fold(&one.value), fold(&one.subject));
                return Value::of_readings(readings.iter().map(folded));
            }
            Readings::Repeated(each) => each.iter().skip(1).map(|value| read(value)),
        };
        let mut each: Vec<Value<'static>> = each.collect();
        each.dedup();
        if each.len() == 1 {
            return each.swap_remove(0);
        }
        let all = each.iter().flat_map(Value::readings);
        let all = std::iter::once(shared).chain(all);
        Value::of_readings(all.map(|reading| (reading.to_vec(), shared.to_vec())))
    }

    /// Returns the value with bytes of its own.
    pub fn into_owned(self) -> Value<'static> {
        Value(match self.0 {
            Readings::One(value) => Readings::One(Cow::Owned(value.into_owned())),
            Readings::Several(readings) => Readings::Several(readings),
            Readings::Repeated(each) => Readings::Repeated(each),
        })
    }

    /// Returns the value without copying its bytes, unless it has several readings.
    pub fn borrowed(&self) -> Value<'_> {
        match &self.0 {
            Readings::One(value) => Value::from(&**value),
            Readings::Several(_) | Readings::Repeated(_) => Value(self.0.clone()),
        }
    }

    /// Returns the bytes of the value. Of several readings of a path it is the one with all slashes decoded and all dots
    /// resolved, and of a repeated field `several values`.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Readings::One(value) => value,
            Readings::Several(readings) => &readings[0].value,
            Readings::Repeated(_) => SEVERAL,
        }
    }

    /// Returns the other readings by which rules match.
    #[doc(hidden)]
    pub fn other_readings(&self) -> impl Iterator<Item = &[u8]> {
        let (readings, repeated): (&[Reading], &[Box<[u8]>]) = match &self.0 {
            Readings::One(_) => (&[], &[]),
            Readings::Several(readings) => (&readings[1..], &[]),
            Readings::Repeated(each) => (&[], each),
        };
        readings.iter().map(|one| &*one.value).chain(repeated.iter().map(|one| &**one))
    }

    /// Returns whether it has several readings.
    #[inline]
    pub(crate) fn is_several(&self) -> bool {
        !matches!(self.0, Readings::One(_))
    }

    /// Returns all readings.
    pub(crate) fn readings(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.as_bytes()).chain(self.other_readings())
    }

    /// Returns the bytes by which the key of a rule names the subject, for a rule that matches these readings.
    ///
    /// They are the subject of the readings that match. Readings with different subjects have a shared one: a server may
    /// take either, so each would be a subject that clients invent for requests that their server takes for the other.
    #[inline]
    #[doc(hidden)]
    pub fn subject(&self, matches: impl Fn(&[u8]) -> bool) -> &[u8] {
        match &self.0 {
            Readings::One(value) => value,
            Readings::Several(readings) => shared_subject(readings, matches),
            Readings::Repeated(_) => SEVERAL,
        }
    }
}

#[cold]
fn shared_subject(readings: &[Reading], matches: impl Fn(&[u8]) -> bool) -> &[u8] {
    let mut subjects = readings.iter().filter(|one| matches(&one.value)).map(|one| &*one.subject);
    let first = subjects.next().unwrap_or(&readings[0].subject);
    if subjects.all(|other| other == first) { first } else { SEVERAL_PATHS }
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
    fn from(value: &'a String) -> Value<'a> {
        Value::from(value.as_bytes())
    }
}

impl From<String> for Value<'_> {
    fn from(value: String) -> Self {
        Value::from(value.into_bytes())
    }
}

impl From<Vec<u8>> for Value<'_> {
    fn from(value: Vec<u8>) -> Self {
        Value(Readings::One(Cow::Owned(value)))
    }
}

/// The subject of requests that repeat a header field or parameter with several values.
pub(crate) const SEVERAL: &[u8] = b"several values";
/// The same in the spelling of paths, also for requests whose path a rule matches as several subjects.
pub(crate) const SEVERAL_PATHS: &[u8] = b"/several%20values";
