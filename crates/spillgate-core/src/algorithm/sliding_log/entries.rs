//! Entries in order of time, with sums that make every search and every change O(log n).
//!
//! Entries fill chunks. A full chunk is closed and becomes one entry of a node above it: the instant of its last
//! entry, and its units. Nodes fill and close in the same way, so a search climbs only as far as it must. Only the
//! units of a closed node change later, and only downwards: a refund is taken from it and from the nodes above.

use std::collections::VecDeque;

/// Chunks, and the nodes above them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    /// Nodes by level; chunks are level 0. The nodes of a level are numbered from 0 since the beginning of the log.
    levels: [VecDeque<Node>; LEVELS],
    /// The number of the oldest chunk that is kept.
    oldest: u64,
}

/// A position between two entries: after `index` entries of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    chunk: u64,
    index: usize,
}

type Node = Vec<Entry>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at_us: u64,
    /// The units of its node up to and including this entry.
    through: u64,
}

impl Entries {
    /// Finds a place at or after `from`, before the first entry that satisfies two conditions: its instant is
    /// at or after `from_us`, and through it at least `unit` units follow `from`.
    ///
    /// Returns that place and the units in between; the end of the log if there is no such entry.
    pub(super) fn seek(&self, from: Place, from_us: u64, unit: u64) -> (Place, u64) {
        let (mut level, mut number, mut index) = (0, from.chunk, from.index);
        let (mut unit, mut passed) = (unit, 0);
        loop {
            let node = self.node(level, number);
            let before = through(node, index);
            let reached =
                |entry: &Entry| entry.at_us >= from_us && passed + entry.through - before >= unit;
            let found = index + node[index..].partition_point(|entry| !reached(entry));
            passed += through(node, found) - before;
            // Three ways on: descend into the entry found; enter the open node below, which has no entry
            // above yet; or ascend.
            if found < node.len() {
                if level == 0 {
                    return (Place { chunk: number, index: found }, passed);
                }
                (level, number, index) = (level - 1, number * FANOUT + found as u64, 0);
            } else if number == self.open_number(level) {
                if level == 0 {
                    return (Place { chunk: number, index: found }, passed);
                }
                (level, number, index) = (level - 1, self.open_number(level - 1), 0);
            } else if level == LEVELS - 1 {
                (number, index) = (number + 1, 0);
            } else {
                index = (number % FANOUT) as usize + 1;
                (level, number) = (level + 1, number / FANOUT);
            }
            // Closed nodes may have become empty, although no entry is. Asking for one more unit steps over them.
            unit = unit.max(passed + 1);
        }
    }

    /// Returns the instant of the entry after a place.
    pub(super) fn at_us(&self, place: Place) -> u64 {
        self.node(0, place.chunk)[place.index].at_us
    }

    /// Returns the units of the entry after a place.
    pub(super) fn units(&self, place: Place) -> u64 {
        let chunk = self.node(0, place.chunk);
        chunk[place.index].through - through(chunk, place.index)
    }

    /// Starts a new log after all existing entries. Returns its first place.
    pub(super) fn begin(&mut self) -> Place {
        // Few chunks are freed at once; many are left to later admissions, which free some each.
        if self.levels[0].len() <= FREED_MOST {
            *self = Entries::default();
            self.levels[0].push_back(Node::new());
        } else if !self.open_chunk().is_empty() {
            self.close();
        }
        Place { chunk: self.open_number(0), index: 0 }
    }

    /// Appends an entry to the log that starts at `head`, and returns where the log starts now.
    ///
    /// The instant must not be before the newest entry's.
    pub(super) fn append(&mut self, head: Place, at_us: u64, units: u64) -> Place {
        let mut head = head;
        let in_one_chunk = head.chunk == self.open_number(0);
        let chunk = self.open_chunk();
        if let Some(last) = chunk.last_mut()
            && last.at_us == at_us
        {
            last.through += units;
            return head;
        }
        // A log that fits one chunk drops expired entries rather than growing or closing the chunk.
        if chunk.len() == chunk.capacity() && in_one_chunk && head.index * 2 > chunk.len() {
            forget(chunk, head.index);
            head.index = 0;
        } else if chunk.len() == CHUNK_ENTRIES {
            self.close();
        }
        let chunk = self.open_chunk();
        let through = through(chunk, chunk.len()) + units;
        chunk.push(Entry { at_us, through });
        head
    }

    /// Takes units from the entry after a place, which must have as many. An entry without units is removed.
    pub(super) fn lower(&mut self, place: Place, units: u64) {
        let emptied = self.units(place) == units;
        let chunk = self.node_mut(0, place.chunk);
        lower_from(chunk, place.index, units);
        if emptied {
            chunk.remove(place.index);
        }
        // Every closed node that contains the chunk counts the same units.
        let mut number = place.chunk;
        for level in 1..LEVELS {
            if number == self.open_number(level - 1) {
                break;
            }
            let index = (number % FANOUT) as usize;
            number /= FANOUT;
            lower_from(self.node_mut(level, number), index, units);
        }
        for _ in 0..FREED_MOST.min(self.levels[0].len() - 1) {
            if self.open_chunk().is_empty() {
                self.reopen();
            }
        }
    }

