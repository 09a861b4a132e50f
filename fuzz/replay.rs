//! Runs the checks of fuzz targets within a bound on memory, for the fuzzing program and for the tests that replay
//! the corpora in the gate.

use allocation_counter::measure;

#[cfg(test)]
#[path = "bombs.rs"]
mod bombs;

/// Panics if `holds` does, or if it takes more memory than the input accounts for: a claimed length or number of
/// repetitions must take none.
pub(super) fn bounded(target: &str, holds: fn(&[u8]), input: &[u8]) {
    let (always, per_byte) = match target {
        "replies" => (BYTES_OF_REPLIES, BYTES_PER_BYTE),
        "policy" | "settings" => (BYTES_OF_NESTED_KEYS, BYTES_PER_BYTE_OF_TOML),
        _ => (BYTES_ALWAYS, BYTES_PER_BYTE),
    };
    let bytes_max = always + per_byte * input.len() as u64;
    if measure(|| holds(input)).bytes_max > bytes_max {
        // The first run may have set up memory that stays.
        let bytes = measure(|| holds(input)).bytes_max;
        let length = input.len();
        assert!(bytes <= bytes_max, "{target}: {length} bytes of input take {bytes} of memory");
    }
}

/// Replays every input of the corpora of these targets, and the bombs.
#[cfg(test)]
pub(super) fn all(targets: &[super::Target]) {
    let corpora = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, holds) in targets {
        let mut replayed = 0;
        for entry in std::fs::read_dir(corpora.join(target)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            bounded(target, *holds, &std::fs::read(path).unwrap());
            replayed += 1;
        }
        assert!(replayed > 5, "{target}: {replayed} inputs are not the whole corpus");
        for bomb in bombs::BOMBS.iter().filter(|bomb| bomb.target == *target) {
            println!("{target}: {} times {}", bomb.times, bomb.repeated.escape_ascii());
            bounded(target, *holds, &bomb.input());
        }
    }
}

/// The memory of the shortest input: a decision's tables, the first pages of a tree.
const BYTES_ALWAYS: u64 = 256 * 1024;

/// For each array that claims to be long the client library reserves 4,096 values of 56 bytes, up to a hundred levels
/// deep. That bound is the library's, and only the store sends such replies.
const BYTES_OF_REPLIES: u64 = BYTES_ALWAYS + 100 * 4_096 * 56;

/// A short TOML file may have 512 dots in its keys, and each makes a table of 1.4 kB.
const BYTES_OF_NESTED_KEYS: u64 = 1024 * 1024;

/// A tree of YAML takes about a hundred times the memory of its text.
const BYTES_PER_BYTE: u64 = 400;

/// A tree of TOML takes up to 250 times the memory of its text, if each table has one field. Invalid TOML takes 500
/// times as much as its text, since every byte may be an error.
const BYTES_PER_BYTE_OF_TOML: u64 = 600;
