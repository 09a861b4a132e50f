//! How long decisions take under each fault, compared with no fault: asserts a ceiling, and prints
//! milliseconds.

use std::time::Duration;

use spillgate::{Limit, Limiter, Request, Source};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::{Direction, Fault, FaultProxy, RedisServer};

use super::{CEILING, Patient, evidence};

#[test]
fn a_decision_under_any_fault_takes_no_longer_than_the_ceiling() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    // With the default timeout of 25 ms.
    let patient = Patient::built(Limiter::builder().redis(proxy.url()));
    println!(
        "{:<22} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "fault", "checks", "p50", "p99", "longest", "store"
    );
    for (name, fault) in FAULTS {
        patient.heals();
        row(&patient, "none (control)", Fault::None, &proxy);
        row(&patient, name, fault, &proxy);
        proxy.set(Fault::None);
    }
    patient.heals();
    server.pause();
    row(&patient, "server stopped", Fault::None, &proxy);
    server.resume();
    patient.heals();
}

fn row(patient: &Patient, name: &str, fault: Fault, proxy: &FaultProxy) {
    proxy.set(fault);
    let each = if evidence() { 500 } else { 20 };
    let mut taken = patient.run(async {
        let callers = (0..CALLERS).map(|caller| {
            let limiter = patient.limiter.clone();
            tokio::spawn(async move {
                let limit = Limit::per_second(1_000_000);
                let mut taken = Vec::new();
                for _ in 0..each {
                    let start_us = monotonic_us();
                    let key = format!("caller {caller}");
                    let request = Request::keyed(&key, &limit);
                    let check = limiter.check(&request);
                    let decision = tokio::time::timeout(CEILING, check).await.expect("a decision");
                    taken.push((monotonic_us() - start_us, decision.source()));
                }
                taken
            })
        });
        let mut all = Vec::new();
        for caller in callers.collect::<Vec<_>>() {
            all.extend(caller.await.unwrap());
        }
        all
    });
    taken.sort_unstable_by_key(|(us, _)| *us);
    let at = |thousandths: usize| {
        let us = taken[(taken.len() * thousandths / 1_000).min(taken.len() - 1)].0;
        format!("{}.{:03}", us / 1_000, us % 1_000)
    };
    let by_the_store = taken.iter().filter(|(_, source)| *source == Source::Store).count();
    println!(
        "{name:<22} {:>7} {:>9} {:>9} {:>9} {:>7} %",
        taken.len(),
        at(500),
        at(990),
        at(1_000),
        by_the_store * 100 / taken.len()
    );
}

const CALLERS: usize = 8;

const FAULTS: [(&str, Fault); 9] = [
    ("10 ms later", Fault::Delay(Duration::from_millis(5))),
    ("100 ms later", Fault::Delay(Duration::from_millis(50))),
    ("10,000 bytes per second", Fault::Bandwidth(10_000)),
    ("black hole", Fault::BlackHole),
    ("replies lost", Fault::LoseAll(Direction::ToClient)),
    ("frozen", Fault::Freeze),
    ("connection forgotten", Fault::ForgetConnections),
    ("reset", Fault::Reset),
    ("cut within the reply", Fault::CutAfter(Direction::ToClient, 10)),
];
