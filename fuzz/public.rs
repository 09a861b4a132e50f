//! The checks of the public parsers of the library: one function `holds` for each, which panics if a check fails on
//! an input. The fuzzing program calls them, and so do the tests that replay the corpora in the gate. The checks of
//! internal parsers are beside those parsers.

#[path = "public/identity.rs"]
mod identity;
#[path = "public/path.rs"]
mod path;
#[path = "public/quota.rs"]
mod quota;

/// The name of a corpus, and the check of its inputs.
pub(crate) type Target = (&'static str, fn(&[u8]));

pub(crate) const TARGETS: [Target; 3] =
    [("identity", identity::holds), ("path", path::holds), ("quota", quota::holds)];
