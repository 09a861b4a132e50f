//! Servers that are measured, and the programs that measure them.

use std::error::Error;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use spillgate_testkit::{Process, RedisServer, free_port, poll};

use crate::rounds::Run;

/// Something that listens until it is dropped.
pub struct Contender {
    _process: Kept,
    pid: u32,
    pub port: u16,
}

enum Kept {
    Process(#[expect(dead_code, reason = "killed when dropped")] Process),
    Redis(#[expect(dead_code, reason = "killed when dropped")] RedisServer),
}

impl Contender {
    /// Ours, one API of it, state in memory.
    pub fn spillgate(api: &str) -> Result<Contender, Box<dyn Error>> {
        Contender::spillgate_with(api, &[])
    }

    /// The same, with more arguments.
    pub fn spillgate_with(api: &str, more: &[&OsStr]) -> Result<Contender, Box<dyn Error>> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillgate"));
        command.arg("serve").args(more);
        // Variables that only tests read are no settings, and keep it from starting.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SPILLGATE_")) {
            command.env_remove(name);
        }
        for other in ["--http", "--grpc", "--resp", "--admin"] {
            command.args([other, if other == api { "127.0.0.1:0" } else { "off" }]);
        }
        let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut ready = String::new();
        BufReader::new(process.stderr().ok_or("no words")?).read_line(&mut ready)?;
        let port = port_in(&ready).ok_or_else(|| format!("it did not start: {ready}"))?;
        Ok(Contender::of(process, port))
    }

    pub fn redis() -> Contender {
        let server = RedisServer::start();
        let (pid, port) = (server.pid(), server.port());
        Contender { _process: Kept::Redis(server), pid, port }
    }

    /// The program that `SPILLGATE_THROTTLECRAB` names, if it does: `cargo install
    /// throttlecrab-server` makes one.
    pub fn throttlecrab(protocol: &str) -> Result<Option<Contender>, Box<dyn Error>> {
        let Some(program) = std::env::var_os("SPILLGATE_THROTTLECRAB").map(PathBuf::from) else {
            println!("throttlecrab is left out: SPILLGATE_THROTTLECRAB names no program\n");
            return Ok(None);
        };
        let port = free_port();
        let mut command = Command::new(program);
        command.args([format!("--{protocol}"), format!("--{protocol}-port"), port.to_string()]);
        command.args(["--log-level", "error"]);
        let process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        listening(port)?;
        Ok(Some(Contender::of(process, port)))
    }

    /// This program as what a flag makes of it: one of the echoes.
    pub fn program(flag: &str) -> Result<Contender, Box<dyn Error>> {
        Contender::program_with(&[flag])
    }

    /// The same with what it is to know.
    pub fn program_with(words: &[&str]) -> Result<Contender, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = Process::start(command.args(words).stdout(Stdio::piped()));
        let mut ready = String::new();
        BufReader::new(process.stdout().ok_or("no words")?).read_line(&mut ready)?;
        Ok(Contender::of(process, ready.trim().parse()?))
    }

    fn of(process: Process, port: u16) -> Contender {
        let pid = process.pid();
        Contender { _process: Kept::Process(process), pid, port }
    }

    /// So many calls a second by a load generator, and the processor's time that each cost this
    /// server: what others do to the machine meanwhile hardly changes the latter.
    pub fn run(
        &self,
        command: &mut Command,
        rate_in: impl Fn(&str) -> Option<f64>,
        calls_in: impl Fn(&str) -> Option<f64>,
    ) -> Run {
        self.measured(|| {
            let said = run(command).unwrap_or_else(|error| panic!("{error}"));
            match (rate_in(&said), calls_in(&said)) {
                (Some(figure), Some(calls)) => (figure, calls),
                _ => panic!("{command:?}: {said}"),
            }
        })
    }

    /// The same of any load: calls a second, and how many there were.
    pub fn measured(&self, load: impl FnOnce() -> (f64, f64)) -> Run {
        let before = cpu_us(self.pid);
        let (figure, calls) = load();
        Run { figure, store_us: (cpu_us(self.pid) - before) / calls }
    }
}

/// Runs a load generator; what it prints.
pub fn run(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && !said.contains("Non-2xx") {
        return Ok(said);
    }
    Err(format!("{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr)).into())
}

/// What a process has used of the processor so far; 0 where the system does not tell as Linux does.
fn cpu_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything: user time is the 12th field, the kernel's the 13th.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks * TICK_US
}

/// A hundredth of a second on every Linux that Rust knows.
const TICK_US: f64 = 10_000.0;

fn port_in(ready: &str) -> Option<u16> {
    ready.split(',').next()?.rsplit_once(':')?.1.trim().parse().ok()
}

fn listening(port: u16) -> Result<(), Box<dyn Error>> {
    let connect = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
    poll(Duration::from_secs(10), connect).ok_or("it does not listen")?;
    // Its first caller has left again before the first measurement.
    thread::sleep(Duration::from_millis(50));
    Ok(())
}
