//! Runs the examples: started, exhausted, denied.
//!
//! `cargo test` builds them beside this binary.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use spillgate_testkit::{Process, free_port};
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::client::{Answer, Client, threads};

/// Starts an example and returns its port.
fn start(name: &str) -> (Process, u16) {
    start_with(name, Stdio::inherit())
}

fn start_with(name: &str, stdout: Stdio) -> (Process, u16) {
    let here = std::env::current_exe().unwrap();
    let folder = here.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let program: PathBuf = folder.join(name);
    assert!(
        program.exists(),
        "there is no {}: `cargo test` without `--test it` builds the examples",
        program.display()
    );
    let port = free_port();
    let mut command = Command::new(program);
    let command = command.env("PORT", port.to_string()).stdin(Stdio::null()).stdout(stdout);
    (Process::start(command), port)
}

/// Connects to an example that may still be starting.
fn connect(example: &mut Process, port: u16) -> Client {
    for _ in 0..ATTEMPTS {
        if let Ok(client) = Client::try_connect(port) {
            return client;
        }
        assert!(example.is_running(), "the example ended");
        std::thread::sleep(PAUSE);
    }
    panic!("nothing listens on port {port}");
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

#[test]
fn axum_by_ip_denies_the_fourth_visit() {
    let (mut example, port) = start("axum_by_ip");
    let mut client = connect(&mut example, port);
    let answers = [0; 4].map(|_| client.get("/"));
    assert_eq!(statuses(&answers), [200, 200, 200, 429]);
    assert_eq!(answers[0].headers["ratelimit-policy"], "\"visitors\";q=3;w=60");
    assert!(answers[3].body.contains("\"violated-policies\":[\"visitors\"]"));
}

#[test]
fn axum_by_api_key_gives_each_customer_the_limits_of_its_plan() {
    let (mut example, port) = start("axum_by_api_key");
    let mut client = connect(&mut example, port);
    let mut admitted = |headers: &[(&str, &str)]| {
        (0..20).take_while(|_| client.send("GET", "/", headers).status == 200).count()
    };
    assert_eq!(admitted(&[("x-api-key", "f-1")]), 2);
    assert_eq!(admitted(&[("x-api-key", "p-1")]), 10);
    assert_eq!(admitted(&[("x-api-key", "wrong")]), 1);
    assert_eq!(admitted(&[]), 0);
}

#[test]
fn tonic_denies_the_fourth_call() {
    let (mut example, port) = start("tonic");
    drop(connect(&mut example, port));
    let codes = threads().block_on(async {
        let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let mut client = HealthClient::new(channel.connect().await.unwrap());
        let mut codes = Vec::new();
        for _ in 0..4 {
            let request = HealthCheckRequest { service: String::new() };
            codes.push(
                client.check(request).await.map_or_else(|status| status.code(), |_| Code::Ok),
            );
        }
        codes
    });
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::ResourceExhausted]);
}

#[test]
fn rules_from_file_are_all_in_force() {
    let (mut example, port) = start("rules_from_file");
    let mut client = connect(&mut example, port);
    let logins = [0; 4].map(|_| client.send("POST", "/login", &[("x-tenant", "a")]));
    assert_eq!(statuses(&logins), [200, 200, 200, 429]);
    assert!(logins[3].body.contains("\"violated-policies\":[\"login/0\"]"), "{}", logins[3].body);
    // An export costs 10 of 30, for each tenant.
    let export =
        |client: &mut Client, tenant| client.send("GET", "/export", &[("x-tenant", tenant)]);
    let exports = ["b", "b", "b", "b", "c"].map(|tenant| export(&mut client, tenant));
    assert_eq!(statuses(&exports), [200, 200, 200, 429, 200]);
    let article = client.send("GET", "/articles/7", &[("x-tenant", "a")]);
    let policies = article.headers["ratelimit-policy"].to_str().unwrap();
    assert!(policies.contains("\"everything\"") && !policies.contains("articles"), "{policies}");
    let health = [0; 100].map(|_| client.get("/health"));
    assert!(health.iter().all(|answer| answer.status == 200));
}

#[test]
fn rules_at_run_time_admits_more_at_once() {
    let (mut example, port) = start("rules_at_run_time");
    let mut client = connect(&mut example, port);
    let order = |client: &mut Client| client.send("POST", "/orders", &[]);
    let before = [0; 4].map(|_| order(&mut client));
    assert_eq!(statuses(&before), [200, 200, 200, 429]);
    assert_eq!(client.send("PUT", "/sale", &[]).body, "the sale has begun\n");
    let after = [0; 3].map(|_| order(&mut client));
    assert_eq!(statuses(&after), [200, 200, 429]);
}

/// An example starts in milliseconds, or in seconds on a busy machine.
const PAUSE: Duration = Duration::from_millis(10);
const ATTEMPTS: usize = 2_000;

#[test]
fn client_of_an_api_is_not_denied_twice_in_a_row() {
    let (mut example, _) = start_with("client_of_an_api", Stdio::piped());
    let lines = BufReader::new(example.stdout().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.collect();
    assert_eq!(lines.len(), 8, "{lines:?}");
    let denied: Vec<bool> = lines.iter().map(|line| line.contains("429")).collect();
    assert!(denied.windows(2).all(|two| two != [true, true]), "{lines:?}");
}

#[test]
fn llm_stream_is_limited_by_the_tokens_that_it_produced() {
    let (mut example, port) = start("llm_stream");
    let mut client = connect(&mut example, port);
    // A hundred thousand tokens hold 25 estimates of 4,000, and far more streams of 500.
    for _ in 0..30 {
        assert_eq!(client.send("GET", "/", &[("x-api-key", "ada")]).status, 200);
    }
}
