//! Clients that begin messages and do not end them take little memory, for seconds only.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{Caller, Code, descriptor};
use crate::server::{Server, TempFile, peak_kib, resident_kib, spillgate};

const CHECK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const PATIENCE: Duration = Duration::from_secs(60);

/// A message of a declared length whose last byte never comes.
struct Unfinished {
    prefix: Option<Bytes>,
    left: usize,
}

impl Unfinished {
    fn of(declared: u32, sent: usize) -> Unfinished {
        let [a, b, c, d] = declared.to_be_bytes();
        Unfinished { prefix: Some(Bytes::copy_from_slice(&[0, a, b, c, d])), left: sent }
    }

    /// Two empty messages, after which the body does not end.
    fn after_two_messages() -> Unfinished {
        Unfinished { prefix: Some(Bytes::from_static(&[0; 10])), left: 0 }
    }
}

impl Body for Unfinished {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        static CHUNK: [u8; 16 * 1024] = [0; 16 * 1024];
        if let Some(prefix) = self.prefix.take() {
            return Poll::Ready(Some(Ok(Frame::data(prefix))));
        }
        let count = self.left.min(CHUNK.len());
        if count == 0 {
            return Poll::Pending;
        }
        self.left -= count;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&CHUNK[..count])))))
    }
}

async fn connect(port: u16) -> SendRequest<Unfinished> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    // The connection ends with the test.
    tokio::spawn(connection);
    client
}

/// Returns the gRPC status, or `None` if the call was cut without one.
fn status(response: hyper::Result<Response<Incoming>>) -> Option<String> {
    let value = response.ok()?.headers().get("grpc-status")?.to_str().unwrap().to_owned();
    Some(value)
}

/// Sends `calls` unfinished messages on each connection, and returns their statuses when they end.
async fn flood(
    port: u16,
    path: &'static str,
    connections: usize,
    calls: usize,
    (declared, sent): (u32, usize),
) -> JoinSet<Option<String>> {
    let mut under_way = JoinSet::new();
    for _ in 0..connections {
        let client = connect(port).await;
        for _ in 0..calls {
            let request = Request::post(format!("http://127.0.0.1:{port}{path}"))
                .header("content-type", "application/grpc")
                .body(Unfinished::of(declared, sent))
                .unwrap();
            let mut client = client.clone();
            under_way.spawn(async move {
                client.ready().await.ok()?;
                status(client.send_request(request).await)
            });
        }
    }
    under_way
}

async fn statuses(under_way: JoinSet<Option<String>>) -> Vec<Option<String>> {
    timeout(PATIENCE, under_way.join_all()).await.expect("every call ends by a deadline")
}

