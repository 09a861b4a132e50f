//! One connection to one server, made over TCP, TLS or a Unix socket.

use std::io;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, RedisError, RedisResult, Value};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::address::{Address, At, Host};
use super::failure::Failure;

/// A connection, closed when the last of those who use it lets go.
pub(super) struct Wire {
    connection: MultiplexedConnection,
    driver: AbortHandle,
}

impl Wire {
    /// To send on; commands of all who hold one share the wire.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// One command. The wait is the caller's to bound.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        let answer = self.connection().send_packed_command(command).await;
        answer.and_then(Value::extract_error).map_err(|error| Failure::of(&error))
    }
}

/// A driver by itself would wait for answers that a dead server owes.
impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Connects and logs in. Every wait on the way is the caller's to bound.
pub(super) async fn dial(address: &Address, tls: &TlsConnector) -> RedisResult<Wire> {
    match &address.at {
        At::Tcp(host) => {
            #[cfg(feature = "simulation")]
            if let Some(dialled) = crate::simulation::dial(&host.name, host.port) {
                return log_in(address, dialled.await?).await;
            }
            log_in(address, tcp(host).await?).await
        }
        At::Tls(host) => {
            let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
            log_in(address, tls.connect(name, tcp(host).await?).await?).await
        }
        At::Unix(path) => log_in(address, UnixStream::connect(path).await?).await,
    }
}

async fn tcp(host: &Host) -> Result<TcpStream, RedisError> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    // A call is one small write, and its caller waits for nothing else.
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn log_in<S>(address: &Address, stream: S) -> RedisResult<Wire>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Deadlines are the callers'.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&address.login, stream, config).await?;
    let driver = tokio::spawn(driver).abort_handle();
    Ok(Wire { connection, driver })
}

/// Commands under way on one connection before callers wait.
const PIPELINE: usize = 1_024;
