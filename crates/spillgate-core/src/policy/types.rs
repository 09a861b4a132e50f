//! Types of attributes: values that mean the same get one spelling, so that a client has one
//! subject however its address or path is written.

use std::borrow::Cow;
use std::ops::Deref;

use super::file::{Place, Table};
use super::glob::Glob;
use super::problem::{Problem, Problems};
use crate::ip::{Network, SubjectPrefix, address};
use crate::path::normalised_path;
use crate::request::{Request, SEVERAL_PATHS, Value, is_same};

/// The types of all attributes. An attribute without a type is a text.
#[derive(Clone, Debug)]
pub(crate) struct Types {
    /// A policy declares few, so that a search is as fast as any.
    named: Vec<(Box<str>, AttributeType)>,
}

/// The type of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeType {
    /// Values are compared byte by byte.
    Text,
    /// Values are addresses, cut to the prefix of a subject.
    Ip(SubjectPrefix),
    /// Values are paths in their normal form.
    Path(PathForm),
}

/// Differences between paths that have no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathForm {
    ignore_trailing_slash: bool,
    ignore_case: bool,
}

/// A value of an override's subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// One value of the attribute, in its one spelling.
    Value(Box<[u8]>),
    /// Every address of a network.
    Network(Network),
}

/// The reason why a value of an attribute of type ip names no subject, or not one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// It is neither an address nor a network.
    Unreadable,
    /// The network is a part of this subject.
    PartOf(Network),
    /// It is no address, where only one address is possible.
    NotOne,
    /// It is a network with several subjects, where only one address is possible.
    Several,
}

/// A request with one spelling for values that mean the same.
#[derive(Debug)]
pub enum TypedRequest<'r, 'a> {
    /// Every value has that spelling already.
    Given(&'r Request<'a>),
    /// Some values were written anew.
    Respelled(Box<Request<'a>>),
}

impl<'a> Deref for TypedRequest<'_, 'a> {
    type Target = Request<'a>;

    #[inline]
    fn deref(&self) -> &Request<'a> {
        match self {
            TypedRequest::Given(request) => request,
            TypedRequest::Respelled(request) => request,
        }
    }
}

impl Default for Types {
    /// The attributes that hold an address or a path at forward auth, in the layers and in Envoy.
    fn default() -> Types {
        let ip = AttributeType::Ip(SubjectPrefix::default());
        let path = AttributeType::Path(PathForm::default());
        let types = [("ip", ip), ("path", path), ("remote_address", ip)];
        Types { named: types.map(|(name, of_type)| (name.into(), of_type)).into() }
    }
}

impl Types {
    /// Reads the tables `[attribute.NAME]` of a piece of the file. `declared` has those of earlier
    /// pieces.
    pub(crate) fn read(
        &mut self,
        file: &Table<'_>,
        declared: &mut Vec<Box<str>>,
        problems: &mut Problems<'_>,
    ) {
        for (name, table) in file.tables(SECTION, Place::Attribute, problems) {
            if declared.iter().any(|known| **known == *name) {
                problems.note(table.wrong("type", "declared twice; keep one of the tables"));
            }
            declared.push(name.into());
            let Some(of_type) = AttributeType::read(&table, problems) else { continue };
            self.named.retain(|(known, _)| **known != *name);
            self.named.push((name.into(), of_type));
        }
    }

    /// Returns the type of an attribute.
    #[inline]
    pub(crate) fn type_of(&self, name: &str) -> AttributeType {
        let found = self.named.iter().find(|(known, _)| is_same(known, name));
        found.map_or(AttributeType::Text, |(_, of_type)| *of_type)
    }

    /// Gives each value of a request its one spelling. Nothing is copied if all have it, as most
    /// requests do.
    #[inline]
    pub(crate) fn apply<'r, 'a>(&self, request: &'r Request<'a>) -> TypedRequest<'r, 'a> {
        let mut respelled: Option<Box<Request<'a>>> = None;
        for (name, value) in request.values() {
            if let Some(value) = self.type_of(name).respelled(value) {
                let copy = respelled.get_or_insert_with(|| copied(request));
                copy.set(name.to_owned(), value);
            }
        }
        respelled.map_or(TypedRequest::Given(request), TypedRequest::Respelled)
    }
}

