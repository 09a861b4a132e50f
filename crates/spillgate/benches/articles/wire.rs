//! Sending a script's text in every call against sending its hash: bytes on the wire, and calls per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{AsyncConnectionConfig, Client, cmd};
use spillgate_redis::script_text;
use spillgate_testkit::RedisServer;

use crate::Outcome;
use crate::baseline::TOKEN_BUCKET;
use crate::grid::{Grid, micros, rounded};
use crate::load::{drive, info, key, runtime};
use crate::rounds::{Effort, Rounds, Run};

pub fn eval_against_evalsha(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let short = TOKEN_BUCKET.to_owned();
    let comment = "-- a comment of usual length, which the server only receives and hashes\n";
    let missing = script_text().len().saturating_sub(short.len()) / comment.len();
    let long = comment.repeat(missing) + &short;
    let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(1_024);
    let client = Client::open(server.url())?;
    let connection =
        runtime.block_on(client.get_multiplexed_async_connection_with_config(&config))?;
    let mut loaded = connection.clone();
    let mut load = |text: &str| -> Result<String, redis::RedisError> {
        runtime.block_on(cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut loaded))
    };
    let ways = [
        (format!("EVALSHA, {} bytes of script", short.len()), "EVALSHA", load(&short)?),
        (format!("EVAL, {} bytes of script", short.len()), "EVAL", short),
        (format!("EVALSHA, {} bytes of script, as ours", long.len()), "EVALSHA", load(&long)?),
        (format!("EVAL, {} bytes of script, as ours", long.len()), "EVAL", long),
    ];
    let sent = std::cell::RefCell::new(vec![0.0; ways.len()]);
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for (place, (_, command, script)) in ways.iter().enumerate() {
        let (server, runtime, connection, sent) = (&server, &runtime, &connection, &sent);
        let command: &'static str = command;
        contenders.push(Box::new(move || {
            let before = info(server, "stats", "total_net_input_bytes");
            let calls = Arc::new(AtomicU64::new(0));
            let (connection, script, counted) = (connection.clone(), script.clone(), calls.clone());
            let run = drive(runtime, server, CALLERS, effort.span, move |caller, call| {
                let (mut connection, script) = (connection.clone(), script.clone());
                counted.fetch_add(1, Ordering::Relaxed);
                async move {
                    let mut command = cmd(command);
                    command.arg(script).arg(1).arg(key(caller, call)).arg(10_000).arg(2_000_000);
                    command.exec_async(&mut connection).await.expect("the server answers");
                    1
                }
            });
            let bytes = info(server, "stats", "total_net_input_bytes") - before;
            sent.borrow_mut()[place] = bytes / calls.load(Ordering::Relaxed).max(1) as f64;
            run
        }));
    }
    let rounds = Rounds::of(effort, &mut contenders);
    drop(contenders);
    let rows = ways.iter().enumerate().map(|(place, (name, ..))| {
        vec![
            name.clone(),
            format!("{:.0}", sent.borrow()[place]),
            rounded(rounds.figure(place)),
            micros(rounds.store_us(place)),
            format!("{:.2}", rounds.figure_ratio(place, 0).median),
        ]
    });
    Ok(vec![Grid {
        title: format!("A script by its text or by its hash, {CALLERS} callers"),
        heads: vec!["way", "bytes sent per call", "calls a second", "Redis CPU each", "ratio"],
        rows: rows.collect(),
    }])
}

const CALLERS: usize = 64;
