//! The RESP API by redis-benchmark, beside what it is made for: Redis counting.
//!
//! redis-benchmark reads five numbers of each answer of ours and one of Redis's, and has one core of
//! two: its own time is part of both.

use std::process::Command;

use crate::Outcome;
use crate::contender::Contender;
use crate::pair;
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

pub fn against_baselines(effort: Effort) -> Outcome {
    let (ours, redis) = (Contender::spillgate("--resp")?, Contender::redis());
    let crab = Contender::throttlecrab("redis")?;
    let pipelined = Load { pipeline: 64, calls: 1_000_000 };
    let unpipelined = Load { pipeline: 1, calls: 60_000 };
    let mut rows = Vec::new();
    for (name, load, of_redis, of_crab) in [
        ("pipelined 64", pipelined, Floor::AtLeast(1.0), Floor::AtLeast(10.0)),
        ("unpipelined", unpipelined, Floor::AtLeast(0.95), Floor::AtLeast(1.2)),
    ] {
        let load = load.scaled_to(effort);
        let (ours, redis) = (&ours, &redis);
        let mut contenders: Vec<Box<dyn FnMut() -> Run>> = vec![
            Box::new(|| load.run(ours, &["CL.THROTTLE", KEY, "1000000", "1000000", "1"])),
            Box::new(|| load.run(redis, &["INCR", KEY])),
            Box::new(|| load.run(ours, &["SG.CHECK", "web", "1", "ip", KEY])),
        ];
        if let Some(crab) = &crab {
            let ask = &["THROTTLE", KEY, "1000000", "1000000", "1"];
            contenders.push(Box::new(move || load.run(crab, ask)));
        }
        let rounds = Rounds::of(effort, &mut contenders);
        let mut row = |measure: &str, ours: usize, baseline: usize, floor: Floor| {
            let measure = format!("{measure}, {name}");
            rows.extend(pair::rows(&rounds, &measure, (ours, baseline), floor));
        };
        row("CL.THROTTLE, against Redis's INCR", 0, 1, of_redis);
        row("SG.CHECK without rules, against INCR", 2, 1, Floor::Nothing);
        if crab.is_some() {
            row("CL.THROTTLE, against throttlecrab's THROTTLE", 0, 3, of_crab);
        }
    }
    let title = "RESP on memory, 50 clients, 100000 keys, by redis-benchmark".to_owned();
    Ok(vec![Table { title, rows }])
}

#[derive(Clone, Copy)]
struct Load {
    pipeline: usize,
    calls: usize,
}

impl Load {
    /// The calls are those of a full run.
    fn scaled_to(self, effort: Effort) -> Load {
        let calls =
            self.calls * effort.span.as_millis() as usize / Effort::FULL.span.as_millis() as usize;
        Load { calls, ..self }
    }

    fn run(self, server: &Contender, command: &[&str]) -> Run {
        let mut program = Command::new("redis-benchmark");
        program.args(["-p", &server.port.to_string(), "-c", "50", "-r", "100000", "--csv"]);
        program.args(["-n", &self.calls.to_string(), "-P", &self.pipeline.to_string()]);
        server.run(program.args(command), rate_in, |_| Some(self.calls as f64))
    }
}

/// The last line's second cell: `"INCR …","123456.78","0.123",…`
fn rate_in(said: &str) -> Option<f64> {
    said.lines().last()?.split(',').nth(1)?.trim_matches('"').parse().ok()
}

const KEY: &str = "user:__rand_int__";