impl AttributeType {
    fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<AttributeType> {
        table.refuse_unknown(&FIELDS, problems);
        table.require("type", "type = \"ip\"", problems);
        let kind = table.choice("type", &KINDS, problems)?;
        let strangers = OPTIONS.iter().filter(|(field, of)| *of != kind && table.has(field));
        for (field, of) in strangers {
            let message = format!("is for attributes of type {of}; leave it out");
            problems.note(table.wrong(field, message));
        }
        Some(match kind {
            "ip" => AttributeType::Ip(read_prefix(table, problems)?),
            "path" => AttributeType::Path(PathForm {
                ignore_trailing_slash: table.truth(TRAILING_SLASH, problems).unwrap_or_default(),
                ignore_case: table.truth(CASE, problems).unwrap_or_default(),
            }),
            _ => AttributeType::Text,
        })
    }

    /// Returns the one spelling of a value, unless the value has it.
    ///
    /// An attribute of type ip whose value is no address has the value [`UNKNOWN`]: all such
    /// requests share a subject, so that a client gets no further limit by odd values.
    #[inline]
    pub(crate) fn respelled(self, value: &Value<'_>) -> Option<Value<'static>> {
        match self {
            AttributeType::Text => None,
            AttributeType::Ip(prefix)
                if !value.is_several() && prefix.is_own_text(value.as_bytes()) =>
            {
                None
            }
            AttributeType::Ip(prefix) => {
                let spelled = |one: &[u8]| {
                    let subject = subject_in(prefix, one).map(Network::text);
                    subject.as_ref().map_or(UNKNOWN, |text| text.as_bytes()).to_vec()
                };
                let respelled = value.respelled(|one| spelled(one).into(), spelled, UNKNOWN);
                (respelled != *value).then_some(respelled)
            }
            AttributeType::Path(form) => form.respelled(value),
        }
    }

    /// Checks whether a value names one subject. Without this check, networks and texts that are no
    /// address would stand for the subject [`UNKNOWN`].
    pub(crate) fn names_one(self, value: &[u8]) -> Result<(), NoAddress> {
        match self.named(value) {
            // A request with a part of a subject belongs to that subject.
            Ok(Named::Value(_)) | Err(NoAddress::PartOf(_)) => Ok(()),
            Ok(Named::Network(_)) => Err(NoAddress::Several),
            Err(_) => Err(NoAddress::NotOne),
        }
    }

    /// Returns whether a value is inside a network that an override names.
    pub(crate) fn is_inside(self, value: &[u8], network: &[u8]) -> bool {
        match (self.named(network), Network::of_value(value)) {
            (Ok(Named::Network(network)), Some(inner)) => network.contains(inner),
            _ => false,
        }
    }

    /// Returns the values that an override names.
    pub(crate) fn named(self, value: &[u8]) -> Result<Named, NoAddress> {
        let AttributeType::Ip(prefix) = self else {
            let respelled = self.respelled(&value.into());
            return Ok(Named::Value(respelled.as_ref().map_or(value, Value::as_bytes).into()));
        };
        if let Some(address) = address(value) {
            return Ok(Named::Value(prefix.subject(address).text().as_bytes().into()));
        }
        if value == UNKNOWN {
            return Ok(Named::Value(UNKNOWN.into()));
        }
        let network = Network::of_value(value).ok_or(NoAddress::Unreadable)?;
        match prefix.subject_with(network) {
            None => Ok(Named::Network(network)),
            Some(subject) if subject == network => {
                Ok(Named::Value(subject.text().as_bytes().into()))
            }
            Some(subject) => Err(NoAddress::PartOf(subject)),
        }
    }
}

impl Named {
    /// Returns its text, by which it is stored, listed and removed.
    pub(crate) fn into_text(self) -> Box<[u8]> {
        match self {
            Named::Value(value) => value,
            Named::Network(network) => network.text().as_bytes().into(),
        }
    }
}

impl NoAddress {
    /// Describes the problem of a value and its remedy.
    pub(crate) fn message(self, value: &[u8]) -> String {
        let value = String::from_utf8_lossy(value);
        match self {
            NoAddress::Unreadable => format!(
                "{value:?} is not an IP address; write one such as \"203.0.113.7\", or a network such as \"203.0.113.0/24\""
            ),
            NoAddress::PartOf(subject) => format!(
                "{value:?} is only a part of {subject}, which counts as one client; write {:?} to cover it",
                subject.to_string()
            ),
            NoAddress::NotOne => {
                format!("{value:?} is not an IP address; write one such as \"203.0.113.7\"")
            }
            NoAddress::Several => format!(
                "{value:?} is a network; write one address such as \"203.0.113.7\", or reset the whole rule (--all, all=true)"
            ),
        }
    }
}

impl PathForm {
    /// Returns a text in the case that values have.
    pub(crate) fn cased(self, text: &str) -> String {
        if self.ignore_case { text.to_ascii_lowercase() } else { text.to_owned() }
    }

