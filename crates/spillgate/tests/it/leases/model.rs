//! Model checking of leases: every short history of a few holders and one ledger.
//!
//! - Calls and answers are lost, late or duplicated.
//! - Holders stop for a while or start anew.
//! - The store restarts, with or without its data.
//!
//! All interleavings are tried breadth first, each state once, up to a bound. The limit is a bucket that
//! drains nothing during a history: what was charged and not returned may have been admitted.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use spillgate::Limit;
use spillgate_core::algorithm::State;
use spillgate_core::counter::PlannedCharge;
use spillgate_core::limit::NamedLimit;
use spillgate_core::subject::SubjectKey;
use spillgate_redis::lease::{Close, Exchange, Holder};

use super::pure_ledger::Ledger;
use crate::failure::{YEAR, evidence};
use crate::support::world::TODAY_US;

/// The complete state at one moment.
#[derive(Clone)]
struct World {
    now_us: u64,
    holders: Vec<Node>,
    ledger: Ledger,
    counter: Option<State>,
    calls: Vec<Call>,
    answers: Vec<Answer>,
    /// Since the last state loss.
    admitted: u64,
    left: Budget,
    mistake: Mistake,
}

/// A planted mistake, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// A lease's life starts when the answer is received.
    EndsFromReceipt,
    /// A holder keeps the tokens that it returned.
    SpendsWhatItReturned,
    /// Each process has a share of its own.
    ShareOfEach,
}

