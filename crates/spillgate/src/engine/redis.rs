//! Tier state in Redis or Valkey: one script, one round trip for any number of decisions.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::{Ask, AskTier, Change, StoreError, Told, ToldTier};
use crate::error::BuildError;
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;
use crate::time::Clock;

mod keys;
mod link;
mod program;
mod script;

use link::Link;
use program::{Call, Reply};
pub use script::text as script_text;

/// The Redis engine on one server.
#[derive(Debug)]
pub struct Redis {
    link: Link,
    /// The store's clock less ours, as the last answer showed it.
    offset_us: AtomicI64,
    nonces: AtomicU64,
    clock: StoreClock,
}

/// Whose clock decides.
#[derive(Debug, Default)]
enum StoreClock {
    /// The store's own, read once by each script.
    #[default]
    Store,
    /// One that is passed in: for tests, and for services that bar TIME inside scripts.
    Given(Clock),
}

impl Redis {
    /// An engine on the server at `url`. A server out of reach is no error: calls fail until it is
    /// there.
    pub async fn connect(url: &str, timeout: Duration) -> Result<Redis, BuildError> {
        let link = Link::new(url, timeout)?;
        link.warm_up().await;
        Ok(Redis {
            link,
            offset_us: AtomicI64::new(0),
            nonces: AtomicU64::new(RandomState::new().hash_one(url)),
            clock: StoreClock::Store,
        })
    }

    /// The same engine, deciding by a clock of the caller's.
    pub fn with_clock(self, clock: Clock) -> Redis {
        Redis { clock: StoreClock::Given(clock), ..self }
    }

    /// Decides each of `asks`, in order, each by itself, in as few calls as fit.
    pub async fn decide(&self, asks: &[Ask<'_>]) -> Vec<Result<Told, StoreError>> {
        let mut told = Vec::with_capacity(asks.len());
        while told.len() < asks.len() {
            let rest = &asks[told.len()..];
            let taken = Call::capacity_for(rest);
            match self.run(&rest[..taken]).await {
                Ok(answers) => told.extend(answers),
                Err(error) => told.extend(std::iter::repeat_n(Err(error), taken)),
            }
        }
        told
    }

    /// Decides one.
    pub async fn decide_one(&self, ask: &Ask<'_>) -> Result<Told, StoreError> {
        let answers = self.run(std::slice::from_ref(ask)).await?;
        answers.into_iter().next().unwrap_or_else(|| Err(StoreError::Foreign("no answer".into())))
    }

    /// Changes one tier without a decision; answers the whole units that came back.
    pub async fn change(
        &self,
        tier: &AskTier<'_>,
        change: Change,
    ) -> Result<(u64, ToldTier), StoreError> {
        let reply = self
            .ask(|header| {
                let mut call = Call::new(header);
                call.change(tier, change);
                call
            })
            .await?;
        reply.changed(tier, change)
    }

    /// Forgets all that these limits hold for a subject.
    pub async fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) -> Result<(), StoreError> {
        self.link.unlink(&keys::all_of(key, limits)).await
    }

    async fn run(&self, asks: &[Ask<'_>]) -> Result<Vec<Result<Told, StoreError>>, StoreError> {
        let reply = self
            .ask(|header| {
                let mut call = Call::new(header);
                asks.iter().for_each(|ask| call.decision(ask));
                call
            })
            .await?;
        reply.told(asks)
    }

    /// Runs a call; one whose calendar did not hold the store's time is built once more with it.
    async fn ask<'a>(
        &self,
        build: impl Fn(program::Header) -> Call<'a>,
    ) -> Result<Reply, StoreError> {
        for _ in 0..CALENDAR_TRIES {
            let reply = self.link.run(&build(self.header())).await?;
            self.note_time(reply.now_us());
            if !reply.outside() {
                return Ok(reply);
            }
        }
        Err(StoreError::NotExecuted("the store's clock is in no window that was sent".into()))
    }

    fn header(&self) -> program::Header {
        let given_us = match &self.clock {
            StoreClock::Store => 0,
            StoreClock::Given(clock) => clock.now_us(),
        };
        let estimate_us = match given_us {
            0 => {
                Clock::System.now_us().saturating_add_signed(self.offset_us.load(Ordering::Relaxed))
            }
            given_us => given_us,
        };
        program::Header { given_us, estimate_us, nonce: self.nonce() }
    }

    fn note_time(&self, store_us: u64) {
        let offset = store_us.cast_signed().wrapping_sub(Clock::System.now_us().cast_signed());
        self.offset_us.store(offset, Ordering::Relaxed);
    }

    /// Below 2^48, never 0, and never the same twice in a process: an odd multiplier scatters a
    /// counter over all values.
    fn nonce(&self) -> u64 {
        let count = self.nonces.fetch_add(1, Ordering::Relaxed);
        (count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16).max(1)
    }
}

/// The first shows the store's clock, the second uses it, the third crosses a border.
const CALENDAR_TRIES: usize = 3;
