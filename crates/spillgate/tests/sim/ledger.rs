//! The events of a run and their invariants: for each process and subject the requested decisions, the calls
//! that the store executed, and the replies.
//!
//! `always` ends the run at the first violation. `sometimes` shows afterwards that rare events were reached.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use spillgate::{Algorithm, Decision, Source};
use tokio::time::Instant;

use super::rules::{Period, RULES, Subject, rule_number};

mod account;
mod executed;
mod silence;

use account::Account;
use silence::{Silences, TIMEOUT_MS};

/// The history of one run.
pub(crate) struct Ledger {
    began: Instant,
    lines: RefCell<Vec<String>>,
    broken: RefCell<Option<String>>,
    reached: RefCell<BTreeMap<&'static str, u64>>,
    accounts: RefCell<BTreeMap<(u32, Subject), Account>>,
    /// By key.
    subjects: RefCell<BTreeMap<Vec<u8>, Subject>>,
    /// The subject whose key the next peek shows.
    introduced: Cell<Option<Subject>>,
    admissions: RefCell<BTreeMap<(String, Subject), Admissions>>,
    /// The amount charged under each record.
    records: RefCell<BTreeMap<Record, (u64, u32)>>,
    admitted: RefCell<BTreeMap<Subject, u64>>,
    places: RefCell<BTreeMap<Subject, BTreeSet<String>>>,
    losses: RefCell<BTreeMap<String, u64>>,
    pub(crate) silences: Silences,
    /// Servers whose clock stepped: their denials may write.
    stepped: RefCell<BTreeSet<String>>,
    /// The end of the time in which faults may still have an effect.
    trouble_until_ms: Cell<u64>,
    in_trouble: Cell<bool>,
    /// Whether limits begin exhausted after a loss: then no loss costs a quota.
    pub(crate) begins_exhausted: Cell<bool>,
    pending: Cell<u64>,
}

/// A server's key of a record, and one of the record's subjects.
type Record = (String, Vec<u8>, Subject);
/// The time of each admission, by a server's clock, and its amount.
type Admissions = Vec<(u64, u64)>;

/// A decision in flight.
pub(crate) struct Pending {
    process: u32,
    costs: Vec<(Subject, u64)>,
    began_ms: u64,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            began: Instant::now(),
            lines: RefCell::default(),
            broken: RefCell::default(),
            reached: RefCell::default(),
            accounts: RefCell::default(),
            subjects: RefCell::default(),
            introduced: Cell::new(None),
            admissions: RefCell::default(),
            records: RefCell::default(),
            admitted: RefCell::default(),
            places: RefCell::default(),
            losses: RefCell::default(),
            silences: Silences::default(),
            stepped: RefCell::default(),
            trouble_until_ms: Cell::new(0),
            in_trouble: Cell::new(false),
            begins_exhausted: Cell::new(false),
            pending: Cell::new(0),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// The world's clock.
    pub(crate) fn now_us(&self) -> u64 {
        START_US + self.began.elapsed().as_micros() as u64
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        // Events after a violation explain nothing.
        if self.is_broken() {
            return;
        }
        self.lines.borrow_mut().push(format!("{:>7} ms  {}", self.now_ms(), what()));
    }

    pub(crate) fn sometimes(&self, what: &'static str) {
        *self.reached.borrow_mut().entry(what).or_default() += 1;
    }

