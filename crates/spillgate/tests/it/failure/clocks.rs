//! The store's clock steps. No subject is locked out longer than the limit's own wait, and a step forward
//! costs at most one fresh quota.

use std::time::Duration;

use spillgate::{Algorithm, Limit, LimitSpec, Limiter, Source};
use spillgate_testkit::{Sentinels, SteppedServer, poll};

use super::{HEALING, Patient, TIMEOUT, evidence};

/// F5. The store's clock steps back: a bucket that kept its timestamp was locked for as long as the step.
#[test]
#[ignore = "needs faketime"]
fn a_step_back_locks_no_subject_out_for_longer_than_the_limit_would() {
    each_server(|server, patient| {
        for limit in limits() {
            for back_ms in steps_ms() {
                let key = format!("{} {back_ms}", limit.algorithm());
                server.set_ahead_by_ms(0);
                drain(patient, &key, &limit);
                server.set_ahead_by_ms(-back_ms);
                let decision = patient.check(&key, &limit);
                assert_eq!(decision.source(), Source::Store, "{key}");
                // A window that began in the future is over after two periods at the latest.
                let wait = decision.retry_after().unwrap_or_default();
                assert!(wait <= 2 * PERIOD, "{key}: {wait:?}");
                // Used quota stays used, except that the clock is in another window now.
                let admitted = u64::from(decision.allowed()) + patient.admitted(20, &key, &limit);
                let fresh = if limit.algorithm() == Algorithm::FixedWindow { COUNT } else { 1 };
                assert!(admitted <= fresh, "{key}: {admitted} admitted after the step");
            }
        }
    });
}

/// F6. The clock steps forward: everything that could refill has refilled, once.
#[test]
#[ignore = "needs faketime"]
fn a_step_forward_costs_at_most_one_fresh_quota() {
    each_server(|server, patient| {
        for limit in limits() {
            for ahead_ms in steps_ms() {
                let key = format!("{} {ahead_ms}", limit.algorithm());
                server.set_ahead_by_ms(0);
                drain(patient, &key, &limit);
                server.set_ahead_by_ms(ahead_ms);
                let admitted = patient.admitted(30, &key, &limit);
                assert!(admitted <= COUNT + 1, "{key}: {admitted} admitted after the step");
            }
        }
    });
}

/// F5. The clock of the primary's successor is half a minute behind: exhausted subjects were locked out for
/// that long, and longer if they kept asking.
#[test]
#[ignore = "needs faketime"]
fn a_failover_to_a_clock_behind_locks_no_subject_out_for_longer_than_the_limit_would() {
    let (_watched, patient) = failed_over(-APART_MS);
    for limit in limits() {
        let decision = patient.check(&long(&limit), &limit);
        let wait = decision.retry_after().unwrap_or_default();
        assert!(wait <= 2 * PERIOD, "{wait:?}: {decision:?}");
        let again = u64::from(decision.allowed()) + patient.admitted(20, &long(&limit), &limit);
        let fresh = if limit.algorithm() == Algorithm::FixedWindow { COUNT } else { 1 };
        assert!(again <= fresh, "{limit:?}: {again} admitted after the failover");
    }
    for limit in short_limits() {
        // Under constant denials.
        let admitted = poll(LOCKED_OUT_MOST, || {
            let decision = patient.check(&short(&limit), &limit);
            (decision.allowed() && decision.source() == Source::Store).then_some(())
        });
        assert!(admitted.is_some(), "{limit:?}: still locked out after {LOCKED_OUT_MOST:?}");
    }
}

/// F6. The successor's clock is ahead.
#[test]
#[ignore = "needs faketime"]
fn a_failover_to_a_clock_ahead_costs_at_most_one_fresh_quota() {
    let (_watched, patient) = failed_over(APART_MS);
    for limit in limits() {
        let admitted = patient.admitted(30, &long(&limit), &limit);
        assert!(admitted <= COUNT + 1, "{limit:?}: {admitted} admitted after the failover");
    }
}

/// Exhausts every limit, then fails over to a server whose clock is `ahead_ms` ahead. Asserts that the step
/// is counted.
fn failed_over(ahead_ms: i64) -> (Sentinels, Patient) {
    let (watched, clocks) = Sentinels::start_stepped(3).unwrap();
    clocks[1].set_ahead_by_ms(&watched.servers()[1], ahead_ms);
    let builder = Limiter::builder().sentinel(Sentinels::NAME, watched.urls()).timeout(TIMEOUT);
    let patient = Patient::built(builder);
    patient.heals();
    assert_eq!(patient.limiter.stats().clock_steps, 0);
    limits().iter().for_each(|limit| drain(&patient, &long(limit), limit));
    short_limits().iter().for_each(|limit| drain(&patient, &short(limit), limit));
    assert_eq!(watched.fail_over(), 1);
    let counted = poll(HEALING, || {
        let _ = patient.check("a bystander", &limits()[0]);
        Some(patient.limiter.stats().clock_steps).filter(|steps| *steps > 0)
    });
    assert_eq!(counted, Some(1), "{:?}", patient.limiter.shards());
    patient.heals();
    (watched, patient)
}

fn long(limit: &Limit) -> String {
    format!("long {}", limit.algorithm())
}

fn short(limit: &Limit) -> String {
    format!("short {}", limit.algorithm())
}

fn each_server(story: impl Fn(&SteppedServer, &Patient)) {
    for stepped in &SteppedServer::start_each(&[]).unwrap() {
        println!("{}", stepped.name);
        let patient = Patient::on(&stepped.server.url());
        patient.heals();
        story(stepped, &patient);
    }
}

#[track_caller]
fn drain(patient: &Patient, key: &str, limit: &Limit) {
    let decisions: Vec<_> = (0..=COUNT).map(|_| patient.check(key, limit)).collect();
    let admitted = decisions.iter().filter(|decision| decision.allowed()).count() as u64;
    assert!(admitted >= COUNT, "{key}: {admitted}: {decisions:?}");
}

/// The same numbers for each algorithm that has a rate.
fn limits() -> Vec<Limit> {
    limits_per("10m")
}

/// The same limits with a period that a test can wait for.
fn short_limits() -> Vec<Limit> {
    limits_per("4s")
}

fn limits_per(period: &str) -> Vec<Limit> {
    let counted = Algorithm::ALL.into_iter().filter(|kind| *kind != Algorithm::Concurrency);
    let spec = |kind: Algorithm| LimitSpec::new(format!("{COUNT}/{period}")).algorithm(kind.name());
    counted.map(|kind| spec(kind).build().unwrap()).collect()
}

/// Steps within the tolerance, of a window, and of an hour.
fn steps_ms() -> Vec<i64> {
    match evidence() {
        true => vec![500, 1_000, 30_000, 600_000, 3_600_000, 86_400_000],
        false => vec![500, 3_600_000],
    }
}

const COUNT: u64 = 5;
/// Between the clocks of two servers.
const APART_MS: i64 = 30_000;
/// Less than `APART_MS`, and far more than two periods of the short limits.
const LOCKED_OUT_MOST: Duration = Duration::from_secs(20);
const PERIOD: Duration = Duration::from_secs(600);
