//! A log of ten million lines through `spillgate simulate`, beside the memory engine asked about the same
//! requests one by one on one thread.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillgate::testing::ManualClock;
use spillgate::{Limiter, Policy, Request};

use crate::Outcome;
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Row, Table, rate};

pub fn against_the_engine(effort: Effort) -> Outcome {
    let lines = if effort.rounds < Effort::FULL.rounds { LINES / 10 } else { LINES };
    let files = Files::new(lines)?;
    let mut contenders: Vec<Box<dyn FnMut() -> Run>> = vec![
        Box::new(|| timed(lines, || files.simulate())),
        Box::new(|| timed(lines, || one_by_one(lines))),
    ];
    let effort = Effort { rounds: effort.rounds.min(ROUNDS), ..effort };
    let rounds = Rounds::of(effort, &mut contenders);
    let row = Row {
        measure: format!("lines of a combined log, {lines} of {SUBJECTS} subjects"),
        ours: rate(rounds.figure(0)),
        baseline: rate(rounds.figure(1)),
        ratio: Some(rounds.figure_ratio(0, 1)),
        floor: Floor::AtLeast(0.5),
    };
    let title = "spillgate simulate; baseline: the memory engine asked one by one".to_owned();
    Ok(vec![Table { title, rows: vec![row] }])
}

fn timed(lines: u32, run: impl FnOnce()) -> Run {
    let start = Instant::now();
    run();
    Run { figure: f64::from(lines) / start.elapsed().as_secs_f64(), store_us: 0.0 }
}

/// Every request of the log, without a log.
fn one_by_one(lines: u32) {
    let names: Vec<String> = (0..SUBJECTS).map(address).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let clock = ManualClock::new();
        let policy = Policy::from_toml(RULES).expect("ours");
        let limiter = Limiter::builder().policy(policy).manual_clock(&clock).top(false);
        let limiter = limiter.build().await.expect("memory");
        let mut refused = 0;
        for line in 0..lines {
            clock.set(Duration::from_secs(START_S + seconds(line)));
            let request = Request::new().with("ip", &names[subject(line) as usize]);
            refused += u32::from(!limiter.check(&request).await.allowed());
        }
        assert!(refused > 0 && refused < lines);
    });
}

/// The log and the rules; gone at the end.
struct Files {
    log: PathBuf,
    rules: PathBuf,
}

impl Files {
    fn new(lines: u32) -> std::io::Result<Files> {
        let file = |name: &str| {
            std::env::temp_dir().join(format!("spillgate-bench-{}-{name}", std::process::id()))
        };
        let files = Files { log: file("access.log"), rules: file("limits.toml") };
        std::fs::write(&files.rules, RULES)?;
        let mut log = BufWriter::new(File::create(&files.log)?);
        for line in 0..lines {
            let (ip, seconds) = (address(subject(line)), seconds(line));
            let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
            writeln!(
                log,
                "{ip} - - [10/Oct/2000:{hour:02}:{minute:02}:{second:02} +0000] \"GET /api/items/{line} HTTP/1.1\" \
                 200 2326 \"-\" \"Mozilla/5.0 (X11; Linux x86_64)\""
            )?;
        }
        log.flush()?;
        Ok(files)
    }

    fn simulate(&self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillgate"));
        command.arg("simulate").arg("--config").arg(&self.rules).arg(&self.log);
        let end = command.stdout(Stdio::null()).status();
        assert!(end.is_ok_and(|end| end.success()), "simulate failed");
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // A leftover temporary file is no reason to fail a measurement.
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_file(&self.rules);
    }
}

fn address(subject: u32) -> String {
    let [_, a, b, c] = subject.to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

/// In no order, each as often as any other.
fn subject(line: u32) -> u32 {
    line.wrapping_mul(2_654_435_761) % SUBJECTS
}

/// A thousand a second.
fn seconds(line: u32) -> u64 {
    u64::from(line) / 1_000
}

const LINES: u32 = 10_000_000;
const SUBJECTS: u32 = 100_000;
/// As many as a median needs; each takes half a minute.
const ROUNDS: usize = 5;
/// The log's day.
const START_S: u64 = 971_136_000;
/// Less than each asks for: some are refused.
const RULES: &str =
    "[[rule]]\nname = \"api\"\nkey = [\"ip\"]\nlimits = [{ quota = \"20/hour\", burst = 4 }]\n";
