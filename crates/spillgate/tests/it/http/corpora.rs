//! The corpora of the fuzz targets, replayed.

use std::path::Path;

#[path = "../../../../../fuzz/bodies/identity.rs"]
mod identity;

/// Runs a target over every input that was ever worth keeping.
fn replay(target: &str, holds: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut replayed = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        holds(&std::fs::read(path).unwrap());
        replayed += 1;
    }
    assert!(replayed >= 30, "{replayed} inputs in {}: where is the rest?", folder.display());
}

#[test]
fn forwarded_addresses_hold_over_the_corpus() {
    replay("identity", identity::holds);
}