#[derive(Clone, Hash)]
struct Node {
    id: u64,
    holder: Holder,
    waiting_for: Option<u32>,
    sent_us: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Call {
    node: u64,
    seq: u32,
    closes: Vec<(u32, u64)>,
    wanted: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Answer {
    node: u64,
    seq: u32,
    amount: u64,
    lasts_us: u64,
}

/// How often each event may still happen.
#[derive(Clone, Copy, Debug, Hash)]
struct Budget {
    calls: u32,
    ticks: u32,
    copies: u32,
    restarts: u32,
    losses: u32,
}

impl World {
    fn new(holders: u64, left: Budget, mistake: Mistake) -> World {
        let node = Node::new;
        World {
            now_us: TODAY_US,
            holders: (1..=holders).map(node).collect(),
            ledger: Ledger::default(),
            counter: None,
            calls: Vec::new(),
            answers: Vec::new(),
            admitted: 0,
            left,
            mistake,
        }
    }

    /// Returns every possible next state, each with the name of its event.
    fn next(&self, counter: &PlannedCharge) -> Vec<(String, World)> {
        let mut next = Vec::new();
        let mut may = |what: String, change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            world.drop_stray_answers();
            next.push((what, world));
        };
        for (place, node) in self.holders.iter().enumerate() {
            let id = node.id;
            if node.holder.would_take(1, self.now_us) {
                may(format!("{id} admits"), &|world| {
                    world.holders[place].holder.take(1, world.now_us).unwrap();
                    world.admitted += 1;
                });
            }
            if node.waiting_for.is_none() && self.left.calls > 0 {
                if node.holder.has_place(self.now_us) {
                    may(format!("{id} calls"), &|world| world.call(place, WANTED));
                }
                // Ended leases too have something to return. At 0 none has ended.
                if node.holder.left(0) > 0 {
                    may(format!("{id} returns"), &|world| {
                        let before = world.holders[place].holder.clone();
                        world.holders[place].holder.end();
                        world.call(place, 0);
                        if world.mistake == Mistake::SpendsWhatItReturned {
                            world.holders[place].holder = before;
                        }
                    });
                }
            }
            if let Some(seq) = node.waiting_for {
                may(format!("{id} gives up waiting"), &|world| {
                    world.holders[place].waiting_for = None;
                    world.holders[place].holder.unanswered(seq, true);
                });
            }
            if self.left.restarts > 0 {
                may(format!("{id} begins anew"), &|world| {
                    world.left.restarts -= 1;
                    world.holders[place] = Node::new(id + 10);
                });
            }
        }
        for call in 0..self.calls.len() {
            let (what, copy) = (format!("{:?}", self.calls[call].shown()), self.left.copies > 0);
            may(format!("{what} is executed"), &|world| {
                let call = world.calls.remove(call);
                world.execute(&call, counter);
            });
            if copy {
                may(format!("{what} is executed, and comes again"), &|world| {
                    world.left.copies -= 1;
                    let call = world.calls[call].clone();
                    world.execute(&call, counter);
                });
            }
        }
        for answer in 0..self.answers.len() {
            may(format!("an answer arrives: {:?}", self.answers[answer].shown()), &|world| {
                let answer = world.answers.remove(answer);
                world.receive(&answer);
            });
        }
        if self.left.ticks > 0 {
            may("time goes on".into(), &|world| {
                world.left.ticks -= 1;
                world.now_us += TICK_US;
            });
        }
        if self.left.losses > 0 {
            may("the store loses all, and all holders notice".into(), &|world| {
                world.left.losses -= 1;
                (world.ledger, world.counter) = (Ledger::default(), None);
                world.holders.iter_mut().for_each(|node| node.holder.void());
                world.admitted = 0;
            });
        }
        next
    }

    fn call(&mut self, place: usize, wanted: u64) {
        let node = &mut self.holders[place];
        let (seq, closes) = node.holder.call(self.now_us);
        (node.waiting_for, node.sent_us) = (Some(seq), self.now_us);
        self.left.calls -= 1;
        let closes = closes.iter().map(|close| (close.seq, close.unused)).collect();
        self.calls.push(Call { node: node.id, seq, closes, wanted });
        self.calls.sort();
    }

    fn execute(&mut self, call: &Call, counter: &PlannedCharge) {
        let closes =
            call.closes.iter().map(|(seq, unused)| Close { seq: *seq, unused: *unused }).collect();
        let Call { node, seq, wanted, .. } = *call;
        let share = match self.mistake {
            Mistake::ShareOfEach => SHARE * self.holders.len() as u64,
            _ => SHARE,
        };
        let counter = counter.clone();
        let exchange = Exchange { counter, node, seq, closes, share, wanted, ttl_us: TTL_US };
        let nonce = 1 + (node << 8) + u64::from(seq);
        let granted = self.ledger.exchange(&mut self.counter, &exchange, self.now_us, nonce);
        let (amount, lasts_us) = (granted.amount, granted.lasts_us);
        self.answers.push(Answer { node, seq, amount, lasts_us });
        self.answers.sort();
    }

    /// Drops answers that no holder waits for: they change nothing, whenever they arrive.
    fn drop_stray_answers(&mut self) {
        let holders = &self.holders;
        let is_awaited = |answer: &Answer| {
            holders
                .iter()
                .any(|node| node.id == answer.node && node.waiting_for == Some(answer.seq))
        };
        self.answers.retain(is_awaited);
    }

    fn receive(&mut self, answer: &Answer) {
        let waits =
            |node: &&mut Node| node.id == answer.node && node.waiting_for == Some(answer.seq);
        if let Some(node) = self.holders.iter_mut().find(waits) {
            node.waiting_for = None;
            let late_us = match self.mistake {
                Mistake::EndsFromReceipt => self.now_us - node.sent_us,
                _ => 0,
            };
            node.holder.answered(answer.seq, answer.amount, answer.lasts_us + late_us);
        }
    }

    /// Returns the invariant that this state violates, if any.
    fn fault(&self) -> Option<String> {
        let used = match &self.counter {
            Some(State::TokenBucket(bucket)) => u64::from(bucket.used),
            _ => 0,
        };
        let held: u64 = self.holders.iter().map(|node| node.holder.left(self.now_us)).sum();
        let admitted = self.admitted;
        if admitted + held > used {
            return Some(format!("{admitted} admitted, {held} held, {used} charged"));
        }
        if used > CAPACITY {
            return Some(format!("{used} charged of {CAPACITY}"));
        }
        (held > SHARE).then(|| format!("{held} held at once, more than the share of {SHARE}"))
    }

    fn mark(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.now_us, &self.holders, &self.ledger, &self.calls, &self.answers).hash(&mut hasher);
        (self.admitted, self.left).hash(&mut hasher);
        if let Some(State::TokenBucket(bucket)) = &self.counter {
            let receipts =
                bucket.receipts.as_ref().map(|receipts| (receipts.incarnation, receipts.mark));
            (bucket.used, bucket.boundary_us, receipts).hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl Node {
    fn new(id: u64) -> Node {
        Node { id, holder: Holder::default(), waiting_for: None, sent_us: 0 }
    }
}

impl Call {
    fn shown(&self) -> (u64, u32, &[(u32, u64)], u64) {
        (self.node, self.seq, &self.closes, self.wanted)
    }
}

impl Answer {
    fn shown(&self) -> (u64, u32, u64, u64) {
        (self.node, self.seq, self.amount, self.lasts_us)
    }
}

/// Tries every history up to a bound. Returns the number of states and steps, or the shortest history that
/// violates an invariant.
fn search(
    holders: u64,
    budget: Budget,
    most: usize,
    mistake: Mistake,
) -> Result<(usize, usize), String> {
    let limit = NamedLimit::new(Limit::per(CAPACITY, YEAR), 0);
    let counter = PlannedCharge::new(SubjectKey { tag: 1, id: 2, rule: 3 }, limit);
    let first = World::new(holders, budget, mistake);
    let mut seen = HashSet::from([first.mark()]);
    let mut parents: Vec<(usize, String)> = vec![(0, "begin".into())];
    let mut queue = VecDeque::from([(0, 0, first)]);
    let mut steps = 0;
    while let Some((parent, depth, world)) = queue.pop_front() {
        steps = depth;
        if seen.len() > most {
            break;
        }
        for (what, world) in world.next(&counter) {
            if !seen.insert(world.mark()) {
                continue;
            }
            if let Some(fault) = world.fault() {
                let mut history = vec![fault, what];
                let mut at = parent;
                while at > 0 {
                    history.push(parents[at].1.clone());
                    at = parents[at].0;
                }
                history.reverse();
                return Err(history.join("\n"));
            }
            parents.push((parent, what));
            queue.push_back((parents.len() - 1, depth + 1, world));
        }
    }
    Ok((seen.len(), steps))
}

fn holds(holders: u64, budget: Budget) {
    let most = if evidence() { 1_000_000 } else { 150_000 };
    match search(holders, budget, most, Mistake::None) {
        Ok((moments, steps)) => {
            let whole = if moments <= most { "all of it" } else { "so far" };
            println!("{holders} holders, {budget:?}: {moments} moments, {steps} steps, {whole}");
        }
        Err(history) => panic!("{holders} holders, {budget:?}:\n{history}"),
    }
}

#[test]
fn no_sequence_of_lost_late_or_repeated_calls_mints_tokens_or_exceeds_the_share() {
    let none = Budget { calls: 0, ticks: 0, copies: 0, restarts: 0, losses: 0 };
    // All outcomes of few calls, and some outcomes of more.
    holds(1, Budget { calls: 3, copies: 1, ..none });
    holds(1, Budget { calls: 3, ticks: 3, ..none });
    holds(2, Budget { calls: 2, ticks: 3, ..none });
    holds(2, Budget { calls: 2, copies: 1, restarts: 1, ..none });
    holds(2, Budget { calls: 3, losses: 1, ..none });
    holds(3, Budget { calls: 3, copies: 1, ..none });
    holds(3, Budget { calls: 3, restarts: 1, ..none });
    holds(3, Budget { calls: 3, losses: 1, ..none });
    holds(3, Budget { calls: 3, ticks: 2, ..none });
    holds(3, Budget { calls: 4, ticks: 3, copies: 1, restarts: 1, losses: 1 });
}

#[test]
fn the_search_finds_every_planted_mistake() {
    let none = Budget { calls: 0, ticks: 0, copies: 0, restarts: 0, losses: 0 };
    for (mistake, holders, budget) in [
        (Mistake::EndsFromReceipt, 2, Budget { calls: 3, ticks: 2, ..none }),
        (Mistake::SpendsWhatItReturned, 1, Budget { calls: 3, ..none }),
        (Mistake::ShareOfEach, 2, Budget { calls: 3, ..none }),
    ] {
        match search(holders, budget, 100_000, mistake) {
            Err(history) => println!("{mistake:?}:\n{history}\n"),
            Ok(tried) => panic!("{mistake:?} was not found: {tried:?}"),
        }
    }
}

const CAPACITY: u64 = 6;
const SHARE: u64 = 3;
const WANTED: u64 = 2;
/// A lease lasts for one tick, its row for two.
const TICK_US: u64 = 20_000;
const TTL_US: u64 = 20_000;
