//! Puts events in the order of their instants.
//!
//! A server writes a line when a request ends, and some servers log when it began. So each event is held until an
//! event later by the whole delay has been read. An event that comes later than that is moved to the newest instant
//! that was emitted: time never goes back, as for a limiter.

use std::collections::VecDeque;

use super::event::Event;

/// Holds events until no earlier one can come.
#[derive(Debug)]
pub(super) struct Order {
    delay_us: u64,
    spread: Spread,
    /// The held events by their instants; those of one instant in the order of their lines.
    held: VecDeque<(u64, u32)>,
    events: Vec<Event>,
    free: Vec<u32>,
    newest_us: u64,
    emitted_us: u64,
    /// The second that is being spread: its instant, its number of events, and how many of them were emitted.
    run: (u64, u64, u64),
    /// How many events came after a later one and were put in order.
    pub(super) sorted: u64,
    /// How many events came too late for that.
    pub(super) late: u64,
}

/// How to treat the events of one instant, if the log has whole seconds only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All of them happen at that instant.
    No,
    /// They are spread evenly over the second.
    OverTheSecond,
}

impl Order {
    pub(super) fn new(delay_us: u64, spread: Spread) -> Order {
        Order {
            delay_us,
            spread,
            held: VecDeque::new(),
            events: Vec::new(),
            free: Vec::new(),
            newest_us: 0,
            emitted_us: 0,
            run: (0, 0, 0),
            sorted: 0,
            late: 0,
        }
    }

    /// Takes an event, and emits those that are due. The caller's event is swapped for one that is no longer needed.
    pub(super) fn take(&mut self, event: &mut Event, mut emit: impl FnMut(&mut Event)) {
        let at_us = event.at_us.max(self.emitted_us);
        if at_us > event.at_us {
            self.late += 1;
        } else if at_us < self.newest_us {
            self.sorted += 1;
        }
        event.at_us = at_us;
        self.newest_us = self.newest_us.max(at_us);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.events.push(Event::default());
            self.events.len() as u32 - 1
        });
        std::mem::swap(&mut self.events[slot as usize], event);
        match self.held.back() {
            Some((last_us, _)) if *last_us > at_us => {
                let place = self.held.partition_point(|(held_us, _)| *held_us <= at_us);
                self.held.insert(place, (at_us, slot));
            }
            _ => self.held.push_back((at_us, slot)),
        }
        while self.held.front().is_some_and(|(held_us, _)| self.is_due(*held_us)) {
            self.emit_first(&mut emit);
        }
    }

    /// Emits all events that are left.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(&mut Event)) {
        while !self.held.is_empty() {
            self.emit_first(&mut emit);
        }
    }

    fn is_due(&self, held_us: u64) -> bool {
        let delay_us = match self.spread {
            Spread::No => self.delay_us,
            // All events of a second must be known before the first is emitted.
            Spread::OverTheSecond => self.delay_us.max(1),
        };
        held_us + delay_us <= self.newest_us || self.held.len() > HELD_MAX
    }

    fn emit_first(&mut self, emit: &mut impl FnMut(&mut Event)) {
        let Some((at_us, slot)) = self.held.pop_front() else { return };
        let spread_us = self.spread_us(at_us);
        self.emitted_us = self.emitted_us.max(at_us + spread_us);
        let event = &mut self.events[slot as usize];
        event.at_us = self.emitted_us;
        emit(event);
        self.free.push(slot);
    }

    fn spread_us(&mut self, at_us: u64) -> u64 {
        if self.spread == Spread::No || !at_us.is_multiple_of(1_000_000) {
            return 0;
        }
        if self.run.0 != at_us || self.run.2 == self.run.1 {
            let alike = self.held.iter().take_while(|(held_us, _)| *held_us == at_us).count();
            self.run = (at_us, alike as u64 + 1, 0);
        }
        let (_, count, emitted) = &mut self.run;
        let spread_us = 1_000_000 * *emitted / *count;
        *emitted += 1;
        spread_us
    }
}

/// Ten seconds at 6,500 requests a second. At a higher rate, events out of order are late sooner.
const HELD_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the instants as emitted, and how many events were sorted and late.
    fn ordered(delay_us: u64, spread: Spread, instants: &[u64]) -> (Vec<u64>, u64, u64) {
        let mut order = Order::new(delay_us, spread);
        let mut emitted = Vec::new();
        for at_us in instants {
            let mut event = Event::at(*at_us);
            order.take(&mut event, |event| emitted.push(event.at_us));
        }
        order.finish(|event| emitted.push(event.at_us));
        (emitted, order.sorted, order.late)
    }

    #[test]
    fn lines_within_the_delay_are_put_in_order() {
        let (emitted, sorted, late) = ordered(10, Spread::No, &[5, 3, 4, 12, 9, 30, 21]);
        assert_eq!((emitted, sorted, late), (vec![3, 4, 5, 9, 12, 21, 30], 4, 0));
    }

    #[test]
    fn a_line_beyond_the_delay_counts_when_it_comes() {
        let (emitted, sorted, late) = ordered(10, Spread::No, &[5, 7, 30, 6]);
        assert_eq!((emitted, sorted, late), (vec![5, 7, 7, 30], 0, 1));
    }

    #[test]
    fn time_never_goes_back_in_any_input() {
        for seed in 0..200 {
            let mut random = super::super::random::Random::new(seed);
            let unit = [1, 1_000, 1_000_000][random.below(3) as usize];
            let instants: Vec<u64> = (0..300).map(|_| random.below(1_000) * unit).collect();
            let spread = [Spread::No, Spread::OverTheSecond][random.below(2) as usize];
            let (emitted, _, _) = ordered(random.below(300) * unit, spread, &instants);
            assert!(emitted.is_sorted(), "seed {seed}");
            assert_eq!(emitted.len(), instants.len());
        }
    }

    #[test]
    fn whole_seconds_are_spread_evenly() {
        let second = 1_000_000;
        let instants = [second, second, second, second, 2 * second, 3 * second, 3 * second];
        let (emitted, _, _) = ordered(0, Spread::OverTheSecond, &instants);
        let expected = [
            second,
            second + 250_000,
            second + 500_000,
            second + 750_000,
            2 * second,
            3 * second,
            3 * second + 500_000,
        ];
        assert_eq!(emitted, expected);
    }
}
