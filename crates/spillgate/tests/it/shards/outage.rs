//! Local decisions of a process, and their effect once the store is back.

use std::time::Duration;

use spillgate::{Decision, Limiter, LimiterBuilder, Policy, Request, Source};
use spillgate_testkit::{Fault, FaultProxy, RedisServer, eventually};
use tokio::runtime::Runtime;

use crate::support::storm;

/// ACCIDENTS A13. Every outage, and every restart, began with a full local bucket: an exhausted subject had
/// another quota in each process.
#[test]
fn subjects_exhausted_before_an_outage_stay_exhausted() {
    let mut server = RedisServer::start();
    let process = Process::on(&server, "10/day", |limiter| limiter.expected_instances(1));
    assert_eq!(process.admitted("me", 12), 10);
    assert_eq!(process.admitted("half", 5), 5);
    server.kill();
    process.wait_for(Source::Fallback);
    assert_eq!(process.admitted("me", 10), 0);
    assert_eq!(process.admitted("half", 10), 5);
    assert_eq!(process.admitted("new", 12), 10);
}

/// A denied request used the local share without a deferred charge. The next outage began with that rest of
/// the first, and ignored the later use of the store: 7 of 10 were admitted again.
#[test]
fn a_second_outage_starts_from_the_state_before_it() {
    let server = RedisServer::start();
    // The server keeps its data while it cannot be reached. As a replica it would still answer denials.
    let proxy = FaultProxy::before(server.port());
    let on_proxy = |it: LimiterBuilder| it.redis(proxy.url()).expected_instances(1);
    let process = Process::on(&server, "10/day", on_proxy);
    let go_away = || {
        proxy.set(Fault::Refuse);
        proxy.cut();
        process.wait_for(Source::Fallback);
    };
    assert_eq!(process.admitted("me", 3), 3);
    go_away();
    let request = Request::new().with("user", "me").costing(8);
    let denied = process.runtime.block_on(process.limiter.check(&request));
    assert_eq!((denied.allowed(), denied.source()), (false, Source::Fallback));
    proxy.set(Fault::None);
    process.wait_for(Source::Store);
    assert_eq!(process.admitted("me", 7), 7);
    go_away();
    assert_eq!(process.admitted("me", 10), 0);
}

/// ACCIDENTS A11, 43. Each process enforced the whole limit by itself: N processes admitted N limits.
#[test]
fn processes_share_the_limit_by_the_last_known_number_of_instances() {
    let mut server = RedisServer::start();
    let fleet: Vec<Process> = (0..4).map(|_| Process::on(&server, "12/day", |it| it)).collect();
    eventually(|| fleet.iter().all(|process| process.limiter.stats().live_instances == 4));
    server.kill();
    for process in &fleet {
        process.wait_for(Source::Fallback);
        assert_eq!(process.admitted("me", 12), 3);
    }
}

/// A store that came back empty counted one live instance, then two. The first took the whole limit as its
/// local share, and four instances admitted 2,000 of 1,000 in the next outage.
#[test]
fn a_store_that_comes_back_empty_for_a_moment_raises_no_share() {
    let mut server = RedisServer::start();
    let fleet: Vec<Process> = (0..4).map(|_| Process::on(&server, "1000/day", |it| it)).collect();
    eventually(|| fleet.iter().all(|process| process.limiter.stats().live_instances == 4));
    server.kill();
    fleet.iter().for_each(|process| process.wait_for(Source::Fallback));
    server.restart();
    // One instance has received the reply to its first heartbeat.
    eventually(|| fleet.iter().any(|process| process.limiter.stats().state_losses > 0));
    let counted = server.command(&["ZCARD", "sg1:{fleet:default}:i"]).integer();
    server.kill();
    let admitted = |process: &Process| {
        process.wait_for(Source::Fallback);
        process.admitted("fresh", 1_000)
    };
    let admitted: Vec<usize> = fleet.iter().map(admitted).collect();
    println!("the empty store counted {counted} of 4; they admitted {admitted:?} of 1,000");
    assert_eq!(admitted, [250; 4]);
}

