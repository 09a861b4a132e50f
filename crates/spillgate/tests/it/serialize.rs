//! The feature `serde`: decisions have the form of the HTTP API, and limits that of a policy.

use serde_json::{Value, json};
use spillgate::{Algorithm, Limit, LimitSpec, Limiter, Mode, Policy, Request, Rule};

#[test]
fn a_decision_has_the_form_of_the_http_api() {
    let login = Rule::new("login").key(["ip"]).limit(Limit::per_minute(1));
    let watched = Rule::new("watched").key(["ip"]).limit(Limit::per_minute(5)).mode(Mode::Shadow);
    let policy = Policy::builder().rule(login).rule(watched).build().unwrap();
    let limiter = Limiter::in_memory(policy);
    let decide = || limiter.check_now(&Request::new().with("ip", "203.0.113.7")).unwrap();
    let limit = |rule: &str, capacity: u64, remaining: u64, reset_after_ms: u64| {
        json!({
            "rule": rule, "limit": "0", "unit": "requests", "capacity": capacity, "remaining": remaining,
            "retry_after_ms": 0, "reset_after_ms": reset_after_ms, "allowed": true, "reason": null,
            "source": "store",
        })
    };
    let mut shadow = limit("watched", 5, 4, 12_000);
    shadow["shadow"] = Value::from(true);
    let expected = json!({
        "allowed": true, "reason": null, "rule": "login", "limit": "0", "capacity": 1, "remaining": 0,
        "retry_after_ms": 0, "reset_after_ms": 60_000, "source": "store", "degraded": false,
        "matched": true, "limits": [limit("login", 1, 0, 60_000), shadow],
    });
    assert_eq!(serde_json::to_value(decide()).unwrap(), expected);

    let denial = serde_json::to_value(decide().into_result().unwrap_err()).unwrap();
    assert_eq!(denial["reason"], "limit-exceeded");
    let wait = denial["retry_after_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&wait), "{wait}");
}

#[test]
fn a_limit_is_read_as_a_policy_writes_it_and_written_so_that_it_is_read_again() {
    let read = |written: Value| {
        serde_json::from_value::<Limit>(written).map_err(|error| error.to_string())
    };
    let month = LimitSpec::new("1000/month").algorithm("fixed-window").time_zone("Europe/Berlin");
    let limits = [
        (json!("5/minute"), Limit::per_minute(5)),
        (
            json!({"quota": "5/minute", "burst": 10, "unit": "tokens"}),
            Limit::per_minute(5).burst(10).unit_named("tokens"),
        ),
        (
            json!({"quota": "5/minute", "algorithm": "sliding-log"}),
            Limit::per_minute(5).by(Algorithm::SlidingLog),
        ),
        (
            json!({"quota": "1000/month", "algorithm": "fixed-window", "time_zone": "Europe/Berlin"}),
            month.build().unwrap(),
        ),
    ];
    for (written, limit) in limits {
        assert_eq!(read(written), Ok(limit.clone()));
        assert_eq!(read(serde_json::to_value(&limit).unwrap()), Ok(limit));
    }
    for (wrong, names) in [
        (json!("5/fortnight"), "fortnight"),
        (json!(5), "a quota such as"),
        (json!({"qouta": "5/minute"}), "quota"),
    ] {
        let error = read(wrong.clone()).unwrap_err();
        assert!(error.contains(names), "{wrong}: {error}");
    }
}
