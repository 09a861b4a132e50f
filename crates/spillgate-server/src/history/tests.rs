use std::time::UNIX_EPOCH;

use allocation_counter::measure;
use spillgate::control::ChangeNote;
use spillgate::{Mode, Policy, Request};
use tokio::runtime::Runtime;

use super::*;

/// A limiter in memory, a history of it, and a clock.
struct World {
    runtime: Runtime,
    limiter: Limiter,
    history: History,
    wall_ms: u64,
}

impl World {
    /// The rules beyond those that decide in tests are off, which a history remembers for each.
    fn with_rules(count: usize) -> World {
        let rule = |n: usize| {
            let mode = if n < RULES_SEEN { "enforce" } else { "off" };
            format!(
                "[[rule]]\nname = \"r{n}\"\nmode = \"{mode}\"\nmatch = {{ route = \"r{n}\" }}\n\
                 key = [\"route\"]\nlimits = [\"1000000/second\"]\n"
            )
        };
        World::with_policy(&(0..count).map(rule).collect::<String>())
    }

    fn with_policy(policy: &str) -> World {
        let runtime = Runtime::new().unwrap();
        let policy = Policy::from_toml(policy).unwrap();
        let limiter =
            runtime.block_on(Limiter::builder().policy(policy).top(false).build()).unwrap();
        // A minute's beginning, so that each sixty samples make a minute.
        World { runtime, limiter, history: History::default(), wall_ms: 1_699_999_980_000 }
    }

    fn check(&self, rule: usize) -> bool {
        let request = Request::new().with("route", format!("r{rule}"));
        self.limiter.check_now(&request).unwrap().allowed()
    }

    fn sample(&mut self) {
        let at = At { wall_ms: self.wall_ms, lasted: Duration::from_secs(1) };
        self.history.sample(&self.limiter, at);
        self.wall_ms += 1_000;
    }

    fn extract(&self, range: &str, rule: Option<&str>) -> Extract {
        self.history.extract(&self.limiter, Range::named(range).unwrap(), None, rule)
    }

    /// Returns the number of points, and of their decisions.
    fn sums(&self, range: &str, rule: Option<&str>) -> (usize, u64) {
        let extract = self.extract(range, rule);
        let decisions = extract.decisions.iter().map(Decisions::all).sum();
        (extract.columns.len(), decisions)
    }

    fn texts(&self, rule: Option<&str>) -> Vec<String> {
        let events = self.extract("24h", rule).events;
        events.iter().map(|event| event.text.to_string()).collect()
    }
}