    /// Frees chunks before the head's, a few at most.
    pub(super) fn prune(&mut self, head: Place) {
        for _ in 0..FREED_MOST.min((head.chunk - self.oldest) as usize) {
            self.oldest += 1;
            let mut number = self.oldest;
            for level in &mut self.levels {
                level.pop_front();
                if !number.is_multiple_of(FANOUT) {
                    break;
                }
                number /= FANOUT;
            }
        }
    }

    /// Returns the approximate bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let nodes: usize = self.levels.iter().map(VecDeque::capacity).sum();
        let closed: usize = self.levels.iter().map(|level| level.len().saturating_sub(1)).sum();
        let open: usize = self.levels.iter().filter_map(VecDeque::back).map(Vec::capacity).sum();
        nodes * size_of::<Node>() + (closed * CHUNK_ENTRIES + open) * size_of::<Entry>()
    }

    /// Closes the open chunk and opens the next. A node above that becomes full closes as well.
    fn close(&mut self) {
        let mut number = self.open_number(0);
        for level in 1..LEVELS {
            let below = &self.levels[level - 1];
            // The last entry's `through` is the sum of its node, which becomes one entry above.
            let last = *below
                .back()
                .and_then(|node| node.last())
                .expect("a chunk that closes is not empty");
            let nodes = &mut self.levels[level];
            if number.is_multiple_of(FANOUT) {
                nodes.push_back(Node::new());
            }
            let node = nodes.back_mut().expect("opened with its first entry");
            let through = through(node, node.len()) + last.through;
            node.push(Entry { at_us: last.at_us, through });
            if number % FANOUT != FANOUT - 1 {
                break;
            }
            number /= FANOUT;
        }
        self.levels[0].push_back(Node::new());
    }

    /// Undoes a close, if all entries after it are gone. The newest entry is then in the open chunk again,
    /// where an admission at the same instant extends it.
    fn reopen(&mut self) {
        self.levels[0].pop_back();
        let mut number = self.open_number(0);
        for nodes in &mut self.levels[1..] {
            if number.is_multiple_of(FANOUT) {
                nodes.pop_back();
            } else if let Some(node) = nodes.back_mut() {
                node.pop();
            }
            if number % FANOUT != FANOUT - 1 {
                break;
            }
            number /= FANOUT;
        }
    }

    /// Returns the number of a level's open node. Above chunks it may have no entry yet.
    fn open_number(&self, level: usize) -> u64 {
        let chunk = self.oldest + self.levels[0].len() as u64 - 1;
        chunk / FANOUT.pow(level as u32)
    }

    fn open_chunk(&mut self) -> &mut Node {
        self.levels[0].back_mut().expect("a log in use has an open chunk")
    }

    fn node(&self, level: usize, number: u64) -> &[Entry] {
        self.levels[level].get(self.index(level, number)).map_or(&[], Vec::as_slice)
    }

    fn node_mut(&mut self, level: usize, number: u64) -> &mut Node {
        let index = self.index(level, number);
        &mut self.levels[level][index]
    }

    fn index(&self, level: usize, number: u64) -> usize {
        (number - self.oldest / FANOUT.pow(level as u32)) as usize
    }
}

/// Returns the units of a node's first entries.
fn through(node: &[Entry], entries: usize) -> u64 {
    if entries == 0 { 0 } else { node[entries - 1].through }
}

/// Drops a chunk's first entries, so that a log that fits one chunk stays in one.
fn forget(chunk: &mut Node, entries: usize) {
    let units = through(chunk, entries);
    chunk.drain(..entries);
    lower_from(chunk, 0, units);
}

fn lower_from(node: &mut Node, index: usize, units: u64) {
    node[index..].iter_mut().for_each(|entry| entry.through -= units);
}

/// How many nodes one node above them covers.
const FANOUT: u64 = 64;
/// The entries of a chunk, a kilobyte: long enough to outweigh its overhead, short enough to search and to lower.
const CHUNK_ENTRIES: usize = 64;
/// Levels of nodes. A node of the topmost level covers 64^4 entries, several times the largest log.
const LEVELS: usize = 4;
/// Chunks freed by one call: more than one, so that expired chunks become fewer; few, so that an admission
/// stays cheap.
const FREED_MOST: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_finds_what_a_walk_finds() {
        let mut entries = Entries::default();
        let begin = entries.begin();
        let mut plain = Vec::new();
        for call in 0..20_000 {
            let units = 1 + call * 7 % 5;
            assert_eq!(entries.append(begin, call * 10, units), begin);
            plain.push((call * 10, units));
        }
        for call in (0..20_000).filter(|call| call * 11 % 3 > 0 || (5_000..9_000).contains(call)) {
            let (place, _) = entries.seek(begin, call * 10, 0);
            let taken = 1 + call % plain[call as usize].1;
            entries.lower(place, taken);
            plain[call as usize].1 -= taken;
        }
        plain.retain(|(_, units)| *units > 0);
        for step in 0..2_000 {
            let (from_us, unit) = (step * 5_003 % 201_000, step * 97 % 21_000);
            let mut passed = 0;
            let walked = plain.iter().find(|(at_us, units)| {
                let reached = *at_us >= from_us && passed + units >= unit;
                passed += if reached { 0 } else { *units };
                reached
            });
            let (place, between) = entries.seek(begin, from_us, unit);
            assert_eq!(between, passed, "from {from_us}, unit {unit}");
            if let Some((at_us, units)) = walked {
                assert_eq!((entries.at_us(place), entries.units(place)), (*at_us, *units));
            }
        }
    }
}
