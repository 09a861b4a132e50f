//! Consistent hashing: maps a subject to a node of a ring.
//!
//! All instances, of every version, must compute the same points and fingerprints, so these may not change.

use xxhash_rust::xxh3::xxh3_64;

use crate::store::Ring;

/// The points of a ring's nodes, in order.
#[derive(Debug)]
pub struct Points {
    /// Position and node of each point. Points at one position are all kept, ordered by the node's name, so
    /// that no node loses a point unnoticed.
    points: Vec<(u64, u16)>,
}

/// Returns a hash of a ring's nodes and weights. If two rings differ in it, they map subjects differently.
pub(crate) fn fingerprint(ring: &Ring) -> u64 {
    let mut nodes: Vec<_> = ring.nodes().iter().map(|it| (&it.name, it.weight)).collect();
    nodes.sort_unstable();
    let mut bytes = Vec::new();
    for (name, weight) in nodes {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&weight.to_le_bytes());
    }
    xxh3_64(&bytes)
}

impl Points {
    /// Computes the points of nodes, given by name and weight.
    pub fn new<'n>(nodes: impl IntoIterator<Item = (&'n str, u32)>) -> Points {
        let nodes: Vec<(&str, u32)> = nodes.into_iter().collect();
        let mut points: Vec<(u64, u16)> = Vec::new();
        for (number, (name, weight)) in (0..).zip(&nodes) {
            points.extend((0..weight * POINTS_EACH).map(|point| (point_of(name, point), number)));
        }
        points.sort_unstable_by_key(|(at, number)| (*at, nodes[usize::from(*number)].0));
        Points { points }
    }

    /// Returns the node of a tag: the owner of the next point.
    pub fn node_of(&self, tag: u128) -> u16 {
        let at = xxh3_64(&tag.to_le_bytes());
        let next = self.points.partition_point(|(point, _)| *point < at);
        let (_, node) = self.points[if next == self.points.len() { 0 } else { next }];
        node
    }
}

/// Returns a point's position: XXH3-64 of the name, a zero byte (no name has one), and the point's number in
/// four bytes, lowest first.
fn point_of(name: &str, point: u32) -> u64 {
    let mut bytes = Vec::with_capacity(name.len() + 5);
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&point.to_le_bytes());
    xxh3_64(&bytes)
}

/// Points for each unit of weight. With 150, a third of all rings has a node more than a tenth off its share;
/// with 1,024, few have.
const POINTS_EACH: u32 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(nodes: &[(&str, u32)]) -> Vec<u32> {
        let points = Points::new(nodes.iter().copied());
        let mut shares = vec![0; nodes.len()];
        (0..SUBJECTS).for_each(|tag| shares[usize::from(points.node_of(scattered(tag)))] += 1);
        shares
    }

    fn scattered(tag: u128) -> u128 {
        (tag + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
    }

    #[test]
    fn each_node_holds_its_weight_of_a_million_subjects_within_a_tenth() {
        for nodes in [
            &[("a", 1), ("b", 1), ("c", 1)][..],
            &[("redis-0", 1), ("redis-1", 2), ("redis-2", 3), ("redis-3", 4)],
            &[("eu-west-1a", 5), ("eu-west-1b", 5)],
        ] {
            let weights: u32 = nodes.iter().map(|(_, weight)| weight).sum();
            for ((name, weight), share) in nodes.iter().zip(shares(nodes)) {
                let fair = SUBJECTS as u32 / weights * weight;
                assert!(
                    share.abs_diff(fair) <= fair / 10,
                    "{name} of {nodes:?} holds {share}, its weight is {fair}"
                );
            }
        }
    }

    /// ACCIDENTS A12. Positions of 32 bits fell together, one overwrote the other, and a node vanished.
    #[test]
    fn points_at_one_position_are_all_kept() {
        let twins = Points::new([("a", 2), ("a", 2)]);
        let of = |node| twins.points.iter().filter(|(_, owner)| *owner == node).count() as u32;
        assert_eq!((of(0), of(1)), (2 * POINTS_EACH, 2 * POINTS_EACH));
        let points = Points::new([("a", 3), ("b", 2)]);
        let of = |node| points.points.iter().filter(|(_, owner)| *owner == node).count() as u32;
        assert_eq!((of(0), of(1)), (3 * POINTS_EACH, 2 * POINTS_EACH));
    }

    #[test]
    fn the_order_of_nodes_does_not_matter() {
        let there = [("a", 1), ("b", 2), ("c", 1)];
        let back = [("c", 1), ("b", 2), ("a", 1)];
        let (one, other) = (Points::new(there), Points::new(back));
        for tag in (0..10_000).map(scattered) {
            let named = there[usize::from(one.node_of(tag))].0;
            assert_eq!(back[usize::from(other.node_of(tag))].0, named);
        }
    }

    #[test]
    fn a_new_node_takes_from_all_and_moves_nothing_between_others() {
        let few = Points::new([("a", 1), ("b", 1), ("c", 1)]);
        let more = Points::new([("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
        let mut moved = 0;
        for tag in (0..10_000).map(scattered) {
            let (before, after) = (few.node_of(tag), more.node_of(tag));
            assert!(after == before || after == 3, "{before} to {after}");
            moved += u32::from(after == 3);
        }
        assert!((2_250..2_750).contains(&moved), "{moved} of 10,000 moved");
    }

    /// Frozen: a subject that moves loses its state. The numbers are from the reference implementation's
    /// Python binding.
    #[test]
    fn subjects_stay_on_their_nodes() {
        let points = Points::new([("a", 1), ("b", 1), ("c", 1)]);
        let nodes: Vec<u16> = (0..16).map(|tag| points.node_of(scattered(tag))).collect();
        assert_eq!(point_of("a", 0), 7_978_727_645_958_045_335);
        assert_eq!(nodes, [1, 0, 2, 1, 0, 2, 0, 1, 1, 1, 1, 1, 2, 1, 0, 2]);
    }

    const SUBJECTS: u128 = 1_000_000;
}
