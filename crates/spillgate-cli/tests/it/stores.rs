//! Every kind of store that settings can name, for real: each answers, is looked at, and takes the
//! script, node by node.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;
use spillgate_testkit::{ClientCertificate, Cluster, RedisServer, Sentinels, TlsServer, poll};

use crate::server::{Server, TempFile, run, spillgate};

#[test]
fn a_watched_primary_decides_and_its_replicas_take_the_script_too() {
    let watched = Sentinels::start(1, 2);
    let name = Sentinels::NAME;
    let file =
        store(&format!("sentinel = {{ master = \"{name}\", urls = {:?} }}\n", watched.urls()));
    decides(&file);
    assert_eq!(looked_at(&file), [format!("sentinel://{name}")]);
    assert_eq!(loaded(&file), 2);
}

#[test]
fn a_cluster_decides_and_every_node_is_looked_at() {
    let cluster = Cluster::start(3, 1);
    let file = store(&format!("cluster = {:?}\n", cluster.urls()));
    decides(&file);
    assert_eq!(looked_at(&file).len(), 3);
    assert_eq!(loaded(&file), 6);
}

#[test]
fn a_ring_decides_and_every_node_is_looked_at() {
    let nodes = [RedisServer::start(), RedisServer::start()];
    let file = store(&ring(&nodes));
    decides(&file);
    assert_eq!(looked_at(&file), ["a", "b"]);
    assert_eq!(loaded(&file), 2);
}

/// The old ring's process is still at work: both count the same calls.
#[test]
fn a_ring_takes_the_place_of_another_in_the_settings() {
    let nodes = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let old = store(&ring(&nodes[..2]));
    let (a, b, c) = (nodes[0].url(), nodes[1].url(), nodes[2].url());
    let new = store(&format!(
        "on_state_loss = \"fresh\"\nring = {{ number = 7, nodes = [\"a={a}\", \"b={b}\", \"c={c}\"], \
         previous = [\"a={a}\", \"b={b}\"], previous_number = 3 }}\n"
    ));
    let (old, new) = (serve(&old), serve(&new));
    for user in 0..20 {
        let body = format!(r#"{{"key": "u{user}", "limit": {{"quota": "2/day"}}}}"#);
        let verdicts =
            [&old, &new, &old, &new].map(|server| server.check(&body)["allowed"].clone());
        assert_eq!(verdicts, [true, true, false, false], "u{user}");
    }
}

#[test]
fn limits_begin_empty_after_a_loss_where_the_settings_say_so() {
    let redis = RedisServer::start();
    let file = store(&format!("url = \"{}\"\non_state_loss = \"exhausted\"\n", redis.url()));
    let server = serve(&file);
    let ask = || server.check(r#"{"key": "u1", "limit": {"quota": "2/day"}}"#)["allowed"].clone();
    assert_eq!(ask(), true);
    redis.command(&["FLUSHALL"]);
    assert_eq!(ask(), false);
}

#[test]
fn a_node_of_a_ring_that_is_down_is_told_and_the_others_are_looked_at() {
    let mut nodes = [RedisServer::start(), RedisServer::start()];
    let file = store(&ring(&nodes));
    nodes[1].kill();
    assert_eq!(looked_at(&file), ["a"]);
    let output = run(&["scripts", "load", "--config", file.path()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("b: ") && said.contains("1 of 2 servers"), "{said}");
}

#[test]
fn a_store_behind_tls_decides_and_is_shown_who_we_are() {
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
    assert_eq!(loaded(&file), 1);
    let stranger = store(&format!(
        "url = \"{}\"\ntls = {{ ca = {:?} }}\n",
        redis.url(),
        certificates.authority()
    ));
    assert_eq!(run(&["scripts", "load", "--config", stranger.path()]).status.code(), Some(2));
}

#[test]
fn a_clock_of_ours_connections_and_expected_processes_are_taken() {
    let redis = RedisServer::start();
    let file = store(&format!(
        "url = \"{}\"\nclock = \"client\"\nconnections = 2\nexpected_instances = 4\n",
        redis.url()
    ));
    decides(&file);
    let report = diagnosis(&file);
    assert!(!report["findings"].to_string().contains("local-share"), "{report}");
}

/// What an operator says to one process, every process of a Cluster's fleet does.
#[test]
fn an_override_set_at_one_process_holds_at_another_on_a_cluster() {
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
    assert!(held.is_some(), "it never held there");
    assert_eq!(limits(&here), 50);
}

fn store(settings: &str) -> TempFile {
    TempFile::new("store.toml", &format!("[store]\ntimeout = \"10s\"\n{settings}"))
}

fn ring(nodes: &[RedisServer]) -> String {
    let mut ring = "ring = { number = 3, nodes = [\n".to_owned();
    for (node, name) in nodes.iter().zip(["a", "b", "c"]) {
        writeln!(ring, "{{ name = \"{name}\", url = \"{}\" }},", node.url()).unwrap();
    }
    ring + "] }\n"
}

#[track_caller]
fn serve(config: &TempFile) -> Server {
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    Server::start_command(command.args(["--config", config.path()]))
}

/// Many subjects, so that every node has some.
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

/// The servers that `doctor` reached.
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

/// How many servers took the script.
#[track_caller]
fn loaded(config: &TempFile) -> usize {
    let output = run(&["scripts", "load", "--config", config.path()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().count()
}
