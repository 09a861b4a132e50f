//! Holds in the order in which they end, with the weight of each subtree: every question about
//! them, and every change, is O(log n).
//!
//! A treap: a search tree by end, and a heap by a hash of the slot, so that it stays shallow
//! whatever the order in which holds come and go. A sorted map could not say how much is held
//! after an instant without walking it.

use std::cmp::Ordering;

/// What is held, and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holds {
    root: Link,
}

/// One hold; of two that end at the same instant the earlier taken comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// When it ends.
    pub end_us: u64,
    /// Which slot it is.
    pub slot: u64,
    /// How much of the count it takes.
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
    /// Adds a hold of a slot that has none.
    pub(super) fn insert(&mut self, hold: Hold) {
        let (before, after) = split(self.root.take(), place(&hold));
        let node = Node {
            hold,
            priority: scattered(hold.slot),
            total: hold.weight,
            sooner: None,
            later: None,
        };
        self.root = join(join(before, Some(Box::new(node))), after);
    }

    /// Takes the hold of `slot` out, which ends at `end_us`.
    pub(super) fn remove(&mut self, end_us: u64, slot: u64) -> Option<Hold> {
        let (before, rest) = split(self.root.take(), (end_us, slot));
        let (found, after) = split(rest, (end_us, slot + 1));
        self.root = join(before, after);
        found.map(|node| node.hold)
    }

    /// The hold of `slot`, which ends at `end_us`.
    pub(super) fn get(&self, end_us: u64, slot: u64) -> Option<Hold> {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match (end_us, slot).cmp(&place(&node.hold)) {
                Ordering::Less => &node.sooner,
                Ordering::Equal => return Some(node.hold),
                Ordering::Greater => &node.later,
            };
        }
        None
    }

    /// How much is held by holds that end after `now_us`.
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

    /// The instant after which no more than `room` is held: the first such end, nobody asking.
    pub(super) fn end_leaving(&self, mut room: u64) -> Option<u64> {
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

    /// The hold that ends first after `now_us`.
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

    /// Takes the hold out that ends first, if it has ended by `now_us`.
    pub(super) fn pop_ended(&mut self, now_us: u64) -> Option<Hold> {
        let first = self.first_after(0)?;
        if first.end_us > now_us {
            return None;
        }
        self.remove(first.end_us, first.slot)
    }
}

impl Node {
    fn add_up(mut self: Box<Self>) -> Link {
        self.total = total(&self.sooner) + self.hold.weight + total(&self.later);
        Some(self)
    }
}

fn place(hold: &Hold) -> (u64, u64) {
    (hold.end_us, hold.slot)
}

fn total(link: &Link) -> u64 {
    link.as_ref().map_or(0, |node| node.total)
}

/// What comes before `at`, and the rest.
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

/// Two trees as one; all of the first ends sooner.
fn join(sooner: Link, later: Link) -> Link {
    let (mut first, mut second) = match (sooner, later) {
        (None, one) | (one, None) => return one,
        (Some(first), Some(second)) => (first, second),
    };
    if first.priority > second.priority {
        first.later = join(first.later.take(), Some(second));
        first.add_up()
    } else {
        second.sooner = join(Some(first), second.sooner.take());
        second.add_up()
    }
}

/// Slots count up; their places in the heap must not (splitmix64).
fn scattered(slot: u64) -> u64 {
    let mut bits = slot.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// What a hold takes in memory.
pub(super) const HOLD_BYTES: usize = size_of::<Node>();

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(link: &Link) -> usize {
        link.as_ref().map_or(0, |node| 1 + depth(&node.sooner).max(depth(&node.later)))
    }

    #[test]
    fn stays_shallow_though_holds_come_in_order() {
        let mut holds = Holds::default();
        for slot in 0..100_000 {
            holds.insert(Hold { end_us: 1_000 + slot, slot, weight: 1 });
        }
        assert!(depth(&holds.root) < 64, "{}", depth(&holds.root));
        for slot in (0..100_000).filter(|slot| slot % 10 > 0) {
            assert!(holds.remove(1_000 + slot, slot).is_some());
        }
        assert!(depth(&holds.root) < 54, "{}", depth(&holds.root));
        assert_eq!(holds.weight_after(0), 10_000);
        assert_eq!(holds.weight_after(1_000), 9_999);
    }

    #[test]
    fn holds_of_one_instant_end_together() {
        let mut holds = Holds::default();
        for slot in 0..4 {
            holds.insert(Hold { end_us: 7, slot, weight: 2 });
        }
        assert_eq!((holds.weight_after(6), holds.weight_after(7)), (8, 0));
        assert_eq!((holds.end_leaving(7), holds.end_leaving(8)), (Some(7), None));
        assert_eq!(holds.first_after(6).map(|hold| hold.slot), Some(0));
        assert_eq!(holds.remove(7, 9), None);
    }
}
