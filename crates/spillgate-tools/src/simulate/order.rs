//! Events in the order of their instants, though their lines stand in another.
//!
//! A server writes a line when a request has ended, some servers with the instant at which it began. So
//! an event is held until one has been read that is later by the whole delay. What comes later than that
//! is judged when it comes, as a limiter would have: time never goes back.

use std::collections::VecDeque;

use super::event::Event;

/// Holds events back until none that was earlier can come.
#[derive(Debug)]
pub(super) struct Order {
    delay_us: u64,
    spread: Spread,
    /// Those held, by their instants; of one instant in the order of their lines.
    held: VecDeque<(u64, u32)>,
    events: Vec<Event>,
    free: Vec<u32>,
    newest_us: u64,
    given_us: u64,
    /// Of the second that is being spread: its instant, how many it has, how many were given.
    run: (u64, u64, u64),
    /// How many came after a later one, and could be put in their place.
    pub(super) sorted: u64,
    /// How many came too late for that.
    pub(super) late: u64,
}

/// What to do where many events have one instant because the log tells whole seconds only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// They are judged at that instant.
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
            given_us: 0,
            run: (0, 0, 0),
            sorted: 0,
            late: 0,
        }
    }

    /// Takes an event, whose place it swaps for an old one's, and gives those whose time has come.
    pub(super) fn take(&mut self, event: &mut Event, mut give: impl FnMut(&mut Event)) {
        let at_us = event.at_us.max(self.given_us);
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
            self.give_first(&mut give);
        }
    }

    /// Gives all that are left.
    pub(super) fn finish(&mut self, mut give: impl FnMut(&mut Event)) {
        while !self.held.is_empty() {
            self.give_first(&mut give);
        }
    }

    fn is_due(&self, held_us: u64) -> bool {
        let delay_us = match self.spread {
            Spread::No => self.delay_us,
            // All of a second are to be there before the first is given.
            Spread::OverTheSecond => self.delay_us.max(1),
        };
        held_us + delay_us <= self.newest_us || self.held.len() > HELD_MAX
    }

    fn give_first(&mut self, give: &mut impl FnMut(&mut Event)) {
        let Some((at_us, slot)) = self.held.pop_front() else { return };
        let spread_us = self.spread_us(at_us);
        self.given_us = self.given_us.max(at_us + spread_us);
        let event = &mut self.events[slot as usize];
        event.at_us = self.given_us;
        give(event);
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
        let (_, count, given) = &mut self.run;
        let spread_us = 1_000_000 * *given / *count;
        *given += 1;
        spread_us
    }
}

/// Ten seconds of six thousand requests each. More in that time, and what comes out of order is late sooner.
const HELD_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    /// The instants as given, and how many were sorted and late.
    fn ordered(delay_us: u64, spread: Spread, instants: &[u64]) -> (Vec<u64>, u64, u64) {
        let mut order = Order::new(delay_us, spread);
        let mut given = Vec::new();
        for at_us in instants {
            let mut event = Event::at(*at_us);
            order.take(&mut event, |event| given.push(event.at_us));
        }
        order.finish(|event| given.push(event.at_us));
        (given, order.sorted, order.late)
    }

    #[test]
    fn lines_within_the_delay_are_put_in_order() {
        let (given, sorted, late) = ordered(10, Spread::No, &[5, 3, 4, 12, 9, 30, 21]);
        assert_eq!((given, sorted, late), (vec![3, 4, 5, 9, 12, 21, 30], 4, 0));
    }

    #[test]
    fn a_line_beyond_the_delay_is_judged_when_it_comes() {
        let (given, sorted, late) = ordered(10, Spread::No, &[5, 7, 30, 6]);
        assert_eq!((given, sorted, late), (vec![5, 7, 7, 30], 0, 1));
    }

    #[test]
    fn time_never_goes_back_whatever_is_read() {
        for seed in 0..200 {
            let mut random = super::super::random::Random::new(seed);
            let unit = [1, 1_000, 1_000_000][random.below(3) as usize];
            let instants: Vec<u64> = (0..300).map(|_| random.below(1_000) * unit).collect();
            let spread = [Spread::No, Spread::OverTheSecond][random.below(2) as usize];
            let (given, _, _) = ordered(random.below(300) * unit, spread, &instants);
            assert!(given.is_sorted(), "seed {seed}");
            assert_eq!(given.len(), instants.len());
        }
    }

    #[test]
    fn whole_seconds_are_spread_evenly() {
        let second = 1_000_000;
        let instants = [second, second, second, second, 2 * second, 3 * second, 3 * second];
        let (given, _, _) = ordered(0, Spread::OverTheSecond, &instants);
        let expected = [
            second,
            second + 250_000,
            second + 500_000,
            second + 750_000,
            2 * second,
            3 * second,
            3 * second + 500_000,
        ];
        assert_eq!(given, expected);
    }
}
