//! Live instances that keep separate counters, because they differ in what all must have in common.

use spillgate::{InstanceMismatch, StoreProbe};

use super::finding::{Finding, Level};
use crate::counted::counted;

/// Returns the findings on live instances that differ from the configuration of this process.
pub fn instance_findings(probe: &StoreProbe) -> impl Iterator<Item = Finding> {
    let live = probe.live_instances;
    mismatches(probe.mismatch).map(move |(check, what)| Finding {
        level: Level::Unsafe,
        check,
        server: None,
        what: format!("{what}, of {live}"),
        why: "they keep separate counters, so each limit is admitted more than once",
        mend: match check {
            SECRET => {
                "give all instances and the doctor the same key_secret_file; while you change it, name the one \
                 before as secret_previous_file"
            }
            RING => {
                "give all instances and the doctor the same ring; while you change it, name the nodes before as \
                 previous"
            }
            _ => "run the same version of spillgate everywhere",
        }
        .to_owned(),
    })
}

/// The name of the check for each part in which live instances differ, and how many do.
pub(crate) fn mismatches(
    mismatch: InstanceMismatch,
) -> impl Iterator<Item = (&'static str, String)> {
    let parts = [
        (SECRET, mismatch.secret, "with another key secret"),
        (RING, mismatch.ring, "with another ring"),
        (SCHEMA, mismatch.schema, "with another schema"),
    ];
    let differing = parts.into_iter().filter(|(_, instances, _)| *instances > 0);
    differing.map(|(check, instances, how)| {
        (check, format!("{} {how}", counted(instances as usize, "live instance")))
    })
}

const SECRET: &str = "secret-mismatch";
const RING: &str = "ring-mismatch";
const SCHEMA: &str = "schema-mismatch";
