//! The file as a list of its limits, each with the entries that lead to it.

use saphyr::{MarkedYaml, Scalar, ScanError, YamlData, YamlLoader};
use saphyr_parser::{Parser, SpannedEventReceiver};

use super::Note;
use super::copies::Copies;

/// What a file says.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) domain: String,
    /// Every node that limits or exempts, in the order of the file.
    pub(super) nodes: Vec<Node>,
}

/// One limit, and the entries that a descriptor must have for it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) limit: Limit,
    pub(super) shadow: bool,
    /// The name that its own file gives the limit.
    pub(super) name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Value,
}

/// What an entry's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Any,
    Exact(String),
    /// Begins with this.
    Prefix {
        text: String,
        /// One limit for all values that do.
        shared: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited,
    Nothing,
    /// So many, in windows such as `30d`.
    Count {
        count: u64,
        window: &'static str,
    },
}

pub(super) fn read(text: &str, notes: &mut Vec<Note>) -> Result<Tree, Note> {
    let documents = documents(text).map_err(|error| {
        Note::new(error.marker().line(), format!("cannot be read as YAML: {}", error.info()))
    })?;
    let [root] = documents.as_slice() else {
        return Err(Note::new(1, "one document is expected; write domain and descriptors"));
    };
    let mut reader = Reader { text, notes, nodes: Vec::new() };
    let root = reader.fields(root)?;
    root.refuse_unknown(&["domain", "descriptors"])?;
    let domain = root.text("domain")?.filter(|domain| !domain.is_empty());
    let domain = domain.ok_or_else(|| Note::new(root.line, "there is no domain; name it"))?;
    reader.descriptors(&root, &mut Vec::new())?;
    Ok(Tree { domain, nodes: reader.nodes })
}

/// A deep tree is dropped by recursion, and copies of copies make a short file a huge one.
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

/// A mapping of the file.
struct Fields<'t, 'y> {
    text: &'t str,
    line: usize,
    fields: Vec<(String, &'y MarkedYaml<'y>)>,
}

impl<'t> Reader<'t, '_> {
    fn fields<'y>(&self, node: &'y MarkedYaml<'y>) -> Result<Fields<'t, 'y>, Note> {
        let line = line_of(node);
        let YamlData::Mapping(mapping) = &node.data else {
            return Err(Note::new(line, "fields are expected here, as key: value"));
        };
        let fields = mapping.iter().map(|(key, value)| Some((scalar(self.text, key)?, value)));
        let fields = fields.collect::<Option<_>>();
        let fields = fields.ok_or_else(|| Note::new(line, "the name of a field is no text"))?;
        Ok(Fields { text: self.text, line, fields })
    }

    /// The nodes of a list of descriptors, below the entries that lead to it.
    fn descriptors(&mut self, parent: &Fields<'t, '_>, above: &mut Vec<Entry>) -> Result<(), Note> {
        let Some(list) = parent.list("descriptors")? else { return Ok(()) };
        if above.len() == DEPTH_MAX && !list.is_empty() {
            let message = format!("more than {DEPTH_MAX} entries deep; no descriptor has as many");
            return Err(Note::new(parent.line, message));
        }
        let mut known: Vec<Entry> = Vec::new();
        for node in list {
            let fields = self.fields(node)?;
            let entry = entry(&fields, above)?;
            if known.contains(&entry) {
                let message = "this key and value stand in this list already; keep one of them";
                return Err(Note::new(fields.line, message));
            }
            known.push(entry.clone());
            above.push(entry);
            self.node(&fields, above)?;
            self.descriptors(&fields, above)?;
            above.pop();
        }
        Ok(())
    }

    fn node(&mut self, fields: &Fields<'t, '_>, entries: &[Entry]) -> Result<(), Note> {
        for (field, remark) in NOT_CARRIED {
            if fields.get(field).is_some() {
                self.notes.push(Note::new(fields.line, format!("{field} is left out: {remark}")));
            }
        }
        let is_leaf = fields.list("descriptors")?.is_none_or(<[_]>::is_empty);
        let (limit, name) = match fields.get("rate_limit") {
            Some(limit) => {
                let limit = self.fields(limit)?;
                (self.limit(&limit)?, limit.text("name")?)
            }
            // A leaf without a limit exempts what it names.
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
        let mut remark = |message: String| self.notes.push(Note::new(fields.line, message));
        if fields.get("replaces").is_some() {
            remark(REPLACES.to_owned());
        }
        if fields.truth("unlimited")? {
            return Ok(Limit::Unlimited);
        }
        let unit = fields.text("unit")?.unwrap_or_default().to_lowercase();
        let Some((unit, window)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let units = UNITS.map(|(name, _)| name).join(", ");
            return Err(Note::new(
                fields.line,
                format!("{unit:?} is no unit; write one of {units}"),
            ));
        };
        let days = window.strip_suffix('d').filter(|days| days.parse::<u32>().is_ok());
        if let Some(days) = days {
            remark(format!(
                "a {unit} is {days} days there, counted from 1970, and stays so; write {unit} in \
                 the quota for the calendar's"
            ));
        }
        let count = fields.text("requests_per_unit")?.unwrap_or_else(|| "0".to_owned());
        let Ok(count) = count.parse::<u64>() else {
            let message = format!("{count:?} is no count of requests; write a whole number");
            return Err(Note::new(fields.line, message));
        };
        if count > COUNT_MAX {
            remark(format!("{count} is brought down to {COUNT_MAX}, the most that a limit takes"));
        }
        Ok(match count.min(COUNT_MAX) {
            0 => Limit::Nothing,
            count => Limit::Count { count, window },
        })
    }
}

