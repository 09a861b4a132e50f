//! Reads one JSON object a line. It parses only the wanted fields and skips the rest.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::fields::{Field, Wanted, amount, shown};
use super::instant::instant_us;
use super::value::{names_of, parameter, request_line};
use crate::simulate::event::Event;

/// The places of the wanted fields in an object. Each has a slot, in which its value is noted.
#[derive(Debug)]
pub(super) struct Json {
    root: Node,
    slots: usize,
    /// The slot of each wanted field.
    fields: Vec<usize>,
    times: Vec<usize>,
    cost: Option<usize>,
    request: usize,
    /// The slots of the request's target, for its query parameters.
    targets: Vec<usize>,
}

/// A key on the way to a wanted field, or of the field itself.
#[derive(Debug, Default)]
struct Node {
    slot: Option<usize>,
    children: Vec<(String, Node)>,
}

impl Json {
    pub(super) fn new(wanted: &Wanted) -> Json {
        let mut json = Json {
            root: Node::default(),
            slots: 0,
            fields: Vec::new(),
            times: Vec::new(),
            cost: None,
            request: 0,
            targets: Vec::new(),
        };
        json.fields = wanted.fields.iter().map(|field| json.slot(&field.name)).collect();
        json.times = wanted.times.iter().map(|name| json.slot(name)).collect();
        json.cost = wanted.cost.as_ref().map(|name| json.slot(name));
        json.request = json.slot("request");
        if !wanted.parameters.is_empty() {
            json.targets = names_of("path").map(|name| json.slot(name)).collect();
        }
        json
    }

    /// Reads a line into an event, or returns the line's problem.
    pub(super) fn read(
        &self,
        line: &[u8],
        wanted: &Wanted,
        event: &mut Event,
    ) -> Result<(), Cow<'static, str>> {
        let mut found: Slots<'_> = smallvec::smallvec![None; self.slots];
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        deserializer
            .deserialize_map(Object { node: &self.root, found: &mut found })
            .and_then(|()| deserializer.end())
            .map_err(|error| wrong(&error))?;
        let time = self.times.iter().find_map(|slot| found[*slot]);
        let time = text(time.ok_or("no field holds the time; name it: --map time=FIELD")?);
        event.at_us = instant_us(&time).ok_or_else(|| {
            format!("{:?} is no time; write RFC 3339 or seconds since 1970", shown(&time))
        })?;

        let line = found[self.request].map(text).unwrap_or_default();
        let (method, target) = request_line(&line).unwrap_or_default();
        for (Field { name, spelling, attribute, .. }, slot) in
            wanted.fields.iter().zip(&self.fields)
        {
            if let Some(raw) = found[*slot] {
                spelling.add(&text(raw), *attribute, event);
            } else {
                match name.as_str() {
                    "method" => spelling.add(method, *attribute, event),
                    "path" => spelling.add(target, *attribute, event),
                    _ => {}
                }
            }
        }
        if !wanted.parameters.is_empty() {
            let found = self.targets.iter().find_map(|slot| found[*slot]).map(text);
            let target = found.as_deref().unwrap_or(target);
            for Field { name, attribute, .. } in &wanted.parameters {
                if let Some(value) = parameter(target, name) {
                    event.add(*attribute, value.as_bytes());
                }
            }
        }
        if let Some(slot) = self.cost {
            event.cost = Some(found[slot].map_or(Ok(0), |raw| amount(&text(raw)))?);
        }
        Ok(())
    }

    /// Returns the slot of a field. A name with points is a path; it may also be one key as a whole.
    fn slot(&mut self, name: &str) -> usize {
        if let Some(known) = self.root.find(name) {
            return known;
        }
        let slot = self.slots;
        self.slots += 1;
        self.root.child(name).slot = Some(slot);
        let mut node = &mut self.root;
        for part in name.split('.') {
            node = node.child(part);
        }
        node.slot = Some(slot);
        slot
    }
}

impl Node {
    fn child(&mut self, key: &str) -> &mut Node {
        let place = self.children.iter().position(|(known, _)| known == key);
        let place = place.unwrap_or_else(|| {
            self.children.push((key.to_owned(), Node::default()));
            self.children.len() - 1
        });
        &mut self.children[place].1
    }

    fn find(&self, key: &str) -> Option<usize> {
        self.children.iter().find(|(known, _)| known == key).and_then(|(_, node)| node.slot)
    }
}

type Slots<'l> = smallvec::SmallVec<[Option<&'l str>; 64]>;

/// Visits an object for the fields below a node.
struct Object<'n, 'f, 'l> {
    node: &'n Node,
    found: &'f mut Slots<'l>,
}

