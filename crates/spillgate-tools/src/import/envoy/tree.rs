//! Reads a configuration as a list of its limits, each with the entries that lead to it.

use saphyr::{MarkedYaml, Scalar, ScanError, YamlData, YamlLoader};
use saphyr_parser::{Parser, SpannedEventReceiver};

use super::Note;
use super::copies::Copies;

/// The limits of a configuration.
#[derive(Debug)]
pub struct Tree {
    pub(crate) domain: String,
    /// Every limit and every exemption, in the order of the file.
    pub(crate) nodes: Vec<Node>,
}

/// A limit or an exemption, and the entries of the descriptors that it applies to.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) line: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) limit: Limit,
    pub(crate) shadow: bool,
    /// The name that the configuration gives the limit.
    pub(crate) name: Option<String>,
}

/// An entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(crate) key: String,
    pub(crate) value: Value,
}

/// The values that an entry may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any value.
    Any,
    /// This value.
    Exact(String),
    /// Values that begin with this text.
    Prefix {
        text: String,
        /// Whether all of these values share one counter.
        shared: bool,
    },
    /// Values of a form in which each `*` stands for any text.
    Glob {
        text: String,
        /// Whether all of these values share one counter.
        shared: bool,
    },
    /// Values of keys with a `*`, which no rule can express: the key, as a message shows it.
    WildKey(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    Unlimited,
    Block,
    /// A count of requests in a window such as `30d`.
    Count {
        count: u64,
        window: &'static str,
    },
}

/// Reads a configuration. Anything that envoyproxy/ratelimit refuses is an error.
pub fn read(text: &str, notes: &mut Vec<Note>) -> Result<Tree, Note> {
    let documents = documents(text).map_err(|error| {
        Note::error(error.marker().line(), format!("cannot be read as YAML: {}", error.info()))
    })?;
    let [root] = documents.as_slice() else {
        let message = format!(
            "a file has one document with domain and descriptors, got {}; import each one by itself",
            documents.len()
        );
        return Err(Note::error(1, message));
    };
    let mut reader = Reader { text, notes, nodes: Vec::new() };
    let root = reader.fields(root)?;
    root.refuse_unknown(&["domain", "descriptors"])?;
    let domain = root.text("domain")?.filter(|domain| !domain.is_empty());
    let domain = domain.ok_or_else(|| {
        Note::error(root.line, "there is no domain; write for example domain: web")
    })?;
    reader.descriptors(&root, &mut Vec::new())?;
    Ok(Tree { domain, nodes: reader.nodes })
}

/// Parses YAML within the bounds of [`Copies`]: dropping a deep tree would overflow the stack, and aliases of aliases make
/// a short file a huge one.
fn documents(text: &str) -> Result<Vec<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    let mut copies = Copies::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event?;
        copies.note(&event).map_err(|why| ScanError::new_str(span.start, why))?;
        loader.on_event(event, span);
    }
    match loader.error() {
        Some(error) => Err(error.clone()),
        None => Ok(loader.into_documents()),
    }
}

struct Reader<'t, 'n> {
    text: &'t str,
    notes: &'n mut Vec<Note>,
    nodes: Vec<Node>,
}

/// The fields of a mapping.
struct Fields<'t, 'y> {
    text: &'t str,
    line: usize,
    fields: Vec<(String, &'y MarkedYaml<'y>)>,
}

