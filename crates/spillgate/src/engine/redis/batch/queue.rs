//! Who waits and how many calls are under way: the bookkeeping of group commit, with nobody waiting
//! in it and nothing sent.

use std::collections::VecDeque;

/// A queue, and the places of the calls that empty it.
///
/// As long as somebody waits, somebody else is under way who will see to it: a place is given up only
/// when the queue is empty, or with all that wait in it.
#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    waiting: VecDeque<T>,
    under_way: usize,
    /// How many left the queue so far; the ticket of the first that waits.
    left: u64,
    /// So many calls at once.
    permits: usize,
}

/// Which of those that ever waited one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// What is to become of the first that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It leaves with the others.
    Goes,
    /// Its caller has left, or its time is over.
    IsGone,
    /// There is no room left for it.
    Stays,
}

impl<T> Queue<T> {
    pub(super) fn new(permits: usize) -> Queue<T> {
        Queue { waiting: VecDeque::new(), under_way: 0, left: 0, permits }
    }

    /// Whether a place is free, and nobody came before.
    pub(super) fn has_permit(&self) -> bool {
        self.waiting.is_empty() && self.under_way < self.permits
    }

    /// Takes a place for a call, if there is one.
    pub(super) fn begin(&mut self) -> bool {
        let free = self.has_permit();
        self.under_way += usize::from(free);
        free
    }

    /// Joins the queue, unless that is full.
    pub(super) fn join(&mut self, one: T) -> Option<Ticket> {
        if self.waiting.len() >= WAITING_MAX {
            return None;
        }
        self.waiting.push_back(one);
        Some(Ticket(self.left + self.waiting.len() as u64 - 1))
    }

    /// About how many leave next.
    pub(super) fn will_leave(&self) -> usize {
        self.waiting.len().min(LEAVING)
    }

    /// Whether one that joined is no longer in the queue.
    pub(super) fn has_left(&self, ticket: Ticket) -> bool {
        ticket.0 < self.left
    }

    /// Gives a place up, unless somebody waits for it; answers whether somebody does, and the place
    /// is still taken.
    pub(super) fn end(&mut self) -> bool {
        let wanted = !self.waiting.is_empty();
        self.under_way -= usize::from(!wanted);
        wanted
    }

    /// Who leaves next over a place, in the order of arrival; `turn` sees who leaves already. Nobody: the
    /// place has been given up. Then those who are gone, and are not sent.
    pub(super) fn leave(&mut self, mut turn: impl FnMut(&[T], &T) -> Turn) -> (Vec<T>, Vec<T>) {
        let (mut leaving, mut all_gone) = (Vec::with_capacity(self.will_leave()), Vec::new());
        while let Some(first) = self.waiting.front() {
            let turn = turn(&leaving, first);
            if turn == Turn::Stays {
                break;
            }
            self.left += 1;
            match (turn, self.waiting.pop_front()) {
                (Turn::Goes, Some(first)) => leaving.push(first),
                (_, gone) => all_gone.extend(gone),
            }
        }
        self.under_way -= usize::from(leaving.is_empty());
        (leaving, all_gone)
    }

    /// Empties the queue; the calls under way keep their places.
    pub(super) fn release(&mut self) -> Vec<T> {
        self.left += self.waiting.len() as u64;
        self.waiting.drain(..).collect()
    }

    /// Gives a place up for good, and the queue with it where no other call would see to it.
    pub(super) fn abandon(&mut self) -> Vec<T> {
        self.under_way -= 1;
        if self.under_way > 0 {
            return Vec::new();
        }
        self.release()
    }
}

