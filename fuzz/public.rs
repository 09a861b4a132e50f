//! The checks of the parsers that public functions reach: one function `holds` for each, which panics if a check fails
//! on an input. The fuzzing program calls them, and so does the test that replays the corpora in the gate.

#[path = "public/identity.rs"]
mod identity;
#[path = "public/import.rs"]
mod import;
#[path = "public/path.rs"]
mod path;
#[path = "public/policy.rs"]
mod policy;
#[path = "public/quota.rs"]
mod quota;
#[path = "public/routes.rs"]
mod routes;
#[path = "public/settings.rs"]
mod settings;

/// The name of a corpus, and the check of its inputs.
pub(crate) type Target = (&'static str, fn(&[u8]));

pub(crate) const TARGETS: [Target; 8] = [
    ("explain", routes::explain),
    ("http", routes::http),
    ("identity", identity::holds),
    ("import", import::holds),
    ("path", path::holds),
    ("policy", policy::holds),
    ("quota", quota::holds),
    ("settings", settings::holds),
];
