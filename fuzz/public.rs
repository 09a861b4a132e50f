//! What must hold of any input of the parsers that the library's interface has: one function `holds` for each, which
//! panics if it does not hold. The fuzzing program calls them, and so do the tests that replay the corpora in the gate.
//! Those of parsers within a crate stand beside their parser.

#[path = "public/identity.rs"]
mod identity;
#[path = "public/path.rs"]
mod path;
#[path = "public/quota.rs"]
mod quota;

/// The name of a corpus, and what must hold of every input.
pub(crate) type Target = (&'static str, fn(&[u8]));

pub(crate) const TARGETS: [Target; 3] =
    [("identity", identity::holds), ("path", path::holds), ("quota", quota::holds)];
