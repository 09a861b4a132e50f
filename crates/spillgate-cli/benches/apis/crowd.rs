//! What a crowd costs those who ask: the slowest of a hundred answers, by redis-benchmark, alone and
//! beside 10,000 connections that say nothing and 1,000 that send a request in single bytes.

use std::error::Error;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::Outcome;
use crate::contender::{Contender, run};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Row, Table, micros};

pub fn against_a_quiet_server(effort: Effort) -> Outcome {
    rlimit::increase_nofile_limit(u64::MAX)?;
    let (quiet, crowded) = (Contender::spillgate("--resp")?, Contender::spillgate("--resp")?);
    let idle = connections(crowded.port, IDLE)?;
    let slow = connections(crowded.port, SLOW)?;
    let done = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        scope.spawn(|| send_slowly(&slow, &done));
        let mut contenders: Vec<Box<dyn FnMut() -> Run>> = vec![
            Box::new(|| Run { figure: slowest_us(crowded.port), store_us: 0.0 }),
            Box::new(|| Run { figure: slowest_us(quiet.port), store_us: 0.0 }),
        ];
        let _done = Done(&done);
        Rounds::of(effort, &mut contenders)
    });
    drop(idle);
    let row = Row {
        measure: "p99 beside 10000 idle and 1000 slow connections".to_owned(),
        ours: micros(rounds.figure(0)),
        baseline: micros(rounds.figure(1)),
        ratio: Some(rounds.figure_ratio(0, 1)),
        floor: Floor::AtMost(2.0),
    };
    let title = "RESP on memory, 50 clients unpipelined; baseline: the same without a crowd";
    Ok(vec![Table { title: title.to_owned(), rows: vec![row] }])
}

fn connections(port: u16, count: usize) -> Result<Vec<TcpStream>, Box<dyn Error>> {
    let connect = |_| TcpStream::connect(("127.0.0.1", port));
    Ok((0..count).map(connect).collect::<Result<_, _>>()?)
}

/// Each a byte of a check every tenth of a second or so.
fn send_slowly(streams: &[TcpStream], done: &AtomicBool) {
    let request = b"*5\r\n$11\r\nCL.THROTTLE\r\n$4\r\nslow\r\n$1\r\n9\r\n$1\r\n1\r\n$1\r\n1\r\n";
    for byte in request.iter().cycle() {
        for mut stream in streams {
            // One that was cut is slow no more.
            let _ = stream.write_all(&[*byte]);
        }
        if done.load(Ordering::Relaxed) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// However the measurement ends.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn slowest_us(port: u16) -> f64 {
    let mut program = Command::new("redis-benchmark");
    program.args(["-p", &port.to_string(), "-c", "50", "-n", "30000", "-r", "100000", "--csv"]);
    program.args(["CL.THROTTLE", "user:__rand_int__", "1000000", "1000000", "1"]);
    // Of: test, calls a second, then ms: average, least, p50, p95, p99, most.
    let p99 = |said: &str| said.lines().last()?.split(',').nth(6)?.trim_matches('"').parse().ok();
    let said = run(&mut program).unwrap_or_else(|error| panic!("{error}"));
    let ms: f64 = p99(&said).unwrap_or_else(|| panic!("{said}"));
    ms * 1_000.0
}

const IDLE: usize = 10_000;
const SLOW: usize = 1_000;
