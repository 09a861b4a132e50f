//! One suite on every topology. The tests that usually run in memory, on one server and on a ring run again,
//! in a process of their own, on every other topology.

use std::process::Command;

use spillgate_testkit::{Cluster, RedisServer, Sentinels};

use crate::failure::evidence;
use crate::support::given::Given;

#[test]
fn the_suite_passes_on_a_cluster_of_three() {
    let cluster = Cluster::start(3, 0);
    let suites = if evidence() { &SUITES[..] } else { &SUITES[..3] };
    passes(suites, "cluster", &cluster.urls(), &ports(cluster.nodes()));
}

#[test]
#[ignore = "needs evidence"]
fn the_suite_passes_on_every_topology_and_installed_version() {
    let watched = Sentinels::start(2, 3);
    let primary = &watched.servers()[watched.primary()];
    passes(&SUITES, "sentinel", &watched.urls(), &[primary.port()]);
    println!("as the user that doctor --acl prints");
    // Sentinels have no users, so they are connected to without a name.
    urls_of_user(watched.servers());
    let by_user = |url: String| url.replacen("redis://", "redis://spillgate:secret@", 1);
    let urls: Vec<String> = watched.urls().into_iter().map(by_user).collect();
    passes(&SUITES, "sentinel", &urls, &[primary.port()]);
    let cluster = Cluster::start(3, 1);
    let primaries = cluster.nodes().iter().filter(|node| is_primary(node));
    let primaries: Vec<u16> = primaries.map(RedisServer::port).collect();
    passes(&SUITES, "cluster", &cluster.urls(), &primaries);
    println!("as the user that doctor --acl prints");
    passes(&SUITES, "cluster", &urls_of_user(cluster.nodes()), &primaries);
    let nodes: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    passes(&SUITES, "ring", &urls, &ports(&nodes));
    println!("as the user that doctor --acl prints");
    passes(&SUITES, "ring", &urls_of_user(&nodes), &ports(&nodes));
    for version in RedisServer::versions() {
        let server = RedisServer::start_with(&version.path, &[]);
        println!("{}", version.name);
        passes(&SUITES, "one", &[server.url()], &[server.port()]);
        println!("{}, as the user that doctor --acl prints", version.name);
        let ports = [server.port()];
        passes(&SUITES, "one", &urls_of_user(std::slice::from_ref(&server)), &ports);
    }
}

/// The same servers, each for a user with exactly the rights that `doctor --acl` prints.
fn urls_of_user(servers: &[RedisServer]) -> Vec<String> {
    let rules = spillgate::store::acl_rules();
    let rules: Vec<&str> = rules.split(' ').collect();
    servers.iter().map(|server| server.url_of_user("spillgate", "secret", &rules)).collect()
}

fn is_primary(server: &RedisServer) -> bool {
    server.info("replication", "role") == "master"
}

fn ports(servers: &[RedisServer]) -> Vec<u16> {
    servers.iter().map(RedisServer::port).collect()
}

#[track_caller]
fn passes(suites: &[&str], kind: &str, urls: &[String], primaries: &[u16]) {
    let (variable, value) = Given::variable(kind, urls, primaries);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(suites).args(["--test-threads", "1"]).env(variable, value);
    // The suite at its usual length.
    let output = command.env_remove("SPILLGATE_EVIDENCE").output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    let passed = output_text.lines().filter(|line| line.ends_with("... ok")).count();
    println!("{kind:<10} {} servers: {passed} tests passed", primaries.len());
    assert!(passed > 8 * suites.len(), "only {passed} tests ran: {output_text}");
}

/// The first three take seconds; the gate runs only these.
const SUITES: [&str; 6] = [
    "accidents::admission::",
    "limiter::",
    "reserving::contract::",
    "accidents::arithmetic::",
    "accidents::articles::",
    "accidents::keys::",
];
