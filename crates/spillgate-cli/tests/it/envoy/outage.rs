//! The answer to Envoy while the store is out of reach, and its delay.

use std::time::Duration;

use spillgate_testkit::{RedisServer, free_port};
use tonic::Code as Status;

use super::client::{Caller, Code, descriptor};
use crate::server::{Server, TempFile};

const RULES: &str = r#"
    [[rule]]
    name = "strict"
    key = ["strict"]
    limits = ["10/day"]
    on_outage = "deny"

    [[rule]]
    name = "lax"
    key = ["lax"]
    limits = ["1/day"]
    on_outage = "allow"

    [[rule]]
    name = "local"
    key = ["local"]
    limits = ["1/day"]
"#;

/// Starts a server whose store does not exist.
fn without_store(settings: &str) -> Server {
    let file = TempFile::new("outage.toml", &format!("{settings}{RULES}"));
    let url = format!("redis://127.0.0.1:{}", free_port());
    Server::start(&["--config", file.path(), "--redis", &url])
}

#[test]
fn a_rule_that_denies_in_an_outage_denies_with_its_reason() {
    let server = without_store("");
    let caller = Caller::of(&server);
    let refused = caller.ask(&[descriptor(&[("strict", "x")])]);
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(refused.header("x-spillgate-source"), Some("outage-policy"));
    assert!(refused.statuses[0].current_limit.is_none(), "no numbers are known");
    let body = String::from_utf8(refused.raw_body).unwrap();
    assert!(body.contains("temporary-reduced-capacity") && body.contains("429"), "{body}");

    let lax = [descriptor(&[("lax", "x")])];
    for _ in 0..3 {
        assert_eq!(caller.ask(&lax).overall_code(), Code::Ok);
    }
    let local = [descriptor(&[("local", "x")])];
    assert_eq!(caller.ask(&local).overall_code(), Code::Ok);
    let refused = caller.ask(&local);
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(refused.header("x-spillgate-source"), Some("fallback"));
}

#[test]
fn an_outage_is_left_to_envoy_only_if_the_operator_chooses_it() {
    let server = without_store("[server.grpc]\non_outage_deny = \"unavailable\"\n");
    let caller = Caller::of(&server);
    let error = caller.ask_as(&[], &[descriptor(&[("strict", "x")])]).unwrap_err();
    assert_eq!(error.code(), Status::Unavailable);
    let both = [descriptor(&[("strict", "x")]), descriptor(&[("local", "y")]).costing(2)];
    assert_eq!(caller.ask(&both).overall_code(), Code::OverLimit, "a limit denies as well");
}

#[test]
fn a_hanging_store_is_given_up_before_envoy_gives_up() {
    let redis = RedisServer::start();
    let file = TempFile::new("hang.toml", &format!("[store]\ntimeout = \"60s\"\n{RULES}"));
    let server = Server::start(&["--config", file.path(), "--redis", &redis.url()]);
    let caller = Caller::of(&server);
    let strict = [descriptor(&[("strict", "x")])];
    // A busy machine may need more than one try to be in time; a look uses no quota.
    let look = [descriptor(&[("strict", "x")]).costing(0)];
    let answered = (0..1_000).any(|_| caller.ask(&look).overall_code() == Code::Ok);
    assert!(answered, "the store answers in time once");
    redis.pause();
    let caller_thread = std::thread::spawn(move || {
        for timeout in ["2000000u", "8m"] {
            let answer = caller.ask_as(&[("grpc-timeout", timeout)], &strict);
            // A busy machine may take longer than 8 ms for the round trip.
            let refused = answer.map(|answer| answer.overall_code() == Code::OverLimit);
            assert!(refused.unwrap_or(true));
        }
    });
    let in_time = (0..400).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        caller_thread.is_finished()
    });
    assert!(in_time, "20 s, where the store's own time-out is 60 s");
    caller_thread.join().unwrap();
    redis.resume();
}
