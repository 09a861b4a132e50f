//! The HTTP API with Redis behind it, by wrk, beside what articles do: one call of a script for each request,
//! through an HTTP stack like ours, over a pool of connections; and beside the best that can be made of that.

use std::process::Command;

use spillgate_testkit::RedisServer;

use crate::contender::Contender;
use crate::http::{Script, has_wrk, requests, requests_a_second};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};
use crate::{Outcome, articles, echo, pair};

pub fn against_the_articles(effort: Effort) -> Outcome {
    if !has_wrk() {
        println!(
            "HTTP on Redis is left out: there is no wrk on PATH (Debian: apt-get install wrk)\n"
        );
        return Ok(Vec::new());
    }
    let redis = RedisServer::start();
    let settings = Script::of("store.toml", &settings(&redis.url()))?;
    let config = ["--config".as_ref(), settings.path().as_ref()];
    let ours = Contender::spillgate_with("--http", &config)?;
    let pooled = Contender::program_with(&[articles::FLAG, &redis.url(), articles::POOL])?;
    let shared = Contender::program_with(&[articles::FLAG, &redis.url(), articles::SHARED])?;
    let echo = Contender::program(echo::FLAG)?;
    let [hot, distinct] = [10, 100_000]
        .map(|keys| (keys, format!(r#"{{"key":"user:%d","limit":{{"quota":"{QUOTA}"}}}}"#)))
        .map(|(keys, body)| Script::numbered(&format!("of-{keys}"), &body, keys));
    let (hot, distinct) = (hot?, distinct?);
    let leased = Script::numbered("leased", r#"{"attributes":{"user":"user:%d"}}"#, 10)?;
    let run = |server: &Contender, path: &str, script: &Script| {
        let mut command = Command::new("wrk");
        command.args(["-t2", "-c200", "-d1s", "-s", script.path()]);
        command.arg(format!("http://127.0.0.1:{}{path}", server.port));
        server.run(&mut command, requests_a_second, requests)
    };
    let mut contenders: [Box<dyn FnMut() -> Run>; 8] = [
        Box::new(|| run(&ours, "/v1/check", &hot)),
        Box::new(|| run(&pooled, "/v1/check", &hot)),
        Box::new(|| run(&shared, "/v1/check", &hot)),
        Box::new(|| run(&ours, "/v1/check", &distinct)),
        Box::new(|| run(&pooled, "/v1/check", &distinct)),
        Box::new(|| run(&shared, "/v1/check", &distinct)),
        Box::new(|| run(&ours, "/v1/check", &leased)),
        Box::new(|| run(&echo, "/by-attributes", &leased)),
    ];
    let rounds = Rounds::of(effort, &mut contenders);
    let row = |measure: &str, (ours, theirs): (usize, usize), floor: Floor| {
        pair::rows(&rounds, measure, (ours, theirs), floor)
    };
    let rows = [
        row("ten hot keys, against 50 pooled connections", (0, 1), Floor::AtLeast(2.0)),
        row("the same, against one that all share", (0, 2), Floor::AtLeast(1.4)),
        row("100000 keys, against 50 pooled connections", (3, 4), Floor::AtLeast(1.8)),
        row("the same, against one that all share", (3, 5), Floor::AtLeast(1.2)),
        row("ten hot keys, leased, against an axum JSON echo", (6, 7), Floor::AtLeast(0.9)),
    ];
    let title =
        "HTTP with Redis behind it, 200 connections, by wrk; baseline: one script call a request"
            .to_owned();
    Ok(vec![Table { title, rows: rows.into_iter().flatten().collect() }])
}

/// Patient, so that a busy machine measures slow answers and no outages; and a rule whose tokens are taken ahead.
fn settings(redis: &str) -> String {
    format!(
        r#"
        [store]
        url = "{redis}"
        timeout = "5s"

        [[rule]]
        name = "leased"
        key = ["user"]
        limits = [{{ quota = "100000000/second", burst = 1000000000 }}]
        lease = {{ share = 0.05, ttl = "1s" }}
        "#
    )
}

/// More than anybody asks for: an admission is the dearer answer. Of counts that records hold shortly.
const QUOTA: &str = "50000/second";
