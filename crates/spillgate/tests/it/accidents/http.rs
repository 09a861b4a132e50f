//! Accidents of HTTP middleware: the wrong client was counted, a connection or a process counted by itself,
//! and answers were wrong.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::Request;
use spillgate::http::ByIp;
use spillgate::reservation::Usage;
use spillgate::tower::RateLimitLayer;
use spillgate::{Limiter, LimiterBuilder, Policy};
use spillgate_testkit::{Process, RedisServer};
use tower::{Layer, Service, ServiceExt};

use crate::control::until;
use crate::http::client::{Client, Served, serve, threads};
use crate::support::world::runtime;

fn by_ip(times: u64) -> Policy {
    let policy = format!("[[rule]]\nname = \"r\"\nkey = [\"ip\"]\nlimits = [\"{times}/366d\"]");
    Policy::from_toml(&policy).unwrap()
}

fn patient() -> LimiterBuilder {
    Limiter::builder().timeout(Duration::from_secs(10))
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "served")).layer(layer)
}

/// A service behind a proxy that is this machine.
fn behind_a_proxy(times: u64) -> Served {
    let threads = threads();
    let limiter = threads.block_on(patient().policy(by_ip(times)).build()).unwrap();
    let layer = RateLimitLayer::new(limiter).identify(ByIp::trusting(["127.0.0.1"]));
    serve(threads, app(layer))
}

/// tower_governor and others took the leftmost entry of the first `X-Forwarded-For` line. The client controls
/// that entry: a new number was a new quota.
#[test]
fn a_forged_leftmost_hop_gives_no_new_quota() {
    let served = behind_a_proxy(3);
    let mut client = Client::connect(served.port);
    let statuses: Vec<u16> = (0..6)
        .map(|number| {
            let (line, forged) =
                (format!("10.{number}.0.1"), format!("6.6.6.{number}, 203.0.113.7"));
            let lines = [("x-forwarded-for", line.as_str()), ("x-forwarded-for", forged.as_str())];
            client.send("GET", "/", &lines).status
        })
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    // Junk and other fields give none either.
    for junk in ["unknown, 203.0.113.7:9", "<script>, [::ffff:203.0.113.7]:1"] {
        let lines =
            [("forwarded", "for=6.6.6.6"), ("x-real-ip", "6.6.6.7"), ("x-forwarded-for", junk)];
        assert_eq!(client.send("GET", "/", &lines).status, 429, "{junk}");
    }
    assert_eq!(client.send("GET", "/", &[("x-forwarded-for", "203.0.113.8")]).status, 200);
}

/// Limiters that took a whole IPv6 address gave every home 2^64 quotas.
#[test]
fn all_addresses_of_one_ipv6_home_are_one_client() {
    let served = behind_a_proxy(3);
    let mut client = Client::connect(served.port);
    let mut from = |address: &str| client.send("GET", "/", &[("x-forwarded-for", address)]).status;
    let home =
        ["2001:db8:1:1::1", "2001:db8:1:1:ffff::", "[2001:DB8:1:1::9]:80", "2001:db8:1:1::a"];
    assert_eq!(home.map(&mut from), [200, 200, 200, 429]);
    assert_eq!(from("2001:db8:1:2::1"), 200);
}

/// Middleware that charged before its first await lost the charge, or took it twice, when the caller hung up.
/// Here the call is charged once; `tower.md` explains why it is not refunded.
#[test]
fn a_caller_that_disconnects_at_any_await_is_charged_at_most_once() {
    let server = RedisServer::start();
    let runtime = runtime();
    for builder in [patient(), patient().redis(server.url())] {
        let limiter = runtime.block_on(builder.policy(by_ip(10)).build()).unwrap();
        let layer = RateLimitLayer::new(limiter.clone()).identify(ByIp::direct());
        let mut finished = false;
        for polls in 0.. {
            let ip = format!("192.0.2.{polls}");
            let mut request = Request::new(());
            let peer: std::net::SocketAddr = format!("{ip}:1").parse().unwrap();
            request.extensions_mut().insert(peer);
            let polled = runtime.block_on(answered_within(polls, &layer, request));
            let request = spillgate::Request::new().with("ip", &ip);
            let left = runtime.block_on(limiter.peek(&request)).remaining();
            assert!([Some(10), Some(9)].contains(&left), "{left:?} after {polls} polls");
            if polled {
                assert_eq!(left, Some(9), "an answered request is charged");
                finished = true;
                break;
            }
        }
        assert!(finished);
    }
}

/// A client that reset its stream during the call to Redis left its permit held for the whole `max_hold`, and its
/// reservation unsettled: ten resets denied all other clients.
#[test]
fn a_caller_that_disconnects_at_any_await_holds_no_permit() {
    let policy = r#"
        [[rule]]
        name = "r"
        key = []
        limits = [{ quota = "10", algorithm = "concurrency", max_hold = "1h" }]
    "#;
    let server = RedisServer::start();
    let runtime = runtime();
    let builder = patient().redis(server.url()).policy(Policy::from_toml(policy).unwrap());
    let limiter = runtime.block_on(builder.build()).unwrap();
    let checked = RateLimitLayer::new(limiter.clone());
    let reserved = checked.clone().settle(Duration::from_secs(3_600), |_| Usage::default());
    for layer in [checked, reserved] {
        for polls in 0.. {
            let answered = runtime.block_on(answered_within(polls, &layer, Request::new(())));
            runtime.block_on(until("all permits are back", async || {
                limiter.peek(&spillgate::Request::new()).await.remaining() == Some(10)
            }));
            if answered {
                break;
            }
        }
    }
}

