//! Each process says to every shard that it lives: so all know how many share a limit when a shard
//! is out of reach, and notice when one has lost what it held.

use std::collections::BTreeSet;
use std::time::Duration;

use ::redis::{Cmd, Value};
use futures_util::future::join_all;

use super::failure::Failure;
use super::guard::{self, Guard};
use super::ring::Seal;
use super::shard::Shard;
use super::{Redis, StoreClock, jitter, topology};
use crate::time::{Clock, Deadline};

impl Redis {
    /// Says to every shard that we live; answers of how many processes the best informed knows, and
    /// nothing if none answered.
    pub(crate) async fn heartbeat(&self) -> Option<u32> {
        let deadline = Deadline::after(ANSWER);
        let shards = self.topology.shards();
        let beats = shards.iter().map(|(it, shard)| self.beat(shard, &it.tag, deadline));
        join_all(beats).await.into_iter().filter_map(Result::ok).max()
    }

    /// After a shard has answered that its guard is another: asks which, unless somebody just has.
    pub(super) async fn learn_guard(
        &self,
        shard: &Shard,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let seen = shard.guard.now();
        let Some(_asking) = deadline.bound(shard.guard.asking.lock()).await else {
            return Err(Failure::NotSent("no time left to ask for the guard".into()));
        };
        if shard.guard.now() == seen {
            self.beat(shard, topology::ANY_TAG, deadline).await?;
        }
        Ok(())
    }

    /// One heartbeat; answers how many live.
    async fn beat(&self, shard: &Shard, tag: &str, deadline: Deadline) -> Result<u32, Failure> {
        let key = guard::key_of(tag);
        let answer = shard.command(&self.command(shard, tag, &key), deadline).await;
        let answer = answer.inspect_err(|failure| self.topology.heed(failure))?;
        let (guard, live) = told(answer, key)
            .ok_or_else(|| Failure::Bug(format!("{} answered no guard", shard.name())))?;
        if shard.guard.note(guard, self.caller.terms) {
            tracing::warn!(
                target: "spillgate",
                shard = shard.name(),
                "state lost: the server has not what it held; limits begin as on_state_loss says"
            );
        }
        Ok(live)
    }

    fn command(&self, shard: &Shard, tag: &str, guard: &str) -> Cmd {
        let now_us = match self.caller.clock {
            StoreClock::Client => Clock::System.now_us(),
            StoreClock::Store | StoreClock::Given(_) => 0,
        };
        let own = self.caller.terms.ring.map_or(Seal::NONE, |ring| ring.own);
        let previous = self.caller.terms.ring.and_then(|ring| ring.previous).unwrap_or(Seal::NONE);
        let mut beat = ::redis::cmd("EVAL");
        beat.arg(SCRIPT)
            .arg(2)
            .arg(format!("sg1:{{{tag}}}:nodes"))
            .arg(guard)
            .arg(format!("{:016x}:{}", self.node, own.number))
            .arg(GONE_MS)
            .arg(format!("{:016x}", jitter::random()))
            .arg(now_us)
            .arg(shard.guard.epoch_under(guard))
            .arg(own.number)
            .arg(format!("{:x}", own.fingerprint))
            .arg(previous.number)
            .arg(format!("{:x}", previous.fingerprint));
        beat
    }
}

/// The guard, and how many live.
pub(super) fn told(answer: Value, key: String) -> Option<(Guard, u32)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(guard), Value::Int(oldest_for_us), Value::Array(nodes)] = &parts[..]
    else {
        return None;
    };
    let distinct: BTreeSet<&[u8]> = nodes
        .iter()
        .filter_map(|node| match node {
            Value::BulkString(node) => Some(&node[..]),
            _ => None,
        })
        .collect();
    let guard = Guard::read(key, guard, oldest_for_us.max(&0).cast_unsigned())?;
    Some((guard, u32::try_from(distinct.len()).unwrap_or(u32::MAX)))
}

const SCRIPT: &str = include_str!("heartbeat.lua");
/// Five heartbeats: a process that was paused for as long is as good as gone.
const GONE_MS: u64 = 5_000;
/// A shard that takes longer is counted by its last word.
const ANSWER: Duration = Duration::from_millis(500);
