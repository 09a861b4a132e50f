//! Runs what fuzz targets check, within a bound on memory: shared by the fuzzing program and by the
//! tests that replay the corpora in the gate.

use allocation_counter::measure;

#[cfg(test)]
#[path = "bombs.rs"]
mod bombs;

/// Panics if `holds` does, or takes memory that the input does not account for: what an input merely
/// claims, as the length of what follows or as the number of its repetitions, must take none.
pub(super) fn bounded(target: &str, holds: fn(&[u8]), input: &[u8]) {
    let (always, per_byte) = match target {
        "replies" => (BYTES_OF_REPLIES, BYTES_PER_BYTE),
        "policy" | "settings" => (BYTES_OF_NESTED_KEYS, BYTES_PER_BYTE_OF_TOML),
        _ => (BYTES_ALWAYS, BYTES_PER_BYTE),
    };
    let bytes_max = always + per_byte * input.len() as u64;
    if measure(|| holds(input)).bytes_max > bytes_max {
        // The first time may have set up what stays.
        let bytes = measure(|| holds(input)).bytes_max;
        let length = input.len();
        assert!(bytes <= bytes_max, "{target}: {length} bytes of input take {bytes} of memory");
    }
}

/// Every input that was worth keeping, of each target, and the bombs.
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
        assert!(replayed > 20, "{target}: {replayed} inputs are not the whole corpus");
        for bomb in bombs::BOMBS.iter().filter(|bomb| bomb.target == *target) {
            println!("{target}: {} times {}", bomb.times, bomb.repeated.escape_ascii());
            bounded(target, *holds, &bomb.input());
        }
    }
}

/// A decision's tables, a tree's first pages: what the shortest input may take.
const BYTES_ALWAYS: u64 = 256 * 1024;

/// Wherever an array claims to be long the client library makes room for 4,096 values of 56 bytes, and goes
/// a hundred deep. That is its bound to keep, and its answers are the store's, not a stranger's.
const BYTES_OF_REPLIES: u64 = BYTES_ALWAYS + 100 * 4_096 * 56;

/// A short file of TOML may have 512 dots in its keys, and each makes a table of 1.4 kB.
const BYTES_OF_NESTED_KEYS: u64 = 1024 * 1024;

/// A tree of YAML takes about a hundred times its text.
const BYTES_PER_BYTE: u64 = 400;

/// A tree of TOML takes up to 250 times its text, where each table holds one field. What is no TOML takes
/// 500 times its text, for every byte may be an error.
const BYTES_PER_BYTE_OF_TOML: u64 = 600;
