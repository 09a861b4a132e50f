use super::*;

const NOW_MS: u64 = 1_700_000_000_000;
const MINUTE_MS: u64 = 60_000;

/// An instance with one enforced rule and a store that answers.
fn healthy() -> Facts {
    let mut store = ShardStatus::default();
    (store.name, store.asked) = ("store".to_owned(), true);
    Facts { now_ms: NOW_MS, rules: 1, shards: vec![store], ..Facts::default() }
}

fn switched(rule: &str, mode: Mode, at_run_time: bool) -> Switched {
    Switched { rule: rule.to_owned(), mode, at_run_time, since_ms: NOW_MS - 12 * MINUTE_MS }
}

/// Checks level and word, and that one condition has all of these parts in its line.
#[track_caller]
fn check(facts: &Facts, level: Level, word: &str, parts: &[&str]) {
    let status = facts.status();
    assert_eq!((status.level, status.word), (level, word), "{status:?}");
    let lines: Vec<String> =
        status.conditions.iter().map(|condition| condition.line(NOW_MS)).collect();
    let has_all = |line: &String| parts.iter().all(|part| line.contains(part));
    assert!(parts.is_empty() || lines.iter().any(has_all), "{parts:?} in none of {lines:#?}");
}

#[test]
fn an_instance_without_conditions_is_healthy() {
    check(&healthy(), Level::Ok, "healthy", &[]);
    assert!(healthy().status().conditions.is_empty());
}

#[test]
fn the_only_rule_off_is_critical() {
    let mut facts = healthy();
    facts.watched.switched = vec![switched("login", Mode::Off, true)];
    let only = ["the only rule is not enforced", "(since 12 min)", "next: set a rule to enforce"];
    check(&facts, Level::Critical, "nothing enforced", &only);
    let off = ["login is off and limits no request, set by an operator", "set login to enforce"];
    check(&facts, Level::Critical, "nothing enforced", &off);
}

#[test]
fn one_of_several_rules_off_is_a_warning() {
    let mut facts = Facts { rules: 9, ..healthy() };
    facts.watched.switched = vec![switched("login", Mode::Off, true)];
    check(&facts, Level::Warning, "rule off", &["login is off", "since 12 min"]);
    facts.watched.switched = vec![switched("login", Mode::Off, false)];
    check(&facts, Level::Warning, "rule off", &["as the policy file has it", "remove `mode`"]);
    let names = ["a", "b", "c", "d", "e", "f"];
    facts.watched.switched = names.map(|name| switched(name, Mode::Off, true)).into();
    check(&facts, Level::Warning, "rule off", &["a, b, c, d and 2 more are off and limit no"]);
}

#[test]
fn a_shadow_rule_is_a_warning_if_an_operator_set_it_and_a_note_if_the_file_has_it() {
    let mut facts = Facts { rules: 2, ..healthy() };
    facts.watched.switched = vec![switched("new", Mode::Shadow, true)];
    check(&facts, Level::Warning, "rule in shadow", &["new is in shadow: it counts and denies no"]);
    facts.watched.switched = vec![switched("new", Mode::Shadow, false)];
    check(&facts, Level::Ok, "healthy", &["new is in shadow", "as the policy file has it"]);
    assert_eq!(facts.status().conditions[0].level, Level::Note);
}

#[test]
fn no_rules_are_a_warning_unless_the_file_lists_none() {
    let facts = Facts { rules: 0, ..healthy() };
    check(&facts, Level::Warning, "no rules", &["there are no rules", "next: write a [[rule]]"]);
    let meant = Facts { no_rules_on_purpose: true, ..facts };
    check(&meant, Level::Ok, "healthy", &[]);
}

#[test]
fn a_refused_policy_file_is_critical_with_its_reason_and_time() {
    let why = Arc::from("limits.toml:3: `limits`: 5/fortnight is not a quota");
    let refused = Some(Refused { at_ms: NOW_MS - 90_000, why });
    let facts = Facts { refused, ..healthy() };
    let parts = ["5/fortnight is not a quota", "(since 90 s)", "next: fix the file"];
    check(&facts, Level::Critical, "policy refused", &parts);
}

#[test]
fn lost_state_is_shown_for_an_hour() {
    let mut facts = healthy();
    facts.watched.lost_at_ms = Some(NOW_MS - 7 * MINUTE_MS);
    let parts = ["the store lost its data", "(since 7 min)", "on_state_loss"];
    check(&facts, Level::Warning, "state lost", &parts);
    facts.watched.lost_at_ms = Some(NOW_MS - 61 * MINUTE_MS);
    check(&facts, Level::Ok, "healthy", &[]);
}

