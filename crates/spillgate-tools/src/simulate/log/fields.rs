//! Finds the fields of a log that are wanted, and the attribute that each is for.

use std::borrow::Cow;

use super::value::{Spelling, names_of};
use crate::printable;
use crate::simulate::event::Vocabulary;

/// The fields to read of each line. If several are for one attribute, the first one present counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) fields: Vec<Field>,
    /// Parameters of the query of the request's target.
    pub(super) parameters: Vec<Field>,
    pub(super) times: Vec<String>,
    pub(super) cost: Option<String>,
}

/// A field that holds an attribute.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) spelling: Spelling,
    pub(super) attribute: usize,
    /// Whether `--map` names the field, rather than the table of usual names.
    pub(super) is_mapped: bool,
}

/// A `--map` flag: the field of an attribute or of the time, as in `user=account.id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) attribute: String,
    pub(crate) field: String,
}

impl Wanted {
    /// Returns the fields of the attributes of the vocabulary: those of `--map`, else those of the usual names.
    pub(super) fn new(words: &Vocabulary, mappings: &[Mapping], cost: Option<&str>) -> Wanted {
        let mut wanted = Wanted { cost: cost.map(str::to_owned), ..Wanted::default() };
        for (attribute, name) in words.names().iter().enumerate() {
            let mapped = mapped_fields(name, mappings);
            if mapped.is_empty() {
                let mut usual: Vec<&str> = names_of(name).collect();
                if usual.is_empty() {
                    usual.push(name);
                }
                wanted.fields.extend(usual.into_iter().map(|field| Field {
                    name: field.to_owned(),
                    spelling: Spelling::of(name, field),
                    attribute,
                    is_mapped: false,
                }));
                continue;
            }
            for field in mapped {
                let parameter = field.strip_prefix(QUERY);
                let kind =
                    if parameter.is_some() { &mut wanted.parameters } else { &mut wanted.fields };
                kind.push(Field {
                    name: parameter.unwrap_or(field).to_owned(),
                    spelling: Spelling::of(name, field),
                    attribute,
                    is_mapped: true,
                });
            }
        }
        wanted.times = mapped_fields(TIME, mappings).into_iter().map(str::to_owned).collect();
        if wanted.times.is_empty() {
            wanted.times = names_of(TIME).map(str::to_owned).collect();
        }
        wanted
    }
}

fn mapped_fields<'m>(attribute: &str, mappings: &'m [Mapping]) -> Vec<&'m str> {
    let mapped = mappings.iter().filter(|mapping| mapping.attribute == attribute);
    mapped.map(|mapping| mapping.field.as_str()).collect()
}

/// Reads a whole number, and drops its fraction.
pub(super) fn amount(text: &[u8]) -> Result<u64, Cow<'static, str>> {
    let whole = text.split(|byte| *byte == b'.').next().unwrap_or_default();
    let parsed = std::str::from_utf8(whole).ok().and_then(|digits| digits.parse::<u64>().ok());
    parsed.ok_or_else(|| format!("{:?} is no cost; a cost is a whole number", shown(text)).into())
}

/// Returns the beginning of a foreign text, without control characters, for a message.
pub(super) fn shown(text: &[u8]) -> String {
    printable(&String::from_utf8_lossy(&text[..text.len().min(60)]))
}

/// The name by which `--map` names the time.
pub(crate) const TIME: &str = "time";
/// The prefix of the name of a query parameter.
pub(super) const QUERY: &str = "query:";

/// Returns the wanted fields of these attributes and mappings, for tests.
#[cfg(test)]
pub(super) fn wanted(names: &[&str], maps: &[(&str, &str)], cost: Option<&str>) -> Wanted {
    let mut words = Vocabulary::default();
    names.iter().for_each(|name| {
        words.learn(name);
    });
    let mapping = |(attribute, field): &(&str, &str)| Mapping {
        attribute: (*attribute).into(),
        field: (*field).into(),
    };
    let maps: Vec<Mapping> = maps.iter().map(mapping).collect();
    Wanted::new(&words, &maps, cost)
}
