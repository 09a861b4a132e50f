//! The instances of the fleet. Each reports itself to the fleet's record about once a second, by a call whose cost
//! does not depend on their number. What they say of themselves is read only when a page asks, or to find out in
//! what they differ.

use ::redis::Value;

use super::Call;
use crate::connecting::fingerprint::Fingerprint;
use crate::error::StoreError;
use crate::store::{Decided, InstanceMismatch};

/// What an instance reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its name, such as that of its host.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// When it started, in ms since 1970-01-01 00:00 UTC, as are all times here.
    pub started_ms: u64,
    /// The fingerprint of its policy.
    pub policy: u64,
    /// When that policy was loaded.
    pub policy_loaded_ms: u64,
    /// Its decisions of the last minute.
    pub decided: Decided,
    /// The 99th percentile of their times, in µs; `None` if none was timed.
    pub p99_us: Option<u64>,
    /// Since when it decides some subjects without the store.
    pub degraded_since_ms: Option<u64>,
    /// The revision of the runtime changes that are in force there.
    pub changes: u64,
}

/// A live instance of the fleet, as it reported itself last.
///
/// `Limiter::fleet` lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetInstance {
    /// Its id: a random number, unique in practice.
    pub id: u64,
    /// Whether it is the instance that asked.
    pub is_own: bool,
    /// What it says of itself.
    pub report: Report,
    /// The settings in which it differs from the instance that asked, by their names in metrics; empty if they agree.
    pub differs_in: Vec<&'static str>,
}

impl FleetInstance {
    /// Returns the only instance of a fleet without a store.
    pub fn alone(report: Report) -> FleetInstance {
        FleetInstance { id: 0, is_own: true, report, differs_in: Vec::new() }
    }
}

/// The reply to a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The store's time.
    pub now_us: u64,
    /// The version of the runtime changes; empty if there are none.
    pub version: Vec<u8>,
    /// The guard of the shard; empty if there is none, or it was not read.
    pub(crate) guard: Vec<u8>,
    /// The instances, if the beat asked for their number.
    pub counted: Option<Counted>,
}

/// How many instances there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub(crate) live: u32,
    /// How many of them have the same settings and policy.
    pub(crate) alike: u32,
    /// The names of instances that have sent no beat for a while. Of all instances, one learns of each.
    pub gone: Vec<String>,
}

/// What a beat asks for besides the version of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// For the version alone.
    Nothing,
    /// For the number of instances.
    Count,
    /// Also removes what instances have left that are gone.
    CountAndTidy,
}

/// One instance in the record.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub(crate) tag: &'a str,
    /// Empty for an onlooker.
    pub(crate) id: &'a str,
    pub(crate) fingerprint: &'a Fingerprint,
}

/// Returns the call for the number of instances in a record. Some minutes after the last beat it is 0.
pub fn count(record: &str) -> Call {
    Call::of_command("ZCARD").with(format!("sg1:{{{record}}}:i"))
}

impl Place<'_> {
    /// Returns the call that reports this instance, with its row unless that is empty, and reads the guard under a key
    /// if there is one.
    pub(crate) fn beat(&self, policy: u64, row: &str, guard: Option<String>, asks: Asks) -> Call {
        let Place { tag, id, fingerprint } = self;
        let key = |part: &str| format!("sg1:{{{tag}}}:{part}");
        let mut keys =
            vec![key("i"), key(&format!("k:{policy:x}:{fingerprint}")), key("w"), key("c")];
        keys.extend(guard);
        let call = Call::new(&super::BEAT, &keys).with(*id).with(row);
        call.with(GONE_SECONDS).with(asks as u8)
    }

    /// Returns the call that removes what this instance says of itself. It is then no longer listed.
    pub(crate) fn leave(&self) -> Call {
        Call::of_command("HDEL").with(format!("sg1:{{{}}}:w", self.tag)).with(self.id)
    }

    /// Returns the call that reads all instances.
    pub(crate) fn list(&self) -> Call {
        let keys = ["i", "w"].map(|part| format!("sg1:{{{}}}:{part}", self.tag));
        Call::new(&super::INSTANCES, &keys).with(GONE_SECONDS).with(LISTED_MAX)
    }

    /// Returns what the instance says of itself, in one line. The name is last, since it may hold spaces.
    pub(crate) fn row(&self, report: &Report) -> String {
        let Report { version, started_ms, policy, policy_loaded_ms, decided, changes, .. } = report;
        let Decided { allowed, denied } = decided;
        let (p99_us, degraded_ms) = (or_none(report.p99_us), or_none(report.degraded_since_ms));
        format!(
            "{FORMAT} {} {version} {started_ms} {policy:x} {policy_loaded_ms} {allowed} {denied} \
             {p99_us} {degraded_ms} {changes} {}",
            self.fingerprint, report.name
        )
    }

    /// Parses the reply to [`list`](Self::list). `policy` is that of the instance that asked.
    pub(crate) fn read(
        &self,
        answer: Value,
        policy: u64,
    ) -> Result<Vec<FleetInstance>, StoreError> {
        let foreign = || StoreError::Foreign("the list of instances is malformed".into());
        let Value::Array(parts) = answer else { return Err(foreign()) };
        let pairs = parts.chunks_exact(2).filter_map(|pair| {
            let [Value::BulkString(id), Value::BulkString(row)] = pair else { return None };
            let id = u64::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()?;
            // The store lost the row, and a beat brings it back within seconds.
            (!row.is_empty()).then(|| self.instance(id, &String::from_utf8_lossy(row), policy))
        });
        Ok(pairs.collect())
    }

    /// Reads one line. An instance of a version with another format differs in its schema, and nothing else is known
    /// of it.
    fn instance(&self, id: u64, row: &str, policy: u64) -> FleetInstance {
        let is_own = self.id == format!("{id:016x}");
        let Some((fingerprint, report)) = report_in(row) else {
            let differs_in = vec!["schema"];
            return FleetInstance { id, is_own, report: Report::default(), differs_in };
        };
        let mismatch = self.fingerprint.mismatch(Some(&fingerprint), 1);
        let mismatch = InstanceMismatch { policy: u32::from(report.policy != policy), ..mismatch };
        let differs_in = mismatch.parts().into_iter().filter(|(_, instances)| *instances > 0);
        // Right after a reload its own row still has the policy before.
        let differs_in = differs_in.map(|(part, _)| part).filter(|_| !is_own).collect();
        FleetInstance { id, is_own, report, differs_in }
    }
}