#[test]
fn a_shard_out_of_reach_is_critical_with_its_trouble_and_age() {
    let mut facts = healthy();
    facts.shards[0].degraded = true;
    facts.shards[0].trouble = Some("Connection refused".into());
    facts.watched.degraded = vec![("store".to_owned(), NOW_MS - 3 * 3_600_000)];
    let parts = ["without store: Connection refused", "(since 3 h)", "spillgate doctor"];
    check(&facts, Level::Critical, "degraded", &parts);
    facts.shards = healthy().shards;
    (facts.shards[0].degraded, facts.shards[0].asked) = (true, false);
    check(&facts, Level::Critical, "degraded", &["its circuit breaker is open"]);
}

#[test]
fn a_server_that_refuses_calls_need_not_be_brought_back() {
    let mut facts = healthy();
    facts.shards[0].degraded = true;
    for (trouble, next) in [
        ("WRONGPASS: invalid username-password pair", "correct the user or password"),
        ("NOAUTH: Authentication required.", "correct the user or password"),
        ("OOM: command not allowed when used memory > 'maxmemory'.", "raise its maxmemory"),
        ("NOPERM: User limiter has no permissions to run the 'evalsha' command", "let its user"),
        ("MISCONF: Redis is configured to save RDB snapshots", "free its disk"),
        ("NOREPLICAS: Not enough good replicas to write.", "min-replicas-to-write"),
        ("BUSY: Redis is busy running a script.", "SCRIPT KILL"),
        ("LOADING: Redis is loading the dataset in memory", "wait until it has"),
    ] {
        facts.shards[0].trouble = Some(trouble.into());
        check(&facts, Level::Critical, "degraded", &[trouble, next, "on_outage decides"]);
    }
}

#[test]
fn decisions_without_the_store_are_named_by_their_source() {
    let mut facts = healthy();
    (facts.watched.by_fallback, facts.watched.by_outage_policy) = (5, 2);
    let parts = ["in the last minute: 5 by local shares, 2 by on_outage"];
    facts.watched.decisions = 700;
    check(&facts, Level::Warning, "degraded", &parts);
    facts.watched.decisions = 701;
    check(&facts, Level::Ok, "healthy", &parts);
    facts.shards[0].degraded = true;
    check(&facts, Level::Critical, "degraded", &parts);
}

#[test]
fn instances_that_differ_are_critical() {
    let mut facts = healthy();
    (facts.mismatch.secret, facts.mismatch.ring, facts.mismatch.live) = (2, 1, 5);
    let parts = [
        "live instances with another key secret: 2 of 5, live instances with another ring: 1 of 5",
    ];
    check(&facts, Level::Critical, "instances differ", &parts);
}

#[test]
fn lost_rules_and_an_unsafe_store_are_warnings() {
    let warning = Some(Arc::from("2 of 3 rules are gone since this reload: b, c"));
    let facts = Facts { warning, ..healthy() };
    check(&facts, Level::Warning, "rules gone", &["2 of 3 rules are gone"]);
    let facts = Facts { unsafe_store: ["eviction"].into(), ..healthy() };
    check(&facts, Level::Warning, "store unsafe", &["eviction", "spillgate doctor"]);
}

#[test]
fn the_worst_condition_names_the_status_and_comes_first() {
    let mut facts = Facts { rules: 0, ..healthy() };
    facts.mismatch.schema = 1;
    let status = facts.status();
    let kinds: Vec<Kind> = status.conditions.iter().map(|condition| condition.kind).collect();
    assert_eq!(
        (status.word, kinds),
        ("instances differ", vec![Kind::InstancesDiffer, Kind::NoRules])
    );
}

#[test]
fn an_age_has_its_largest_fitting_unit() {
    for (seconds, text) in
        [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 days")]
    {
        assert_eq!(age(seconds), text);
    }
}

#[test]
fn the_documents_have_each_kind_and_each_word() {
    let reference = include_str!("../../../../docs/reference/admin.md");
    let page = include_str!("../../../../docs/how-to/dashboard.md");
    for kind in [
        Kind::ShardDegraded,
        Kind::Fallback,
        Kind::InstancesDiffer,
        Kind::PolicyRefused,
        Kind::StateLost,
        Kind::NothingEnforced,
        Kind::RuleOff,
        Kind::RuleShadow,
        Kind::RulesGone,
        Kind::NoRules,
        Kind::StoreUnsafe,
    ] {
        let (name, word) = (kind.name(), kind.word());
        assert!(reference.contains(&format!("\n| `{name}`")), "{name} has no row");
        let of = |row: &str| row.split(", ").any(|shown| shown == word);
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        assert!(rows.into_iter().any(of), "{word} has no row");
    }
}