/// Once, 250 messages of 4 MiB took a gigabyte, without a token, and kept it.
#[test]
fn unfinished_messages_on_the_health_service_are_refused_by_their_length() {
    let token = TempFile::new("token", "0123456789abcdef0123456789abcdef");
    let server = Server::start_command(
        spillgate(&["serve", "--http", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path()),
    );
    let before = resident_kib(server.pid());
    let runtime = Runtime::new().unwrap();
    let port = server.grpc_port.unwrap();
    let long = (4 << 20, (4 << 20) - 1);
    let (alone, ended, grown) = runtime.block_on(async {
        let alone = statuses(flood(port, HEALTH, 1, 1, long).await).await;
        let under_way = flood(port, HEALTH, 1, 250, long).await;
        let grown = peak_kib(server.pid(), Duration::from_secs(2)).saturating_sub(before);
        println!("health: {grown} KiB more for 250 unfinished messages of 4 MiB");
        (alone, statuses(under_way).await, grown)
    });
    assert_eq!(alone, [Some("8".to_owned())]);
    let refused = ended.iter().filter(|status| status.as_deref() == Some("8")).count();
    let cut = ended.iter().filter(|status| status.is_none()).count();
    // A client that sends on after a refusal may lose its connection with all answers.
    assert_eq!(refused + cut, ended.len(), "{ended:?}");
    assert!(grown < 12 * 1024, "{grown} KiB");
}

/// Once, refusing them one by one for ever cost the deciding threads 300 MB a second of reading.
#[test]
fn a_connection_that_sends_many_oversized_messages_is_closed() {
    let server = Server::start(&[]);
    let port = server.grpc_port.unwrap();
    let runtime = Runtime::new().unwrap();
    for path in [CHECK, HEALTH] {
        let refused = runtime.block_on(async {
            let mut client = connect(port).await;
            let mut refused = 0;
            while timeout(PATIENCE, client.ready()).await.unwrap().is_ok() {
                assert!(refused < 100, "{path}: the connection stays open");
                let request = Request::post(format!("http://127.0.0.1:{port}{path}"))
                    .header("content-type", "application/grpc")
                    .body(Unfinished::of(4 << 20, 16 * 1024))
                    .unwrap();
                let Some(status) = status(client.send_request(request).await) else { break };
                assert_eq!(status, "8", "{path}");
                refused += 1;
            }
            refused
        });
        println!("{path}: {refused} messages refused");
        // A proxy's connection does not end after a few of them.
        assert!(refused >= 10, "{path}: closed after {refused} messages");
        Caller::of(&server).ask(&[descriptor(&[("remote_address", "::1")])]);
    }
}

/// Once they took 274 MB on each connection; many connections share the listener's budget.
#[test]
fn unfinished_messages_on_the_rate_limit_service_take_a_few_mebibytes_and_end() {
    let server = Server::start(&[]);
    let runtime = Runtime::new().unwrap();
    let port = server.grpc_port.unwrap();
    let other = Caller::of(&server);
    for (connections, calls, most_kib) in
        [(1, 250, 12 * 1024), (4, 250, 28 * 1024), (200, 4, 112 * 1024)]
    {
        let before = resident_kib(server.pid());
        let long = (1 << 20, (1 << 20) - 1);
        let (ended, grown) = runtime.block_on(async {
            let under_way = flood(port, CHECK, connections, calls, long).await;
            let grown = peak_kib(server.pid(), Duration::from_secs(2)).saturating_sub(before);
            println!("{connections} connections, {calls} unfinished messages each: {grown} KiB");
            for _ in 0..100 {
                let answer = other.ask_there(&[descriptor(&[("remote_address", "::1")])]).await;
                assert_eq!(answer.overall_code(), Code::Ok);
            }
            (statuses(under_way).await, grown)
        });
        let late = ended.iter().filter(|status| status.as_deref() == Some("4")).count();
        let cut = ended.iter().filter(|status| status.is_none()).count();
        // A client may see the end of its stream before the status that came with it.
        assert!(late >= ended.len() / 2 && late + cut == ended.len(), "{late} late, {cut} cut");
        assert!(grown < most_kib, "{grown} KiB");
    }
}

#[test]
fn every_service_gives_a_message_some_seconds() {
    let server = Server::start(&[]);
    let port = server.grpc_port.unwrap();
    Runtime::new().unwrap().block_on(async {
        let mut under_way = JoinSet::new();
        for path in [CHECK, HEALTH, REFLECTION] {
            under_way.spawn(async move {
                let ended = statuses(flood(port, path, 1, 1, (100, 50)).await).await;
                // A stream's head is sent before its first message, so the status is in the trailers.
                let late = ended[0].as_deref().is_none_or(|status| status == "4");
                assert!(late, "{path}: {ended:?}");
            });
        }
        under_way.join_all().await;
    });
}

/// Once, an empty message every nine seconds kept a call open for ever.
#[test]
fn a_second_message_of_a_unary_call_is_an_error() {
    let server = Server::start(&[]);
    let port = server.grpc_port.unwrap();
    let runtime = Runtime::new().unwrap();
    for path in [CHECK, HEALTH, WATCH] {
        let ended = runtime.block_on(async {
            let mut client = connect(port).await;
            let request = Request::post(format!("http://127.0.0.1:{port}{path}"))
                .header("content-type", "application/grpc")
                .body(Unfinished::after_two_messages())
                .unwrap();
            status(timeout(PATIENCE, client.send_request(request)).await.unwrap())
        });
        assert_eq!(ended.as_deref(), Some("3"), "{path}");
    }
}

#[test]
fn a_silent_client_on_the_grpc_port_is_disconnected() {
    let server = Server::start(&[]);
    let port = server.grpc_port.unwrap();
    Runtime::new().unwrap().block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut under_way = JoinSet::new();
        for greeting in ["", "PRI * HTTP/2.0\r\n"] {
            under_way.spawn(async move {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                stream.write_all(greeting.as_bytes()).await.unwrap();
                let ended = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
                assert!(ended.is_ok(), "{greeting:?}: it is still open");
            });
        }
        under_way.join_all().await;
    });
}

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the head of a check.
fn head(stream: u32) -> Vec<u8> {
    let field = |prefix: &[u8], value: &str| {
        [prefix, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
    };
    // POST, http, then :path, :authority and content-type by their numbers, and te by its name.
    let fields = [
        vec![0x83, 0x86],
        field(&[0x04], CHECK),
        field(&[0x01], "spillgate"),
        field(&[0x0f, 0x10], "application/grpc"),
        field(b"\0\x02te", "trailers"),
    ];
    frame(1, 4, stream, &fields.concat())
}

/// A proxy's connection carries the calls of many clients. When hundreds of them leave, or the calls of a stalled moment
/// time out, the proxy resets them at once. Once the connection ended then, and Envoy admitted the requests of all others.
#[test]
fn a_burst_of_resets_fails_no_other_call_of_the_connection() {
    use std::io::{Read, Write};
    let server = Server::start(&[]);
    let mut stream =
        std::net::TcpStream::connect(("127.0.0.1", server.grpc_port.unwrap())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let greeting = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
    let burst = (1..4_000).flat_map(|n| [head(2 * n + 1), frame(3, 0, 2 * n + 1, &[0, 0, 0, 8])]);
    let burst: Vec<u8> = burst.flatten().collect();
    // A neighbour's call, whose message comes after the burst.
    let message = frame(0, 1, 1, &[0; 5]);
    stream.write_all(&[greeting, head(1), burst, message].concat()).unwrap();
    loop {
        let mut start = [0; 9];
        stream.read_exact(&mut start).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, start[0], start[1], start[2]]) as usize];
        stream.read_exact(&mut payload).unwrap();
        let of = u32::from_be_bytes(start[5..].try_into().unwrap());
        assert_ne!(start[3], 7, "the connection ends: {}", String::from_utf8_lossy(&payload));
        if (start[3], of) == (1, 1) {
            return;
        }
    }
}

/// Envoy passes on what its client sent for tracing, of 60 KiB at most.
#[test]
fn a_long_tracestate_fails_no_check() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let ip = [descriptor(&[("remote_address", "::1")])];
    for length in [10_000, 20_000, 60_000] {
        let state = format!("a={}", "x".repeat(length));
        let answer = caller.ask_as(&[("tracestate", &state)], &ip);
        assert_eq!(answer.unwrap().overall_code(), Code::Ok, "{length}");
    }
}

#[test]
fn a_client_that_speaks_the_http_version_of_the_other_port_is_logged_once_with_the_remedy() {
    use std::io::{Read, Write};
    let server = Server::start(&[]);
    for _ in 0..3 {
        let address = ("127.0.0.1", server.grpc_port.unwrap());
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream
            .write_all(b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // The other way round: gRPC at the HTTP listener.
    for _ in 0..3 {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let log = server.rest_of_log();
    assert_eq!(log.matches("sent a request of HTTP/1").count(), 1, "{log}");
    assert!(log.contains("http2_protocol_options"), "{log}");
    assert_eq!(log.matches("belongs to the gRPC listener").count(), 1, "{log}");
}
