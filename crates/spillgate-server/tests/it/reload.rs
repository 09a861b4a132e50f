//! A changed file is in force without a restart; a bad one changes nothing and is told.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillgate_testkit::eventually;

use crate::client::Client;
use crate::server::{Server, TempFile};

#[test]
fn a_changed_file_is_in_force_within_seconds_and_used_stays_used() {
    let file = policy("5/day");
    let server = Server::start(&["--config", file.path()]);
    let answer = server.check(r#"{"attributes":{"user":"u1"}}"#);
    assert_eq!((&answer["capacity"], &answer["remaining"]), (&5.into(), &4.into()));
    fs::write(file.path(), text("9/day")).unwrap();
    eventually(|| capacity(&server) == 9);
    let answer = server.check(r#"{"attributes":{"user":"u1"},"cost":8}"#);
    assert_eq!((&answer["verdict"], &answer["remaining"]), (&"allowed".into(), &0.into()));
    let words = server.last_words();
    assert!(words.contains(": 1 rule in force\n"), "{words}");
}

#[test]
fn a_hangup_signal_reads_the_file_again() {
    let file = policy("5/day");
    let server = Server::start(&["--config", file.path()]);
    fs::write(file.path(), text("7/day")).unwrap();
    let pid = server.pid().to_string();
    assert!(Command::new("kill").args(["-s", "HUP", &pid]).status().unwrap().success());
    eventually(|| capacity(&server) == 7);
}

#[test]
fn a_bad_file_leaves_the_old_policy_and_says_why() {
    let file = policy("5/day");
    let server = Server::start(&["--config", file.path()]);
    fs::write(file.path(), text("5/fortnight")).unwrap();
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(capacity(&server), 5);
    fs::write(file.path(), text("6/day")).unwrap();
    eventually(|| capacity(&server) == 6);
    let words = server.last_words();
    assert!(words.contains(":4: "), "{words}");
    assert!(words.contains("the policy in force stays"), "{words}");
}

/// Both rules change together: an answer that shows one of each has seen half a policy.
#[test]
fn under_load_no_request_fails_and_none_sees_half_a_policy() {
    let both = |count: u32| {
        format!(
            "[[rule]]\nname = \"a\"\nkey = [\"user\"]\nlimits = [\"{count}/second\"]\n\
             [[rule]]\nname = \"b\"\nkey = [\"user\"]\nlimits = [\"{count}/second\"]\n"
        )
    };
    let file = TempFile::new("limits.toml", &both(1_000));
    let server = Server::start(&["--config", file.path()]);
    let port = server.port;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| ask_until(&stop, &mut Client::connect(port).unwrap())))
            .collect();
        let changes = scope.spawn(|| {
            for count in 1_001..1_005 {
                fs::write(file.path(), both(count)).unwrap();
                eventually(|| server.check(PEEK)["capacity"] == count);
            }
        });
        // Whether or not they went well, the callers end.
        let changed = changes.join();
        stop.store(true, Ordering::Relaxed);
        changed.unwrap();
        let asked: u32 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        assert!(asked > 0);
    });
}

fn ask_until(stop: &AtomicBool, client: &mut Client) -> u32 {
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        let reply = client.post("/v1/check", PEEK.as_bytes()).unwrap();
        assert_eq!(reply.status, 200);
        let answer = reply.json();
        assert_eq!(answer["tiers"][0]["capacity"], answer["tiers"][1]["capacity"]);
        asked += 1;
    }
    asked
}

const PEEK: &str = r#"{"attributes":{"user":"u1"},"cost":0}"#;

fn capacity(server: &Server) -> u64 {
    server.check(PEEK)["capacity"].as_u64().unwrap()
}

fn policy(quota: &str) -> TempFile {
    TempFile::new("limits.toml", &text(quota))
}

fn text(quota: &str) -> String {
    format!("[[rule]]\nname = \"a\"\nkey = [\"user\"]\nlimits = [\"{quota}\"]\n")
}
