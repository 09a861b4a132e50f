//! Holds in the order in which they end, with the weight of each subtree: every query and every change is O(log n).
//!
//! A treap: a search tree by end, and a heap by a hash of the number. It stays shallow in whatever order holds
//! come and go. A sorted map could not return the weight after an instant without walking it.

use std::cmp::Ordering;

/// The holds of a counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holds {
    root: Link,
}

/// One hold. Of two that end at the same instant, the one taken earlier comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// When it ends.
    pub end_us: u64,
    /// Its number.
    pub number: u64,
    /// The permits that it takes.
    pub weight: u64,
}

type Link = Option<Box<Node>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    hold: Hold,
    priority: u64,
    /// The weight of this hold and of all below it.
    total: u64,
    sooner: Link,
    later: Link,
}

impl Holds {
    /// Adds a hold with a new number.
    pub(super) fn insert(&mut self, hold: Hold) {
        let (before, after) = split(self.root.take(), place(&hold));
        let node = Node {
            hold,
            priority: scattered(hold.number),
            total: hold.weight,
            sooner: None,
            later: None,
        };
        self.root = join(join(before, Some(Box::new(node))), after);
    }

    /// Removes the hold of `number`, which ends at `end_us`.
    pub(super) fn remove(&mut self, end_us: u64, number: u64) -> Option<Hold> {
        // Cuts out the range of exactly this key.
        let (before, rest) = split(self.root.take(), (end_us, number));
        let (found, after) = split(rest, (end_us, number + 1));
        self.root = join(before, after);
        found.map(|node| node.hold)
    }

    /// Returns the hold of `number`, which ends at `end_us`.
    pub(super) fn get(&self, end_us: u64, number: u64) -> Option<Hold> {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match (end_us, number).cmp(&place(&node.hold)) {
                Ordering::Less => &node.sooner,
                Ordering::Equal => return Some(node.hold),
                Ordering::Greater => &node.later,
            };
        }
        None
    }

    /// Returns the weight of the holds that end after `now_us`.
    pub(super) fn weight_after(&self, now_us: u64) -> u64 {
        let mut weight = 0;
        let mut link = &self.root;
        while let Some(node) = link {
            if node.hold.end_us > now_us {
                weight += node.hold.weight + total(&node.later);
                link = &node.sooner;
            } else {
                link = &node.later;
            }
        }
        weight
    }

    /// Returns the first end of a hold after which at most `room` is held, if no hold is added.
    pub(super) fn end_leaving(&self, mut room: u64) -> Option<u64> {
        // The tree is walked from the last end on: `room` is the weight that may still be held later.
        let mut link = &self.root;
        while let Some(node) = link {
            let later = total(&node.later);
            if later > room {
                link = &node.later;
            } else if later + node.hold.weight > room {
                return Some(node.hold.end_us);
            } else {
                room -= later + node.hold.weight;
                link = &node.sooner;
            }
        }
        None
    }

    /// Returns the hold that ends first after `now_us`.
    pub(super) fn first_after(&self, now_us: u64) -> Option<Hold> {
        let mut first = None;
        let mut link = &self.root;
        while let Some(node) = link {
            if node.hold.end_us > now_us {
                first = Some(node.hold);
                link = &node.sooner;
            } else {
                link = &node.later;
            }
        }
        first
    }

    /// Removes the hold that ends first, if it has ended by `now_us`.
    pub(super) fn pop_ended(&mut self, now_us: u64) -> Option<Hold> {
        let first = self.first_after(0)?;
        if first.end_us > now_us {
            return None;
        }
        self.remove(first.end_us, first.number)
    }
}

impl Node {
    fn add_up(mut self: Box<Self>) -> Link {
        self.total = total(&self.sooner) + self.hold.weight + total(&self.later);
        Some(self)
    }
}

fn place(hold: &Hold) -> (u64, u64) {
    (hold.end_us, hold.number)
}

fn total(link: &Link) -> u64 {
    link.as_ref().map_or(0, |node| node.total)
}

/// Splits a tree into the holds before `at`, and the rest.
fn split(link: Link, at: (u64, u64)) -> (Link, Link) {
    let Some(mut node) = link else { return (None, None) };
    if place(&node.hold) < at {
        let (before, after) = split(node.later.take(), at);
        node.later = before;
        (node.add_up(), after)
    } else {
        let (before, after) = split(node.sooner.take(), at);
        node.sooner = after;
        (before, node.add_up())
    }
}

/// Joins two trees; all holds of the first must end sooner.
fn join(sooner: Link, later: Link) -> Link {
    let (mut first, mut second) = match (sooner, later) {
        (None, one) | (one, None) => return one,
        (Some(first), Some(second)) => (first, second),
    };
    // The node with the higher priority becomes the root, as in every treap.
    if first.priority > second.priority {
        first.later = join(first.later.take(), Some(second));
        first.add_up()
    } else {
        second.sooner = join(Some(first), second.sooner.take());
        second.add_up()
    }
}

/// Hashes a number (splitmix64): holds are numbered upwards, and their heap order must be random.
fn scattered(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The bytes of a hold.
pub(super) const HOLD_BYTES: usize = size_of::<Node>();

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(link: &Link) -> usize {
        link.as_ref().map_or(0, |node| 1 + depth(&node.sooner).max(depth(&node.later)))
    }

    #[test]
    fn stays_shallow_when_holds_come_in_order() {
        let mut holds = Holds::default();
        for number in 0..100_000 {
            holds.insert(Hold { end_us: 1_000 + number, number, weight: 1 });
        }
        assert!(depth(&holds.root) < 64, "{}", depth(&holds.root));
        for number in (0..100_000).filter(|number| number % 10 > 0) {
            assert!(holds.remove(1_000 + number, number).is_some());
        }
        assert!(depth(&holds.root) < 54, "{}", depth(&holds.root));
        assert_eq!(holds.weight_after(0), 10_000);
        assert_eq!(holds.weight_after(1_000), 9_999);
    }

    #[test]
    fn holds_of_one_instant_end_together() {
        let mut holds = Holds::default();
        for number in 0..4 {
            holds.insert(Hold { end_us: 7, number, weight: 2 });
        }
        assert_eq!((holds.weight_after(6), holds.weight_after(7)), (8, 0));
        assert_eq!((holds.end_leaving(7), holds.end_leaving(8)), (Some(7), None));
        assert_eq!(holds.first_after(6).map(|hold| hold.number), Some(0));
        assert_eq!(holds.remove(7, 9), None);
    }
}
