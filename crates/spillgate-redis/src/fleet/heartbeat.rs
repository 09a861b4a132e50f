//! Heartbeats: every instance reports to every shard that it is alive.
//!
//! From the replies an instance knows:
//!
//! - how many instances share a limit while a shard is out of reach,
//! - whether a shard has lost its data,
//! - whether another instance keeps separate counters,
//! - how much all instances together decide.

use std::time::Duration;

use ::redis::{Cmd, Value};
use futures_util::future::join_all;

use crate::calls::guard::{self, Guard};
use crate::calls::keys;
use crate::connecting::failure::Failure;
use crate::connecting::fingerprint::{Fingerprint, Instance};
use crate::connecting::link::Redirect;
use crate::connecting::shard::Shard;
use crate::connecting::topology::Topology;
use crate::jitter;
use crate::store::{Decided, FleetLoad, InstanceMismatch, Presence};
use crate::time::Deadline;

/// The live instances of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Living {
    /// How many there are, and how many of them differ from this one.
    pub mismatch: InstanceMismatch,
    /// The decisions of the last minute, of the instances that report them.
    pub load: FleetLoad,
}

/// One instance as a member of its fleet: what heartbeats, probes and runtime changes need of it.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) instance: &'a Instance,
    /// A random number, unique in practice.
    pub(crate) instance_id: u64,
    /// The longest time that a decision waits for a silent server.
    pub(crate) timeout: Duration,
}

impl Member<'_> {
    /// Reports to every shard that this instance is alive, with its decisions of the last minute.
    ///
    /// Returns the largest count of live instances that a shard knows, or `None` if no shard answered.
    pub async fn heartbeat(&self, load: Decided) -> Option<Living> {
        let deadline = Deadline::after(ANSWER);
        let shards = self.topology.shards();
        let beats = shards.iter().map(|(tag, shard)| self.beat(shard, tag, Some(load), deadline));
        join_all(beats).await.into_iter().filter_map(Result::ok).reduce(Living::or)
    }

    /// Reads a shard's guard after a call found it changed, unless another caller has just read it.
    pub(crate) async fn learn_guard(
        &self,
        shard: &Shard,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let seen = shard.guard.now();
        let Some(_asking) = deadline.bound(shard.guard.asking.lock()).await else {
            return Err(Failure::unsent_in_time("no time left to read the shard's guard"));
        };
        // Unchanged since the call failed: no other caller has read it meanwhile.
        if shard.guard.now() == seen {
            self.beat(shard, keys::ANY_TAG, None, deadline).await?;
        }
        Ok(())
    }

    /// Sends one heartbeat, and returns the live instances.
    async fn beat(
        &self,
        shard: &Shard,
        tag: &str,
        load: Option<Decided>,
        deadline: Deadline,
    ) -> Result<Living, Failure> {
        let key = guard::key_of(tag);
        let command = self.command(shard, tag, &key, load);
        let answer = shard.link.command(&command, Redirect::None, deadline).await;
        let answer = answer.inspect_err(|failure| self.topology.note_failure(failure))?;
        let (guard, living) = read(answer, key, &self.instance.fingerprint)
            .ok_or_else(|| Failure::Bug(format!("{} returned no guard", shard.name).into()))?;
        if shard.guard.note(guard) {
            tracing::warn!(
                target: "spillgate",
                shard = shard.name,
                "state lost: the server lost its data; on_state_loss decides how limits begin"
            );
        }
        Ok(living)
    }

    fn command(&self, shard: &Shard, tag: &str, guard: &str, load: Option<Decided>) -> Cmd {
        let Instance { fingerprint, presence } = self.instance;
        let name = match presence {
            Presence::Announced => format!("{:016x}:{fingerprint}", self.instance_id),
            Presence::Onlooker => String::new(),
        };
        let load = load.map(|Decided { allowed, denied }| format!("{allowed}.{denied}"));
        let mut beat = ::redis::cmd("EVAL");
        beat.arg(SCRIPT)
            .arg(3)
            .arg(format!("sg1:{{{tag}}}:nodes"))
            .arg(guard)
            .arg(format!("sg1:{{{tag}}}:load"))
            .arg(name)
            .arg(GONE_MS)
            .arg(format!("{:016x}", jitter::random()))
            .arg(shard.guard.epoch_under(guard))
            .arg(load.unwrap_or_default());
        beat
    }
}

impl Living {
    /// Returns the larger counts of two shards.
    fn or(self, other: Living) -> Living {
        Living {
            mismatch: self.mismatch.or(other.mismatch),
            load: if self.load.instances < other.load.instances { other.load } else { self.load },
        }
    }
}

/// Parses a heartbeat's reply: the guard, and the live instances compared with the own fingerprint.
pub fn read(answer: Value, key: String, own: &Fingerprint) -> Option<(Guard, Living)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(guard), Value::Array(kinds), Value::Array(load)] = &parts[..] else {
        return None;
    };
    let [Value::Int(instances), Value::Int(allowed), Value::Int(denied)] = load[..] else {
        return None;
    };
    let load = FleetLoad {
        instances: u32::try_from(instances).unwrap_or(0),
        allowed: allowed.max(0).cast_unsigned(),
        denied: denied.max(0).cast_unsigned(),
    };
    let mut living = Living { load, ..Living::default() };
    for kind in kinds.chunks_exact(2) {
        let [Value::BulkString(kind), Value::Int(instances)] = kind else { return None };
        let instances = u32::try_from(*instances).unwrap_or(0);
        let other = std::str::from_utf8(kind).ok().and_then(Fingerprint::read);
        living.mismatch = living.mismatch.and(own.mismatch(other.as_ref(), instances));
    }
    Some((Guard::read(key, guard)?, living))
}

const SCRIPT: &str = include_str!("../lua/heartbeat.lua");
/// Five heartbeats. An instance that was paused for that long counts as gone.
const GONE_MS: u64 = 5_000;
/// The time limit of a heartbeat. A slower shard counts by its last reply.
const ANSWER: Duration = Duration::from_millis(500);
