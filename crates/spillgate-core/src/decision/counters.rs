//! The counters of a finished decision.

use super::{CounterOutcome, CounterOutcomes};

/// The counters of a decision. Most decisions have one and allocate nothing.
#[derive(Clone)]
pub enum Counters {
    One(CounterOutcome),
    Several(Box<[CounterOutcome]>),
}

impl Counters {
    pub fn as_slice(&self) -> &[CounterOutcome] {
        match self {
            Counters::One(counter) => std::slice::from_ref(counter),
            Counters::Several(counters) => counters,
        }
    }
}

impl From<CounterOutcomes> for Counters {
    #[inline]
    fn from(counters: CounterOutcomes) -> Counters {
        if let [one] = &*counters {
            return Counters::One(one.clone());
        }
        Counters::Several(counters.into_boxed_slice())
    }
}