impl<'t> Reader<'t, '_> {
    fn fields<'y>(&self, node: &'y MarkedYaml<'y>) -> Result<Fields<'t, 'y>, Note> {
        let mut fields = Fields { text: self.text, line: line_of(node), fields: Vec::new() };
        fields.add(node)?;
        Ok(fields)
    }

    /// Reads a list of descriptors below the entries that lead to it.
    fn descriptors(&mut self, parent: &Fields<'t, '_>, above: &mut Vec<Entry>) -> Result<(), Note> {
        let Some(list) = parent.list("descriptors")? else { return Ok(()) };
        if above.len() == DEPTH_MAX && !list.is_empty() {
            let message =
                format!("nested too deeply: a descriptor has at most {DEPTH_MAX} entries");
            return Err(Note::error(parent.line, message));
        }
        let mut known: Vec<String> = Vec::new();
        for node in list {
            let fields = self.fields(node)?;
            let entry = entry(&fields, above)?;
            // As in envoyproxy/ratelimit, share_threshold does not make it another descriptor.
            let (key, value) = (fields.text("key")?, fields.text("value")?);
            let full = [key, value.filter(|value| !value.is_empty())].into_iter().flatten();
            let full = full.collect::<Vec<_>>().join("_");
            if known.contains(&full) {
                let message = "this key and value are in the list already; remove one of them";
                return Err(Note::error(fields.line, message));
            }
            known.push(full);
            above.push(entry);
            self.node(&fields, above)?;
            self.descriptors(&fields, above)?;
            above.pop();
        }
        Ok(())
    }

    fn node(&mut self, fields: &Fields<'t, '_>, entries: &[Entry]) -> Result<(), Note> {
        for (field, reason) in NOT_TRANSLATED {
            if fields.has_effect(field)? {
                let note = Note::difference(fields.line, format!("{field} is left out: {reason}"));
                self.notes.push(note);
            }
        }
        let is_leaf = fields.list("descriptors")?.is_none_or(<[_]>::is_empty);
        let (limit, name) = match fields.get("rate_limit") {
            Some(limit) => {
                let limit = self.fields(limit)?;
                (self.limit(&limit)?, limit.text("name")?)
            }
            // A leaf without a limit exempts its descriptors.
            None if is_leaf => (Limit::Unlimited, None),
            None => return Ok(()),
        };
        let shadow = fields.truth("shadow_mode")?;
        let entries = entries.to_vec();
        self.nodes.push(Node { line: fields.line, entries, limit, shadow, name });
        Ok(())
    }

    fn limit(&mut self, fields: &Fields<'t, '_>) -> Result<Limit, Note> {
        fields.refuse_unknown(&RATE_LIMIT)?;
        self.note_replaced(fields)?;
        let unit = fields.text("unit")?.unwrap_or_default().to_lowercase();
        let unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or(unit);
        if fields.truth("unlimited")? {
            return match unit {
                Err(_) => Ok(Limit::Unlimited),
                Ok((unit, _)) => {
                    let message = format!(
                        "unlimited is true beside unit {unit}, which envoyproxy/ratelimit refuses; remove one of them"
                    );
                    Err(Note::error(fields.line, message))
                }
            };
        }
        let (unit, window) = unit.map_err(|given| {
            let units = UNITS.map(|(name, _)| name).join(", ");
            Note::error(fields.line, format!("{given:?} is not a unit; write one of {units}"))
        })?;
        let days = window.strip_suffix('d').filter(|days| days.parse::<u32>().is_ok());
        if let Some(days) = days {
            let message = format!(
                "a {unit} of envoyproxy/ratelimit is {days} days counted from 1970, and so is that of the rule; write \
                 {unit} in its quota for the calendar's"
            );
            self.notes.push(Note::remark(fields.line, message));
        }
        let count = fields.text("requests_per_unit")?.unwrap_or_else(|| "0".to_owned());
        let Ok(count) = count.parse::<u64>() else {
            let message = format!("{count:?} is not a count of requests; write a whole number");
            return Err(Note::error(fields.line, message));
        };
        if count > COUNT_MAX {
            let message =
                format!("{count} is lowered to {COUNT_MAX}, the highest count of a limit");
            self.notes.push(Note::difference(fields.line, message));
        }
        Ok(match count.min(COUNT_MAX) {
            0 => Limit::Block,
            count => Limit::Count { count, window },
        })
    }

    /// Notes the limits that a limit replaces, since rules have no counterpart.
    fn note_replaced(&mut self, fields: &Fields<'t, '_>) -> Result<(), Note> {
        let own = fields.text("name")?.unwrap_or_default();
        let mut names = Vec::new();
        for node in fields.list("replaces")?.unwrap_or_default() {
            let replaced = self.fields(node)?;
            replaced.refuse_unknown(&["name"])?;
            let name = replaced.text("name")?.unwrap_or_default();
            if name.is_empty() || name == own {
                let message = format!(
                    "replaces names {name:?}, and envoyproxy/ratelimit takes the name of another limit only"
                );
                return Err(Note::error(replaced.line, message));
            }
            names.push(name);
        }
        if !names.is_empty() {
            let message = format!(
                "replaces ({}) is left out: every rule that matches is charged; in Envoy, do not send the descriptor of \
                 the replaced limit on that route",
                names.join(", ")
            );
            self.notes.push(Note::difference(fields.line, message));
        }
        Ok(())
    }
}