/// Sends a request through the layer, polls its answer this many times, and drops it. Returns whether it was answered.
async fn answered_within(polls: usize, layer: &RateLimitLayer, request: Request<()>) -> bool {
    let mut service = layer.layer(tower::service_fn(|_: Request<()>| async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        Ok::<_, std::convert::Infallible>(http::Response::new(()))
    }));
    let mut answer = Box::pin(service.ready().await.unwrap().call(request));
    for _ in 0..polls {
        let poll =
            std::future::poll_fn(|context| std::task::Poll::Ready(answer.as_mut().poll(context)));
        if poll.await.is_ready() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// A limiter inside tower's buffer, or in a service made per connection, held a state for each connection: a
/// limit of 5 per second admitted 1,500.
#[test]
fn connections_and_clones_share_one_limit() {
    let threads = threads();
    let limiter = threads.block_on(patient().policy(by_ip(100)).build()).unwrap();
    let layer = RateLimitLayer::new(limiter).identify(ByIp::direct());
    // One clone of the layer over each of two services, and each connection clones its service.
    let both = app(layer.clone()).nest("/other", app(layer));
    let served = serve(threads, both);
    assert_eq!(admitted(&[served.port; 8], &["/", "/other"], 25), 100);
}

/// The same accident in a fleet: processes that counted by themselves admitted the limit once each.
#[test]
fn processes_on_one_redis_share_one_limit() {
    let server = RedisServer::start();
    let mut workers: Vec<(Process, u16)> = (0..2).map(|_| start_worker(&server.url())).collect();
    let ports: Vec<u16> = workers.iter().flat_map(|(_, port)| [*port; 3]).collect();
    assert_eq!(admitted(&ports, &["/"], 40), 100);
    assert!(workers.iter_mut().all(|(worker, _)| worker.is_running()));
}

/// Returns how many calls are admitted over one connection to each port, all at the same time, each sending
/// `times` calls.
fn admitted(ports: &[u16], paths: &[&str], times: usize) -> usize {
    thread::scope(|scope| {
        let clients: Vec<_> = ports
            .iter()
            .map(|port| {
                scope.spawn(move || {
                    let mut client = Client::connect(*port);
                    let calls = paths.iter().cycle().take(times);
                    calls.filter(|path| client.get(path).status == 200).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

fn start_worker(url: &str) -> (Process, u16) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "accidents::http::a_worker_behind_http", "--nocapture"]);
    let mut worker = Process::start(command.env(STORE, url).stdout(Stdio::piped()));
    let lines = BufReader::new(worker.stdout().unwrap()).lines();
    let port = lines.map_while(Result::ok).find_map(|line| line.strip_prefix(PORT)?.parse().ok());
    (worker, port.expect("the worker prints its port"))
}

/// Returns at once unless the environment makes this process a worker.
#[test]
fn a_worker_behind_http() {
    let Ok(url) = std::env::var(STORE) else { return };
    let threads = threads();
    let limiter = threads.block_on(patient().redis(url).policy(by_ip(100)).build()).unwrap();
    let served = serve(threads, app(RateLimitLayer::new(limiter).identify(ByIp::direct())));
    println!("\n{PORT}{}", served.port);
    loop {
        // The test kills this process.
        thread::park();
    }
}

/// Stacked middleware wrote each field twice, and some middleware wrote advice on redirects, which made
/// clients wait before following. `http::goldens` holds the full text.
#[test]
fn advice_appears_once_and_only_on_answers_it_applies_to() {
    let threads = threads();
    let layer = |times| {
        let limiter = threads.block_on(patient().policy(by_ip(times)).build()).unwrap();
        RateLimitLayer::new(limiter).identify(ByIp::direct())
    };
    let stacked = Router::new()
        .route("/", get(async || "served"))
        .route("/moved", get(async || axum::response::Redirect::temporary("/")))
        .layer(layer(2))
        .layer(layer(10));
    let served = serve(threads, stacked);
    let mut client = Client::connect(served.port);
    let moved = client.get("/moved");
    assert_eq!((moved.status, moved.headers.get("ratelimit")), (307, None));
    for (status, retry_after) in [(200, 0), (429, 1), (429, 1)] {
        let answer = client.get("/");
        assert_eq!(answer.status, status);
        let lines = |name| answer.headers.get_all(name).iter().count();
        assert_eq!(["ratelimit", "ratelimit-policy"].map(lines), [1, 1]);
        assert_eq!(lines("retry-after"), retry_after);
    }
}

const STORE: &str = "SPILLGATE_HTTP_WORKER_ON";
const PORT: &str = "port ";
