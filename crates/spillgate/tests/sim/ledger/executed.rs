//! The calls that servers executed, and their invariants.

use tokio::time::Instant;

use super::super::program::{Executed, Kind};
use super::super::rules::{Period, RULES, Subject};
use super::super::server::Done;
use super::Ledger;
use super::account::Account;

impl Ledger {
    /// A server executed a call of the script.
    pub(crate) fn executed(
        &self,
        server: &str,
        process: u32,
        done: &Done,
        all: &[Executed],
        sent: Instant,
    ) {
        if let Some(subject) = self.introduced.get() {
            let mut subjects = self.subjects.borrow_mut();
            for it in all {
                subjects.entry(it.key.clone()).or_insert(subject);
            }
        }
        self.note(|| {
            let reply = all.iter().map(|it| {
                let subject = self.subjects.borrow().get(&it.key).copied();
                let subject_name =
                    subject.map_or("no subject".into(), |subject| format!("{subject:?}"));
                format!(
                    "{:?} {subject_name} {}{}",
                    it.kind,
                    it.amount,
                    if it.charged { " charged" } else { "" }
                )
            });
            format!("{server} for p{process}: {}", reply.collect::<Vec<_>>().join(", "))
        });
        let changes = all
            .iter()
            .any(|it| it.charged || matches!(it.kind, Kind::Force | Kind::Refund | Kind::Undo));
        let may_write = changes || self.stepped.borrow().contains(server);
        self.always(done.writes == 0 || may_write, || format!("{server}: a denial wrote"));
        if all.iter().filter(|it| it.kind == Kind::Charge).count() > 2 {
            self.sometimes("decisions sharing a call");
        }
        for it in all {
            let subject = self.subjects.borrow().get(&it.key).copied();
            if let Some(subject) = subject {
                self.places.borrow_mut().entry(subject).or_default().insert(server.to_owned());
                self.enter(server, process, subject, it, done, sent);
            }
        }
    }

    fn enter(
        &self,
        server: &str,
        process: u32,
        subject: Subject,
        it: &Executed,
        done: &Done,
        sent: Instant,
    ) {
        let mut accounts = self.accounts.borrow_mut();
        let Account { requested, local, at, .. } = accounts.entry((process, subject)).or_default();
        let at = at.entry(server.to_owned()).or_default();
        match it.kind {
            Kind::Peek | Kind::Lower => {}
            Kind::Charge => {
                // A call with a record may be sent again.
                let is_named = it.record.is_some();
                at.executed += if is_named { 0 } else { it.amount };
                let most = *requested - at.unexecuted_then;
                self.always(at.executed <= most, || {
                    format!("{server} executed {} for p{process} of {subject:?}, which requested {most}", at.executed)
                });
                if it.charged {
                    if let Some(record) = &it.record {
                        let record = (server.to_owned(), record.clone(), subject);
                        self.records.borrow_mut().insert(record, (it.amount, at.calms));
                    }
                    at.charged += it.amount;
                    self.admission(server, subject, it.amount, done.now_us);
                }
            }
            Kind::Refund | Kind::Undo => {
                self.sometimes("a refund");
                let record = it.record.clone().map(|record| (server.to_owned(), record, subject));
                let noted = record.and_then(|it| self.records.borrow_mut().remove(&it));
                let (returned, calms) = noted.unwrap_or((it.amount, at.calms));
                at.returned += returned;
                if calms < at.calms {
                    // A record in doubt may be undone long after, and then lowers what was counted at the calm.
                    at.net_then -= returned as i64;
                }
                // Several charges of the same cost are interchangeable.
                let place = (server.to_owned(), subject);
                if let Some(all) = self.admissions.borrow_mut().get_mut(&place)
                    && let Some(of_it) = all.iter().rposition(|(_, cost)| *cost == returned)
                {
                    all.remove(of_it);
                }
            }
            Kind::Force => {
                self.sometimes("a deferred charge sent");
                (at.forced, at.payments) = (at.forced + it.amount, at.payments + 1);
                let all: u64 = local.iter().map(|(_, cost)| cost).sum();
                self.always(at.forced <= all, || {
                    format!(
                        "p{process} sent {} of deferred charges for {subject:?} and admitted {all}",
                        at.forced
                    )
                });
                let since_ms = (sent - self.began).as_millis() as u64;
                let recent = local
                    .iter()
                    .filter(|(ms, _)| ms + RULES[subject.rule].occupied_ms() > since_ms);
                let recent: u64 = recent.map(|(_, cost)| cost).sum();
                self.always(it.amount <= recent, || {
                    format!(
                        "p{process} sent {} of deferred charges for {subject:?}, of which {recent} had not drained",
                        it.amount
                    )
                });
            }
        }
    }

    /// Asserts that no interval of one period holds more than the limit's own bound.
    fn admission(&self, server: &str, subject: Subject, cost: u64, now_us: u64) {
        let rule = &RULES[subject.rule];
        let Period::Short(period_us) = rule.period else { return };
        let mut admissions = self.admissions.borrow_mut();
        let admissions = admissions.entry((server.to_owned(), subject)).or_default();
        admissions.push((now_us, cost));
        admissions.retain(|(at_us, _)| now_us.saturating_sub(*at_us) < period_us);
        let admitted: u64 = admissions.iter().map(|(_, cost)| cost).sum();
        let most = rule.most_in_a_period();
        self.always(admitted <= most, || {
            format!("{subject:?}: {server} admitted {admitted} within one period, at most {most} allowed")
        });
    }
}
