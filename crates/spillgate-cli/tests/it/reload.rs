//! A changed file takes effect without a restart; a bad one changes nothing and is reported.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillgate_testkit::eventually;

use crate::client::Client;
use crate::server::{Server, TempFile, spillgate};

#[test]
fn a_changed_file_takes_effect_within_seconds_and_keeps_used_quota() {
    let file = policy("5/day");
    let server = Server::start(&["--config", file.path()]);
    let answer = server.check(r#"{"attributes":{"user":"u1"}}"#);
    assert_eq!((&answer["capacity"], &answer["remaining"]), (&5.into(), &4.into()));
    fs::write(file.path(), text("9/day")).unwrap();
    eventually(|| capacity(&server) == 9);
    let answer = server.check(r#"{"attributes":{"user":"u1"},"cost":8}"#);
    assert_eq!((&answer["allowed"], &answer["remaining"]), (&true.into(), &0.into()));
    let log = server.rest_of_log();
    assert!(log.contains(": 1 rule in force\n"), "{log}");
}

#[test]
fn a_hangup_signal_reloads_the_file() {
    let file = policy("5/day");
    let server = Server::start(&["--config", file.path()]);
    fs::write(file.path(), text("7/day")).unwrap();
    server.hang_up();
    eventually(|| capacity(&server) == 7);
}

#[test]
fn a_truncated_file_leaves_the_old_rules_in_force() {
    let file = policy("5/day");
    let mut server = Server::start(&["--config", file.path()]);
    let mut client = server.client();
    let mut admitted = 0;
    let mut check = || {
        let reply = client.post("/v1/check", br#"{"attributes":{"user":"u1"}}"#).unwrap();
        admitted += u32::from(reply.json()["allowed"] == true);
        admitted
    };
    for _ in 0..5 {
        check();
    }
    // Truncate the file as `: > limits.toml` does.
    fs::File::create(file.path()).unwrap();
    eventually(|| {
        check();
        reloads(&server, "refused") == 1
    });
    for _ in 0..100 {
        check();
    }
    server.hang_up();
    eventually(|| reloads(&server, "refused") == 2);
    assert_eq!(check(), 5, "the limit is 5 a day");
    assert_eq!(reloads(&server, "applied"), 0);
    let log = server.log_until("write `rules = []` in it if no rule is meant to be");
    assert!(log.contains("it has no rules, and 1 rule is in force"), "{log}");

    fs::write(file.path(), "rules = []\n").unwrap();
    eventually(|| reloads(&server, "applied") == 1);
    assert_eq!(check(), 6, "the file has no rules on purpose");
    assert_eq!(server.operator().send("GET", "/readyz", b"").unwrap().body, "ok\n");
}

#[test]
fn the_last_reload_is_unsuccessful_as_long_as_the_file_is_bad() {
    let file = policy("5/day");
    let server = Server::start(&["--config", file.path()]);
    let is_successful =
        |value| series(&server.metrics(), "spillgate_policy_last_reload_successful ") == value;
    let loaded_at = || series(&server.metrics(), "spillgate_policy_loaded_timestamp_seconds ");
    assert!(is_successful("1"));
    let at_start = loaded_at();
    let seconds = |time: &str| time.split('.').next().unwrap().parse::<u64>().unwrap();
    let started = series(&server.metrics(), "process_start_time_seconds ");
    assert!(seconds(&at_start).abs_diff(seconds(&started)) <= 1, "{at_start} {started}");
    fs::write(file.path(), "[[rule]\n").unwrap();
    eventually(|| is_successful("0"));
    // Another look at the bad file changes nothing.
    server.hang_up();
    eventually(|| reloads(&server, "refused") == 2);
    assert!(is_successful("0"));
    assert_eq!(loaded_at(), at_start);
    fs::write(file.path(), text("5/day")).unwrap();
    eventually(|| is_successful("1"));
    assert!(loaded_at() > at_start);
}

/// To open a pipe waits for its writer: that would hang the watcher, and the end of the process with it.
#[test]
fn a_pipe_in_place_of_a_watched_file_is_refused_and_delays_nothing() {
    let file = policy("5/day");
    let tokens = TempFile::new("tokens", "ann:operator:0123456789abcdef0123456789abcdef");
    let mut command = spillgate(&["serve", "--config", file.path()]);
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server =
        Server::start_command(command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", tokens.path()));
    let new = |path: &str, text: Option<&str>| {
        let new = format!("{path}.new");
        match text {
            Some(text) => fs::write(&new, text).unwrap(),
            None => assert!(Command::new("mkfifo").arg(&new).status().unwrap().success()),
        }
        fs::rename(new, path).unwrap();
    };
    new(file.path(), None);
    new(tokens.path(), None);
    eventually(|| reloads(&server, "refused") == 1);
    new(file.path(), Some(&text("7/day")));
    eventually(|| capacity(&server) == 7);
    let log = server.rest_of_log();
    for part in [file.path(), "field `server.admin_token_file`: "] {
        let line = log.lines().find(|line| line.contains(part) && line.contains("not a regular"));
        assert!(line.is_some(), "no line about {part}: {log}");
    }
}

/// The file is truncated and then grows by pieces for 1.5 s: the old and the new policy deny all of the routes.
#[test]
fn a_slowly_written_file_is_never_in_force_by_halves() {
    let blocks = |comment: &str| {
        let rule = |n: u32| {
            format!(
                "[[rule]] # {comment}\nname = \"r{n}\"\nmatch = {{ route = \"/{n}\" }}\nkey = []\n\
                 limits = [\"block\"]\n"
            )
        };
        (0..ROUTES).map(rule).collect::<String>()
    };
    let file = TempFile::new("limits.toml", &blocks("old"));
    let server = Server::start(&["--config", file.path()]);
    let new =
        format!("{}[[rule]]\nname = \"new\"\nkey = []\nlimits = [\"block\"]\n", blocks("new"));
    let written = AtomicBool::new(false);
    let (admitted, longest_pause) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let longest_pause = write_slowly(file.path(), new.as_bytes());
            written.store(true, Ordering::Relaxed);
            longest_pause
        });
        let mut client = server.client();
        let (mut checks, mut admitted) = (0, 0);
        while !written.load(Ordering::Relaxed) || checks < CHECKS {
            let route = format!(r#"{{"attributes":{{"route":"/{}"}}}}"#, checks % ROUTES);
            let reply = client.post("/v1/check", route.as_bytes()).unwrap();
            admitted += u32::from(reply.json()["allowed"] == true);
            checks += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        let longest_pause = writer.join().unwrap();
        println!(
            "{admitted} of {checks} checks admitted; the writer paused {longest_pause:?} at most"
        );
        (admitted, longest_pause)
    });
    // On a stalled machine, a writer that paused for two looks seems to have ended.
    assert!(
        admitted == 0 || longest_pause > Duration::from_millis(400),
        "{admitted} were admitted"
    );
    let is_new = || server.check(r#"{"attributes":{"route":"/elsewhere"}}"#)["rule"] == "new";
    eventually(is_new);
}

/// Writes in pieces of a twentieth, and returns the longest time between two.
#[expect(clippy::disallowed_methods, reason = "a writer's own pace, not a time of the limiter's")]
fn write_slowly(path: &str, text: &[u8]) -> Duration {
    let mut file = fs::File::create(path).unwrap();
    let (mut last, mut longest_pause) = (Instant::now(), Duration::ZERO);
    for piece in text.chunks(text.len().div_ceil(20)) {
        std::thread::sleep(Duration::from_millis(75));
        file.write_all(piece).unwrap();
        file.flush().unwrap();
        let now = Instant::now();
        longest_pause = longest_pause.max(now - last);
        last = now;
    }
    longest_pause
}

#[test]
fn a_file_that_lost_most_rules_is_in_force_with_a_warning_until_the_next() {
    let rules = |names: &[&str]| {
        let rule =
            |name: &&str| format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"5/day\"]\n");
        names.iter().map(rule).collect::<String>()
    };
    let file = TempFile::new("limits.toml", &rules(&["a", "b", "c"]));
    let mut server = Server::start(&["--config", file.path()]);
    let ready = |server: &Server, path: &str| {
        let reply = server.operator().send("GET", path, b"").unwrap();
        assert_eq!(reply.status, 200, "{path}");
        reply.body
    };
    assert_eq!(ready(&server, "/readyz"), "ok\n");
    fs::write(file.path(), rules(&["a"])).unwrap();
    let warning = "2 of 3 rules are gone since this reload: b, c; if that is meant, reload once more: \
                   send SIGHUP, or run systemctl reload";
    eventually(|| ready(&server, "/readyz") == format!("ok\nwarning: {warning}\n"));
    assert!(ready(&server, "/readyz?verbose").contains("policy: 1 rule\n"));
    server.log_until(warning);
    // A refused file does not change that.
    fs::write(file.path(), "").unwrap();
    eventually(|| reloads(&server, "refused") == 1);
    assert!(ready(&server, "/readyz").contains(warning));
    fs::write(file.path(), rules(&["b"])).unwrap();
    eventually(|| ready(&server, "/readyz").contains("1 of 1 rules are gone"));
    server.hang_up();
    eventually(|| ready(&server, "/readyz") == "ok\n");
}

#[test]
fn a_start_without_rules_has_a_warning_unless_the_file_says_so() {
    let file = TempFile::new("limits.toml", "");
    let server = Server::start(&["--config", file.path()]);
    let warning = "no-rules: it has no rules, so only inline limits are enforced";
    assert!(server.before_ready.contains(warning), "{}", server.before_ready);
    assert_eq!(server.check("{}")["allowed"], true);
    fs::write(file.path(), text("5/day")).unwrap();
    eventually(|| server.check(PEEK)["capacity"] == 5);

    let file = TempFile::new("limits.toml", "rules = []\n");
    let server = Server::start(&["--config", file.path()]);
    assert_eq!(server.check("{}")["allowed"], true);
    let log = server.before_ready.clone() + &server.rest_of_log();
    assert!(!log.contains("no rules"), "{log}");
}

#[test]
fn a_bad_file_leaves_the_old_policy_and_logs_the_reason() {
    let file = policy("5/day");
    let mut server = Server::start(&["--config", file.path()]);
    let bad = text("5/fortnight");
    fs::write(file.path(), format!("{bad}{}", bad.replace("\"a\"", "\"b\""))).unwrap();
    let log = server.log_until("the policy in force stays");
    for line in [":4: ", ":8: "] {
        assert!(log.contains(line), "{log}");
    }
    assert!(log.lines().all(|line| line.starts_with("spillgate: ")), "{log}");
    assert_eq!(capacity(&server), 5);
    fs::write(file.path(), text("6/day")).unwrap();
    eventually(|| capacity(&server) == 6);
}

/// Both rules change together: an answer with one of each saw half a policy.
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
        // The callers end even if the changes failed.
        let changed = changes.join();
        stop.store(true, Ordering::Relaxed);
        changed.unwrap();
        let checks: u32 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        assert!(checks > 0);
    });
}

fn ask_until(stop: &AtomicBool, client: &mut Client) -> u32 {
    let mut checks = 0;
    while !stop.load(Ordering::Relaxed) {
        let reply = client.post("/v1/check", PEEK.as_bytes()).unwrap();
        assert_eq!(reply.status, 200);
        let answer = reply.json();
        assert_eq!(answer["limits"][0]["capacity"], answer["limits"][1]["capacity"]);
        checks += 1;
    }
    checks
}

/// Returns how many reloads had this result.
fn reloads(server: &Server, result: &str) -> u64 {
    let name = format!("spillgate_reloads_total{{result=\"{result}\"}} ");
    series(&server.metrics(), &name).parse().unwrap()
}

/// Returns the value of a series.
fn series(metrics: &str, name: &str) -> String {
    metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned()
}

const ROUTES: u32 = 28;
const CHECKS: u32 = 560;
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