#[test]
fn a_process_that_never_saw_the_store_uses_expected_instances_or_a_small_share() {
    let mut server = RedisServer::start();
    server.kill();
    for (expected, admitted) in [(0, 2), (4, 8), (1, 32)] {
        let process = Process::on(&server, "32/day", |it| it.expected_instances(expected));
        assert_eq!(process.admitted("me", 40), admitted, "{expected} expected");
    }
    let process = Process::by(&server, "limits = [\"32/day\"]\nlocal_share = 0.75", |it| it);
    assert_eq!(process.admitted("me", 40), 24, "by the rule's local_share");
}

/// ACCIDENTS 44, 46. Admissions during an outage were forgotten when it ended: recovery gave a second quota.
#[test]
fn the_first_call_after_an_outage_carries_deferred_charges() {
    let mut server = RedisServer::start();
    let process = Process::on(&server, "10/day", |it| it.expected_instances(1));
    server.kill();
    process.wait_for(Source::Fallback);
    assert_eq!(process.admitted("me", 7), 7);
    server.restart();
    process.wait_for(Source::Store);
    let first = process.check("me");
    assert_eq!((first.source(), first.remaining()), (Source::Store, Some(2)));
    assert_eq!(process.admitted("me", 5), 2);
}

#[test]
fn deferred_charges_are_sent_without_further_checks() {
    let mut server = RedisServer::start();
    let process = Process::on(&server, "10/day", |it| it.expected_instances(1));
    server.kill();
    process.wait_for(Source::Fallback);
    let subjects: Vec<String> = (0..50).map(|subject| subject.to_string()).collect();
    subjects.iter().for_each(|subject| assert_eq!(process.admitted(subject, 3), 3));
    server.restart();
    let other = Process::on(&server, "10/day", |it| it);
    for process in [&other, &process] {
        for subject in &subjects {
            eventually(|| process.peek(subject).remaining() == Some(7));
        }
    }
    // And only once.
    for subject in &subjects {
        let decision = other.peek(subject);
        assert_eq!(decision.remaining(), Some(7), "{decision:?}");
    }
}

/// F28. FLUSHALL changes no run id and breaks no connection.
#[test]
fn state_loss_of_a_server_is_noticed() {
    let server = RedisServer::start();
    let process = Process::on(&server, "10/day", |it| it);
    // Wait for the first heartbeat.
    eventually(|| server.command(&["DBSIZE"]).integer() >= 2);
    assert_eq!(process.limiter.stats().state_losses, 0);
    server.command(&["FLUSHALL"]);
    eventually(|| process.limiter.stats().state_losses == 1);
}

/// One process of a fleet, with one rule.
struct Process {
    limiter: Limiter,
    runtime: Runtime,
}

impl Process {
    fn on(
        server: &RedisServer,
        limit: &str,
        with: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Process {
        Process::by(server, &format!("limits = [\"{limit}\"]"), with)
    }

    fn by(
        server: &RedisServer,
        fields: &str,
        with: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Process {
        let runtime = storm::threads();
        let rule = format!("[[rule]]\nname = \"rule\"\nkey = [\"user\"]\n{fields}\n");
        let builder = with(Limiter::builder().redis(server.url()).timeout(WAIT));
        let builder = builder.policy(Policy::from_toml(&rule).unwrap());
        let limiter = runtime.block_on(builder.build()).unwrap();
        Process { limiter, runtime }
    }

    /// Returns how many of `calls` calls are admitted.
    fn admitted(&self, user: &str, calls: usize) -> usize {
        (0..calls).filter(|_| self.check(user).reason().is_none()).count()
    }

    fn check(&self, user: &str) -> Decision {
        self.runtime.block_on(self.limiter.check(&Request::new().with("user", user)))
    }

    fn peek(&self, user: &str) -> Decision {
        self.runtime.block_on(self.limiter.peek(&Request::new().with("user", user)))
    }

    /// Checks another subject until the store has gone, or is back.
    fn wait_for(&self, source: Source) {
        eventually(|| self.peek("another").source() == source);
        if source == Source::Fallback {
            eventually(|| {
                let _ = self.peek("another");
                !self.limiter.shards()[0].asked
            });
        }
    }
}

/// No healthy call takes this long, and three calls to a dead server still end soon.
const WAIT: Duration = Duration::from_secs(1);
