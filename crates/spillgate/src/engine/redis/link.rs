//! The connection to one server: made off the path, one attempt at a time, every wait bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

use super::program::{Call, Reply};
use super::script::{self, Script};
use crate::engine::StoreError;
use crate::error::BuildError;

/// A connection that is made again when it breaks.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    timeout: Duration,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    open: ArcSwapOption<Open>,
    /// Whether somebody is connecting, or waiting to try again.
    connecting: AtomicBool,
    changed: Notify,
}

/// A connection that answered, and the script that its server takes.
struct Open {
    connection: MultiplexedConnection,
    script: &'static Script,
}

impl Link {
    pub(super) fn new(url: &str, timeout: Duration) -> Result<Link, BuildError> {
        let wrong = |why: String| BuildError::StoreUrl { url: redacted(url), why };
        if !url.starts_with("redis://") {
            return Err(wrong("only redis://host:port/db is known in this version".into()));
        }
        let client = Client::open(url)
            .map_err(|error| wrong(format!("{error}; write redis://host:port/db")))?;
        let shared = Shared {
            client,
            open: ArcSwapOption::empty(),
            connecting: AtomicBool::new(false),
            changed: Notify::new(),
        };
        Ok(Link { shared: Arc::new(shared), timeout })
    }

    /// Waits a moment for the first connection, so that the first decisions are the store's.
    pub(super) async fn warm_up(&self) {
        // Absent, the server is an outage, and found out by the first decision.
        let _ = tokio::time::timeout(WARM_UP, self.connected()).await;
    }

    /// Runs the script.
    pub(super) async fn run(&self, call: &Call<'_>) -> Result<Reply, StoreError> {
        let program = call.encoded();
        let deadline = tokio::time::Instant::now() + self.timeout;
        let open = self.open(deadline).await?;
        let command = |name: &str, script: &str| {
            let mut command = ::redis::cmd(name);
            command.arg(script).arg(call.keys().len());
            call.keys().iter().for_each(|key| {
                command.arg(&key[..]);
            });
            command.arg(&program[..]);
            command
        };
        let mut answer = self.send(&open, command("EVALSHA", &open.script.sha), deadline).await;
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
        {
            // Nothing ran, and EVAL cannot miss; it leaves the script behind for the next.
            answer = self.send(&open, command("EVAL", &open.script.text), deadline).await;
        }
        let Value::Array(values) = answer.map_err(|error| self.judged(&open, &error))? else {
            return Err(StoreError::Foreign("the script answered no list".into()));
        };
        let integers = values.into_iter().map(|value| match value {
            Value::Int(integer) => Ok(integer),
            other => Err(StoreError::Foreign(format!("the script answered {other:?}"))),
        });
        integers.collect::<Result<_, _>>().map(Reply::new)
    }

    /// Forgets keys.
    pub(super) async fn unlink(&self, keys: &[Vec<u8>]) -> Result<(), StoreError> {
        let deadline = tokio::time::Instant::now() + self.timeout;
        let open = self.open(deadline).await?;
        let mut command = ::redis::cmd("UNLINK");
        keys.iter().for_each(|key| {
            command.arg(&key[..]);
        });
        let answer = self.send(&open, command, deadline).await;
        answer.map(|_| ()).map_err(|error| self.judged(&open, &error))
    }

    async fn open(&self, deadline: tokio::time::Instant) -> Result<Arc<Open>, StoreError> {
        if let Some(open) = self.shared.open.load_full() {
            return Ok(open);
        }
        tokio::time::timeout_at(deadline, self.connected())
            .await
            .map_err(|_| StoreError::NotExecuted("not connected".into()))
    }

    async fn connected(&self) -> Arc<Open> {
        loop {
            let changed = self.shared.changed.notified();
            if let Some(open) = self.shared.open.load_full() {
                return open;
            }
            self.shared.connect();
            changed.await;
        }
    }

    async fn send(
        &self,
        open: &Open,
        command: Cmd,
        deadline: tokio::time::Instant,
    ) -> Result<Value, RedisError> {
        let mut connection = open.connection.clone();
        match tokio::time::timeout_at(deadline, connection.send_packed_command(&command)).await {
            Ok(answer) => answer.and_then(Value::extract_error),
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// What an error says of the call; a broken connection is dropped, for the next to be made.
    fn judged(&self, open: &Arc<Open>, error: &RedisError) -> StoreError {
        if error.is_io_error() || error.is_unrecoverable_error() {
            if !error.is_timeout() {
                self.shared.drop_open(open);
            }
            return StoreError::Unknown(error.to_string());
        }
        match error.code() {
            Some("CROSSSLOT" | "WRONGTYPE") => StoreError::Foreign(error.to_string()),
            _ => StoreError::NotExecuted(error.to_string()),
        }
    }
}

impl Shared {
    /// Connects in the background, unless somebody does already, until it succeeds.
    fn connect(self: &Arc<Self>) {
        if self.connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let mut pause = PAUSE_MIN;
            loop {
                match tokio::time::timeout(CONNECT, open(&shared.client)).await {
                    Ok(Ok(open)) => {
                        shared.open.store(Some(Arc::new(open)));
                        shared.connecting.store(false, Ordering::Release);
                        shared.changed.notify_waiters();
                        return;
                    }
                    _ if Arc::strong_count(&shared) == 1 => return,
                    _ => tokio::time::sleep(pause).await,
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    fn drop_open(&self, broken: &Arc<Open>) {
        let current = self.open.load();
        if current.as_ref().is_some_and(|open| Arc::ptr_eq(open, broken)) {
            self.open.store(None);
        }
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open(..)")
    }
}

/// A connection with the script loaded; which one shows whether the server knows `#!lua`. Every
/// wait on it is the caller's to bound.
async fn open(client: &Client) -> Result<Open, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    for script in [&*script::MARKED, &*script::PLAIN] {
        let loaded = ::redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(&script.text)
            .query_async::<String>(&mut connection)
            .await;
        match loaded {
            Ok(_) => return Ok(Open { connection, script }),
            Err(error) if error.is_io_error() => return Err(error),
            Err(_) => {}
        }
    }
    // A user who may not load may still run: EVAL tells.
    Ok(Open { connection, script: &script::PLAIN })
}

/// A url without its credentials.
fn redacted(url: &str) -> String {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    match url[scheme..].rfind('@') {
        Some(at) => format!("{}***{}", &url[..scheme], &url[scheme + at..]),
        None => url.to_owned(),
    }
}

/// A server that answers at all answers a hello within this.
const CONNECT: Duration = Duration::from_secs(1);
/// A start is not held up longer by a store that is not there.
const WARM_UP: Duration = Duration::from_secs(1);
/// Commands under way on one connection before callers wait.
const PIPELINE: usize = 1_024;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