impl<'y> Fields<'_, 'y> {
    /// Adds the fields of a mapping; those that are there already stay. The key `<<` merges other mappings, as the YAML
    /// reader of envoyproxy/ratelimit does.
    fn add(&mut self, node: &'y MarkedYaml<'y>) -> Result<(), Note> {
        let line = line_of(node);
        let YamlData::Mapping(mapping) = &node.data else {
            return Err(Note::error(line, "fields are expected here; write key: value"));
        };
        let mut merged = Vec::new();
        for (key, value) in mapping {
            match scalar(self.text, key) {
                None => {
                    return Err(Note::error(
                        line,
                        "the name of a field is not a string; write it in quotes",
                    ));
                }
                Some(name) if name == "<<" => merged.push(value),
                Some(name) if self.get(&name).is_none() => self.fields.push((name, value)),
                Some(_) => {}
            }
        }
        for value in merged {
            match &value.data {
                YamlData::Sequence(list) => list.iter().try_for_each(|node| self.add(node))?,
                _ => self.add(value)?,
            }
        }
        Ok(())
    }

    fn get(&self, field: &str) -> Option<&'y MarkedYaml<'y>> {
        self.fields.iter().find(|(name, _)| name == field).map(|(_, value)| *value)
    }

    /// Returns whether a field is there, and neither false nor empty.
    fn has_effect(&self, field: &str) -> Result<bool, Note> {
        Ok(match self.get(field).map(|value| &value.data) {
            None | Some(YamlData::Value(Scalar::Null)) => false,
            Some(YamlData::Mapping(mapping)) => !mapping.is_empty(),
            Some(_) => self.truth(field)?,
        })
    }

    fn text(&self, field: &str) -> Result<Option<String>, Note> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let text = scalar(self.text, value);
        let text = text.ok_or_else(|| {
            Note::error(
                line_of(value),
                format!("{field} is not a string; write one value, in quotes if need be"),
            )
        })?;
        Ok(Some(text))
    }

    fn truth(&self, field: &str) -> Result<bool, Note> {
        match self.text(field)?.unwrap_or_default().to_lowercase().as_str() {
            "" | "false" | "no" | "off" => Ok(false),
            "true" | "yes" | "on" => Ok(true),
            other => {
                Err(Note::error(self.line, format!("{field} is {other:?}; write true or false")))
            }
        }
    }

    fn list(&self, field: &str) -> Result<Option<&'y [MarkedYaml<'y>]>, Note> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match &value.data {
            YamlData::Value(Scalar::Null) => Ok(None),
            YamlData::Sequence(list) => Ok(Some(list)),
            _ => Err(Note::error(
                line_of(value),
                format!("{field} is not a list; begin each entry with a - on a line of its own"),
            )),
        }
    }

    fn refuse_unknown(&self, known: &[&str]) -> Result<(), Note> {
        match self.fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let message =
                    format!("there is no field {name:?} here; the fields are {}", known.join(", "));
                Err(Note::error(self.line, message))
            }
        }
    }
}

fn entry(fields: &Fields<'_, '_>, above: &[Entry]) -> Result<Entry, Note> {
    fields.refuse_unknown(&DESCRIPTOR)?;
    let key = fields.text("key")?.filter(|key| !key.is_empty());
    let key = key
        .ok_or_else(|| Note::error(fields.line, "there is no key; write for example key: path"))?;
    let shared = fields.truth("share_threshold")?;
    let value = fields.text("value")?.unwrap_or_default();
    if shared && !key.contains('*') && !value.contains('*') {
        let message = format!(
            "share_threshold needs a value with a *, got {value:?}; add one, or leave it out"
        );
        return Err(Note::error(fields.line, message));
    }
    let value = with_single_stars(value);
    let value = match value.strip_suffix('*') {
        // The peer matches key and value as one text, so a * in the key is a wildcard too.
        _ if key.contains('*') => Value::WildKey(format!("key {key:?}")),
        _ if value.is_empty() => Value::Any,
        Some(text) if !text.contains('*') => Value::Prefix { text: text.to_owned(), shared },
        None if !value.contains('*') => Value::Exact(value),
        _ => Value::Glob { text: value, shared },
    };
    Ok(Entry { key: numbered(key, above), value })
}

/// Returns a value in which no two `*` stand side by side, which match what one does.
fn with_single_stars(mut value: String) -> String {
    while value.contains("**") {
        value = value.replace("**", "*");
    }
    value
}

/// Returns a scalar as it is written, so that `value: 1.10` stays this text.
fn scalar(text: &str, node: &MarkedYaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
        YamlData::Value(Scalar::Null) => Some(String::new()),
        YamlData::Value(_) => {
            let (start, end) = (node.span.start.index(), node.span.end.index());
            let written = text.chars().skip(start).take(end.saturating_sub(start));
            Some(written.collect::<String>().trim().to_owned())
        }
        _ => None,
    }
}

fn line_of(node: &MarkedYaml<'_>) -> usize {
    node.span.start.line()
}

/// Returns the attribute of an entry: if several entries have one key, the second is `key.2`, as at the gRPC API.
fn numbered(key: String, above: &[Entry]) -> String {
    let is_free = |name: &String| above.iter().all(|entry| entry.key != *name);
    let numbered = (2..).map(|number| format!("{key}.{number}"));
    let mut names = std::iter::once(key.clone()).chain(numbered);
    names.find(is_free).expect("there are more numbers than entries")
}

const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "quota_mode",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The fields of a descriptor that have no counterpart, and the reasons.
const NOT_TRANSLATED: [(&str, &str); 4] = [
    (
        "detailed_metric",
        "metrics never name a subject; `top` lists the busiest and the most denied",
    ),
    (
        "value_to_metric",
        "metrics never name a subject; `top` lists the busiest and the most denied",
    ),
    ("quota_mode", "a rule without room denies the request, also if another quota has room"),
    ("metadata", "answers have no metadata of rules"),
];

/// The units and their windows, which begin at multiples of their length from 1970 in both programs.
const UNITS: [(&str, &str); 7] = [
    ("second", "second"),
    ("minute", "minute"),
    ("hour", "hour"),
    ("day", "day"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];

/// The highest count of a limit in a policy.
const COUNT_MAX: u64 = u32::MAX as u64;
/// The most entries that the gRPC API accepts in a descriptor.
const DEPTH_MAX: usize = 32;
