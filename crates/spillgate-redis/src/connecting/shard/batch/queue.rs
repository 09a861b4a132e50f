//! The bookkeeping of group commit: queued entries and call permits. Nothing here waits or sends.

use std::collections::VecDeque;

/// A queue, and the permits of the calls that empty it.
///
/// Invariant: while an entry waits, at least one permit is taken, and its holder will look at the queue. A permit is
/// returned only when the queue is empty, or together with all entries in it. Otherwise an entry could wait forever.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    waiting: VecDeque<T>,
    under_way: usize,
    /// How many entries have left the queue so far. It is also the ticket of the first entry that waits.
    left: u64,
    /// The most calls in flight at once.
    permits: usize,
}

/// Numbers the entries in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Whether the first entry of the queue joins the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It joins.
    Goes,
    /// It is dropped: its caller is gone, or its deadline has passed.
    IsGone,
    /// It does not fit, and ends the batch.
    Stays,
}

impl<T> Queue<T> {
    pub fn new(permits: usize) -> Queue<T> {
        Queue { waiting: VecDeque::new(), under_way: 0, left: 0, permits }
    }

    /// Returns whether a call may begin: a permit is free, and no earlier entry waits.
    pub fn has_permit(&self) -> bool {
        // A call that began while an entry waits would overtake it. A permit is free then only if its holder
        // abandoned it.
        self.waiting.is_empty() && self.under_way < self.permits
    }

    /// Takes a permit if a call may begin.
    pub fn begin(&mut self) -> bool {
        let free = self.has_permit();
        self.under_way += usize::from(free);
        free
    }

    /// Appends an entry. Returns `None` if the queue is full.
    pub fn join(&mut self, one: T) -> Option<Ticket> {
        if self.waiting.len() >= WAITING_MAX {
            return None;
        }
        self.waiting.push_back(one);
        Some(Ticket(self.left + self.waiting.len() as u64 - 1))
    }

    /// Returns an estimate of the size of the next batch.
    pub fn will_leave(&self) -> usize {
        self.waiting.len().min(LEAVING)
    }

    /// Returns whether an entry is no longer in the queue.
    pub fn has_left(&self, ticket: Ticket) -> bool {
        ticket.0 < self.left
    }

    /// Ends a call. Returns whether entries wait; if so, the permit stays taken and the caller of this
    /// function must use it.
    pub fn end(&mut self) -> bool {
        let wanted = !self.waiting.is_empty();
        self.under_way -= usize::from(!wanted);
        wanted
    }

    /// Takes the next batch out of the queue, in order of arrival: first the entries to send, then the dropped ones.
    ///
    /// `turn` decides for each entry, and sees the entries that are already in the batch. If there is nothing
    /// to send, the permit is returned.
    pub fn leave(&mut self, mut turn: impl FnMut(&[T], &T) -> Turn) -> (Vec<T>, Vec<T>) {
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
        // An empty batch means an empty queue, since the first entry that can go never stays: the permit returns.
        self.under_way -= usize::from(leaving.is_empty());
        (leaving, all_gone)
    }

    /// Empties the queue. Permits of calls in flight stay taken.
    pub fn release(&mut self) -> Vec<T> {
        self.left += self.waiting.len() as u64;
        self.waiting.drain(..).collect()
    }

    /// Returns a permit whose holder cannot continue. If it was the last one, all entries leave with it.
    pub fn abandon(&mut self) -> Vec<T> {
        self.under_way -= 1;
        // The holder of another permit will still look at the queue.
        if self.under_way > 0 {
            return Vec::new();
        }
        self.release()
    }
}

/// Capacity reserved for a batch: more than the distinct decisions of one call.
const LEAVING: usize = 256;
/// Beyond this number a caller would pass its deadline anyway, unless most decisions are equal and leave as one group.
pub const WAITING_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A state of the queue, and the fate of every caller so far.
    #[derive(Clone)]
    struct World {
        queue: Queue<u32>,
        arrived: u32,
        /// The callers of each call that has begun and not ended.
        calls: Vec<Vec<u32>>,
        tickets: Vec<(u32, Ticket)>,
        /// Callers that are gone.
        gone: BTreeSet<u32>,
        /// In the order of sending.
        sent: Vec<u32>,
        given_up: Vec<u32>,
        /// The size of the largest batch.
        largest: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive,
        /// The oldest call ends, by a reply or a failure.
        End,
        /// The runtime of the oldest call ends.
        CutOff,
        /// The first queued caller is dropped.
        Leave,
        /// The server is found silent: all queued callers are released.
        Release,
    }

    /// Explores every history of `STEPS` steps, with one and two permits and batches of at most two groups.
    ///
    /// Two callers that arrive one after the other are equal, and form one group.
    #[test]
    fn sends_every_caller_in_order_or_fails_it() {
        for permits in [1, 2] {
            let (mut seen, mut largest) = (0, 0);
            explore(&World::new(permits), STEPS, &mut Vec::new(), &mut |world| {
                seen += 1;
                largest = largest.max(world.largest);
            });
            println!("{seen} histories over {permits} places, calls of {largest} at most");
            assert_eq!(largest, 4, "two groups of two");
        }
    }

    fn group_of(one: &u32) -> u32 {
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

        /// Applies a step; returns whether the step is possible in this state.
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

        /// Sends a batch of at most two groups and at most the call's share of the callers, without those that are gone.
        fn send_next(&mut self) {
            let (mut coalescer, gone) = (BTreeSet::new(), &self.gone);
            let under_way: usize = self.calls.iter().map(Vec::len).sum();
            let share = (self.queue.waiting.len() + under_way).div_ceil(self.queue.permits);
            let (leaving, _) = self.queue.leave(|leaving, one| {
                let known: BTreeSet<u32> = leaving.iter().map(group_of).collect();
                assert_eq!(known, coalescer, "every entry that goes leaves");
                match group_of(one) {
                    _ if gone.contains(one) => Turn::IsGone,
                    _ if leaving.len() >= share => Turn::Stays,
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
            assert!(waiting.is_empty() || *under_way > 0, "no call serves the queue: {history:?}");
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