    /// Parses a pattern for whole paths as [`Glob::of_path`] does, and spells it as values are.
    pub(crate) fn glob(self, text: &str) -> Option<Glob> {
        let cut =
            text.strip_suffix('/').filter(|cut| self.ignore_trailing_slash && !cut.is_empty());
        let glob = Glob::of_path(cut.unwrap_or(text))?;
        // Not before: in the normal form the digits of escapes are upper-case.
        Some(if self.ignore_case { glob.in_lower_case() } else { glob })
    }

    /// Returns a value in its one spelling with all its readings, unless it has that.
    fn respelled(self, value: &Value<'_>) -> Option<Value<'static>> {
        let is_own = |value: &Value<'_>| {
            let path = Value::of_path(value.as_bytes());
            !path.is_several() && *self.folded(path.as_bytes()) == *value.as_bytes()
        };
        if !value.is_several() && is_own(value) {
            return None;
        }
        let folded = |path: &[u8]| self.folded(path).into_owned();
        // What was read before keeps its readings: those of a reading could be others.
        let read =
            |one: &[u8]| Value::of_path(one).respelled(|one| folded(one).into(), folded, &[]);
        let respelled = value.respelled(read, folded, SEVERAL_PATHS);
        (respelled != *value).then_some(respelled)
    }

    /// Returns the text of an exact pattern, spelled as values with `%2F` kept are.
    pub(crate) fn exact(self, text: &str) -> Box<[u8]> {
        self.folded(normalised_path(text).as_bytes()).into()
    }

    /// Removes the differences without a meaning from a path in its normal form.
    fn folded(self, path: &[u8]) -> Cow<'_, [u8]> {
        let path = match path {
            [cut @ .., b'/'] if self.ignore_trailing_slash && !cut.is_empty() => cut,
            _ => path,
        };
        match self.ignore_case && path.iter().any(u8::is_ascii_uppercase) {
            true => Cow::Owned(path.to_ascii_lowercase()),
            false => Cow::Borrowed(path),
        }
    }
}

#[inline(never)] // else every request is read in advance
fn copied<'a>(request: &Request<'a>) -> Box<Request<'a>> {
    Box::new(request.clone())
}

/// Returns the subject of a value: an address, or the text of a subject that was cut before.
fn subject_in(prefix: SubjectPrefix, value: &[u8]) -> Option<Network> {
    match address(value) {
        Some(address) => Some(prefix.subject(address)),
        None => prefix.subject_with(Network::of_value(value)?),
    }
}

fn read_prefix(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<SubjectPrefix> {
    let mut bits = |field: &str, default: u8, most: u8| -> Option<u8> {
        if !table.has(field) {
            return Some(default);
        }
        let number = table.whole_number(field, default.into(), problems)?;
        let bits = u8::try_from(number).ok().filter(|bits| *bits <= most);
        let wrong = || -> Problem {
            table.wrong(field, format!("such an address has {most} bits; write 0 to {most}"))
        };
        problems.noting(bits.ok_or_else(wrong))
    };
    let (v4, v6) = (bits("ipv4_prefix", 32, 32), bits("ipv6_prefix", 64, 128));
    SubjectPrefix::new(v4?, v6?)
}

pub const SECTION: &str = "attribute";
/// The value of an attribute of type ip that is no address.
pub const UNKNOWN: &[u8] = b"unknown";
const KINDS: [(&str, &str); 3] = [("string", "string"), ("ip", "ip"), ("path", "path")];
const TRAILING_SLASH: &str = "ignore_trailing_slash";
const CASE: &str = "ignore_case";
const FIELDS: [&str; 5] = ["type", "ipv4_prefix", "ipv6_prefix", TRAILING_SLASH, CASE];
/// The fields that belong to one type.
const OPTIONS: [(&str, &str); 4] =
    [("ipv4_prefix", "ip"), ("ipv6_prefix", "ip"), (TRAILING_SLASH, "path"), (CASE, "path")];

#[cfg(test)]
mod tests;
