//! The runtime changes in the form that operators see.

use std::fmt;
use std::time::SystemTime;

use super::note::ChangeNote;
use super::system_time;
use crate::limit::LimitSpec;
use crate::policy::{InvalidChange, Subject};

/// An override that was set as a runtime change.
///
/// [`Limiter::overrides`](crate::Limiter::overrides) lists them.
#[derive(Clone, Debug)]
pub struct Override {
    pub(crate) rule: Box<str>,
    pub(crate) subject: Subject,
    pub(crate) limits: Vec<LimitSpec>,
    pub(crate) written_at: SystemTime,
    pub(crate) expires_at: Option<SystemTime>,
    pub(crate) note: ChangeNote,
    pub(crate) not_in_force: Option<InvalidChange>,
    pub(crate) pending_shards: Vec<String>,
}

/// The shards that a runtime change has reached. It is in force at this instance in any case. A
/// pending shard gets it later, from this instance or any other that knows it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::{Limit, Limiter, Mode, Policy, Rule};
///
/// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
/// let policy = Policy::builder().rule(api).build()?;
/// let limiter = Limiter::builder().policy(policy).build().await?;
/// let report = limiter.set_mode("api", Mode::Shadow, None).await?;
/// for pending in report.pending_shards() {
///     println!("{} gets the change later: {}", pending.shard(), pending.why());
/// }
/// assert!(report.is_everywhere(), "with state in memory there is no shard to wait for");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriteReport {
    /// The number of shards; 0 if state is in memory.
    pub(crate) shards: usize,
    pub(crate) pending: Vec<PendingShard>,
    pub(crate) written_at_us: u64,
}

/// A shard that a runtime change did not reach.
///
/// [`WriteReport::pending_shards`] lists them.
#[derive(Clone, Debug)]
pub struct PendingShard {
    pub(crate) shard: String,
    pub(crate) why: String,
}

impl Override {
    /// Returns the rule whose limits it replaces.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the attributes of the subjects that it covers, sorted by name.
    pub fn subject(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.subject.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the limits as they were set.
    pub fn limits(&self) -> &[LimitSpec] {
        &self.limits
    }

    /// Returns the time at which it was set.
    pub fn written_at(&self) -> SystemTime {
        self.written_at
    }

    /// Returns the time at which it expires, if it does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }

    /// Returns the actor that set it, if it is known.
    pub fn actor(&self) -> Option<&str> {
        self.note.actor()
    }

    /// Returns the reason why it was set, if one was given.
    pub fn reason(&self) -> Option<&str> {
        self.note.reason()
    }

    /// Returns the reason why it is not in force, if it is not: its rule is gone or has other
    /// limits now.
    pub fn not_in_force(&self) -> Option<&InvalidChange> {
        self.not_in_force.as_ref()
    }

    /// Returns the shards that are not known to have it yet. This instance keeps sending it to
    /// them.
    pub fn pending_shards(&self) -> &[String] {
        &self.pending_shards
    }
}

impl WriteReport {
    /// Returns the time of the change, by which a later change can name it: see
    /// [`ChangeNote::replacing`].
    pub fn written_at(&self) -> SystemTime {
        system_time(self.written_at_us)
    }

    /// Returns the shards that the change has not reached.
    pub fn pending_shards(&self) -> &[PendingShard] {
        &self.pending
    }

    /// Returns whether every shard has the change.
    pub fn is_everywhere(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether there are shards and none was reached.
    pub(crate) fn reached_no_shard(&self) -> bool {
        self.shards > 0 && self.pending.len() == self.shards
    }
}

impl PendingShard {
    /// Returns the name of the shard, without credentials.
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// Returns the error.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for PendingShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.shard, self.why)
    }
}
