//! What a log or a pattern says happened: an instant, and values of the attributes that matter.

use std::borrow::Cow;

use smallvec::SmallVec;
use spillgate::{Cost, Request};

/// One request that was made. Its values lie behind each other in one piece, most without a heap.
#[derive(Clone, Debug, Default)]
pub(super) struct Event {
    pub(super) at_us: u64,
    /// What it costs in [`Vocabulary::cost_unit`], where that is read from the log.
    pub(super) cost: Option<u64>,
    ends: SmallVec<[(u16, u32); 6]>,
    bytes: SmallVec<[u8; 64]>,
}

/// The attributes that rules ask for, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Vocabulary {
    names: Vec<String>,
    domain: Option<String>,
    /// The unit of costs that are read.
    cost_unit: Option<String>,
}

impl Event {
    /// One of which nothing is known but when.
    #[cfg(test)]
    pub(super) fn at(at_us: u64) -> Event {
        Event { at_us, ..Event::default() }
    }

    /// As if nothing was known of it; what it had taken of memory it keeps.
    pub(super) fn clear(&mut self) {
        self.at_us = 0;
        self.cost = None;
        self.ends.clear();
        self.bytes.clear();
    }

    /// One value more. Of one attribute the first counts.
    pub(super) fn add(&mut self, attribute: usize, value: &[u8]) {
        if self.value(attribute).is_some() {
            return;
        }
        self.bytes.extend_from_slice(value);
        self.ends.push((attribute as u16, self.bytes.len() as u32));
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

    /// The question that a door would make of it.
    pub(super) fn request<'e>(&'e self, words: &'e Vocabulary) -> Request<'e> {
        let mut request = Request::new();
        if let Some(domain) = &words.domain {
            request = request.in_domain(domain.as_str());
        }
        for (attribute, value) in self.values() {
            request = request.with(words.name(attribute), value);
        }
        match (self.cost, &words.cost_unit) {
            (Some(amount), Some(unit)) => {
                request.costing(Cost::default().and(Cow::Borrowed(unit.as_str()), amount))
            }
            _ => request,
        }
    }

    /// What it costs in a unit.
    pub(super) fn cost_in(&self, unit: &str, words: &Vocabulary) -> u64 {
        match (self.cost, &words.cost_unit) {
            (Some(amount), Some(known)) if known == unit => amount,
            _ => u64::from(unit == REQUESTS),
        }
    }
}

impl Vocabulary {
    /// Without attributes; for requests of this domain, and costs that are read in this unit.
    pub(super) fn new(domain: Option<&str>, cost_unit: Option<&str>) -> Vocabulary {
        let [domain, cost_unit] = [domain, cost_unit].map(|told| told.map(str::to_owned));
        Vocabulary { names: Vec::new(), domain, cost_unit }
    }

    /// Takes a name in, unless it is there; answers its number.
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