fn report_in(row: &str) -> Option<(Fingerprint, Report)> {
    let mut words = row.splitn(12, ' ');
    let mut next = || words.next();
    if next()? != FORMAT {
        return None;
    }
    let fingerprint = Fingerprint::read(next()?)?;
    let version = plain(next()?);
    let started_ms = next()?.parse().ok()?;
    let policy = u64::from_str_radix(next()?, 16).ok()?;
    let policy_loaded_ms = next()?.parse().ok()?;
    let decided = Decided { allowed: next()?.parse().ok()?, denied: next()?.parse().ok()? };
    let (p99_us, degraded_since_ms) = (next()?.parse().ok(), next()?.parse().ok());
    let changes = next()?.parse().ok()?;
    let name = plain(next()?);
    let report = Report {
        name,
        version,
        started_ms,
        policy,
        policy_loaded_ms,
        decided,
        p99_us,
        degraded_since_ms,
        changes,
    };
    Some((fingerprint, report))
}

impl Beat {
    /// Parses the reply to a beat.
    pub(crate) fn read(answer: Value) -> Result<Beat, StoreError> {
        let foreign = || StoreError::Foreign("the reply to a beat is malformed".into());
        let Value::Array(parts) = answer else { return Err(foreign()) };
        let [
            Value::Int(now_us),
            Value::BulkString(version),
            Value::BulkString(guard),
            counted @ ..,
        ] = &parts[..]
        else {
            return Err(foreign());
        };
        let counted = match counted {
            [] => None,
            [Value::Int(live), Value::Int(alike), Value::Array(gone)] => {
                let count = |number: &i64| u32::try_from(*number).unwrap_or(0);
                let gone = gone.iter().filter_map(name_in).collect();
                Some(Counted { live: count(live), alike: count(alike), gone })
            }
            _ => return Err(foreign()),
        };
        Ok(Beat {
            now_us: (*now_us).max(0).cast_unsigned(),
            version: version.clone(),
            guard: guard.clone(),
            counted,
        })
    }
}

fn name_in(row: &Value) -> Option<String> {
    let Value::BulkString(row) = row else { return None };
    Some(report_in(&String::from_utf8_lossy(row))?.1.name)
}

/// Returns a text of another instance as a page can show it.
fn plain(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(TEXT_MAX).collect()
}

fn or_none(number: Option<u64>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

/// The format of a row.
const FORMAT: &str = "1";
/// Five beats. An instance that was paused for that long counts as gone.
const GONE_SECONDS: u64 = 5;
const TEXT_MAX: usize = 64;
/// More instances than these are counted, and not listed.
const LISTED_MAX: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Secret;

    fn report() -> Report {
        Report {
            name: "web 1".into(),
            version: "0.1.0".into(),
            started_ms: 1,
            policy: 0xfeed,
            policy_loaded_ms: 2,
            decided: Decided { allowed: 3, denied: 4 },
            p99_us: Some(5),
            degraded_since_ms: None,
            changes: 6,
        }
    }

    #[test]
    fn a_row_is_read_as_it_was_written_and_shows_in_what_its_instance_differs() {
        let own = Fingerprint::new(&Secret::new(&[1; 16]), 0);
        let other = Fingerprint::new(&Secret::new(&[2; 16]), 7);
        let of = |fingerprint| Place { tag: "fleet", id: "a", fingerprint };
        let seen = |row: &str, policy| of(&own).instance(10, row, policy);
        for report in [report(), Report { p99_us: None, degraded_since_ms: Some(9), ..report() }] {
            let same = seen(&of(&own).row(&report), 0xfeed);
            assert_eq!(same, FleetInstance { id: 10, is_own: false, report, differs_in: vec![] });
        }
        let row = of(&other).row(&report());
        assert_eq!(seen(&row, 1).differs_in, ["secret", "ring", "policy"]);
        for of_another_format in ["2", "2 x", "1 3:1:1 0.1.0 now"] {
            let seen = seen(of_another_format, 1);
            assert_eq!((seen.differs_in, seen.report), (vec!["schema"], Report::default()));
        }
    }
}
