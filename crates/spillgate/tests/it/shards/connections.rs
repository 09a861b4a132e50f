//! How servers are reached: every kind of address, and how calls to an unresponsive server are suspended.

use std::fs;
use std::time::Duration;

use spillgate::store::Tls;
use spillgate::{BuildError, Limit, Limiter, LimiterBuilder, Request, Source};
use spillgate_testkit::{
    Certificates, ClientCertificate, Fault, FaultProxy, Folder, RedisServer, TlsServer, eventually,
};
use tokio::runtime::Runtime;

use crate::support::storm;
use crate::support::world::PATIENCE;

#[test]
fn a_store_behind_tls_is_reached_with_mutual_trust_only() {
    let server = TlsServer::start(ClientCertificate::Required);
    let certificates = &server.certificates;
    let read = |path| fs::read(path).unwrap();
    let trusting = Tls::new().trusting(read(certificates.authority()));
    let ours =
        trusting.clone().presenting(read(certificates.client()), read(certificates.client_key()));
    let stranger = Certificates::make();
    let others = Tls::new()
        .trusting(read(stranger.authority()))
        .presenting(read(certificates.client()), read(certificates.client_key()));
    for (tls, source) in
        [(ours, Source::Store), (trusting, Source::Fallback), (others, Source::Fallback)]
    {
        // A client without access waits as long as a check does.
        let patience = if source == Source::Store { PATIENCE } else { Duration::from_millis(500) };
        let store = Store::new(|limiter| limiter.redis(server.url()).tls(tls).timeout(patience));
        assert_eq!(store.check(), source, "{:?}", store.limiter.shards());
    }
}

#[test]
fn a_store_behind_a_unix_socket_is_reached() {
    let folder = Folder::create();
    let socket = folder.path().join("redis.sock");
    let path = &RedisServer::versions()[0].path;
    let _server = RedisServer::start_with(path, &["--unixsocket", socket.to_str().unwrap()]);
    let store = Store::new(|limiter| limiter.redis(format!("unix://{}", socket.display())));
    assert_eq!(store.check(), Source::Store);
}

#[test]
fn an_invalid_address_is_rejected_with_a_fix_and_without_its_password() {
    let build = |builder: LimiterBuilder| runtime().block_on(builder.build()).unwrap_err();
    for url in ["http://me:hunter2@store", "redis://me:hunter2@:port", "store:6379"] {
        let error = build(Limiter::builder().redis(url));
        assert!(matches!(error, BuildError::StoreUrl { .. }));
        let message = format!("{error} {error:?}");
        assert!(message.contains("redis://user:password@host:port"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let junk = build(Limiter::builder().redis("rediss://store").tls(Tls::new().trusting("junk")));
    assert!(junk.to_string().contains("the CA holds no certificate"), "{junk}");
}

/// ACCIDENTS 40. A slow server counted as down only after each request had waited. Here the third failure
/// opens the circuit breaker: from then on no caller waits, and one connection at a time tests the server.
#[test]
fn no_caller_waits_for_a_server_that_does_not_answer() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let store = Store::new(|limiter| limiter.redis(proxy.url()).timeout(Duration::from_millis(50)));
    assert_eq!(store.check(), Source::Store);
    proxy.set(Fault::BlackHole);
    eventually(|| store.check() == Source::Fallback && !store.limiter.shards()[0].asked);
    let before = proxy.connections();
    let sources: Vec<Source> = (0..2_000).map(|_| store.check()).collect();
    // If each had waited, these would have taken 100 s.
    assert!(sources.iter().all(|source| *source == Source::Fallback));
    assert!(proxy.connections() - before <= 20, "the server gets few connections");
    proxy.set(Fault::None);
    eventually(|| store.check() == Source::Store);
    let shard = &store.limiter.shards()[0];
    assert_eq!((shard.asked, &shard.trouble), (true, &None));
}

/// ACCIDENTS 34. NOSCRIPT after a flush went to the caller, or every caller sent the whole script.
#[test]
fn one_call_sends_a_flushed_script_again_while_the_others_wait() {
    let server = RedisServer::start();
    let store = Store::new(|limiter| limiter.redis(server.url()));
    assert_eq!(store.check(), Source::Store);
    server.command(&["CONFIG", "RESETSTAT"]);
    server.command(&["SCRIPT", "FLUSH"]);
    let sources = store.check_at_once(500);
    assert!(sources.iter().all(|source| *source == Source::Store), "{sources:?}");
    let sent = server.calls_of("eval");
    // And one for each other kind of script, if its time came.
    assert!((1..=3).contains(&sent), "{sent}");
}

#[test]
fn constant_script_flushes_fail_no_call() {
    let server = RedisServer::start();
    let store = Store::new(|limiter| limiter.redis(server.url()));
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let mut connection = server.connect();
            for _ in 0..300 {
                connection.command(&["SCRIPT", "FLUSH"]).unwrap();
            }
        });
        while !flushing.is_finished() {
            let sources = store.check_at_once(20);
            assert!(sources.iter().all(|source| *source == Source::Store), "{sources:?}");
        }
    });
}

#[test]
fn the_longest_waits_can_be_set() {
    let server = RedisServer::start();
    let builder = Limiter::builder().redis(server.url());
    let builder = builder.timeout(Duration::MAX).overload_wait(Duration::MAX);
    let runtime = runtime();
    let limiter = runtime.block_on(builder.build()).unwrap();
    assert_eq!(runtime.block_on(check(&limiter)), Source::Store);
}

/// A limiter on some store, with a limit that admits all.
struct Store {
    limiter: Limiter,
    runtime: Runtime,
}

impl Store {
    fn new(with: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> Store {
        let runtime = runtime();
        let builder = with(Limiter::builder().timeout(PATIENCE));
        let limiter = runtime.block_on(builder.build()).unwrap();
        Store { limiter, runtime }
    }

    /// Returns the source of the decision.
    fn check(&self) -> Source {
        self.runtime.block_on(check(&self.limiter))
    }

    fn check_at_once(&self, callers: usize) -> Vec<Source> {
        let mut under_way = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let limiter = self.limiter.clone();
            under_way.spawn_on(async move { check(&limiter).await }, self.runtime.handle());
        }
        self.runtime.block_on(under_way.join_all())
    }
}

async fn check(limiter: &Limiter) -> Source {
    let limit = Limit::per_second(1_000_000_000);
    limiter.check(&Request::keyed("me", &limit)).await.source()
}

fn runtime() -> Runtime {
    storm::threads()
}
