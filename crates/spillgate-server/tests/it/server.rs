//! A running `spillgate serve`, and other runs of the binary.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use spillgate_testkit::{Process, RedisServer};

use crate::client::{Client, Reply};

/// The binary, deaf to whatever settings this process's environment holds.
pub(crate) fn spillgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillgate"));
    command.args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SPILLGATE_")) {
        command.env_remove(name);
    }
    command
}

/// Runs the binary to its end.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Output {
    spillgate(arguments).output().unwrap()
}

pub(crate) struct Server {
    process: Process,
    words: BufReader<ChildStderr>,
    /// The line it began with.
    pub(crate) ready: String,
    pub(crate) port: u16,
}

impl Server {
    #[track_caller]
    pub(crate) fn start(arguments: &[&str]) -> Server {
        Server::start_command(&mut spillgate(
            &[&["serve", "--http", "127.0.0.1:0"], arguments].concat(),
        ))
    }

    #[track_caller]
    pub(crate) fn start_command(command: &mut Command) -> Server {
        let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut words = BufReader::new(process.stderr().unwrap());
        let mut ready = String::new();
        words.read_line(&mut ready).unwrap();
        let port =
            ready.split("HTTP on http://127.0.0.1:").nth(1).and_then(|rest| rest.split(',').next());
        let Some(port) = port.and_then(|port| port.parse().ok()) else {
            words.read_to_string(&mut ready).unwrap();
            panic!("the server did not start; it said: {ready}");
        };
        Server { process, words, ready, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port).unwrap()
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Reply {
        self.client().post(path, body).unwrap()
    }

    /// The verdict on one check.
    #[track_caller]
    pub(crate) fn check(&self, body: &str) -> Value {
        let reply = self.post("/v1/check", body.as_bytes());
        assert_eq!(reply.status, 200, "{body}: {}", reply.body);
        reply.json()
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.process.terminate(Duration::from_secs(15))
    }

    /// SIGTERM, and all that it said after its first line.
    #[track_caller]
    pub(crate) fn last_words(mut self) -> String {
        self.process.terminate(Duration::from_secs(15));
        let mut words = String::new();
        self.words.read_to_string(&mut words).unwrap();
        words
    }
}

/// The same story with state in memory and in a real Redis.
pub(crate) fn on_both_engines(arguments: &[&str], story: impl Fn(&Server)) {
    story(&Server::start(arguments));
    let redis = RedisServer::start();
    story(&Server::start(&[arguments, &["--redis", &redis.url()]].concat()));
}

/// A file that is gone at the end of the test.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, text: &str) -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("spillgate-{}-{number}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        TempFile(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // A leftover temporary file is no reason to fail a test.
        let _ = fs::remove_file(&self.0);
    }
}
