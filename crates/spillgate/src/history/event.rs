//! Events of instances: starts, reloads and outages, as the fleet keeps them.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::control::{AuditSeal, Parts, Stamp, random, system_time};
use crate::subject::{Encoding, Secret};

/// An event of one instance.
///
/// [`FleetHistory`](super::FleetHistory) lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetEvent {
    /// The time of the event, by the clock of the store.
    pub at: SystemTime,
    /// The name of the instance.
    pub instance: String,
    /// The kind, as the instance named it.
    pub kind: String,
    /// The event as a sentence.
    pub text: String,
}

/// The events of this instance until they are in the record.
#[derive(Debug)]
pub(crate) struct Events {
    unsent: Mutex<VecDeque<(Stamp, FleetEvent)>>,
    seal: AuditSeal,
}

impl Events {
    pub(crate) fn new(secret: &Secret) -> Events {
        Events { unsent: Mutex::default(), seal: AuditSeal::of_events(secret) }
    }

    /// Adds an event. While the store is down the oldest one goes at the bound.
    pub(crate) fn add(&self, now_us: u64, instance: &str, kind: &str, text: &str) {
        let cut = |text: &str| text.chars().take(TEXT_MAX).collect::<String>();
        let stamp = Stamp { time_us: now_us, random: random() };
        let (instance, kind, text) = (instance.to_owned(), cut(kind), cut(text));
        let event = FleetEvent { at: system_time(now_us), instance, kind, text };
        let mut unsent = self.unsent.lock();
        unsent.push_back((stamp, event));
        if unsent.len() > UNSENT_MAX {
            unsent.pop_front();
        }
    }

    /// Returns the next event to send, sealed.
    pub(crate) fn next(&self) -> Option<(Stamp, Vec<u8>)> {
        let unsent = self.unsent.lock();
        let (stamp, FleetEvent { instance, kind, text, .. }) = unsent.front()?;
        let mut encoded = Encoding::new();
        [instance, kind, text].iter().for_each(|part| encoded.part(part.as_bytes()));
        Some((*stamp, self.seal.sealed_text(*stamp, &encoded)))
    }

    pub(crate) fn note_sent(&self, stamp: Stamp) {
        self.unsent.lock().retain(|(unsent, _)| *unsent != stamp);
    }

    /// Opens events, the newest of which come first, and returns them in the order of their times. One that was appended
    /// twice, because the first reply was lost, is listed once.
    pub(crate) fn opened(&self, sealed: &[Vec<u8>]) -> Vec<FleetEvent> {
        let open = |sealed: &Vec<u8>| {
            let (stamp, text) = self.seal.open_text(sealed)?;
            let mut parts = Parts::of(&text);
            let mut part = || parts.text().map(String::from);
            let (instance, kind, text) = (part()?, part()?, part()?);
            let at = system_time(stamp.time_us);
            Some((stamp, FleetEvent { at, instance, kind, text }))
        };
        let opened: std::collections::BTreeMap<_, _> = sealed.iter().filter_map(open).collect();
        opened.into_values().collect()
    }
}

/// The most events that wait for a store that is down.
const UNSENT_MAX: usize = 100;
const TEXT_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::SHARED_SECRET;

    #[test]
    fn an_event_opens_as_it_was_added_and_once_even_if_it_is_stored_twice() {
        let events = Events::new(&Secret::new(&SHARED_SECRET));
        (0..UNSENT_MAX as u64 + 2)
            .for_each(|at| events.add(at, "web-1", "reload", &at.to_string()));
        let (stamp, first) = events.next().unwrap();
        events.note_sent(stamp);
        let (_, second) = events.next().unwrap();
        let forged = [&second[..], b"x"].concat();
        let opened = events.opened(&[second.clone(), first.clone(), forged, first]);
        let seen: Vec<_> = opened.iter().map(|it| (&*it.instance, &*it.kind, &*it.text)).collect();
        assert_eq!(seen, [("web-1", "reload", "2"), ("web-1", "reload", "3")]);
    }
}
