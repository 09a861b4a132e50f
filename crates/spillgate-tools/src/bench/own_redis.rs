//! Runs a redis-server that the outage scenario may kill, so that no other server is killed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Failure;

/// A redis-server in memory, on a free port of this machine; killed when it is dropped.
pub(super) struct OwnRedis {
    process: Child,
    port: u16,
}

impl OwnRedis {
    pub(super) async fn start() -> Result<OwnRedis, Failure> {
        let mut why = "no port is free".into();
        for _ in 0..PORTS_TRIED {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            match OwnRedis::start_on(port).await {
                Ok(redis) => return Ok(redis),
                Err(failure) => why = failure,
            }
        }
        Err(why)
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills the server by SIGKILL: all that it held is lost.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts an empty server on the same port.
    pub(super) async fn restart(&mut self) -> Result<(), Failure> {
        let again = OwnRedis::start_on(self.port).await?;
        // The old process has ended already; dropping its handle kills nothing.
        *self = again;
        Ok(())
    }

    async fn start_on(port: u16) -> Result<OwnRedis, Failure> {
        let process = Command::new(PROGRAM)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C reaches the bench only: it reports its results and then ends this server.
            .process_group(0)
            .spawn();
        let process = process.map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!(
                "the scenario outage kills a {PROGRAM} that it started itself, and there is none on PATH; install it \
                     (Debian: apt-get install redis-server)"
            ),
            _ => format!("{PROGRAM}: {error}"),
        })?;
        let mut redis = OwnRedis { process, port };
        for _ in 0..PATIENCE.as_millis() / BETWEEN_LOOKS.as_millis() {
            if answers_ping(port) {
                return Ok(redis);
            }
            if let Some(status) = redis.process.try_wait()? {
                return Err(format!("{PROGRAM} on port {port} ended at once: {status}").into());
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(format!(
            "{PROGRAM} on port {port} did not answer PING within {} s; is the machine busy?",
            PATIENCE.as_secs()
        )
        .into())
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn answers_ping(port: u16) -> bool {
    let ping = || -> std::io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, BETWEEN_LOOKS)?;
        stream.set_read_timeout(Some(BETWEEN_LOOKS))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply)?;
        Ok(&reply == b"+PONG")
    };
    ping().unwrap_or(false)
}

const PROGRAM: &str = "redis-server";
/// Another process rarely takes a free port in between, so a few tries suffice.
const PORTS_TRIED: usize = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);
/// The server must answer within this time.
const PATIENCE: Duration = Duration::from_secs(10);
