//! Examines every server over a connection of its own: its facts, the offset of its clock, and whether the
//! script decides correctly.
//!
//! A server that fails decisions is examined too. Nothing here is on the decision path, so the waits are longer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Value};
use futures_util::future::join_all;

use super::guards::Member;
use super::probe::{ServerFacts, ServerProbe, StoreProbe};
use crate::algorithm::Intent;
use crate::calls::keys;
use crate::calls::program::{self, Call, Header, Reply};
use crate::calls::script::{self, Script};
use crate::connecting::failure::Failure;
use crate::connecting::shard::Shard;
use crate::connecting::wire::{Wire, WireReply};
use crate::counter::PlannedCharge;
use crate::error::StoreError;
use crate::jitter;
use crate::limit::{Limit, NamedLimit};
use crate::plan::{RecordAction, Transaction, TransactionReply};
use crate::subject::SubjectKey;
use crate::time::{Clock, Deadline, monotonic_us, us_of};

impl Member<'_> {
    /// Examines every server. Each answers PING and the script `samples` times, to be measured.
    pub async fn probe(&self, samples: usize) -> StoreProbe {
        let shards = self.topology.shards().into_iter().map(|(_, shard)| {
            let subject = self.probe_subject(&shard);
            probe_shard(shard, subject, samples)
        });
        let servers = join_all(shards).await;
        StoreProbe { servers, timeout: self.timeout, ..StoreProbe::default() }
    }

    /// Returns a new random subject on this shard.
    fn probe_subject(&self, shard: &Arc<Shard>) -> SubjectKey {
        let random = || u128::from(jitter::random()) << 64 | u128::from(jitter::random());
        let lives_here = |tag: &u128| {
            let route = self.topology.route(self.topology.location(*tag));
            route.is_ok_and(|route| Arc::ptr_eq(&route.shard, shard))
        };
        let tag = std::iter::repeat_with(random).take(SUBJECTS_TRIED).find(lives_here);
        // If no subject belongs to this shard, any will do: the server's reply shows the mismatch.
        let tag = tag.unwrap_or_else(random);
        SubjectKey { tag, id: random(), rule: tag }
    }
}

async fn probe_shard(shard: Arc<Shard>, subject: SubjectKey, samples: usize) -> ServerProbe {
    let name = shard.name.clone();
    let facts = async {
        let wire = Deadline::after(PATIENCE).bound(shard.link.dial()).await;
        let wire = wire.unwrap_or_else(|| Err(Failure::NotSent("no connection in time".into())))?;
        Examination { wire, subject, limits: probe_limits() }.facts(samples).await
    };
    ServerProbe { name, facts: facts.await.map_err(StoreError::from) }
}

/// A connection to one server, and a subject for the script.
struct Examination {
    wire: Wire,
    subject: SubjectKey,
    limits: [NamedLimit; 2],
}

