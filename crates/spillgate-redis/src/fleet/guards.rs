//! The guards of the shards, which show whether a shard lost its data, and the kinds of instances that use a shard. A
//! kind is the settings that all must share, and the place of the fleet's record.

use std::time::Duration;

use ::redis::Value;
use futures_util::future::join_all;

use super::Call;
use crate::calls::guard::{self, Guard};
use crate::calls::keys;
use crate::connecting::failure::Failure;
use crate::connecting::fingerprint::{Fingerprint, Instance};
use crate::connecting::link::Redirect;
use crate::connecting::shard::Shard;
use crate::connecting::topology::Topology;
use crate::jitter;
use crate::store::{InstanceMismatch, Presence};
use crate::time::Deadline;

/// One instance as a member of its fleet: what guards and probes need of it.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) instance: &'a Instance,
    /// The tag of the fleet's record.
    pub(crate) record: &'a str,
    /// The longest time that a decision waits for a silent server.
    pub(crate) timeout: Duration,
}

impl Member<'_> {
    /// Looks whether any shard lost its data, but for that of the record if a beat has just brought its guard.
    pub async fn look_at_guards(&self, knows_guard_of_record: bool) {
        let deadline = Deadline::after(ANSWER);
        let mut shards = self.topology.shards();
        shards.retain(|(_, shard)| {
            !knows_guard_of_record || shard.name != self.topology.place_of_record()
        });
        let looks = shards.iter().map(|(tag, shard)| async move {
            let Some(known) = shard.guard.now() else {
                return self.keep_guard(shard, tag, deadline).await.map(drop);
            };
            let key = guard::key_of(tag);
            let mut get = ::redis::cmd("GET");
            let answer = shard.link.command(get.arg(&key), Redirect::None, deadline).await;
            match answer.inspect_err(|failure| self.topology.note_failure(failure))? {
                Value::BulkString(text) if known.key == key && text == known.text.as_bytes() => {
                    Ok(())
                }
                _ => self.keep_guard(shard, tag, deadline).await.map(drop),
            }
        });
        // A shard that does not answer is looked at again in a second.
        let _: Vec<Result<(), Failure>> = join_all(looks).await;
    }

    /// Notes the guard that came with a beat.
    pub(crate) async fn note_guard(&self, shard: &Shard, text: &[u8]) {
        if shard.guard.now().is_none_or(|known| known.text.as_bytes() != text) {
            // If the shard does not answer, the next beat tries again.
            let _ = self.keep_guard(shard, keys::ANY_TAG, Deadline::after(ANSWER)).await;
        }
    }

    /// Shows this instance's settings to all shards, and returns the settings of others in which it differs, each
    /// counted once. They may have their record elsewhere, as instances on another ring do.
    pub async fn meet_other_kinds(&self) -> InstanceMismatch {
        let deadline = Deadline::after(ANSWER);
        let shards = self.topology.shards();
        let kept = shards.iter().map(|(tag, shard)| self.keep_guard(shard, tag, deadline));
        let kinds = join_all(kept).await.into_iter().filter_map(Result::ok).flatten();
        let own = &self.instance.fingerprint;
        let differing = kinds.filter_map(|kind| {
            let (fingerprint, place) = kind.split_once(' ')?;
            // The record shows the instances that have it in the same place.
            let is_elsewhere = place != self.topology.place_of_record();
            is_elsewhere.then(|| own.mismatch(Fingerprint::read(fingerprint).as_ref(), 1))
        });
        differing.fold(InstanceMismatch::default(), InstanceMismatch::or)
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
            self.keep_guard(shard, keys::ANY_TAG, deadline).await?;
        }
        Ok(())
    }

    /// Reads a shard's guard and makes it if there is none. Returns the kinds of instances that use the shard.
    async fn keep_guard(
        &self,
        shard: &Shard,
        tag: &str,
        deadline: Deadline,
    ) -> Result<Vec<String>, Failure> {
        let key = guard::key_of(tag);
        let Instance { fingerprint, presence } = self.instance;
        let kind = match presence {
            Presence::Announced => format!("{fingerprint} {}", self.topology.place_of_record()),
            Presence::Onlooker => String::new(),
        };
        let kinds = format!("sg1:{{{tag}}}:{}:k", self.record);
        let call = Call::new(&super::GUARD, &[key.clone(), kinds])
            .with(format!("{:016x}", jitter::random()))
            .with(shard.guard.epoch_under(&key))
            .with(kind)
            .with(KIND_LIFE_MS);
        let answer = call.run(shard, Redirect::None, deadline).await;
        let answer = answer.inspect_err(|failure| self.topology.note_failure(failure))?;
        let (guard, kinds) = read(answer, key)
            .ok_or_else(|| Failure::Bug(format!("{} returned no guard", shard.name).into()))?;
        if shard.guard.note(guard) {
            tracing::warn!(
                target: "spillgate",
                shard = shard.name,
                "state lost: the server lost its data; on_state_loss decides how limits begin"
            );
        }
        Ok(kinds)
    }
}

fn read(answer: Value, key: String) -> Option<(Guard, Vec<String>)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(guard), Value::Array(kinds)] = &parts[..] else { return None };
    let kinds = kinds.iter().map(|kind| match kind {
        Value::BulkString(kind) => Some(String::from_utf8_lossy(kind).into_owned()),
        _ => None,
    });
    Some((Guard::read(key, guard)?, kinds.collect::<Option<_>>()?))
}

/// The time limit of a call. A slower shard counts by its last reply.
const ANSWER: Duration = Duration::from_millis(500);
/// Twice the time between two calls of [`Member::meet_other_kinds`], and some.
const KIND_LIFE_MS: u64 = 25_000;
