//! Parses JSON strictly: an object is no array, its fields are known and unique, and every list is bounded. An error
//! names its field, or its line and column if the text is no JSON.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::problem::Problem;
use crate::bounds::{ATTRIBUTES_MAX, NAME_MAX};

/// Parses a body as `T`.
///
/// # Errors
///
/// A problem that names the field, or the line and column.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| explain::<T>(body, &error))
}

/// Finds the field of an error: parses the body a second time and tracks the path, so that a valid body pays nothing.
fn explain<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    if body.trim_ascii().is_empty() {
        return Problem::no_body(&expected::<T>());
    }
    if body.starts_with(GZIP) {
        return Problem::compressed();
    }
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let message = message.trim_end_matches(&format!(" at line {line} column {column}"));
    if !error.is_data() {
        let message = if error.is_eof() { "it ends too early" } else { message };
        return Problem::broken_json(line, column, message);
    }
    let again = &mut serde_json::Deserializer::from_slice(body);
    let path = match serde_path_to_error::deserialize::<_, T>(again) {
        Ok(_) => String::new(),
        Err(tracked) => tracked.path().to_string(),
    };
    Problem::in_field(&field(&path, message), &with_example(&in_terms_of_json(message)))
}

/// Returns the message about a value of another type as `expected a string, got an object`: serde has its own names for
/// the types of JSON.
fn in_terms_of_json(message: &str) -> Cow<'_, str> {
    let about_type = message.strip_prefix("invalid type: ");
    // What was given may contain any words, but no expectation contains these.
    let Some((given, expected)) = about_type.and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return Cow::Borrowed(message);
    };
    let given = match given {
        "map" => "an object",
        "sequence" => "an array",
        _ => {
            let value = ["integer ", "floating point ", "boolean ", "string "]
                .iter()
                .find_map(|of_type| given.strip_prefix(of_type));
            value.unwrap_or(given).trim_matches('`')
        }
    };
    Cow::Owned(format!("expected {expected}, got {given}"))
}

/// Returns the text after "expected" in an error of `T`, such as an example of the object.
fn expected<'a, T: Deserialize<'a>>() -> String {
    let error = serde_json::from_slice::<T>(b"null").err().map(|error| error.to_string());
    let expected = error.as_deref().and_then(|error| error.split_once("expected "));
    let expected = expected.and_then(|(_, rest)| rest.rsplit_once(" at line "));
    expected.map_or("JSON", |(expected, _)| expected).to_owned()
}

/// Adds an example to the message of a missing field.
fn with_example(message: &str) -> Cow<'_, str> {
    let example = match message {
        "missing field `quota`" => r#""quota": "5/minute""#,
        "missing field `receipt`" => r#""receipt": "AQAB…", as it was returned"#,
        "missing field `cost`" => r#""cost": 1"#,
        "missing field `ttl_ms`" => r#""ttl_ms": 30000"#,
        _ => return Cow::Borrowed(message),
    };
    Cow::Owned(format!("{message}; add for example {example}"))
}

/// Returns the field of an error. For a missing or duplicate field the path is that of its parent, and the message
/// names the field.
fn field(path: &str, message: &str) -> String {
    let named = ["missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start));
    let child = named.and_then(|rest| rest.split('`').next());
    let parent = path.trim_matches('.');
    match child {
        None => parent.to_owned(),
        Some(child) if parent.is_empty() => child.to_owned(),
        Some(child) => format!("{parent}.{child}"),
    }
}

/// A struct that is written as an object, never as an array of its fields.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(AsMap(deserializer)).map(Object)
    }
}

struct AsMap<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AsMap<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

/// An object with field names that the client chooses: each once, with at most `LONGEST` bytes, and not too many.
pub struct Named<'a, T, const LONGEST: usize = NAME_MAX>(pub(crate) Vec<(Cow<'a, str>, T)>);

impl<'de: 'a, 'a, T: Deserialize<'de>, const LONGEST: usize> Deserialize<'de>
    for Named<'a, T, LONGEST>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor::<T, LONGEST>(PhantomData)).map(Named)
    }
}

pub struct NamedVisitor<T, const LONGEST: usize>(pub(crate) PhantomData<T>);

impl<'de, T: Deserialize<'de>, const LONGEST: usize> Visitor<'de> for NamedVisitor<T, LONGEST> {
    type Value = Vec<(Cow<'de, str>, T)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Self::Value = Vec::new();
        while let Some(Name(name)) = map.next_key::<Name<'de, LONGEST>>()? {
            if entries.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format_args!(
                    "duplicate field `{name}`; give it once"
                )));
            }
            if entries.len() == ATTRIBUTES_MAX {
                return Err(A::Error::custom(format_args!(
                    "more than {ATTRIBUTES_MAX} names; leave out names that no rule uses"
                )));
            }
            entries.push((name, map.next_value()?));
        }
        Ok(entries)
    }
}

/// The name of an attribute, a unit or a domain: 1 to `LONGEST` bytes.
pub struct Name<'a, const LONGEST: usize = NAME_MAX>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a, const LONGEST: usize> Deserialize<'de> for Name<'a, LONGEST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(name) = Text::deserialize(deserializer)?;
        match name.len() {
            length if (1..=LONGEST).contains(&length) => Ok(Name(name)),
            length => Err(D::Error::custom(format_args!(
                "a name of {length} bytes; names have 1 to {LONGEST}"
            ))),
        }
    }
}

/// A string, borrowed from the body unless it holds escapes.
#[derive(PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// An array of at most `MAX`.
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData)).map(List)
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == MAX {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX} items; send the rest in another call"
                )));
            }
            items.push(item);
        }
        Ok(items)
    }
}

/// The first bytes of a body that is compressed with gzip.
const GZIP: &[u8] = b"\x1f\x8b";
