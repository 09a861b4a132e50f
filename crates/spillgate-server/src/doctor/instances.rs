//! Finds live instances that keep separate counters, because their key secret, ring or schema differs.

use spillgate::store::{InstanceMismatch, StoreProbe};

use super::finding::{Finding, Level};

/// Returns the findings on live instances that differ from the configuration of this process.
pub fn instance_findings(probe: &StoreProbe) -> impl Iterator<Item = Finding> {
    mismatches(probe.mismatch).map(|(check, problem)| Finding {
        level: Level::Unsafe,
        check,
        server: None,
        problem,
        why: match check {
            RING => {
                "a subject that moves has a counter on each ring, so while instances with both run it can get up \
                 to twice its limit"
            }
            _ => {
                "each subject has a counter of either kind, so while instances of both kinds run it can get up to \
                 twice its limit"
            }
        },
        fix: match check {
            SECRET => "give all instances and the doctor the same key_secret_file",
            RING => "give all instances and the doctor the same ring",
            _ => "run the same version of spillgate everywhere",
        }
        .to_owned(),
    })
}

/// Returns each check that fails, and a text that counts the instances that differ, and all.
pub(crate) fn mismatches(
    mismatch: InstanceMismatch,
) -> impl Iterator<Item = (&'static str, String)> {
    let parts = [
        (SECRET, mismatch.secret, "with another key secret"),
        (RING, mismatch.ring, "with another ring"),
        (SCHEMA, mismatch.schema, "with another schema"),
    ];
    let differing = parts.into_iter().filter(|(_, instances, _)| *instances > 0);
    differing.map(move |(check, instances, how)| {
        (check, format!("live instances {how}: {instances} of {}", mismatch.live))
    })
}

const SECRET: &str = "secret-mismatch";
const RING: &str = "ring-mismatch";
const SCHEMA: &str = "schema-mismatch";
