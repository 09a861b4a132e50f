//! The store's clock steps: nobody is locked out longer than the limit's own wait, and a step forward
//! costs one fresh allowance at most.

use std::time::Duration;

use spillgate::{Algorithm, Limit, LimitSpec, Source};
use spillgate_testkit::SteppedServer;

use super::{Patient, evidence};

/// F5. The clock of the store steps back: a bucket that kept its time was locked for as long as the
/// step.
#[test]
fn a_step_back_locks_nobody_out_for_longer_than_the_limit_would() {
    each_server(|server, patient| {
        for limit in limits() {
            for back_ms in steps_ms() {
                let key = format!("{} {back_ms}", limit.algorithm());
                server.set_ahead_by_ms(0);
                drain(patient, &key, &limit);
                server.set_ahead_by_ms(-back_ms);
                let decision = patient.check(&key, &limit);
                assert_eq!(decision.source(), Source::Store, "{key}");
                // A window that began later than now is over at the latest when two have passed.
                let wait = decision.retry_after().unwrap_or_default();
                assert!(wait <= 2 * PERIOD, "{key}: {wait:?}");
                // What was used stays used, but for a window of the clock that is another now.
                let admitted = u64::from(decision.allowed()) + patient.admitted(20, &key, &limit);
                let fresh = if limit.algorithm() == Algorithm::FixedWindow { COUNT } else { 1 };
                assert!(admitted <= fresh, "{key}: {admitted} admitted after the step");
            }
        }
    });
}

/// F6. It steps forward: all that could refill has refilled, once.
#[test]
fn a_step_forward_costs_one_fresh_allowance() {
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

fn each_server(story: impl Fn(&SteppedServer, &Patient)) {
    let servers = match SteppedServer::start_each(&[]) {
        Ok(servers) => servers,
        Err(missing) => return println!("skipped: {missing}"),
    };
    for stepped in &servers {
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
    let counted = Algorithm::ALL.into_iter().filter(|kind| *kind != Algorithm::Concurrency);
    let spec = |kind: Algorithm| LimitSpec::new(format!("{COUNT}/10m")).algorithm(kind.name());
    counted.map(|kind| spec(kind).build().unwrap()).collect()
}

/// Within what is tolerated, a window, an hour.
fn steps_ms() -> Vec<i64> {
    match evidence() {
        true => vec![500, 1_000, 30_000, 600_000, 3_600_000, 86_400_000],
        false => vec![500, 3_600_000],
    }
}

const COUNT: u64 = 5;
const PERIOD: Duration = Duration::from_secs(600);
