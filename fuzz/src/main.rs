//! All fuzz targets in one program; the variable `SPILLGATE_FUZZ_TARGET` chooses one.
#![no_main]

use std::sync::LazyLock;

#[path = "../public.rs"]
mod public;
#[path = "../replay.rs"]
mod replay;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let (name, holds) = *TARGET;
    replay::bounded(name, holds, input);
});

type Target = (&'static str, fn(&[u8]));

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("SPILLGATE_FUZZ_TARGET").unwrap_or_default();
    let targets = || {
        public::TARGETS
            .into_iter()
            .chain(spillgate_core::fuzzed::TARGETS)
            .chain(spillgate_redis::fuzzed::TARGETS)
            .chain(spillgate::fuzzed::TARGETS)
            .chain(spillgate_server::fuzzed::TARGETS)
            .chain(spillgate_tools::fuzzed::TARGETS)
    };
    targets().find(|(name, _)| *name == wanted).unwrap_or_else(|| {
        let names: Vec<&str> = targets().map(|(name, _)| name).collect();
        panic!("{wanted:?} is no target; set SPILLGATE_FUZZ_TARGET to one of {}", names.join(", "))
    })
});
