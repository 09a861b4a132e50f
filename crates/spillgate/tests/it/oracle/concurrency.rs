//! Holds in a list.

use spillgate::internals::algorithm::{Numbers, Reading};
use spillgate::internals::limit::NamedLimit;

use crate::support::target::{Act, Answer, Target, cost_of, numbers};

#[derive(Clone)]
struct Hold {
    /// When it ends, by a clock that never goes back.
    end: i128,
    weight: i128,
    number: usize,
}

#[derive(Default)]
pub struct Oracle {
    holds: Vec<Hold>,
    /// How far that clock is ahead of the store's, and when it last saw a slot taken.
    shift: i128,
    last: i128,
    taken: usize,
    receipts: Vec<Option<usize>>,
}

impl Target for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        let Numbers::Concurrency(limit) = numbers(limit) else { panic!("no slots") };
        let (count, hold) = (i128::from(limit.count), i128::from(limit.hold_us));
        let now = i128::from(now_us);
        let (mut shift, mut last) = (self.shift, self.last);
        let mut ahead = (last - (now + shift)).max(0);
        let mut rebased = false;
        if ahead > hold.min(1_000_000) {
            shift += ahead;
            ahead = 0;
            rebased = true;
        }
        let mut clock = now + shift + ahead;
        let mut held: Vec<Hold> = self.holds.iter().filter(|h| h.end > clock).cloned().collect();
        if held.is_empty() {
            (shift, last, ahead, rebased, clock) = (0, 0, 0, false, now);
        }
        let weight = |held: &[Hold]| held.iter().map(|hold| hold.weight).sum::<i128>();
        let before = weight(&held);
        let cost = i128::from(cost_of(act).max(1));
        let fits = before + cost <= count;
        let mut write = false;
        let mut take = |weight: i128, held: &mut Vec<Hold>| {
            self.taken += 1;
            held.push(Hold { end: clock + hold, weight, number: self.taken });
            last = clock;
            self.taken
        };
        match act {
            Act::Check(cost) | Act::Reserve(cost) if cost > 0 && fits => {
                let number = take(i128::from(cost), &mut held);
                write = true;
                if let Act::Reserve(_) = act {
                    self.receipts.push(Some(number));
                }
            }
            Act::Check(cost) | Act::Reserve(cost) => {
                write = cost > 0 && rebased;
                if let Act::Reserve(_) = act {
                    self.receipts.push(None);
                }
            }
            Act::Look(_) => {}
            Act::Force(cost) => {
                let more = i128::from(cost).min(2 * count - before);
                if more > 0 {
                    take(more, &mut held);
                }
                write = true;
            }
            Act::Return { receipt, unused } => {
                let place = receipt as usize % self.receipts.len().max(1);
                let number = self.receipts.get(place).copied().flatten();
                if let Some(hold) = held.iter_mut().find(|hold| Some(hold.number) == number) {
                    hold.weight -= i128::from(unused).min(hold.weight);
                }
            }
            Act::Lower(amount) => {
                let mut left = i128::from(amount);
                held.sort_by_key(|hold| (hold.end, hold.number));
                for hold in &mut held {
                    let by = left.min(hold.weight);
                    hold.weight -= by;
                    left -= by;
                }
            }
        }
        held.retain(|hold| hold.weight > 0);
        let returned = (before - weight(&held)).max(0);
        if write || returned > 0 {
            // Only taking a slot moves the clock past what has ended for good.
            let ended = self.holds.iter().filter(|hold| hold.end <= clock && !held.is_empty());
            self.holds = ended.chain(&held).cloned().collect();
            (self.shift, self.last) = if held.is_empty() { (0, 0) } else { (shift, last) };
        }
        let used = weight(&held);
        let judges = matches!(act, Act::Check(_) | Act::Reserve(_) | Act::Look(_));
        let judged = if judges { cost } else { 1 };
        let waits = if judges { !fits } else { used + 1 > count };
        held.sort_by_key(|hold| hold.end);
        let until_below = |room: i128| {
            let mut left = used;
            let ends = held.iter().find(|hold| {
                left -= hold.weight;
                left <= room
            });
            ends.map_or(0, |hold| hold.end - clock + ahead)
        };
        Answer {
            fits: fits || !judges,
            reading: Reading {
                remaining: number((count - used).max(0)),
                retry_after_us: Some(if waits { number(until_below(count - judged)) } else { 0 }),
                reset_after_us: number(if used == 0 { 0 } else { until_below(0) }),
            },
            returned: number(returned),
        }
    }
}

fn number(number: i128) -> u64 {
    number.try_into().expect("fits 64 bits")
}
