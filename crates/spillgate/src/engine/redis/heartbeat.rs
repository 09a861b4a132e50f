//! Each process says to every shard that it lives: so all know how many share a limit when a shard
//! is out of reach, and notice when one has lost what it held.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ::redis::{Cmd, Value};

use super::{Redis, ShardTag, StoreClock, jitter};
use crate::time::Clock;

impl Redis {
    /// Says to every shard that we live; answers of how many processes the best informed knows, and
    /// nothing if none answered.
    pub(crate) async fn heartbeat(&self) -> Option<u32> {
        let shards = self.topology.shards().into_iter();
        let mut tags: HashMap<String, String> = shards.map(|(it, _)| (it.name, it.tag)).collect();
        let answers = self.on_each_shard(ANSWER, |shard| Some(self.beat(shard))).await;
        let told = answers.into_iter().filter_map(|(name, answer)| {
            let (epoch, live) = told(answer.ok()?)?;
            let tag = tags.remove(&name)?;
            self.epochs.note(name, tag, epoch);
            Some(live)
        });
        told.max()
    }

    fn beat(&self, shard: &ShardTag) -> Cmd {
        let now_ms = match self.clock {
            StoreClock::Client => Clock::System.now_us() / 1_000,
            StoreClock::Store | StoreClock::Given(_) => 0,
        };
        let mut beat = ::redis::cmd("EVAL");
        beat.arg(SCRIPT)
            .arg(2)
            .arg(format!("sg1:{{{}}}:nodes", shard.tag))
            .arg(format!("sg1:{{{}}}:epoch", shard.tag))
            .arg(format!("{:016x}", self.node))
            .arg(GONE_MS)
            .arg(format!("{:016x}", jitter::random()))
            .arg(now_ms);
        beat
    }
}

/// The epoch, and how many live.
fn told(answer: Value) -> Option<(Vec<u8>, u32)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(epoch), Value::Array(nodes)] = &parts[..] else { return None };
    let distinct: BTreeSet<&[u8]> = nodes
        .iter()
        .filter_map(|node| match node {
            Value::BulkString(node) => Some(&node[..]),
            _ => None,
        })
        .collect();
    Some((epoch.clone(), u32::try_from(distinct.len()).unwrap_or(u32::MAX)))
}

const SCRIPT: &str = include_str!("heartbeat.lua");
/// Five heartbeats: a process that was paused for as long is as good as gone.
const GONE_MS: u64 = 5_000;
/// A shard that takes longer is counted by its last word.
const ANSWER: Duration = Duration::from_millis(500);