/// As many as leave together where no two are alike, and more.
const LEAVING: usize = 256;
/// More than anybody waits for, but where most are alike and go as one.
pub(super) const WAITING_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A history of callers, by what each has come to.
    #[derive(Clone)]
    struct World {
        queue: Queue<u32>,
        arrived: u32,
        /// Calls that have begun and not ended: who is in them.
        calls: Vec<Vec<u32>>,
        tickets: Vec<(u32, Ticket)>,
        /// Who left the queue without being sent.
        gone: BTreeSet<u32>,
        /// In the order of sending.
        sent: Vec<u32>,
        given_up: Vec<u32>,
        /// How many left together at most.
        largest: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive,
        /// The oldest call ends, well or not.
        End,
        /// The runtime of the oldest call ends.
        CutOff,
        /// The first that waits goes away.
        Leave,
        /// The server is found silent: all who wait are released.
        Release,
    }

    /// Every history of so many steps, with one and two places and calls of at most two coalesced batches: every two
    /// that arrive one after the other are alike, and leave as one.
    #[test]
    fn whoever_arrives_is_sent_in_order_or_told_that_nobody_will() {
        for permits in [1, 2] {
            let (mut seen, mut largest) = (0, 0);
            explore(&World::new(permits), STEPS, &mut Vec::new(), &mut |world| {
                seen += 1;
                largest = largest.max(world.largest);
            });
            println!("{seen} histories over {permits} places, calls of {largest} at most");
            assert_eq!(largest, 4, "two crowds of two");
        }
    }

    fn crowd_of(one: &u32) -> u32 {
        one / 2
    }

    fn explore(
        world: &World,
        steps: usize,
        history: &mut Vec<Step>,
        seen: &mut impl FnMut(&World),
    ) {
        world.check(history);
        seen(world);
        if steps == 0 {
            return;
        }
        for step in [Step::Arrive, Step::End, Step::CutOff, Step::Leave, Step::Release] {
            let mut next = world.clone();
            if next.take(step) {
                history.push(step);
                explore(&next, steps - 1, history, seen);
                history.pop();
            }
        }
    }

    impl World {
        fn new(permits: usize) -> World {
            World {
                queue: Queue::new(permits),
                arrived: 0,
                calls: Vec::new(),
                tickets: Vec::new(),
                gone: BTreeSet::new(),
                sent: Vec::new(),
                given_up: Vec::new(),
                largest: 0,
            }
        }

        /// Whether that can happen here.
        fn take(&mut self, step: Step) -> bool {
            match step {
                Step::Arrive => self.arrive(),
                Step::End if !self.calls.is_empty() => {
                    self.calls.remove(0);
                    if self.queue.end() {
                        self.send_next();
                    }
                }
                Step::CutOff if !self.calls.is_empty() => {
                    self.calls.remove(0);
                    self.given_up.extend(self.queue.abandon());
                }
                Step::Leave => {
                    let first = self.queue.waiting.front().copied();
                    return first.is_some_and(|first| self.gone.insert(first));
                }
                Step::Release if !self.queue.waiting.is_empty() => {
                    self.given_up.extend(self.queue.release());
                }
                _ => return false,
            }
            true
        }

        fn arrive(&mut self) {
            let one = self.arrived;
            self.arrived += 1;
            if self.queue.begin() {
                self.sent.push(one);
                self.calls.push(vec![one]);
            } else {
                let ticket = self.queue.join(one).unwrap();
                self.tickets.push((one, ticket));
            }
        }

        /// Two coalesced batches fit. Whoever is gone is of none.
        fn send_next(&mut self) {
            let (mut coalescer, gone) = (BTreeSet::new(), &self.gone);
            let (leaving, _) = self.queue.leave(|leaving, one| {
                let known: BTreeSet<u32> = leaving.iter().map(crowd_of).collect();
                assert_eq!(known, coalescer, "whoever was told to go leaves");
                match crowd_of(one) {
                    _ if gone.contains(one) => Turn::IsGone,
                    coalesced if coalescer.len() == 2 && !coalescer.contains(&coalesced) => {
                        Turn::Stays
                    }
                    coalesced => {
                        coalescer.insert(coalesced);
                        Turn::Goes
                    }
                }
            });
            if !leaving.is_empty() {
                self.largest = self.largest.max(leaving.len());
                self.sent.extend(&leaving);
                self.calls.push(leaving);
            }
        }

        fn check(&self, history: &[Step]) {
            let Queue { waiting, under_way, permits, .. } = &self.queue;
            assert_eq!(*under_way, self.calls.len(), "{history:?}");
            assert!(under_way <= permits, "{history:?}");
            assert!(waiting.is_empty() || *under_way > 0, "nobody sees to the queue: {history:?}");
            assert!(self.sent.is_sorted(), "{:?}: {history:?}", self.sent);
            for (one, ticket) in &self.tickets {
                let waits = waiting.contains(one);
                assert_eq!(self.queue.has_left(*ticket), !waits, "{one}: {history:?}");
            }
            for one in 0..self.arrived {
                let permits = [
                    waiting.contains(&one),
                    self.sent.contains(&one),
                    self.given_up.contains(&one),
                    self.gone.contains(&one) && !waiting.contains(&one),
                ];
                let count = permits.iter().filter(|index| **index).count();
                let was_gone = self.gone.contains(&one) && self.given_up.contains(&one);
                assert_eq!(count, 1 + usize::from(was_gone), "{one}: {history:?}");
            }
        }
    }

    const STEPS: usize = 11;
}
