//! The runtime changes in the form that operators see.

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
    pub(crate) is_saved: bool,
}

/// The result of a runtime change. It is in force at this instance in any case, and at all others
/// within a second after it is saved in the store. If the store is down, this instance saves it when
/// the store is back.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::{Limit, Limiter, Mode, Policy, Rule};
///
/// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
/// let policy = Policy::builder().rule(api).build()?;
/// let limiter = Limiter::builder().policy(policy).build().await?;
/// let report = limiter.set_mode("api", Mode::Shadow, None).await?;
/// if let Some(why) = report.why_unsaved() {
///     println!("in force here, and saved when the store is back: {why}");
/// }
/// assert!(report.is_saved(), "with state in memory there is nothing to save it in");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriteReport {
    pub(crate) why_unsaved: Option<String>,
    pub(crate) written_at_us: u64,
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

    /// Returns whether the store has it, as far as this instance knows. If not, this instance saves
    /// it when the store is back. It is `true` if state is in memory.
    pub fn is_saved(&self) -> bool {
        self.is_saved
    }
}

impl WriteReport {
    /// Returns the time of the change, by which a later change can name it: see
    /// [`ChangeNote::replacing`].
    pub fn written_at(&self) -> SystemTime {
        system_time(self.written_at_us)
    }

    /// Returns whether the store has the change.
    pub fn is_saved(&self) -> bool {
        self.why_unsaved.is_none()
    }

    /// Returns the reason why the store does not have the change, if it does not.
    pub fn why_unsaved(&self) -> Option<&str> {
        self.why_unsaved.as_deref()
    }
}