impl<'y> Fields<'_, 'y> {
    fn get(&self, field: &str) -> Option<&'y MarkedYaml<'y>> {
        self.fields.iter().find(|(name, _)| name == field).map(|(_, value)| *value)
    }

    fn text(&self, field: &str) -> Result<Option<String>, Note> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let text = scalar(self.text, value);
        let text = text.ok_or_else(|| Note::new(line_of(value), format!("{field} is no text")))?;
        Ok(Some(text))
    }

    fn truth(&self, field: &str) -> Result<bool, Note> {
        match self.text(field)?.unwrap_or_default().to_lowercase().as_str() {
            "" | "false" | "no" | "off" => Ok(false),
            "true" | "yes" | "on" => Ok(true),
            other => {
                Err(Note::new(self.line, format!("{field} is {other:?}; write true or false")))
            }
        }
    }

    fn list(&self, field: &str) -> Result<Option<&'y [MarkedYaml<'y>]>, Note> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match &value.data {
            YamlData::Value(Scalar::Null) => Ok(None),
            YamlData::Sequence(list) => Ok(Some(list)),
            _ => Err(Note::new(line_of(value), format!("{field} is no list"))),
        }
    }

    fn refuse_unknown(&self, known: &[&str]) -> Result<(), Note> {
        match self.fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let message =
                    format!("there is no field {name:?} here; there are {}", known.join(", "));
                Err(Note::new(self.line, message))
            }
        }
    }
}

fn entry(fields: &Fields<'_, '_>, above: &[Entry]) -> Result<Entry, Note> {
    fields.refuse_unknown(&DESCRIPTOR)?;
    let key = fields.text("key")?.filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| Note::new(fields.line, "a descriptor has a key; write it"))?;
    let shared = fields.truth("share_threshold")?;
    let value = fields.text("value")?.unwrap_or_default();
    let value = match value.strip_suffix('*') {
        _ if value.is_empty() => Value::Any,
        Some(text) => Value::Prefix { text: text.to_owned(), shared },
        None => Value::Exact(value),
    };
    Ok(Entry { key: numbered(key, above), value })
}

/// A scalar as it was written: `value: 1.10` means the text.
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

/// The attribute's name: of several entries with one key the second is `key.2`, as at the door.
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

/// What has no counterpart, and why.
const NOT_CARRIED: [(&str, &str); 4] = [
    ("detailed_metric", "metrics never name a subject"),
    ("value_to_metric", "metrics never name a subject"),
    ("quota_mode", "a rule that is met refuses by itself"),
    ("metadata", "nothing reads it"),
];
const REPLACES: &str = "replaces is left out: every rule that is met counts; leave the limit that \
                        it replaces out of the descriptors of that route";

/// Windows that begin at multiples of their length from 1970, as they do there; so do our days.
const UNITS: [(&str, &str); 7] = [
    ("second", "second"),
    ("minute", "minute"),
    ("hour", "hour"),
    ("day", "day"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];

/// As the policy has it.
const COUNT_MAX: u64 = 1_000_000_000;
/// As many entries as the door takes in one descriptor.
const DEPTH_MAX: usize = 32;
