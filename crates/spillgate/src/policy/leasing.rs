//! What a rule says of leases: how much of each of its limits the processes may have taken ahead at
//! once, and for how long.

use std::time::Duration;

use super::file::Table;
use super::problem::{Problem, Problems};
use super::share::Share;
use crate::limit::{Algorithm, Limit, NamedLimit, length_us};

/// A rule's `lease = { share = 0.05, ttl = "1s" }`.
///
/// ```
/// # use spillgate::Policy;
/// let policy = Policy::from_toml(r#"
///     [[rule]]
///     name = "api"
///     key = ["tenant"]
///     limits = ["100/second", "5/minute"]
///     lease = { share = 0.05, ttl = "1s" }
/// "#)?;
/// let lease = policy.rule("api").unwrap().lease().unwrap();
/// let tokens: Vec<u64> = policy.rule("api").unwrap().limits().map(|limit| lease.tokens_of(limit)).collect();
/// assert_eq!(tokens, [5, 0], "a share that comes to nothing is never leased");
/// # Ok::<(), spillgate::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    share: Share,
    ttl_us: u64,
}

impl LeaseTerms {
    /// How long a process may spend what it took.
    pub fn ttl(&self) -> Duration {
        Duration::from_micros(self.ttl_us)
    }

    /// The most that all processes together may hold of one tier under this limit, its share of the
    /// capacity rounded down; 0 where nothing is ever leased. That much more than the limit's own bound
    /// can pass in an interval.
    pub fn tokens_of(&self, limit: &Limit) -> u64 {
        match is_leasable(limit.algorithm()) {
            true => self.share.of(limit.capacity().unwrap_or_default()),
            false => 0,
        }
    }

    /// The same in microseconds.
    #[cfg(feature = "redis")]
    pub(crate) fn ttl_us(&self) -> u64 {
        self.ttl_us
    }

    /// What a rule says of it, where its limits can be leased.
    pub(super) fn read(
        table: &Table<'_>,
        limits: &[NamedLimit],
        problems: &mut Problems<'_>,
    ) -> Option<LeaseTerms> {
        let lease = table.table(FIELD, EXAMPLE, problems)?;
        lease.refuse_unknown(&FIELDS, problems);
        for field in FIELDS {
            lease.require(field, EXAMPLE, problems);
        }
        let share = Share::read(&lease, "share", problems);
        let ttl_us = lease.text("ttl", problems).and_then(|ttl| {
            let length = length_us("ttl", ttl);
            problems.noting(length.map_err(|error| lease.wrong("ttl", error.message())))
        });
        let ttl_us = ttl_us.and_then(|ttl_us| {
            let wrong = || {
                let nearest = if ttl_us < TTL_MIN_US { "10ms" } else { "60s" };
                let message =
                    format!("a lease lasts from 10ms to 60s; the nearest that fits is {nearest}");
                lease.wrong("ttl", message)
            };
            problems.noting(
                (TTL_MIN_US..=TTL_MAX_US).contains(&ttl_us).then_some(ttl_us).ok_or_else(wrong),
            )
        });
        for limit in limits.iter().filter(|limit| !is_leasable(limit.algorithm())) {
            let message = format!(
                "limit {:?} is a {}, which is never leased; leave the lease out, make it a token-bucket, fixed-window or sliding-window, or give it a rule of its own",
                limit.name(),
                limit.algorithm()
            );
            problems.note(table.wrong(FIELD, message));
        }
        Some(LeaseTerms { share: share?, ttl_us: ttl_us? })
    }

    /// Nothing of a post-paid rule is ever decided ahead.
    pub(super) fn refused_postpaid(table: &Table<'_>) -> Problem {
        table.wrong(FIELD, "what is post-paid is charged by the store alone; leave the lease out")
    }
}

/// Whether a part of it can be taken ahead and its rest given back.
pub(crate) fn is_leasable(algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::FixedWindow | Algorithm::SlidingWindow => true,
        Algorithm::SlidingLog | Algorithm::Concurrency => false,
    }
}

const FIELD: &str = "lease";
const FIELDS: [&str; 2] = ["share", "ttl"];
const EXAMPLE: &str = "lease = { share = 0.05, ttl = \"1s\" }";
/// A few round trips.
const TTL_MIN_US: u64 = 10_000;
/// What a crash takes with it is gone for no longer.
const TTL_MAX_US: u64 = 60_000_000;