#[test]
fn points_have_the_decisions_of_their_second_and_of_their_minute() {
    let mut world = World::with_policy(
        "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"3/hour\"]\n\
         [[rule]]\nname = \"banned\"\nmatch = { user = \"mallory\" }\nkey = []\nlimits = [\"block\"]\n",
    );
    let ask = |world: &World, user: &str| {
        let request = Request::new().with("user", user.to_owned());
        world.limiter.check_now(&request).unwrap().allowed()
    };
    world.sample();
    for _ in 0..5 {
        ask(&world, "ann");
    }
    ask(&world, "mallory");
    world.sample();
    assert!(!ask(&world, "ann"));
    world.sample();

    let of = |range, rule| world.extract(range, rule);
    let api = of("3m", Some("api"));
    let results: Vec<[u32; 7]> = api.decisions.iter().map(|point| point.results).collect();
    assert_eq!(results[0], [0; 7]);
    assert_eq!(results[2], [0, 1, 0, 0, 0, 0, 0], "allowed, limit-exceeded, …");
    assert_eq!(results[1][..2], [4, 2], "mallory is below the limit of api");
    let whole = of("3m", None);
    let requests = |column: &Column| (column.allowed, column.denied, column.lasted_ms);
    let seconds: Vec<(u32, u32, u32)> = whole.columns.iter().map(requests).collect();
    assert_eq!(seconds, [(0, 0, 1_000), (3, 3, 1_000), (0, 1, 1_000)]);
    // No store is asked for a block.
    assert_eq!(whole.columns[1].sources, [6, 0, 0, 0, 0, 1]);
    let minutes = of("24h", Some("api"));
    assert_eq!(minutes.decisions.len(), 1);
    assert_eq!(minutes.decisions[0].results[..2], [4, 3]);
    let banned = of("1h", Some("banned"));
    assert_eq!(banned.decisions[0].results, [0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn ranges_are_bounded_and_move_with_time() {
    let mut world = World::with_rules(1);
    for _ in 0..2_000 {
        world.check(0);
        world.sample();
    }
    assert_eq!(world.sums("3m", Some("r0")), (180, 180));
    assert_eq!(world.sums("15m", None), (900, 900));
    // 33 minutes and 20 seconds.
    assert_eq!(world.sums("1h", None), (34, 2_000));
    assert_eq!(world.sums("24h", Some("r0")), (34, 2_000));
    let extract = world.extract("15m", None);
    let times = extract.columns.iter().map(|column| column.at_ms);
    assert!(times.is_sorted() && extract.columns[899].at_ms == world.wall_ms - 1_000);
}

#[test]
fn a_range_that_ended_earlier_has_points_of_minutes_where_those_of_seconds_are_gone() {
    let mut world = World::with_rules(2);
    let began_ms = world.wall_ms;
    for second in 0..2_000 {
        world.check(usize::from(second >= 1_000));
        world.sample();
    }
    let until = |second: u64| {
        let range = Range::named("15m").unwrap();
        world.history.extract(&world.limiter, range, Some(began_ms + second * 1_000), None)
    };
    let lasted = |extract: &Extract| {
        let columns = extract.columns.iter();
        columns.map(|column| column.lasted_ms).collect::<Vec<u32>>()
    };
    let sums = |extract: &Extract| {
        let rules = extract.rules.iter();
        rules.map(|sum| (sum.rule.as_deref().map(str::to_owned), sum.allowed)).collect::<Vec<_>>()
    };
    // Seconds reach back to 1,100, in the minute from 1,080 to 1,139.
    let mixed = until(1_499);
    let expected = [vec![60_000; 9], vec![1_000; 360]].concat();
    assert_eq!(lasted(&mixed), expected);
    assert!(mixed.columns.windows(2).all(|pair| pair[0].at_ms < pair[1].at_ms));
    let r0 = (Some("r0".to_owned()), 400);
    assert_eq!(sums(&mixed), [r0, (Some("r1".to_owned()), 500)]);
    let minutes = until(899);
    assert_eq!(lasted(&minutes), [60_000; 15]);
    assert_eq!(sums(&minutes), [(Some("r0".to_owned()), 900)]);
    assert_eq!(lasted(&until(1_999)), [1_000; 900]);
    assert!(until(0).columns.len() <= 1);
}

#[test]
fn the_busiest_rules_have_series_and_the_others_are_summed() {
    let mut world = World::with_rules(100);
    for _ in 0..120 {
        for rule in 0..100 {
            world.check(rule);
        }
        world.sample();
    }
    let series =
        |world: &World, rule: usize| world.extract("15m", Some(&format!("r{rule}"))).series;
    let is_own = |world: &World, rule: usize| series(world, rule) != Series::Absent;
    assert_eq!((0..100).filter(|rule| is_own(&world, *rule)).count(), 64);
    assert_eq!(world.sums("3m", None), (120, 12_000));
    // A rule without a series becomes the busiest.
    let late = (0..100).find(|rule| !is_own(&world, *rule)).unwrap();
    for _ in 0..130 {
        for _ in 0..50 {
            world.check(late);
        }
        world.sample();
    }
    let Series::Own { since_ms: Some(since_ms) } = series(&world, late) else {
        panic!("r{late}: {:?}", series(&world, late));
    };
    assert_eq!((0..100).filter(|rule| is_own(&world, *rule)).count(), 64);
    // Its series has the decisions of each point after that time, and those before are in the sums.
    let own = world.extract("15m", Some(&format!("r{late}")));
    for (column, decisions) in own.columns.iter().zip(&own.decisions) {
        let expected = if column.at_ms > since_ms { 50 } else { 0 };
        assert_eq!(decisions.all(), expected, "{} ms after", column.at_ms as i64 - since_ms as i64);
    }
    // Nothing is lost when a rule takes the series of another.
    assert_eq!(world.sums("15m", None), (250, 12_000 + 130 * 50));
    assert_eq!(world.sums("24h", None).1, 12_000 + 130 * 50);
}

#[test]
fn a_rule_that_is_gone_keeps_its_points_and_one_that_comes_back_begins_anew() {
    let mut world = World::with_rules(1);
    world.check(0);
    world.sample();
    let rules = |text| Policy::from_toml(text).unwrap();
    world.limiter.set_policy(rules("rules = []"));
    world.sample();
    assert_eq!(world.sums("3m", Some("r0")), (2, 1));
    world.limiter.set_policy(rules(
        "[[rule]]\nname = \"r0\"\nmatch = { route = \"r0\" }\nkey = [\"route\"]\nlimits = [\"9/second\"]\n",
    ));
    world.check(0);
    world.check(0);
    world.sample();
    assert_eq!(world.sums("3m", Some("r0")), (3, 3));
}

#[test]
fn a_rule_that_moved_to_another_domain_has_the_points_of_the_new_one() {
    let rules = |domain: &str| {
        let rule = |n: usize| {
            format!(
                "[[rule]]\nname = \"r{n}\"\ndomain = \"{domain}\"\nmatch = {{ route = \"r{n}\" }}\n\
                 key = [\"route\"]\nlimits = [\"9/second\"]\n"
            )
        };
        (0..MOVED).map(rule).collect::<String>()
    };
    let mut world = World::with_policy(&rules("old"));
    let check_each = |world: &World, domain: &'static str| {
        for n in 0..MOVED {
            let request = Request::new().in_domain(domain).with("route", format!("r{n}"));
            assert!(world.limiter.check_now(&request).unwrap().allowed());
        }
    };
    check_each(&world, "old");
    world.sample();
    world.limiter.set_policy(Policy::from_toml(&rules("new")).unwrap());
    check_each(&world, "new");
    check_each(&world, "new");
    world.sample();
    for n in 0..MOVED {
        assert_eq!(world.sums("3m", Some(&format!("r{n}"))), (2, 2), "r{n}");
    }
}

#[test]
fn changes_are_events_with_actor_time_and_reason() {
    let mut world = World::with_rules(2);
    world.sample();
    let limiter = world.limiter.with_note(ChangeNote::by("ann").because("incident 4711"));
    let subject = Request::new().with("route", "r1");
    let before_ms = now_ms();
    world.runtime.block_on(async {
        limiter.set_mode("r0", Mode::Off, None).await.unwrap();
        limiter.set_override("r1", &subject, ["block"], None).await.unwrap();
        limiter.set_override("r1", &Request::new(), ["5/minute"], None).await.unwrap();
        limiter.clear_mode("r0").await.unwrap();
        limiter.remove_override("r1", &subject).await.unwrap();
        let _ = limiter.charge("r1", &subject, 7).await.unwrap();
        let _ = limiter.refund("r1", &subject, 3).await.unwrap();
        limiter.reset("r1", &subject).await.unwrap();
        world.limiter.reset_rule("r0").await.unwrap();
    });
    let expected = [
        "started",
        "ann set r0 to off (incident 4711)",
        "ann blocked route=r1 in r1 (incident 4711)",
        "ann limited every subject in r1 to 5/minute (incident 4711)",
        "ann set r0 back to the mode of the policy file (incident 4711)",
        "ann removed the override of r1 for route=r1 (incident 4711)",
        "ann charged 7 requests to route=r1 in r1 (incident 4711)",
        "ann refunded 3 requests to route=r1 in r1 (incident 4711)",
        "ann reset route=r1 in r1 (incident 4711)",
        "an operator reset every subject of r0",
    ];
    assert_eq!(world.texts(None), expected);
    let of_r0: Vec<&str> = [0, 1, 4, 9].map(|at| expected[at]).into();
    assert_eq!(world.texts(Some("r0")), of_r0);
    for event in &world.extract("3m", None).events[1..] {
        assert!((before_ms..=now_ms() + 1).contains(&event.at_ms), "{event:?}");
    }
}

#[test]
fn a_change_that_expires_is_an_event_unless_another_replaced_it() {
    let mut world = World::with_rules(2);
    world.sample();
    let end_ms = now_ms() + 60_000;
    let end = UNIX_EPOCH + Duration::from_millis(end_ms);
    let limiter = world.limiter.clone();
    let subject = Request::new().with("route", "r1");
    world.runtime.block_on(async {
        limiter.set_mode("r0", Mode::Off, Some(end)).await.unwrap();
        limiter.set_override("r1", &subject, ["block"], Some(end)).await.unwrap();
        limiter.set_mode("r1", Mode::Shadow, Some(end)).await.unwrap();
        limiter.clear_mode("r1").await.unwrap();
    });
    let expired = |now_ms| {
        let mut events = changes::of_audit(&limiter.audit(), now_ms);
        events.retain(|event| event.text.ends_with("has expired"));
        events.sort_by(|a, b| a.text.cmp(&b.text));
        events.into_iter().map(|event| (event.at_ms, String::from(event.text))).collect::<Vec<_>>()
    };
    assert!(expired(end_ms - 1).is_empty());
    let texts =
        ["the mode that was set for r0 has expired", "the override of r1 for route=r1 has expired"];
    assert_eq!(expired(end_ms), texts.map(|text| (end_ms, text.to_owned())));
}

#[test]
fn a_rule_that_an_operator_switched_is_watched_since_that_change() {
    let mut world = World::with_rules(2);
    world.sample();
    let before_ms = now_ms();
    let limiter = world.limiter.clone();
    world.runtime.block_on(limiter.set_mode("r0", Mode::Off, None)).unwrap();
    let set_ms = now_ms();
    // The history looks later, as that of an instance that starts does.
    world.wall_ms = set_ms + 3_600_000;
    world.sample();
    let [r0] = <[Switched; 1]>::try_from(world.history.watched().switched).unwrap();
    assert_eq!((&*r0.rule, r0.mode, r0.at_run_time), ("r0", Mode::Off, true));
    assert!((before_ms..=set_ms + 1).contains(&r0.since_ms), "{r0:?}, set at {set_ms}");
    world.runtime.block_on(limiter.set_mode("r0", Mode::Enforce, None)).unwrap();
    world.sample();
    assert!(world.history.watched().switched.is_empty());
}

#[test]
fn a_rule_that_the_policy_file_switched_is_watched_since_it_was_seen() {
    let mut world = World::with_policy(
        "[[rule]]\nname = \"new\"\nmode = \"shadow\"\nkey = []\nlimits = [\"1/second\"]\n",
    );
    let first_ms = world.wall_ms;
    world.sample();
    let limiter = world.limiter.clone();
    world.runtime.block_on(limiter.reset_rule("new")).unwrap();
    world.sample();
    let [new] = <[Switched; 1]>::try_from(world.history.watched().switched).unwrap();
    assert_eq!((new.mode, new.at_run_time, new.since_ms), (Mode::Shadow, false, first_ms));
}

#[test]
fn events_are_bounded_in_number_and_length() {
    let mut world = World::with_rules(1);
    world.sample();
    for number in 0..1_500 {
        world.history.note(EventKind::Reload, &format!("{number} {}", "é".repeat(1_000)));
    }
    let texts = world.texts(None);
    assert_eq!(texts.len(), 1_000);
    assert!(texts[0].starts_with("500 ") && texts[999].starts_with("1499 "));
    assert!(texts.iter().all(|text| text.chars().count() == 300));
}

/// Returns the bytes that a history takes after two days, with every list full, and five hours later.
fn bytes_of_days(rules: usize) -> [u64; 2] {
    let mut world = World::with_rules(rules);
    let ask = |world: &World, most: usize| {
        for rule in 0..rules.min(most) {
            world.check(rule);
        }
    };
    // The counters of the limiter itself are not measured.
    ask(&world, RULES_SEEN);
    let mut history = None;
    let mut bytes = measure(|| history = Some(History::default())).bytes_current;
    world.history = history.unwrap();
    [TWO_DAYS, FIVE_HOURS].map(|samples| {
        let grown = measure(|| {
            ask(&world, RULES_SEEN);
            for _ in 0..samples {
                ask(&world, RULES_BUSY);
                world.history.note(EventKind::Reload, &"é".repeat(300));
                // Each sample stands for a minute, so that the rings of both windows fill.
                world.wall_ms += 59_000;
                world.sample();
            }
        });
        bytes += grown.bytes_current;
        u64::try_from(bytes).unwrap()
    })
}

#[test]
fn memory_is_flat_and_bounded_for_one_rule() {
    assert_flat_below(2 << 20, 1);
}

#[test]
fn memory_is_flat_and_bounded_for_100_rules() {
    assert_flat_below(10 << 20, 100);
}

#[test]
fn memory_is_flat_and_bounded_for_10_000_rules() {
    assert_flat_below(12 << 20, 10_000);
}

/// The figures are in docs/internals/history.md.
#[track_caller]
fn assert_flat_below(bytes_max: u64, rules: usize) {
    let [half, whole] = bytes_of_days(rules);
    println!("{rules} rules: {half} bytes after two days, {whole} five hours later");
    assert!(whole < bytes_max, "{rules} rules: {whole} bytes");
    // The rates of the last sample come and go.
    assert!(whole < half + (64 << 10), "{rules} rules: from {half} to {whole} bytes");
}

/// In samples: more than the window of minutes has.
const TWO_DAYS: usize = 3_000;
const FIVE_HOURS: usize = 300;
/// Rules that decide now and then. Those beyond the first 1,000 share a meter.
const RULES_SEEN: usize = 1_100;
/// Rules that decide all the time.
const RULES_BUSY: usize = 100;
/// Rules that move: enough that a wrong choice among two of a name shows.
const MOVED: usize = 8;
