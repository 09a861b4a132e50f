//! Every kind of store that settings can name, for real: each one decides, and is checked by the doctor, node by node.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use spillgate_testkit::{ClientCertificate, Cluster, RedisServer, Sentinels, TlsServer, poll};

use crate::server::{LISTENING, Server, TempFile, peak_kib, resident_kib, run, serve, spillgate};

#[test]
fn a_primary_under_sentinels_decides_and_is_checked() {
    let watched = Sentinels::start(1, 2);
    let name = Sentinels::NAME;
    let file =
        store(&format!("sentinel = {{ master = \"{name}\", urls = {:?} }}\n", watched.urls()));
    decides(&file);
    assert_eq!(looked_at(&file), [format!("sentinel://{name}")]);
}

/// One wrong sentinel of three was believed at a start, without a word in the log.
#[test]
fn a_primary_without_a_majority_of_the_sentinels_is_used_with_a_warning() {
    let watched = Sentinels::start(0, 1);
    // No server listens on these ports.
    let down = ["redis://127.0.0.1:1".to_owned(), "redis://127.0.0.1:2".to_owned()];
    let urls = [&watched.urls()[..], &down].concat();
    let name = Sentinels::NAME;
    let file = store(&format!("sentinel = {{ master = \"{name}\", urls = {urls:?} }}\n"));
    let mut server = serve(&file);
    let warning = "no majority of the sentinels: 1 of 3 answered, and 1 named this primary";
    if !server.before_ready.contains(warning) {
        server.log_until(warning);
    }
    let decision = server.check(r#"{"key": "u1", "limit": {"quota": "1/day"}}"#);
    assert_eq!(decision["degraded"], false, "{decision}");
}

#[test]
fn a_cluster_decides_and_every_node_is_checked() {
    let cluster = Cluster::start(3, 1);
    let file = store(&format!("cluster = {:?}\n", cluster.urls()));
    decides(&file);
    assert_eq!(looked_at(&file).len(), 3);
}

#[test]
fn a_ring_decides_and_every_node_is_checked() {
    let nodes = [RedisServer::start(), RedisServer::start()];
    let file = store(&ring(&nodes));
    decides(&file);
    assert_eq!(looked_at(&file), ["a", "b"]);
}

/// An instance with the old ring still runs: nodes serve both, and `validate` tells the price before.
#[test]
fn a_ring_replaces_another_in_the_settings() {
    let nodes = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let (old_file, new_file) = (store(&ring(&nodes[..2])), store(&ring(&nodes)));
    let output = run(&["validate", "--against", old_file.path(), new_file.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("each rule counts apart: the nodes or weights of the ring differ;"),
        "{text}"
    );
    let output = run(&["validate", "--against", old_file.path(), old_file.path()]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("All state stays in use"));
    let (old, new) = (serve(&old_file), serve(&new_file));
    let mut moved = 0;
    for user in 0..20 {
        let body = format!(r#"{{"key": "u{user}", "limit": {{"quota": "2/day"}}}}"#);
        let decisions = [&old, &old, &old, &new, &new, &new].map(|server| {
            let decision = server.check(&body);
            assert!(["store", "denial-cache"].map(Into::into).contains(&decision["source"]));
            decision["allowed"] == true
        });
        let is_moved = decisions == [true, true, false, true, true, false];
        let stayed = decisions == [true, true, false, false, false, false];
        assert!(is_moved || stayed, "u{user}: {decisions:?}");
        moved += usize::from(is_moved);
    }
    assert!((1..20).contains(&moved), "{moved} of 20 moved");
}

#[test]
fn limits_are_exhausted_after_a_state_loss_if_the_settings_choose_it() {
    let redis = RedisServer::start();
    let file = store(&format!("url = \"{}\"\non_state_loss = \"exhausted\"\n", redis.url()));
    let server = serve(&file);
    let ask = || server.check(r#"{"key": "u1", "limit": {"quota": "2/day"}}"#)["allowed"].clone();
    assert_eq!(ask(), true);
    redis.command(&["FLUSHALL"]);
    assert_eq!(ask(), false);
}

#[test]
fn a_down_node_of_a_ring_is_reported_and_the_others_are_checked() {
    let mut nodes = [RedisServer::start(), RedisServer::start()];
    let file = store(&ring(&nodes));
    nodes[1].kill();
    assert_eq!(looked_at(&file), ["a"]);
    let report = diagnosis(&file);
    let down = report["findings"].as_array().unwrap().iter();
    let down = down.filter(|finding| finding["check"] == "reach").map(|finding| &finding["server"]);
    assert_eq!(down.collect::<Vec<_>>(), ["b"], "{report}");
}

#[test]
fn a_store_behind_tls_decides_and_gets_the_clients_certificate() {
    let redis = TlsServer::start(ClientCertificate::Required);
    let certificates = &redis.certificates;
    let file = store(&format!(
        "url = \"{}\"\ntls = {{ ca = {:?}, cert = {:?}, key = {:?} }}\n",
        redis.url(),
        certificates.authority(),
        certificates.client(),
        certificates.client_key()
    ));
    decides(&file);
    assert_eq!(looked_at(&file).len(), 1);
    let unknown = store(&format!(
        "url = \"{}\"\ntls = {{ ca = {:?} }}\n",
        redis.url(),
        certificates.authority()
    ));
    assert_eq!(looked_at(&unknown), [""; 0]);
}

#[test]
fn the_settings_for_connections_and_instances_take_effect() {
    let redis = RedisServer::start();
    let file =
        store(&format!("url = \"{}\"\nconnections = 2\nexpected_instances = 4\n", redis.url()));
    decides(&file);
    let report = diagnosis(&file);
    assert!(!report["findings"].to_string().contains("local-share"), "{report}");
}

/// An override set at one instance holds at every instance of a Cluster's fleet.
#[test]
fn an_override_set_at_one_instance_holds_at_another_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let file = TempFile::new(
        "fleet.toml",
        &format!(
            "[store]\ncluster = {:?}\ntimeout = \"10s\"\n[[rule]]\nname = \"api\"\nkey = [\"user\"]\n\
             limits = [\"5/day\"]\n",
            cluster.urls()
        ),
    );
    let (here, there) = (serve(&file), serve(&file));
    let limits = |server: &Server| {
        server.check(r#"{"attributes": {"user": "u1"}, "cost": 0}"#)["capacity"].clone()
    };
    assert_eq!(limits(&there), 5);
    let body = r#"{"rule": "api", "subject": {"user": "u1"}, "limits": ["50/day"]}"#;
    let reply = here.operator().send("PUT", "/admin/v1/overrides", body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let held = poll(Duration::from_secs(30), || (limits(&there) == 50).then_some(()));
    assert!(held.is_some(), "the override never held there");
    assert_eq!(limits(&here), 50);
}

/// glibc's allocator kept most of what such a burst needed. The allocator here returns memory after ten seconds, and in
/// this test at once.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn memory_of_batches_is_returned_when_their_callers_have_left() {
    let redis = RedisServer::start();
    let rule = |name| {
        format!("[[rule]]\nname = \"{name}\"\nkey = [\"user\"]\nlimits = [\"9/s\", \"99/hour\"]\n")
    };
    let rules = ["a", "b", "c"].map(rule).concat();
    let file = store(&format!("url = \"{}\"\n{rules}", redis.url()));
    let mut command = spillgate(&[&["serve", "--config", file.path()], &LISTENING[..]].concat());
    let server = Server::start_command(command.env("_RJEM_MALLOC_CONF", DECAY));
    let batch = |caller: usize| {
        let each =
            (0..1_000).map(|user| format!(r#"{{"attributes": {{"user": "{caller}-{user}"}}}}"#));
        format!("[{}]", each.collect::<Vec<_>>().join(","))
    };
    // The first batches fill tables that stay.
    (0..2).for_each(|caller| drop(server.post("/v1/check/batch", batch(caller).as_bytes())));
    let before = resident_kib(server.pid());
    let callers: Vec<TcpStream> = (0..30)
        .map(|caller| {
            let body = batch(caller);
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let length = body.len();
            let head = format!(
                "POST /v1/check/batch HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
            );
            stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
            stream
        })
        .collect();
    // None reads its answer.
    let peak = peak_kib(server.pid(), Duration::from_millis(500));
    drop(callers);
    let held = || resident_kib(server.pid()).saturating_sub(before);
    let is_back = || (held() < 12 << 10).then_some(());
    let back = poll(Duration::from_secs(60), is_back);
    println!("batches: {} KiB more at their peak, {} KiB more afterwards", peak - before, held());
    assert!(back.is_some(), "{} KiB are held, of {}", held(), peak - before);
}

/// Settings of the allocator: a tenth of a second, in place of ten seconds.
const DECAY: &str = "dirty_decay_ms:100,muzzy_decay_ms:0";

fn store(settings: &str) -> TempFile {
    TempFile::new("store.toml", &format!("[store]\ntimeout = \"10s\"\n{settings}"))
}

fn ring(nodes: &[RedisServer]) -> String {
    let nodes = nodes.iter().zip(["a", "b", "c"]);
    let nodes: Vec<String> =
        nodes.map(|(node, name)| format!("\"{name}={}\"", node.url())).collect();
    format!("ring = {{ nodes = [{}] }}\n", nodes.join(", "))
}

/// Uses many subjects, so that every node has some.
#[track_caller]
fn decides(config: &TempFile) {
    let server = serve(config);
    for user in 0..20 {
        let body = format!(r#"{{"key": "u{user}", "limit": {{"quota": "2/day"}}}}"#);
        for expected in [true, true, false] {
            let answer = server.check(&body);
            assert_eq!(
                (&answer["allowed"], &answer["source"]),
                (&expected.into(), &"store".into())
            );
        }
    }
}

/// Returns the servers that `doctor` reached.
#[track_caller]
fn looked_at(config: &TempFile) -> Vec<String> {
    let report = diagnosis(config);
    let servers = report["servers"].as_array().unwrap().iter();
    servers.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn diagnosis(config: &TempFile) -> Value {
    let output = run(&["doctor", "--json", "--config", config.path()]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}
