//! A log that no process reads loses lines: it delays neither callers nor the end of the service.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStderr, Stdio};
use std::time::Duration;

use spillgate_testkit::{Process, eventually, free_port};

use crate::client::Client;
use crate::server::{LISTENING, TempFile, port_of, spillgate};

/// A server whose log fills a pipe that the test reads only at the end.
struct Stalled {
    process: Process,
    log: BufReader<ChildStderr>,
    port: u16,
    admin_port: u16,
    policy: TempFile,
}

impl Stalled {
    /// Makes checks, and reloads at 10 Hz a file that is refused. The store is down, so decisions log something too.
    fn after(reloads: u32) -> Stalled {
        let policy = TempFile::new("limits.toml", "");
        let store = format!("redis://127.0.0.1:{}", free_port());
        let arguments = ["serve", "--config", policy.path(), "--redis", &store];
        let mut command = spillgate(&[&arguments, &LISTENING[..]].concat());
        command.env("SPILLGATE_TELEMETRY__LOG__LEVEL", "debug");
        let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut log = BufReader::new(process.stderr().unwrap());
        let mut ready = String::new();
        while port_of("HTTP", &ready).is_none() {
            ready.clear();
            assert_ne!(log.read_line(&mut ready).unwrap(), 0, "it ended");
        }
        let (port, admin_port) =
            (port_of("HTTP", &ready).unwrap(), port_of("admin", &ready).unwrap());
        let stalled = Stalled { process, log, port, admin_port, policy };
        // Each refusal names a hundred mistakes and quotes them.
        let long = "x".repeat(2_000);
        let rule = format!("[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"5/{long}\"]\n");
        fs::write(stalled.policy.path(), rule.repeat(100)).unwrap();
        for _ in 0..reloads {
            stalled.process.signal("HUP");
            std::thread::sleep(Duration::from_millis(100));
            stalled.answers();
        }
        stalled
    }

    #[track_caller]
    fn answers(&self) {
        let question = br#"{"key":"u","limit":{"quota":"5/minute"}}"#;
        let reply = Client::connect(self.port).unwrap().post("/v1/check", question).unwrap();
        assert_eq!(reply.status, 200);
        let reply = Client::connect(self.admin_port).unwrap().send("GET", "/livez", b"").unwrap();
        assert_eq!(reply.status, 200);
    }
}

/// Returns the metric of dropped lines.
#[track_caller]
fn dropped(admin_port: u16) -> u64 {
    let reply = Client::connect(admin_port).unwrap().send("GET", "/metrics", b"").unwrap();
    let count = |line: &str| line.strip_prefix("spillgate_log_lines_dropped_total ")?.parse().ok();
    reply.body.lines().find_map(count).unwrap_or(0)
}

#[test]
fn a_stalled_log_delays_no_answer_and_reports_dropped_lines_when_it_recovers() {
    let stalled = Stalled::after(FILLED_BY);
    assert!(dropped(stalled.admin_port) > 0, "{FILLED_BY} reloads did not fill the queue");
    let Stalled { mut process, log, admin_port, .. } = stalled;
    let (note, notes) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in log.lines().map_while(Result::ok) {
            let count = line.strip_prefix("spillgate: warning: ");
            let count = count.and_then(|rest| {
                rest.strip_suffix(" log lines were dropped: the error output took no bytes")
            });
            if let Some(count) = count {
                // The test may have ended.
                let _ = note.send(count.parse::<u64>().unwrap());
            }
        }
    });
    let mut reported = notes.recv_timeout(Duration::from_secs(30)).unwrap();
    eventually(|| {
        reported += notes.try_iter().sum::<u64>();
        reported == dropped(admin_port)
    });
    println!("{reported} lines were dropped and reported");
    assert_eq!(process.terminate(Duration::from_secs(15)).code(), Some(0));
    reader.join().unwrap();
}

#[test]
fn a_stalled_log_does_not_prevent_the_end() {
    let mut stalled = Stalled::after(FILLED_BY / 2);
    assert_eq!(stalled.process.terminate(Duration::from_secs(15)).code(), Some(0));
    // The pipe was full until the end.
    drop(stalled.log);
}

/// At some 200 KiB each, more than the pipe, the queue and the writer hold. The first few reloads refuse nothing, since
/// the file has just changed, and may change again.
const FILLED_BY: u32 = 50;