impl<'l> Visitor<'l> for Object<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(node) = map.next_key_seed(Key(self.node))? {
            let Some(node) = node else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let raw = map.next_value::<&RawValue>()?.get();
            let inside = !node.children.is_empty() && raw.starts_with('{');
            if inside {
                let mut deserializer = serde_json::Deserializer::from_str(raw);
                let object = Object { node, found: self.found };
                deserializer.deserialize_map(object).map_err(serde::de::Error::custom)?;
            } else if let Some(slot) = node.slot
                && self.found[slot].is_none()
                && !matches!(raw, "null" | "\"\"" | "\"-\"")
                && !raw.starts_with(['{', '['])
            {
                self.found[slot] = Some(raw);
            }
        }
        Ok(())
    }
}

/// Finds the child of a key.
struct Key<'n>(&'n Node);

impl<'n, 'l> serde::de::DeserializeSeed<'l> for Key<'n> {
    type Value = Option<&'n Node>;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'n> Visitor<'_> for Key<'n> {
    type Value = Option<&'n Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.children.iter().find(|(known, _)| known == key).map(|(_, node)| node))
    }
}

/// Returns the bytes of a value: the content of a string, any other value as it is written.
fn text(raw: &str) -> Cow<'_, [u8]> {
    let Some(inside) = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Cow::Borrowed(raw.as_bytes());
    };
    if !inside.contains('\\') {
        return Cow::Borrowed(inside.as_bytes());
    }
    match serde_json::from_str::<String>(raw) {
        Ok(text) => Cow::Owned(text.into_bytes()),
        Err(_) => Cow::Borrowed(inside.as_bytes()),
    }
}

fn wrong(error: &serde_json::Error) -> Cow<'static, str> {
    // The line in the error is always the first; only the column helps.
    let problem = error.to_string();
    let problem = problem.split(" at line ").next().unwrap_or_default();
    format!("no JSON object: {problem} at column {}", error.column()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::log::fields::wanted;

    fn read(
        names: &[&str],
        maps: &[(&str, &str)],
        line: &str,
    ) -> Result<(u64, Vec<String>), String> {
        let wanted = wanted(names, maps, None);
        let mut event = Event::default();
        Json::new(&wanted)
            .read(line.as_bytes(), &wanted, &mut event)
            .map_err(|problem| problem.to_string())?;
        let value =
            |number| String::from_utf8_lossy(event.value(number).unwrap_or(b"?")).into_owned();
        Ok((event.at_us, (0..names.len()).map(value).collect()))
    }

    const CLIENT_AND_TARGET: [&str; 3] = ["ip", "method", "path"];

    #[test]
    fn the_lines_of_well_known_servers_need_no_mapping() {
        for line in [
            r#"{"time_iso8601":"2000-10-10T13:55:36-07:00","remote_addr":"203.0.113.7","request":"GET /a?b HTTP/1.1"}"#,
            r#"{"ts":971211336.0,"request":{"client_ip":"203.0.113.7","method":"GET","uri":"/a?b","headers":{"X":["y"]}},"status":200}"#,
            r#"{"StartUTC":"2000-10-10T20:55:36.000Z","ClientHost":"203.0.113.7","RequestMethod":"GET","RequestPath":"/a"}"#,
            r#"{"timestamp":"2000-10-10T20:55:36Z","httpRequest":{"remoteIp":"203.0.113.7","requestMethod":"GET","requestUrl":"https://x.example/a?b"}}"#,
            r#"{"@timestamp":"2000-10-10T20:55:36Z","client.ip":"203.0.113.7","http":{"request":{"method":"get"}},"url":{"path":"/a"}}"#,
        ] {
            let (at_us, values) = read(&CLIENT_AND_TARGET, &[], line).expect(line);
            assert_eq!(at_us, 971_211_336_000_000, "{line}");
            assert_eq!(values, ["203.0.113.7", "GET", "/a"], "{line}");
        }
    }

    #[test]
    fn a_mapping_descends_as_deep_as_its_points() {
        let line = r#"{"at":971211336000,"a":{"b":{"c":"deep \u00e9"},"n":12.50},"ip":"::1","uri":"/x?user=ann"}"#;
        let maps = [("time", "at"), ("tenant", "a.b.c"), ("price", "a.n"), ("user", "query:user")];
        let (at_us, values) = read(&["tenant", "price", "user"], &maps, line).unwrap();
        assert_eq!(at_us, 971_211_336_000_000);
        assert_eq!(values, ["deep é", "12.50", "ann"]);
    }

    #[test]
    fn an_unreadable_line_names_the_problem() {
        for (line, wrong) in [
            ("", "no JSON object"),
            ("[1]", "no JSON object"),
            (r#"{"time":1"#, "no JSON object"),
            (r#"{"time":1} x"#, "no JSON object"),
            (r#"{"ip":"::1"}"#, "--map time=FIELD"),
            (r#"{"time":"soon"}"#, "\"soon\" is no time"),
            (r#"{"time":{"a":1}}"#, "--map time=FIELD"),
        ] {
            let problem = read(&["ip"], &[], line).unwrap_err();
            assert!(problem.contains(wrong), "{line}: {problem}");
        }
    }
}
