//! The HTTP API by wrk, beside a service that only parses and serialises.

use std::process::Command;

use crate::Outcome;
use crate::contender::Contender;
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};
use crate::{echo, pair};

pub fn against_baselines(effort: Effort) -> Outcome {
    if !has_wrk() {
        println!("HTTP is left out: there is no wrk on PATH (Debian: apt-get install wrk)\n");
        return Ok(Vec::new());
    }
    let (ours, echo) = (Contender::spillgate("--http")?, Contender::program(echo::FLAG)?);
    let crab = Contender::throttlecrab("http")?;
    let throttle = Script::new("throttle", THROTTLE)?;
    let one = Script::new("one", ONE)?;
    let hundred = Script::new("hundred", &format!("[{}]", vec![ONE; 100].join(",")))?;
    let run = |server: &Contender, path: &str, script: &Script, decisions: f64| {
        let mut command = Command::new("wrk");
        command.args(["-t2", "-c50", "-d1s", "-s", script.path()]);
        command.arg(format!("http://127.0.0.1:{}{path}", server.port));
        let run = server.run(&mut command, requests_a_second, requests);
        Run { figure: decisions * run.figure, store_us: run.store_us / decisions }
    };
    let mut contenders: Vec<Box<dyn FnMut() -> Run>> = vec![
        Box::new(|| run(&ours, "/v1/check", &one, 1.0)),
        Box::new(|| run(&echo, "/v1/check", &one, 1.0)),
        Box::new(|| run(&ours, "/v1/check/batch", &hundred, 100.0)),
    ];
    if let Some(crab) = &crab {
        contenders.push(Box::new(|| run(crab, "/throttle", &throttle, 1.0)));
    }
    let rounds = Rounds::of(effort, &mut contenders);
    let mut rows = Vec::new();
    let mut row = |measure: &str, ours: usize, baseline: usize, floor: Floor| {
        rows.extend(pair::rows(&rounds, measure, (ours, baseline), floor));
    };
    row("/v1/check, against an axum JSON echo", 0, 1, Floor::AtLeast(1.1));
    row("decisions of /v1/check/batch, 100 each, against one each", 2, 0, Floor::AtLeast(15.0));
    if crab.is_some() {
        row("/v1/check, against throttlecrab's /throttle", 0, 3, Floor::AtLeast(1.1));
    }
    Ok(vec![Table { title: "HTTP on memory, 50 connections, by wrk".to_owned(), rows }])
}

pub fn has_wrk() -> bool {
    Command::new("wrk").arg("-v").output().is_ok()
}

/// `Requests/sec:  12345.67`
pub fn requests_a_second(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok())
}

/// `  12345 requests in 1.00s, 5.67MB read`
pub fn requests(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok())
}

/// What a program reads, in a file that is gone at the end.
pub struct Script(String);

impl Script {
    fn new(name: &str, body: &str) -> std::io::Result<Script> {
        Script::of(&format!("{name}.lua"), &format!("{HEAD}wrk.body = [==[{body}]==]\n"))
    }

    /// Requests that differ by a number, which is drawn from so many.
    pub fn numbered(name: &str, body: &str, numbers: u32) -> std::io::Result<Script> {
        // Made once wrk knows whom it talks to, which requests name.
        let text = format!(
            "{HEAD}local bodies = {{}}
            function init()
                for i = 1, {numbers} do
                    bodies[i] = wrk.format(nil, nil, nil, string.format([==[{body}]==], i))
                end
            end
            function request() return bodies[math.random({numbers})] end"
        );
        Script::of(&format!("{name}.lua"), &text)
    }

    pub fn of(name: &str, text: &str) -> std::io::Result<Script> {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("spillgate-bench-{}-{name}", std::process::id()));
        std::fs::write(&path, text)?;
        Ok(Script(path.display().to_string()))
    }

    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // A leftover temporary file is no reason to fail a measurement.
        let _ = std::fs::remove_file(&self.0);
    }
}

const HEAD: &str = "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n";

const ONE: &str = r#"{"key":"user:42","limit":{"quota":"1000000/second"}}"#;

const THROTTLE: &str =
    r#"{"key":"user:42","max_burst":1000000,"count_per_period":1000000,"period":1}"#;
