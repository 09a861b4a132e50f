//! Requests of a log or a pattern: an instant, and the values of the attributes that rules need.

use std::borrow::Cow;

use smallvec::SmallVec;
use spillgate::{Cost, Request, Value};

/// One request. Its values are stored one behind the other in one buffer, most without a heap allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Event {
    pub(super) at_us: u64,
    /// The cost in [`Vocabulary::cost_unit`], if it is read from the log.
    pub(super) cost: Option<u64>,
    ends: SmallVec<[(u16, u32); 6]>,
    bytes: SmallVec<[u8; 64]>,
    /// The targets whose path has two readings.
    targets: Vec<(usize, Box<[u8]>)>,
}

/// The attributes that rules need, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Vocabulary {
    names: Vec<String>,
    domain: Option<String>,
    /// The unit of costs that the log holds.
    cost_unit: Option<String>,
}

impl Event {
    /// Returns an event with nothing but an instant.
    #[cfg(test)]
    pub(super) fn at(at_us: u64) -> Event {
        Event { at_us, ..Event::default() }
    }

    /// Empties the event, and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.at_us = 0;
        self.cost = None;
        self.ends.clear();
        self.bytes.clear();
        self.targets.clear();
    }

    /// Adds a value, unless the attribute has one: the first value counts.
    pub(super) fn add(&mut self, attribute: usize, value: &[u8]) {
        if self.value(attribute).is_some() {
            return;
        }
        self.bytes.extend_from_slice(value);
        self.ends.push((attribute as u16, self.bytes.len() as u32));
    }

    /// Adds the path of a target in its normal form, with all its readings.
    pub(super) fn add_path(&mut self, attribute: usize, target: &[u8]) {
        let path = Value::of_path(target);
        if path.other_readings().next().is_some() && self.value(attribute).is_none() {
            self.targets.push((attribute, target.into()));
        }
        self.add(attribute, path.as_bytes());
    }

    pub(super) fn value(&self, attribute: usize) -> Option<&[u8]> {
        self.values().find(|(known, _)| *known == attribute).map(|(_, value)| value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(attribute, end)| {
            let value = &self.bytes[start..*end as usize];
            start = *end as usize;
            (usize::from(*attribute), value)
        })
    }

    /// Returns the request that an API would make of the event.
    pub(super) fn request<'e>(&'e self, words: &'e Vocabulary) -> Request<'e> {
        let mut request = Request::new();
        if let Some(domain) = &words.domain {
            request = request.in_domain(domain.as_str());
        }
        for (attribute, value) in self.values() {
            request = request.with(words.name(attribute), value);
        }
        for (attribute, target) in &self.targets {
            request.set(words.name(*attribute), Value::of_path(target));
        }
        match (self.cost, &words.cost_unit) {
            (Some(amount), Some(unit)) => {
                request.costing(Cost::default().and(Cow::Borrowed(unit.as_str()), amount))
            }
            _ => request,
        }
    }

    /// Returns the event's cost in a unit.
    pub(super) fn cost_in(&self, unit: &str, words: &Vocabulary) -> u64 {
        match (self.cost, &words.cost_unit) {
            (Some(amount), Some(known)) if known == unit => amount,
            _ => u64::from(unit == REQUESTS),
        }
    }
}

impl Vocabulary {
    /// Returns a vocabulary without attributes, for requests of this domain and costs in this unit.
    pub(super) fn new(domain: Option<&str>, cost_unit: Option<&str>) -> Vocabulary {
        let [domain, cost_unit] = [domain, cost_unit].map(|name| name.map(str::to_owned));
        Vocabulary { names: Vec::new(), domain, cost_unit }
    }

    /// Adds a name, unless it is there already, and returns its number.
    pub(super) fn learn(&mut self, name: &str) -> usize {
        self.number(name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    pub(super) fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

const REQUESTS: &str = "requests";
