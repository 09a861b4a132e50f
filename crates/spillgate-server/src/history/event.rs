//! Events with the wall clock's time: what changed, and when.

use std::collections::VecDeque;

/// A start, a reload, a change by an operator, or a turn of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Since 1970-01-01 00:00 UTC.
    pub(crate) at_ms: u64,
    pub(crate) kind: EventKind,
    /// The rule that it is about; `None` if it is about all.
    pub(crate) rule: Option<Box<str>>,
    pub(crate) text: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Start,
    Reload,
    ReloadRefused,
    /// An operator changed something, or such a change has expired.
    Change,
    Degraded,
    Recovered,
    StateLoss,
    Stop,
    /// Another instance misses it.
    Gone,
}

/// The last events, the newest last, without changes by operators.
#[derive(Default)]
pub struct Events {
    last: VecDeque<Event>,
    /// Those that the fleet does not have yet.
    unreported: Vec<Event>,
}

impl Event {
    pub(crate) fn new(at_ms: u64, kind: EventKind, rule: Option<&str>, text: &str) -> Event {
        let end = text.char_indices().nth(TEXT_MAX).map_or(text.len(), |(end, _)| end);
        Event { at_ms, kind, rule: rule.map(Box::from), text: text[..end].into() }
    }

    /// Returns whether the event matters to a rule: it is about the rule, or about all.
    pub fn concerns(&self, rule: Option<&str>) -> bool {
        rule.is_none() || self.rule.is_none() || self.rule.as_deref() == rule
    }
}

impl EventKind {
    const ALL: [EventKind; 9] = [
        EventKind::Start,
        EventKind::Reload,
        EventKind::ReloadRefused,
        EventKind::Change,
        EventKind::Degraded,
        EventKind::Recovered,
        EventKind::StateLoss,
        EventKind::Stop,
        EventKind::Gone,
    ];

    /// Returns the kind that the admin API spells so.
    pub(crate) fn named(name: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the kind as the admin API spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EventKind::Start => "start",
            EventKind::Reload => "reload",
            EventKind::ReloadRefused => "reload-refused",
            EventKind::Change => "change",
            EventKind::Degraded => "degraded",
            EventKind::Recovered => "recovered",
            EventKind::StateLoss => "state-loss",
            EventKind::Stop => "stop",
            EventKind::Gone => "gone",
        }
    }
}

impl Events {
    /// Adds an event. At the bound the oldest one goes.
    pub fn add(&mut self, event: Event) {
        if self.last.len() == EVENTS_MAX {
            self.last.pop_front();
        }
        if self.unreported.len() < UNREPORTED_MAX {
            self.unreported.push(event.clone());
        }
        self.last.push_back(event);
    }

    /// Takes the events that the fleet does not have yet.
    pub fn take_unreported(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.unreported)
    }

    /// Returns the events, the newest last.
    pub fn all(&self) -> impl Iterator<Item = &Event> {
        self.last.iter()
    }
}

/// More than a day has, unless a shard comes and goes all the time.
const EVENTS_MAX: usize = 1_000;
/// The most events of a second that the fleet gets.
const UNREPORTED_MAX: usize = 100;
/// The most characters of a text.
const TEXT_MAX: usize = 300;
