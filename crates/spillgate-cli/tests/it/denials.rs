//! `spillgate denials` and `/admin/v1/denials`: when a customer was denied, asked of a server that was not there.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use spillgate::testing::ManualClock;
use spillgate::{Limiter, Policy, Request};
use spillgate_testkit::{RedisServer, Reply};
use tokio::runtime::Runtime;

use crate::server::{Server, TempFile, run};

const RULE: &str = "[[rule]]\nname = \"api\"\nkey = [\"tenant\"]\nlimits = [\"1/day\"]\n";

/// Denies a tenant three times, ten minutes ago, at an instance that then stops.
fn deny_ten_minutes_ago(redis: &RedisServer, secret: [u8; 16]) {
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        clock.set(
            Duration::from_secs(Timestamp::now().as_second().unsigned_abs())
                - Duration::from_secs(600),
        );
        let builder = Limiter::builder().policy(Policy::from_toml(RULE).unwrap());
        let builder = builder.redis(redis.url()).key_secret(secret).denials(true);
        let limiter = builder.manual_clock(&clock).build().await.unwrap();
        let acme = Request::new().with("tenant", "acme-eu");
        assert!(limiter.check(&acme).await.allowed());
        for _ in 0..3 {
            assert!(!limiter.check(&acme.clone().costing(2)).await.allowed());
        }
        clock.advance(Duration::from_secs(120));
        let is_written = || redis.command(&["KEYS", "sg1:{fleet:default}:d:*"]);
        while !matches!(is_written(), Reply::Array(keys) if !keys.is_empty()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

fn answer(server: &Server, query: &str) -> Value {
    let path = format!("/admin/v1/denials?{query}");
    server.operator().send("GET", &path, b"").unwrap().json()
}

#[test]
fn an_operator_finds_why_a_customer_was_denied() {
    let redis = RedisServer::start();
    let secret = TempFile::new("secret", &format!("{:032x}", 7));
    deny_ten_minutes_ago(&redis, 7u128.to_be_bytes());
    let store =
        format!("[store]\nurl = \"{}\"\nkey_secret_file = {:?}\n", redis.url(), secret.path());
    let file = TempFile::new("limits.toml", &format!("{store}{RULE}"));
    let server = Server::start(&["--config", file.path()]);
    let url = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    let asked = |arguments: &[&str]| {
        let output = run(&[&["denials", "--url", &url], arguments].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };

    let (code, shown) = asked(&["tenant=acme-eu"]);
    assert!(
        shown.contains(
            "tenant=acme-eu\n  3 denied by rule api, limit 0; last reason: cost-exceeds-limit\n    "
        ),
        "{shown}"
    );
    assert!(shown.contains(":00  3 denied, about 1 allowed, in "), "{shown}");
    assert!(shown.starts_with("Denials since ") && shown.contains(", times in UTC\n"), "{shown}");
    assert_eq!(code, Some(0));
    // Without a subject the most denied ones are listed, of all rules or of one.
    for query in [&["--since", "15m"][..], &["--since", "15m", "--rule", "api"]] {
        let (code, shown) = asked(query);
        assert!(shown.contains("tenant=acme-eu\n  3 denied") && code == Some(0), "{shown}");
    }
    assert_eq!(asked(&["--since", "15m", "--rule", "no"]).0, Some(2));
    let (code, like) = asked(&["--like", "CME-E", "--json"]);
    let like: Value = serde_json::from_str(&like).unwrap();
    assert_eq!(
        (code, &like["complete"], &like["entries"][0]["denied"]),
        (Some(0), &true.into(), &3.into())
    );

    // An explanation ends with them.
    let explained = |arguments: &[&str]| {
        let output = run(&[&["explain", "--url", &url], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = explained(&["tenant=acme-eu", "path=/"]);
    assert!(shown.contains("matched: api\n\nDenials since ") && shown.contains("  3 denied by"));
    let shown = explained(&["tenant=bob"]);
    assert!(shown.contains("\n\nNot recorded: ") && shown.contains("20 most denied"), "{shown}");
    assert!(!explained(&["user=ann"]).contains("ecorded"), "it names no subject");

    // A subject without a record is not said to be allowed.
    for query in [&["tenant=bob"][..], &["tenant=acme-eu", "--since", "1m"]] {
        let (code, shown) = asked(query);
        assert_eq!((code, shown.starts_with("Not recorded: ")), (Some(1), true), "{shown}");
    }
    assert_eq!(asked(&["tenant=acme-eu", "--rule", "no"]).0, Some(2));
    assert_eq!(asked(&["user=ann"]).0, Some(2), "an attribute of the key is missing");
    assert_eq!(answer(&server, "attr.tenant=acme-eu&since=1h")["recording"], true);
}

#[test]
fn denials_are_off_by_the_setting_and_where_the_public_secret_would_seal_them() {
    let redis = RedisServer::start();
    let secret = TempFile::new("secret", &format!("{:032x}", 7));
    let with_secret = format!("key_secret_file = {:?}\n", secret.path());
    for (settings, grpc, recording) in [
        ("", "127.0.0.1:0", true),
        ("", "0.0.0.0:0", false),
        (&*with_secret, "0.0.0.0:0", true),
        ("denials = \"off\"\n", "127.0.0.1:0", false),
    ] {
        let token = TempFile::new("token", "0123456789abcdef");
        let text = format!(
            "[server]\ndata_token_file = {:?}\n[store]\nurl = \"{}\"\n{settings}{RULE}",
            token.path(),
            redis.url()
        );
        let file = TempFile::new("limits.toml", &text);
        let server = Server::start(&["--config", file.path(), "--grpc", grpc]);
        let answer = answer(&server, "attr.tenant=acme");
        assert_eq!(answer["recording"], recording, "{settings:?} at {grpc}: {answer}");
    }
}
