//! The user that `spillgate doctor --acl` prints may run every command of the suites on one server, and the
//! suites try no other command.

use std::process::Command;

use spillgate_testkit::{RedisServer, Reply};

use crate::failure::{Patient, limit};

/// Runs the suites again in a process of their own, with every server restricted to that user.
#[test]
fn the_single_server_suites_pass_as_the_printed_user() {
    let suites = ["store::", "limiter::", "accidents::admission::", "accidents::keys::"];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(suites).args(["--test-threads", "2"]);
    command.env(RedisServer::USER_RULES, spillgate::store::acl_rules());
    let output = command.output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    let passed = output_text.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= 35, "only {passed} tests ran: {output_text}");
}

/// The server logs denied commands: none of ours is among them.
#[test]
fn the_printed_user_is_denied_no_command_of_ours() {
    let rules = spillgate::store::acl_rules();
    let rules: Vec<&str> = rules.split(' ').collect();
    for version in RedisServer::versions() {
        println!("{}", version.name);
        let server = RedisServer::start_with(&version.path, &[]);
        let patient = Patient::on(&server.url_of_user("spillgate", "secret", &rules));
        patient.heals();
        assert_eq!(patient.admitted(10, "me", &limit()), 10);
        let Reply::Array(denied) = server.command(&["ACL", "LOG"]) else {
            panic!("ACL LOG answers a list");
        };
        // The client library sets its name if it may; a denial has no effect.
        let ours = denied.iter().filter(|entry| !field(entry, "object").starts_with("client"));
        assert_eq!(ours.collect::<Vec<_>>(), [&Reply::Nil; 0], "{}", version.name);
    }
}

/// Returns a field of a flat list of names and values.
fn field(entry: &Reply, name: &str) -> String {
    let Reply::Array(flat) = entry else { panic!("an entry of ACL LOG is a list: {entry:?}") };
    let pair = flat.chunks_exact(2).find(|pair| pair[0].text() == name);
    pair.map_or_else(String::new, |pair| pair[1].text().to_owned())
}
