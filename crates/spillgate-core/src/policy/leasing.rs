//! The lease terms of a rule: the share of each limit that instances may take ahead, and the
//! duration.

use std::fmt;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::file::Table;
use super::problem::{Problem, Problems};
use super::rule::Rule;
use super::types::{Named, Types};
use crate::algorithm::{Share, names_of};
use crate::limit::{Limit, NamedLimit, length_us};
use crate::request::Request;

/// The lease terms of a rule, written as `lease = { share = 0.05, ttl = "1s" }`.
///
/// ```
/// # use spillgate_core::Policy;
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
/// # Ok::<(), spillgate_core::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    share: Share,
    ttl_us: u64,
}

impl LeaseTerms {
    /// Returns the time for which an instance may spend a lease.
    pub fn ttl(&self) -> Duration {
        Duration::from_micros(self.ttl_us)
    }

    /// Returns the most tokens that all instances together may hold of one counter under this
    /// limit: its share of the capacity, rounded down. It is 0 if nothing is ever leased. An
    /// interval can admit that much beyond the limit's own bound.
    #[doc(hidden)]
    pub fn tokens_of(&self, limit: &Limit) -> u64 {
        match limit.algorithm().profile().is_leasable {
            true => self.share.part_of(limit.capacity().unwrap_or_default()),
            false => 0,
        }
    }

    /// Returns the time for which an instance may spend a lease, in µs.
    #[doc(hidden)]
    pub fn ttl_us(&self) -> u64 {
        self.ttl_us
    }

    /// Reads the lease terms of a rule, if its limits can be leased.
    pub(crate) fn read(
        table: &Table<'_>,
        key: Option<&[Box<str>]>,
        types: &Types,
        limits: &[NamedLimit],
        problems: &mut Problems<'_>,
    ) -> Option<(LeaseTerms, HotSubjects)> {
        let lease = table.table(FIELD, EXAMPLE, problems)?;
        lease.refuse_unknown(&FIELDS, problems);
        for field in REQUIRED {
            lease.require(field, EXAMPLE, problems);
        }
        let share = lease.share("share", problems);
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
        for limit in limits.iter().filter(|limit| !limit.algorithm().profile().is_leasable) {
            let message = format!(
                "limit {:?} is a {}, which is never leased; leave the lease out, make it a {}, or give it a rule of its own",
                limit.name(),
                limit.algorithm(),
                names_of(|profile| profile.is_leasable),
            );
            problems.note(table.wrong(FIELD, message));
        }
        let hot = key.map(|key| HotSubjects::read(&lease, key, types, problems));
        let hot = hot.unwrap_or_default();
        Some((LeaseTerms { share: share?, ttl_us: ttl_us? }, hot))
    }

    /// Makes the problem of a lease on a post-paid rule.
    pub(crate) fn refused_postpaid(table: &Table<'_>) -> Problem {
        table.wrong(FIELD, "a post-paid rule is charged only by the store; leave the lease out")
    }
}

/// The subjects that the policy lists as hot: `lease = { .., hot = [{ tenant = "acme" }] }`. An
/// instance takes leases for them when it starts.
#[derive(Clone, Default)]
pub(crate) struct HotSubjects(Box<[HotSubject]>);

/// Each attribute of the rule's key, with its value.
type HotSubject = Box<[(Box<str>, Box<[u8]>)]>;

impl HotSubjects {
    /// Reads the hot subjects of a rule with this key.
    fn read(
        lease: &Table<'_>,
        key: &[Box<str>],
        types: &Types,
        problems: &mut Problems<'_>,
    ) -> HotSubjects {
        let Some(list) = lease.list(HOT, problems) else { return HotSubjects::default() };
        if list.len() > HOT_MAX {
            let message = format!(
                "names {} subjects, and tokens are taken ahead for {HOT_MAX} at most; leave some out",
                list.len()
            );
            problems.note(lease.wrong(HOT, message));
        }
        let read = |subject| problems.noting(read_hot(lease, subject, key, types));
        HotSubjects(list.iter().filter_map(read).collect())
    }

    fn requests<'h>(&'h self, domain: &'h str) -> impl Iterator<Item = Request<'h>> {
        self.0.iter().map(move |subject| {
            let request = Request::new().in_domain(domain);
            subject.iter().fold(request, |request, (name, value)| request.with(&**name, &**value))
        })
    }
}

#[doc(hidden)]
impl Rule {
    /// Returns the hot subjects of its lease, each as a request with their attributes alone.
    pub fn hot(&self) -> impl Iterator<Item = Request<'_>> {
        let hot = self.lease.as_ref().map(|(_, hot)| hot);
        hot.into_iter().flat_map(|hot| hot.requests(self.domain()))
    }
}

/// Reads one subject, which must have the attributes of the key.
fn read_hot<'t>(
    lease: &Table<'t>,
    subject: &'t Spanned<DeValue<'t>>,
    key: &[Box<str>],
    types: &Types,
) -> Result<HotSubject, Problem> {
    let wrong = |message: String| lease.wrong_at(lease.at(subject.span()), HOT, message);
    let fields = subject.get_ref().as_table();
    let fields = fields.ok_or_else(|| wrong(format!("write {HOT_EXAMPLE}")))?;
    let stranger =
        fields.iter().find(|(name, _)| !key.iter().any(|known| **known == *name.get_ref()));
    if let Some((name, _)) = stranger {
        let message =
            format!("{:?} is not in the rule's key; name each of {key:?}", name.get_ref());
        return Err(wrong(message));
    }
    let of_key = |name: &str| {
        let value = fields.get(name).ok_or_else(|| {
            wrong(format!("a subject has each attribute of the rule's key; {name:?} is missing"))
        })?;
        let text = lease.text_of(HOT, value)?.text;
        match types.type_of(name).named(text.as_bytes()) {
            Ok(Named::Value(value)) => Ok((name.into(), value)),
            Ok(Named::Network(_)) => {
                Err(wrong(format!("{text:?} is a network; name each address that is hot")))
            }
            Err(problem) => Err(wrong(problem.message(text.as_bytes()))),
        }
    };
    key.iter().map(|name| of_key(name)).collect()
}

/// Hides the subjects, since policies are printed in logs.
impl fmt::Debug for HotSubjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HotSubjects({})", self.0.len())
    }
}

const FIELD: &str = "lease";
const FIELDS: [&str; 3] = ["share", "ttl", "hot"];
const REQUIRED: [&str; 2] = ["share", "ttl"];
const HOT: &str = "hot";
const HOT_EXAMPLE: &str = "hot = [{ tenant = \"acme\" }]";
/// The most hot subjects. Each is a call before the first request is answered.
const HOT_MAX: usize = 256;
const EXAMPLE: &str = "lease = { share = 0.05, ttl = \"1s\" }";
/// The shortest lease: a few round trips.
const TTL_MIN_US: u64 = 10_000;
/// The longest lease. Tokens lost in a crash come back after it at the latest.
const TTL_MAX_US: u64 = 60_000_000;
