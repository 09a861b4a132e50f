//! Starts `spillgate serve`, and runs other commands of the binary.

mod log;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use spillgate_testkit::{Connection, Process, RedisServer};

use crate::client::{Client, Reply};
use log::LogLines;

/// Returns the binary with arguments, without the settings in this process's environment.
pub(crate) fn spillgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillgate"));
    command.args(arguments);
    without_settings(&mut command);
    // Several servers run at once: none on the usual port unless a test asks for it.
    command.env("SPILLGATE_SERVER__GRPC__ADDRESS", "127.0.0.1:0");
    // Listeners that a test does not need would collide with those of the next test.
    command.env("SPILLGATE_SERVER__RESP__ADDRESS", "off");
    command.env("SPILLGATE_SERVER__ADMIN", "off");
    command
}

/// Removes the variables of settings, and those that only tests read, from a command's environment.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SPILLGATE_")) {
        command.env_remove(name);
    }
}

/// Runs the binary to its end.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Output {
    spillgate(arguments).output().unwrap()
}

pub(crate) struct Server {
    process: Process,
    log: LogLines,
    /// The log before the server was ready; empty unless there was a problem.
    pub(crate) before_ready: String,
    /// The line with the addresses of the listeners.
    pub(crate) ready: String,
    pub(crate) port: u16,
    /// The port of the gRPC API, if it is on.
    pub(crate) grpc_port: Option<u16>,
    /// The port of the RESP API, unless it is off.
    pub(crate) resp_port: Option<u16>,
    /// The port of the admin API, unless it is off.
    pub(crate) admin_port: Option<u16>,
}

impl Server {
    #[track_caller]
    pub(crate) fn start(arguments: &[&str]) -> Server {
        Server::start_command(&mut spillgate(&[&["serve"], &LISTENING[..], arguments].concat()))
    }

    /// Starts a server on a store, with time-outs long enough for a busy machine.
    #[track_caller]
    pub(crate) fn start_on(store: &RedisServer, arguments: &[&str]) -> Server {
        let store = store.url();
        let mut command =
            spillgate(&[&["serve", "--redis", &store], &LISTENING[..], arguments].concat());
        command
            .env("SPILLGATE_STORE__TIMEOUT", "10s")
            .env("SPILLGATE_SERVER__GRPC__TIMEOUT", "10s");
        Server::start_command(&mut command)
    }

    #[track_caller]
    pub(crate) fn start_command(command: &mut Command) -> Server {
        let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let log = LogLines::of(process.stderr().unwrap());
        let text = log.until(|line| port_of("HTTP", line).is_some());
        let text = text.unwrap_or_else(|text| panic!("the server did not start; its log: {text}"));
        let ready = text.split_inclusive('\n').next_back().unwrap().to_owned();
        let before_ready = text[..text.len() - ready.len()].to_owned();
        let port = port_of("HTTP", &ready).unwrap();
        let grpc_port = port_of("gRPC", &ready);
        let resp_port = port_of("RESP", &ready);
        let admin_port = port_of("admin", &ready);
        Server { process, log, before_ready, ready, port, grpc_port, resp_port, admin_port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Opens a connection to the RESP API.
    #[track_caller]
    pub(crate) fn resp(&self) -> Connection {
        Connection::open(self.resp_port.unwrap()).unwrap()
    }

    /// Opens a client of the admin API.
    #[track_caller]
    pub(crate) fn operator(&self) -> Client {
        Client::connect(self.admin_port.unwrap()).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port).unwrap()
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Reply {
        self.client().post(path, body).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the decision on one check.
    #[track_caller]
    pub(crate) fn check(&self, body: &str) -> Value {
        let reply = self.post("/v1/check", body.as_bytes());
        assert_eq!(reply.status, 200, "{body}: {}", reply.body);
        reply.json()
    }

    /// Returns the metrics as text.
    #[track_caller]
    pub(crate) fn metrics(&self) -> String {
        self.operator().send("GET", "/metrics", b"").unwrap().body
    }

    /// The token that it printed at its start, in place of a setting.
    #[track_caller]
    pub(crate) fn generated_token(&self, setting: &str) -> String {
        let reason = format!(" token, since {setting} is not set: ");
        let shown = self.before_ready.lines().find_map(|line| line.split_once(&reason));
        let (start, token) =
            shown.unwrap_or_else(|| panic!("no {reason:?} in {}", self.before_ready));
        assert!(start.starts_with("spillgate: generated "), "{start}");
        token.to_owned()
    }

    /// Makes the server read its files again, by SIGHUP.
    #[track_caller]
    pub(crate) fn hang_up(&self) {
        self.process.signal("HUP");
    }

    /// Kills the server by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// Pauses the server by SIGSTOP.
    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    /// Resumes the server by SIGCONT.
    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// Sends SIGTERM, and returns the exit status.
    #[track_caller]
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.process.terminate(Duration::from_secs(15))
    }

    /// Returns the log up to the next line that contains `part`.
    #[track_caller]
    pub(crate) fn log_until(&mut self, part: &str) -> String {
        let text = self.log.until(|line| line.contains(part));
        text.unwrap_or_else(|text| panic!("the log never had {part:?}: {text}"))
    }

    /// Sends SIGTERM, and returns the rest of the log.
    #[track_caller]
    pub(crate) fn rest_of_log(mut self) -> String {
        self.process.terminate(Duration::from_secs(15));
        self.log.rest()
    }
}

/// Every listener on a free port.
pub(crate) const LISTENING: [&str; 6] =
    ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

/// Returns the port of a listener, from the line with the addresses.
pub(crate) fn port_of(listener: &str, ready: &str) -> Option<u16> {
    let address = ready.split_once(&format!("{listener} on "))?.1.split(',').next()?;
    address.rsplit_once(':')?.1.trim_end().parse().ok()
}

/// Starts a server with these settings.
#[track_caller]
pub(crate) fn serve(settings: &TempFile) -> Server {
    Server::start(&["--config", settings.path()])
}

/// Runs a story with state in memory and in a real Redis.
pub(crate) fn on_both_engines(arguments: &[&str], story: impl Fn(&Server)) {
    story(&Server::start(arguments));
    let redis = RedisServer::start();
    story(&Server::start_on(&redis, arguments));
}

/// Returns the memory of a process.
#[cfg(target_os = "linux")]
#[track_caller]
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the peak memory of a process during a time.
#[cfg(target_os = "linux")]
#[track_caller]
pub(crate) fn peak_kib(pid: u32, during: Duration) -> u64 {
    let mut peak = 0;
    let watched: Option<()> = spillgate_testkit::poll(during, || {
        peak = peak.max(resident_kib(pid));
        None
    });
    assert!(watched.is_none());
    peak
}

/// A file that is removed at the end of the test.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, text: &str) -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("spillgate-{}-{number}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        // It may stand for a secret, which no other user should read.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
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
