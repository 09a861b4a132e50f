//! Slots: a Cluster distributes keys over its nodes by the hash of the text between braces.

use std::sync::LazyLock;

use crate::calls::keys;

/// The number of slots in a Cluster.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of all keys of a tag.
pub fn of_tag(tag: u128) -> u16 {
    slot_of(&keys::tag_name(tag))
}

/// Returns a short tag whose keys belong to a slot.
pub fn tag_in(slot: u16) -> String {
    // Found by trying numbers once: any text works, and short ones keep keys small.
    static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut numbers = vec![None; usize::from(SLOTS)];
        let mut missing = SLOTS;
        for number in 0_u32.. {
            if missing == 0 {
                break;
            }
            let place = &mut numbers[usize::from(slot_of(number.to_string().as_bytes()))];
            if place.is_none() {
                *place = Some(number);
                missing -= 1;
            }
        }
        numbers.into_iter().flatten().collect()
    });
    NUMBERS[usize::from(slot)].to_string()
}

/// Computes CRC16/XMODEM modulo the number of slots, as the Cluster specification defines it.
pub fn slot_of(bytes: &[u8]) -> u16 {
    let crc = bytes
        .iter()
        .fold(0_u16, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOTS
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The second value is the specification's own example.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b""), 0);
        assert_eq!(slot_of(b"123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn there_is_a_tag_in_every_slot() {
        assert!((0..SLOTS).all(|slot| slot_of(tag_in(slot).as_bytes()) == slot));
    }

    /// ACCIDENTS 32. A whole namespace belonged to one slot.
    #[test]
    fn subjects_spread_evenly_over_slots() {
        let mut counts = vec![0_u32; usize::from(SLOTS)];
        for subject in 0..1_638_400_u128 {
            let tag = (subject + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            counts[usize::from(of_tag(tag))] += 1;
        }
        // A hundred each, within six standard deviations.
        assert!(counts.iter().all(|count| (40..=160).contains(count)));
    }
}
