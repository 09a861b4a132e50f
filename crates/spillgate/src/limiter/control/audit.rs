//! The audit of the fleet: each change is appended to a stream in the fleet's record, which keeps it when instances stop.

use super::super::{Inner, Limiter};
use crate::control::AuditLog;

impl Limiter {
    /// Returns the newest `n` changes by operators at any instance, the newest first; only those of a rule, if one is
    /// given.
    ///
    /// It reads as many changes on the store as it must, but at most 2,000, or `n` if that is more. If older ones could
    /// be among the newest `n`, [`AuditLog::searched_until`] is the time back to which it read.
    ///
    /// The store keeps the last 10,000, sealed with the key secret, so they survive restarts of all instances. With
    /// state in memory, and while the store is down, they are the last 1,000 that this instance knows.
    ///
    /// A change that was made while the store was down is saved when it is back, unless its instance stopped before.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::control::{AuditedAction, ChangeNote};
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ann = limiter.with_note(ChangeNote::by("ann").because("ticket 17"));
    /// ann.reset("api", &Request::new().with("user", "ada")).await?;
    ///
    /// let log = limiter.audit_log(None, 20).await;
    /// assert_eq!(log.records[0].action(), &AuditedAction::ResetSubject);
    /// assert_eq!(log.records[0].reason(), Some("ticket 17"));
    /// assert_eq!(log.incomplete, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn audit_log(&self, rule: Option<&str>, n: usize) -> AuditLog {
        let mut log = AuditLog::default();
        #[cfg(feature = "redis")]
        let saved = self.inner.saved_changes(rule, n, &mut log).await;
        #[cfg(not(feature = "redis"))]
        let saved = Default::default();
        log.records = self.inner.control.audit.lock().joined(saved, rule, n);
        log
    }
}

#[cfg(feature = "redis")]
mod on_store {
    use std::collections::BTreeMap;
    use std::time::{Duration, UNIX_EPOCH};

    use super::{AuditLog, Inner};
    use crate::control::{AuditRecord, Stamp};

    impl Inner {
        /// Reads the newest changes on the store, each once: it may have one twice, because the reply to the first was
        /// lost. Notes in the log what is missing.
        pub async fn saved_changes(
            &self,
            rule: Option<&str>,
            n: usize,
            log: &mut AuditLog,
        ) -> BTreeMap<Stamp, AuditRecord> {
            let (mut found, mut read, mut from) = (BTreeMap::new(), 0, None);
            let Some(store) = self.engine.store() else { return found };
            while found.len() < n {
                // Of many changes, few may be of the rule.
                let wanted = if rule.is_some() { SEARCHED } else { n - found.len() };
                let page = match store.audit(from.as_ref(), wanted).await {
                    Ok(page) => page,
                    Err(error) => {
                        log.incomplete = Some(error.to_string());
                        return BTreeMap::new();
                    }
                };
                read += page.sealed.len();
                let opened = page.sealed.iter().filter_map(|it| self.control.audit_seal.open(it));
                let opened: Vec<_> = opened.collect();
                log.sealed_with_another_secret += page.sealed.len() - opened.len();
                found.extend(opened.into_iter().filter(|(_, record)| record.is_of(rule)));
                from = page.next;
                let Some(place) = &from else { break };
                if found.len() < n && read >= n.max(SEARCHED) {
                    let saved_at = place.saved_at_ms().map(Duration::from_millis);
                    log.searched_until = saved_at.map(|since| UNIX_EPOCH + since);
                    break;
                }
            }
            found
        }

        /// Appends the changes that were made here to the audit on the store, the oldest first, until it has all or
        /// does not answer. Of many it appends some, and the next look goes on.
        pub async fn save_audit(&self) {
            let Some(store) = self.engine.store() else { return };
            let control = &self.control;
            // Two tasks would append the same changes. The one that has begun appends this one's too.
            let Ok(mut was_refused) = control.saving_audit.try_lock() else { return };
            for _ in 0..SAVED_AT_ONCE {
                let next = control.audit.lock().next_unsaved();
                let Some((stamp, record)) = next else { break };
                let sealed = control.audit_seal.sealed(stamp, &record);
                if let Err(why) = store.append_to_audit(&sealed).await {
                    if !*was_refused && !store.record_is_down() {
                        tracing::warn!(target: "spillgate", %why, "the store does not take the audit: changes by operators are lost when this instance stops");
                        *was_refused = true;
                    }
                    return;
                }
                control.audit.lock().note_saved(stamp);
                *was_refused = false;
            }
            if let lost @ 1.. = control.audit.lock().take_lost() {
                tracing::warn!(target: "spillgate", lost, "changes by operators are missing in the audit on the store: too many were made while it was down");
            }
        }
    }

    /// The most changes that are read to find those of a rule, unless more are asked for: 16 calls.
    const SEARCHED: usize = 2_000;
    /// The most changes that one look appends, since the next heartbeat waits for it.
    const SAVED_AT_ONCE: usize = 32;
}

#[cfg(not(feature = "redis"))]
impl Inner {
    pub(crate) async fn save_audit(&self) {}
}
