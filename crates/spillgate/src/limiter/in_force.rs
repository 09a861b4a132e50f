//! The policy in force with the meters of its rules, shared by all threads, with a copy for each.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use thread_local::ThreadLocal;

use crate::metrics::Meters;
use crate::policy::Policy;

/// The policy in force with the meters of its rules. Both are replaced together, so that a rule's
/// index always finds its own meter.
#[derive(Debug)]
pub(crate) struct InForce {
    /// The rules of the policy file, joined with the runtime changes.
    pub(crate) policy: Arc<Policy>,
    pub(crate) meters: Meters,
}

impl InForce {
    /// Replaces the policy that counted by the meters `before`. A rule that keeps its name keeps
    /// its meter.
    pub fn new(policy: Policy, before: &Meters) -> InForce {
        let meters = Meters::for_rules(policy.rules(), before);
        InForce { policy: Arc::new(policy), meters }
    }
}

/// The policy in force now.
///
/// Each thread that decides in memory keeps a copy, so that threads on several cores do not wait for each other's
/// reference counts. A thread that decides no more keeps its last copy.
#[derive(Debug)]
pub(crate) struct Published {
    now: ArcSwap<InForce>,
    /// Counts the policies that were in force, by which a thread sees that its copy is old.
    version: AtomicU64,
    copies: ThreadLocal<RefCell<Copied>>,
}

#[derive(Debug)]
struct Copied {
    version: u64,
    in_force: InForce,
}

impl Published {
    pub fn new(in_force: InForce) -> Published {
        let now = ArcSwap::from_pointee(in_force);
        Published { now, version: AtomicU64::new(0), copies: ThreadLocal::new() }
    }

    pub fn load(&self) -> Guard<Arc<InForce>> {
        self.now.load()
    }

    pub fn load_full(&self) -> Arc<InForce> {
        self.now.load_full()
    }

    pub fn store(&self, in_force: InForce) {
        self.now.store(Arc::new(in_force));
        // After the policy: who reads this version finds that policy, or a later one.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Calls `act` with this thread's copy of the policy in force.
    #[inline]
    pub fn with_copy<T>(&self, act: impl FnOnce(&InForce) -> T) -> T {
        let copy = self.copies.get_or(|| RefCell::new(self.copy()));
        if copy.borrow().version != self.version.load(Ordering::Acquire) {
            // In use if a decision woke a caller whose waker decides in turn.
            let Ok(mut copy) = copy.try_borrow_mut() else { return act(&self.now.load()) };
            *copy = self.copy();
        }
        act(&copy.borrow().in_force)
    }

    #[cold]
    fn copy(&self) -> Copied {
        let version = self.version.load(Ordering::Acquire);
        let now = self.now.load();
        // A policy is a list of references, which the copy counts for itself.
        let policy = Arc::new((*now.policy).clone());
        Copied { version, in_force: InForce { policy, meters: now.meters.clone() } }
    }
}

/// The policy in force during one decision: this thread's copy, or that of all threads for a decision that may wait.
pub(crate) enum Held<'t> {
    Copy(&'t InForce),
    Shared(Guard<Arc<InForce>>),
}

impl Deref for Held<'_> {
    type Target = InForce;

    #[inline]
    fn deref(&self) -> &InForce {
        match self {
            Held::Copy(in_force) => in_force,
            Held::Shared(in_force) => in_force,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Rule;

    #[test]
    fn a_decision_inside_another_finds_the_policy_that_came_into_force_between() {
        let of_rules = |count: usize| {
            let rule = |number: usize| Rule::new(format!("r{number}")).key(["user"]).limit("1/day");
            let policy = (0..count).fold(Policy::builder(), |policy, i| policy.rule(rule(i)));
            InForce::new(policy.build().unwrap(), &Meters::default())
        };
        let published = Published::new(of_rules(1));
        let rules = |in_force: &InForce| in_force.policy.rules().len();
        published.with_copy(|outer| {
            published.store(of_rules(2));
            assert_eq!(published.with_copy(rules), 2);
            assert_eq!(rules(outer), 1);
        });
        assert_eq!(published.with_copy(rules), 2);
    }
}
