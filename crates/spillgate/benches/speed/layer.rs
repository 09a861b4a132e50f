//! The time that the tower layer adds to a request that it allows, beside a direct check of the same client
//! in memory.
//!
//! The layer derives the attribute from the peer's address, so the direct check does too, by the same `ByIp`.
//! A second check starts from a ready-made text. This program counts every allocation, which makes each some
//! nanoseconds slower.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use spillgate::http::{ByIp, HeaderStyle};
use spillgate::tower::RateLimitLayer;
use spillgate::{Limiter, Policy};
use tower::{Layer, Service, service_fn};

use crate::Outcome;
use crate::load::{runtime, shuffled};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Row, Table, micros};

pub fn beside_a_check(effort: Effort) -> Outcome {
    let runtime = runtime();
    let policy = Policy::from_toml(POLICY)?;
    let limiter = runtime.block_on(Limiter::builder().policy(policy).build())?;
    let clients = clients();
    let texts: Vec<String> = clients.iter().map(|client| client.ip().to_string()).collect();

    let by_ip = ByIp::direct();
    let check = async |client: usize| {
        let ip = by_ip.attribute(clients[client].ip());
        let request = spillgate::Request::new().with("ip", ip);
        black_box(limiter.check(&request).await).allowed()
    };
    let check_of_text = async |client: usize| {
        let request = spillgate::Request::new().with("ip", &texts[client]);
        black_box(limiter.check(&request).await).allowed()
    };
    let bare = service_fn(served);
    let layer = |style| {
        let layer = RateLimitLayer::new(limiter.clone()).identify(ByIp::direct());
        layer.headers(style).layer(service_fn(served))
    };
    let (ietf, plain) = (layer(HeaderStyle::Ietf), layer(HeaderStyle::None));

    let rounds = Rounds::of(
        effort,
        &mut [
            Box::new(|| runtime.block_on(timed(effort, check))),
            Box::new(|| runtime.block_on(timed(effort, through(&bare, &clients)))),
            Box::new(|| runtime.block_on(timed(effort, through(&ietf, &clients)))),
            Box::new(|| runtime.block_on(timed(effort, through(&plain, &clients)))),
            Box::new(|| runtime.block_on(timed(effort, check_of_text))),
        ],
    );
    let time = |name: &str, contender, beside, floor| Row {
        measure: format!("time, {name}"),
        ours: micros(rounds.figure(contender) - rounds.figure(BARE)),
        baseline: micros(rounds.figure(beside)),
        ratio: Some(rounds.added_ratio(contender, BARE, beside)),
        floor,
    };

    let counted = |calls: &dyn Fn()| allocation_counter::measure(calls).count_total;
    let of_check = counted(&|| runtime.block_on(each(check)));
    let of_bare = counted(&|| runtime.block_on(each(through(&bare, &clients))));
    let of_ietf = counted(&|| runtime.block_on(each(through(&ietf, &clients))));
    let of_plain = counted(&|| runtime.block_on(each(through(&plain, &clients))));
    let allocations = |name: &str, count: u64| Row {
        measure: format!("allocations, {name}"),
        ours: per_call(count - of_bare),
        baseline: per_call(of_check),
        ratio: None,
        floor: Floor::Nothing,
    };

    let rows = vec![
        time("ietf fields", IETF, CHECK, Floor::AtMost(2.7)),
        time("no fields", PLAIN, CHECK, Floor::Nothing),
        time("ietf fields, check of a text", IETF, CHECK_OF_TEXT, Floor::Nothing),
        time("no fields, check of a text", PLAIN, CHECK_OF_TEXT, Floor::Nothing),
        allocations("ietf fields", of_ietf),
        allocations("no fields", of_plain),
    ];
    let title =
        "Tower layer, cost added to an allowed request, by address; baseline: a check".into();
    Ok(vec![Table { title, rows }])
}

/// Returns µs per call, over clients in shuffled order.
async fn timed(effort: Effort, call: impl AsyncFn(usize) -> bool) -> Run {
    let order = shuffled(CLIENTS);
    let (start, mut calls, mut allowed) = (Instant::now(), 0u32, 0u32);
    while start.elapsed() < effort.span {
        for client in &order {
            allowed += u32::from(call(*client as usize).await);
            calls += 1;
        }
    }
    let us = start.elapsed().as_secs_f64() * 1e6;
    assert_eq!(allowed, calls, "the burst is made to last");
    Run { figure: us / f64::from(calls), store_us: 0.0 }
}

/// Calls once for every client.
async fn each(call: impl AsyncFn(usize) -> bool) {
    for client in 0..CLIENTS {
        call(client as usize).await;
    }
}

/// A request as a server passes it on: with its peer and a few headers.
fn through<S, R>(service: &S, clients: &[SocketAddr]) -> impl AsyncFn(usize) -> bool
where
    S: Service<Request<()>, Response = Response<R>, Error = Infallible> + Clone,
{
    async move |client| {
        let mut request = Request::new(());
        request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
        request.extensions_mut().insert(clients[client]);
        let mut service = service.clone();
        match black_box(service.call(request).await) {
            Ok(response) => response.status() == http::StatusCode::OK,
            Err(never) => match never {},
        }
    }
}

fn served(request: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    black_box(request);
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    ready(Ok(response))
}

fn clients() -> Vec<SocketAddr> {
    let address = |number: u32| Ipv4Addr::from_bits(0xCB00_7100 + number);
    (0..CLIENTS).map(|number| (address(number), 1).into()).collect()
}

fn per_call(count: u64) -> String {
    format!("{:.2}", count as f64 / f64::from(CLIENTS))
}

/// The contenders by index.
const CHECK: usize = 0;
const BARE: usize = 1;
const IETF: usize = 2;
const PLAIN: usize = 3;
const CHECK_OF_TEXT: usize = 4;
const CLIENTS: u32 = 1_000;
/// Subjects are still in use at the next visit, and the burst lasts for the whole run.
const POLICY: &str = r#"
    [[rule]]
    name = "api"
    key = ["ip"]
    limits = [{ quota = "10/second", burst = 100_000_000 }]
"#;