impl Examination {
    async fn facts(&self, samples: usize) -> Result<ServerFacts, Failure> {
        let info = fields(&self.ask(&::redis::cmd("INFO")).await?);
        let mut settings = BTreeMap::new();
        for name in SETTINGS {
            let mut get = ::redis::cmd("CONFIG");
            get.arg("GET").arg(name);
            // The user may lack the right, and not every server has every setting.
            if let Ok(Value::Array(pair)) = self.ask(&get).await {
                settings.extend(pair.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))));
            }
        }
        let ahead_us = self.ahead_us().await?;
        let knows_marked = self.knows_marked_scripts().await;
        let script = if knows_marked { &script::MARKED.decides } else { &script::PLAIN.decides };
        let worked = self.try_script(script).await;
        let peeks = || async { self.decide(Intent::Peek, "EVALSHA", &script.sha).await.is_ok() };
        let script_us = durations_us(samples, peeks).await;
        Ok(ServerFacts { info, settings, ahead_us, script_us, script: worked })
    }

    /// Returns whether the server accepts scripts with `#!lua`. The test fails where `#` is a syntax error,
    /// and loads nothing that stays.
    async fn knows_marked_scripts(&self) -> bool {
        let mut marked = ::redis::cmd("EVAL");
        marked.arg("#!lua flags=no-writes\nreturn 1").arg(0);
        !matches!(self.ask(&marked).await, Err(Failure::Bug(_)))
    }

    /// Returns the store's clock minus the local one, from the quickest of a few replies. The error is at
    /// most half of that reply's round trip.
    async fn ahead_us(&self) -> Result<i64, Failure> {
        let mut best = (u64::MAX, 0);
        for _ in 0..CLOCK_LOOKS {
            let start_us = monotonic_us();
            let time = self.ask(&::redis::cmd("TIME")).await?;
            let took_us = monotonic_us() - start_us;
            let there_us = us_of(&time).ok_or_else(|| Failure::Bug("no time".into()))?;
            let here_us = Clock::System.now_us() - took_us / 2;
            // The quickest reply has the smallest error, since the clock was read at some moment of the round trip.
            best = best.min((took_us, there_us.wrapping_sub(here_us).cast_signed()));
        }
        Ok(best.1)
    }

    /// Runs the script twice, as for any decision, and checks the results. Deletes what it wrote.
    async fn try_script(&self, script: &Script) -> Result<(), String> {
        let first = self.decide(Intent::Charge, "EVAL", &script.text).await;
        let second = self.decide(Intent::Charge, "EVALSHA", &script.sha).await;
        let mut expiry = ::redis::cmd("PTTL");
        expiry.arg(keys::value(self.subject));
        let expiry = self.ask(&expiry).await;
        let mut unlink = ::redis::cmd("UNLINK");
        unlink.arg(keys::all_of(self.subject, &self.limits));
        // A server that cannot delete has failed before, with an error that is reported.
        let _ = self.ask(&unlink).await;

        let (first, second) = (first?, second?);
        if !first.allowed || !leaves(&first, [9, 0]) {
            return Err(format!("the script miscounted: {first:?}"));
        }
        if second.allowed || !leaves(&second, [9, 0]) {
            return Err(format!("the script did not charge all or none: {second:?}"));
        }
        match expiry {
            Ok(Value::Int(ms)) if !(1..=2 * HOUR_MS).contains(&ms) => {
                Err(format!("the script's key expires in {ms} ms"))
            }
            // A user without the right to PTTL may still have correct counters.
            _ => Ok(()),
        }
    }

    async fn decide(
        &self,
        intent: Intent,
        how: &str,
        script: &str,
    ) -> Result<TransactionReply, String> {
        let counters = self.limits.iter().map(|limit| PlannedCharge {
            cost: 1,
            attributes: 1,
            ..PlannedCharge::new(self.subject, limit.clone())
        });
        let transaction =
            Transaction { intent, record: RecordAction::None, charges: counters.collect() };
        let estimate_us = Clock::System.now_us();
        let nonce = (jitter::random() >> 16).max(1);
        let once = [(&transaction, 1)];
        let call = Call::encode(Header { given_us: 0, estimate_us, nonce }, &once);
        let command = call.command(how, script, &call.encoded());
        let answer =
            self.answer(&command).await.map_err(|failure| StoreError::from(failure).to_string());
        let transactions = std::slice::from_ref(&transaction);
        let reply = Reply::parse(answer?.integers()?)?;
        let reply = reply.read(transactions, &program::reply_ranges(&once));
        let reply = reply.map_err(|error| error.to_string())?;
        let one = reply.into_iter().next().ok_or("no answer")?;
        one.map_err(|error| error.to_string())
    }

    async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        self.answer(command).await.map(WireReply::value)
    }

    async fn answer(&self, command: &Cmd) -> Result<WireReply, Failure> {
        match Deadline::after(PATIENCE).bound(self.wire.send(command)).await {
            Some(answer) => answer.map_err(|error| Failure::from_error(&error)),
            None => Err(Failure::Unknown(format!("no answer within {PATIENCE:?}").into())),
        }
    }
}

/// Ten an hour, and one an hour. The second call must be denied by the one, and must not charge the ten.
fn probe_limits() -> [NamedLimit; 2] {
    [NamedLimit::new(Limit::per_hour(10), 0), NamedLimit::new(Limit::per_hour(1), 1)]
}

fn leaves(reply: &TransactionReply, remaining: [u64; 2]) -> bool {
    reply.replies.iter().map(|counter| counter.reading.remaining).eq(remaining)
}

/// Returns how long each of at most `count` calls took, in µs, shortest first. None begins after a time limit.
///
/// An error counts as a call, but its duration does not.
async fn durations_us<F: Future<Output = bool>>(count: usize, call: impl Fn() -> F) -> Vec<u64> {
    let deadline = Deadline::after(MEASURING);
    let mut taken_us = Vec::with_capacity(count);
    for _ in 0..count {
        if deadline.has_passed() {
            break;
        }
        let start_us = monotonic_us();
        if call().await {
            taken_us.push(monotonic_us() - start_us);
        }
    }
    taken_us.sort_unstable();
    taken_us
}

/// Parses the `name:value` lines of INFO.
pub fn fields(info: &Value) -> BTreeMap<String, String> {
    let text = text(info);
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Settings that decide whether counters survive, and whether the server stops writing.
const SETTINGS: [&str; 4] = [
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "cluster-require-full-coverage",
];
/// A server that takes longer for simple commands cannot decide within a deadline either.
const PATIENCE: Duration = Duration::from_secs(2);
/// A thousand calls of a healthy server take a fifth of a second.
const MEASURING: Duration = Duration::from_secs(2);
const HOUR_MS: i64 = 3_600_000;
const CLOCK_LOOKS: usize = 5;
/// The smallest node of the largest ring owns one subject in some thousands.
const SUBJECTS_TRIED: usize = 100_000;