    pub(crate) fn always(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken.borrow().is_none() {
            let what = what();
            self.note(|| format!("BROKEN: {what}"));
            *self.broken.borrow_mut() = Some(what);
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// Returns the history, the first violation, and how often each rare event was reached.
    pub(crate) fn take(&self) -> (Vec<String>, Option<String>, BTreeMap<&'static str, u64>) {
        (self.lines.take(), self.broken.take(), self.reached.take())
    }

    /// The next peek is for this subject, so that its key becomes known.
    pub(crate) fn introduce(&self, subject: Option<Subject>) {
        self.introduced.set(subject);
    }

    pub(crate) fn trouble_begins(&self) {
        self.in_trouble.set(true);
    }

    pub(crate) fn trouble_ends(&self) {
        self.in_trouble.set(false);
        self.trouble_until_ms.set(self.now_ms() + FELT_MS);
    }

    /// A server lost its data.
    pub(crate) fn lost(&self, server: &str) {
        if !self.begins_exhausted.get() {
            *self.losses.borrow_mut().entry(server.to_owned()).or_default() += 1;
        }
        self.forget_admissions(server);
    }

    /// A server's clock was set.
    pub(crate) fn stepped(&self, server: &str) {
        self.stepped.borrow_mut().insert(server.to_owned());
        self.forget_admissions(server);
    }

    pub(crate) fn has_stepped(&self) -> bool {
        !self.stepped.borrow().is_empty()
    }

    /// State moved from one server to others, whose clocks may differ.
    pub(crate) fn moved(&self, to: &[&str]) {
        let mut stepped = self.stepped.borrow_mut();
        if !stepped.is_empty() {
            stepped.extend(to.iter().map(|server| (*server).to_owned()));
        }
        drop(stepped);
        to.iter().for_each(|server| self.forget_admissions(server));
    }

    /// From now on another interval counts there.
    fn forget_admissions(&self, server: &str) {
        self.admissions.borrow_mut().retain(|(at, _), _| at != server);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.get() == 0
    }

    pub(crate) fn begin(&self, process: u32, costs: Vec<(Subject, u64)>) -> Pending {
        let mut accounts = self.accounts.borrow_mut();
        for (subject, cost) in &costs {
            accounts.entry((process, *subject)).or_default().requested += cost;
        }
        self.pending.set(self.pending.get() + 1);
        Pending { process, costs, began_ms: self.now_ms() }
    }

    /// The caller was cancelled before a reply.
    pub(crate) fn left(&self, pending: Pending) {
        self.pending.set(self.pending.get() - 1);
        self.note(|| format!("p{} left {:?}", pending.process, pending.costs));
        self.sometimes("a cancelled caller");
        self.left_to_silence(pending.process, &pending.costs, pending.began_ms);
        let mut accounts = self.accounts.borrow_mut();
        for (subject, cost) in &pending.costs {
            accounts.entry((pending.process, *subject)).or_default().doubtful += cost;
        }
    }

    /// A reply.
    pub(crate) fn read(&self, pending: Pending, decision: &Decision) {
        self.pending.set(self.pending.get() - 1);
        let Pending { process, costs, began_ms } = pending;
        let sources: Vec<_> =
            decision.limits().map(|counter| (counter.source(), counter.reason())).collect();
        self.note(|| {
            format!("p{process} {costs:?} since {began_ms}: {:?} {sources:?}", decision.reason())
        });
        let took_ms = self.now_ms() - began_ms;
        self.always(took_ms <= CEILING_MS, || format!("a decision took {took_ms} ms"));
        self.releases_when_all_are_silent(process, &costs, began_ms);
        let felt = self.in_trouble.get() || began_ms <= self.trouble_until_ms.get();
        self.note_places(&costs);
        let denied_by_one_of_several = !decision.allowed() && costs.len() > 1;
        let mut accounts = self.accounts.borrow_mut();
        for counter in decision.limits() {
            let number = rule_number(counter.rule().unwrap_or_default());
            let Some((subject, cost)) = costs.iter().find(|(subject, _)| subject.rule == number)
            else {
                continue;
            };
            let account = accounts.entry((process, *subject)).or_default();
            self.note_source(counter.source());
            match counter.source() {
                Source::Store if decision.allowed() => {
                    account.certain += cost;
                    self.admitted_by_store(*subject, *cost);
                }
                // A late permit is requested once more. The first call may be executed after the second was denied.
                Source::Store
                    if took_ms >= TIMEOUT_MS
                        && RULES[number].algorithm == Algorithm::Concurrency =>
                {
                    account.doubtful += cost;
                }
                Source::Store if !denied_by_one_of_several => {}
                Source::DenialCache => {}
                Source::Fallback if decision.allowed() => {
                    account.doubtful += cost;
                    account.local.push((self.now_ms(), *cost));
                    self.within_the_share(*subject, account);
                }
                // Charges made on the way were refunded, unless a fault interfered.
                Source::Store if !felt => {}
                _ => account.doubtful += cost,
            }
        }
    }

    fn note_places(&self, costs: &[(Subject, u64)]) {
        let [(one, _), (other, _)] = costs else { return };
        let places = self.places.borrow();
        if places.get(one) != places.get(other) {
            self.sometimes("two shards in order");
        }
    }

    fn note_source(&self, source: Source) {
        self.sometimes(match source {
            Source::Store => "the store decided",
            Source::DenialCache => "a remembered denial",
            Source::Fallback => "the local share decided",
            Source::OutagePolicy => "the rule's on_outage decided",
            _ => "another source",
        });
    }

    /// Asserts at most the limit, plus one quota for each loss of a server that knew the subject.
    fn admitted_by_store(&self, subject: Subject, cost: u64) {
        let mut admitted = self.admitted.borrow_mut();
        let admitted = admitted.entry(subject).or_default();
        *admitted += cost;
        if RULES[subject.rule].period != Period::Ages {
            return;
        }
        let (places, losses) = (self.places.borrow(), self.losses.borrow());
        let places = places.get(&subject).into_iter().flatten();
        let lost: u64 = places.filter_map(|place| losses.get(place)).sum();
        let most = RULES[subject.rule].count * (1 + lost);
        self.always(*admitted <= most, || {
            format!("{subject:?}: the store admitted {admitted}, at most {most} allowed")
        });
    }

    /// Asserts that a process admits at most its local share without the store, once for each time that its
    /// deferred charges were sent.
    fn within_the_share(&self, subject: Subject, account: &Account) {
        let rule = &RULES[subject.rule];
        if rule.period != Period::Ages {
            return;
        }
        let local: u64 = account.local.iter().map(|(_, cost)| cost).sum();
        let payments: u64 = account.at.values().map(|at| at.payments).sum();
        let most = (rule.count / PROCESSES).max(1) * (1 + payments);
        self.always(local <= most, || {
            format!("{subject:?}: one process admitted {local} locally, at most {most} allowed")
        });
    }

    /// A server answered a command with an error.
    pub(crate) fn rejected(&self, server: &str, process: u32, error: &str) {
        let code = error.split(' ').next().unwrap_or_default();
        self.note(|| format!("{server} to p{process}: {error}"));
        if let Some(known) = ERRORS.iter().find(|known| **known == code) {
            self.sometimes(known);
        } else {
            self.always(false, || format!("{server} rejected a command: {error}"));
        }
    }

    /// No caller is active and nothing is in flight: all charges were reported in replies or are in doubt.
    pub(crate) fn calm(&self) {
        let mut accounts = self.accounts.borrow_mut();
        for ((process, subject), account) in accounts.iter_mut() {
            let fault = account.fault();
            self.always(fault.is_none(), || {
                format!("p{process}, {subject:?}: {}", fault.unwrap_or_default())
            });
            account.reset();
        }
    }
}

/// A day in November 2026.
pub(crate) const START_US: u64 = 1_795_000_000_000_000;
/// How long a decision waits for a working server over slow connections. For silent servers see `silence.rs`.
const CEILING_MS: u64 = 251;
/// Aftermath of a fault: reconnecting, late calls.
const FELT_MS: u64 = 100;
const ERRORS: [&str; 9] =
    ["NOSCRIPT", "READONLY", "OOM", "LOADING", "MISCONF", "BUSY", "MOVED", "ASK", "TRYAGAIN"];
/// The number of processes that share a limit.
pub(crate) const PROCESSES: u64 = 3;
