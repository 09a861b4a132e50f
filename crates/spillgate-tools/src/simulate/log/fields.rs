//! Which fields of a log are wanted, and for which attributes.

use std::borrow::Cow;

use super::value::{Spelling, names_of};
use crate::simulate::event::Vocabulary;

/// What is to be read of each line. Of several fields for one attribute the first that is there counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) fields: Vec<Field>,
    /// Parameters of the target's query.
    pub(super) parameters: Vec<Field>,
    pub(super) times: Vec<String>,
    pub(super) cost: Option<String>,
}

/// One field for one attribute.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) spelling: Spelling,
    pub(super) attribute: usize,
    /// As somebody said it, rather than as it is usually called.
    pub(super) is_told: bool,
}

/// Where somebody says that an attribute, or the time, is found: `--map user=account.id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) attribute: String,
    pub(crate) field: String,
}

impl Wanted {
    /// The fields for the attributes of the vocabulary, as they are usually called unless mapped.
    pub(super) fn of(words: &Vocabulary, mappings: &[Mapping], cost: Option<&str>) -> Wanted {
        let mut wanted = Wanted { cost: cost.map(str::to_owned), ..Wanted::default() };
        for (attribute, name) in words.names().iter().enumerate() {
            let told = told_fields(name, mappings);
            if told.is_empty() {
                let usual = names_of(name).unwrap_or_default().iter().copied();
                let usual =
                    usual.chain(Some(name.as_str()).filter(|name| names_of(name).is_none()));
                wanted.fields.extend(usual.map(|field| Field {
                    name: field.to_owned(),
                    spelling: Spelling::of(name, field),
                    attribute,
                    is_told: false,
                }));
                continue;
            }
            for field in told {
                let parameter = field.strip_prefix(QUERY);
                let kind =
                    if parameter.is_some() { &mut wanted.parameters } else { &mut wanted.fields };
                kind.push(Field {
                    name: parameter.unwrap_or(field).to_owned(),
                    spelling: Spelling::of(name, field),
                    attribute,
                    is_told: true,
                });
            }
        }
        wanted.times = told_fields(TIME, mappings).into_iter().map(str::to_owned).collect();
        if wanted.times.is_empty() {
            wanted.times =
                names_of(TIME).unwrap_or_default().iter().map(|&name| name.to_owned()).collect();
        }
        wanted
    }
}

fn told_fields<'m>(attribute: &str, mappings: &'m [Mapping]) -> Vec<&'m str> {
    let told = mappings.iter().filter(|mapping| mapping.attribute == attribute);
    told.map(|mapping| mapping.field.as_str()).collect()
}

/// A whole number of something, a fraction of it cut.
pub(super) fn amount(text: &[u8]) -> Result<u64, Cow<'static, str>> {
    let whole = text.split(|byte| *byte == b'.').next().unwrap_or_default();
    let parsed = std::str::from_utf8(whole).ok().and_then(|digits| digits.parse::<u64>().ok());
    parsed.ok_or_else(|| format!("{:?} is no cost; a cost is a whole number", shown(text)).into())
}

/// The beginning of what somebody wrote, fit for a message.
pub(super) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(60)]);
    text.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect()
}

/// The name under which the time's field is mapped.
pub(crate) const TIME: &str = "time";
/// Before the name of a query's parameter.
pub(super) const QUERY: &str = "query:";

/// What a test wants: attributes of these names, by these fields.
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
    Wanted::of(&words, &maps, cost)
}
