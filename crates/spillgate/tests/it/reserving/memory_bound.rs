//! Memory for reservations in memory is bounded: in bytes, and to a hundredth of it for one subject. At the
//! bound no permit is granted that could not be released.

use std::time::Duration;

use spillgate::MemoryStats;
use spillgate::reservation::{EndResult, Reserve};
use spillgate::{Decision, Limiter, Policy, Reason, Request};

/// As `BYTES_MAX` in the engine's records.
const ROOM: u64 = 256 << 20;
/// Half of what once took a gigabyte: unbounded, it would exceed the bound below.
const ATTEMPTS: u64 = 800_000;

async fn limiter(policy: &str) -> Limiter {
    Limiter::builder().policy(Policy::from_toml(policy).unwrap()).build().await.unwrap()
}

fn held(limiter: &Limiter) -> MemoryStats {
    limiter.memory_stats().expect("state is in memory")
}

/// Returns the resident bytes of this process, which include other tests that run at the same time.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

async fn reserve(limiter: &Limiter, user: &str, cost: u64) -> Decision {
    let day = Reserve::lasting(Duration::from_secs(86_400));
    let request = Request::new().with("user", user).with("region", "eu").costing(cost);
    limiter.reserve(&request, &day).await.unwrap()
}

/// These limits admit a reservation of cost 0 at all times.
const OPEN: &str = r#"
    [[rule]]
    name = "by-user"
    key = ["user"]
    limits = ["10/second"]
    [[rule]]
    name = "all"
    key = ["region"]
    limits = ["1000000/second"]
"#;

#[test]
fn one_subject_fills_at_most_a_hundredth_of_the_room_and_others_are_admitted() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = limiter(OPEN).await;
        let before = resident();
        let mut first = 0;
        while reserve(&limiter, "eve", 0).await.allowed() {
            first += 1;
        }
        let of_one = held(&limiter);
        assert!(
            of_one.reservation_bytes <= ROOM / 100 && of_one.reservation_bytes > ROOM / 101,
            "{of_one:?}"
        );
        let denied = reserve(&limiter, "eve", 0).await;
        assert_eq!((denied.reason(), denied.retry_after()), (Some(Reason::Overloaded), None));
        assert!(denied.receipt().is_none());
        // The same rules and the same region, for other users.
        for number in 0..1_000 {
            let decision = reserve(&limiter, &format!("u{number}"), 1).await;
            assert!(decision.allowed() && decision.receipt().is_some(), "{number}");
        }
        let mut attempts = first + 1;
        let mut subject = 0;
        while attempts < ATTEMPTS {
            subject += 1;
            for _ in 0..ATTEMPTS / 200 {
                attempts += 1;
                let _ = reserve(&limiter, &format!("eve{subject}"), 0).await;
            }
        }
        let all = held(&limiter);
        let grown = resident().saturating_sub(before);
        println!(
            "{first} of one subject in {} bytes; after {attempts} by {subject}: {all:?}, \
             resident {} MB more",
            of_one.reservation_bytes,
            grown >> 20
        );
        assert!(
            all.reservation_bytes <= ROOM && all.reservation_bytes > ROOM / 100 * 99,
            "{all:?}"
        );
        // Tests beside this one take memory too.
        assert!(grown < 2 * ROOM, "{} MB", grown >> 20);
        let late = reserve(&limiter, "another", 1).await;
        assert_eq!(late.reason(), Some(Reason::Overloaded));
    });
}

#[test]
fn ended_reservations_make_room_again() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = limiter(OPEN).await;
        let mut receipts = Vec::new();
        loop {
            let decision = reserve(&limiter, "eve", 0).await;
            let Some(receipt) = decision.receipt() else { break };
            receipts.push(receipt.clone());
        }
        for receipt in &receipts {
            assert_eq!(limiter.cancel(receipt).await, Ok(EndResult::Done));
            let next = reserve(&limiter, "eve", 0).await;
            assert!(next.allowed());
            assert_eq!(limiter.cancel(next.receipt().unwrap()).await, Ok(EndResult::Done));
        }
        let after = held(&limiter);
        assert_eq!(after.open_reservations, 0);
        assert!(
            after.reservation_bytes <= ROOM / 100,
            "ended reservations count towards the same bound"
        );
    });
}

#[test]
fn at_the_bound_a_permit_is_denied_and_a_denial_by_a_limit_keeps_its_reason() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let policy = r#"
            [[rule]]
            name = "streams"
            key = ["user"]
            limits = [{ quota = "1000000", algorithm = "concurrency", max_hold = "1h" }]
            [[rule]]
            name = "slow"
            key = ["user"]
            match = { slow = "yes" }
            limits = ["1/hour"]
        "#;
        let limiter = limiter(policy).await;
        let request = |user| Request::new().with("user", user);
        let slow = || request("eve").with("slow", "yes");
        assert!(limiter.check(&slow()).await.allowed());
        let mut held = 1;
        let denied = loop {
            let decision = limiter.check(&request("eve")).await;
            if !decision.allowed() {
                break decision;
            }
            assert!(decision.receipt().is_some(), "nothing is granted that cannot be released");
            held += 1;
        };
        println!("{held} permits of one subject");
        assert_eq!(denied.reason(), Some(Reason::Overloaded));
        assert_eq!(limiter.peek(&request("eve")).await.remaining(), Some(1_000_000 - held));
        let requests = [request("eve"), request("bob")];
        let decisions = limiter.check_batch(&requests).await;
        assert_eq!(decisions[0].reason(), Some(Reason::Overloaded));
        assert!(decisions[1].allowed() && decisions[1].receipt().is_some());
        let waited = limiter.acquire(&request("eve"), Duration::ZERO).await;
        assert_eq!(waited.reason(), Some(Reason::Overloaded));
        assert_eq!(limiter.check(&slow()).await.reason(), Some(Reason::LimitExceeded));
    });
}

/// A post-paid limit is charged whatever else decides. Its charge was lost together with the permit.
#[test]
fn at_the_bound_a_post_paid_limit_is_charged_all_the_same() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let policy = r#"
            [[rule]]
            name = "streams"
            key = ["user"]
            limits = [{ quota = "1000000", algorithm = "concurrency", max_hold = "1h" }]
            [[rule]]
            name = "usage"
            key = ["user"]
            postpaid = true
            limits = [{ quota = "1000000/366d", algorithm = "fixed-window" }]
        "#;
        let limiter = limiter(policy).await;
        let eve = Request::new().with("user", "eve");
        let mut attempts = 1;
        while limiter.check(&eve).await.allowed() {
            attempts += 1;
        }
        assert_eq!(limiter.check(&eve).await.reason(), Some(Reason::Overloaded));
        let usage = limiter.state("usage", &eve).await.unwrap();
        assert_eq!(usage.remaining(), Some(1_000_000 - attempts - 1));
    });
}
