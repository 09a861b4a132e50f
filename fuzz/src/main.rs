//! All fuzz targets in one program; the variable `SPILLGATE_FUZZ_TARGET` chooses one.
#![no_main]

use std::sync::LazyLock;

#[path = "../public.rs"]
mod public;
#[path = "../replay.rs"]
mod replay;
mod replies;
mod resp;

use public::Target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let (name, holds) = *TARGET;
    replay::bounded(name, holds, input);
});

/// The parsers of bytes on the wire are private modules without dependencies of ours, so this program includes them.
const ON_THE_WIRE: [Target; 2] = [("replies", replies::holds), ("resp", resp::holds)];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("SPILLGATE_FUZZ_TARGET").unwrap_or_default();
    let targets = || public::TARGETS.into_iter().chain(ON_THE_WIRE);
    targets().find(|(name, _)| *name == wanted).unwrap_or_else(|| {
        let names: Vec<&str> = targets().map(|(name, _)| name).collect();
        panic!("{wanted:?} is not a target; set SPILLGATE_FUZZ_TARGET to one of {}", names.join(", "))
    })
});
