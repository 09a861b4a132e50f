//! Finds live instances that keep separate counters, because their key secret, ring or schema differs.

use spillgate::store::{InstanceMismatch, StoreProbe};

use super::finding::{Finding, Level};
use crate::counted::counted;

/// Returns the findings on live instances that differ from the configuration of this process.
pub fn instance_findings(probe: &StoreProbe) -> impl Iterator<Item = Finding> {
    let live = probe.live_instances;
    mismatches(probe.mismatch).map(move |(check, problem)| Finding {
        level: Level::Unsafe,
        check,
        server: None,
        problem: format!("{problem}, of {live}"),
        why: "they keep separate counters, so each limit is admitted more than once",
        fix: match check {
            SECRET => {
                "give all instances and the doctor the same key_secret_file; while you change it, name the old \
                 one as secret_previous_file"
            }
            RING => {
                "give all instances and the doctor the same ring; while you change it, name the old nodes as \
                 previous"
            }
            _ => "run the same version of spillgate everywhere",
        }
        .to_owned(),
    })
}

/// Returns each check that fails, and a text that counts the instances that differ.
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
