//! One connection to a server, over TCP, TLS or a Unix socket.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use ::redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

use super::access::Connector;
use super::address::{Address, At, Host};
use super::failure::Failure;

mod line;
mod pulse;
mod reply;

pub(crate) use line::Held;
use line::{Line, line};
pub(crate) use pulse::Pulse;
pub(crate) use reply::WireReply;

/// A connection. It is closed when this is dropped.
pub(crate) struct Wire {
    pub(crate) line: Arc<Line>,
    reader: AbortHandle,
}

impl Wire {
    /// Sends one command and returns the reply. All callers share the connection. The caller must bound the wait.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<WireReply> {
        self.line.send(&command.get_packed_command(), 1).await
    }

    /// Returns whether the connection has ended, or broke. Commands on it fail unsent.
    pub(crate) fn is_closed(&self) -> bool {
        self.reader.is_finished()
    }

    /// Sends one command and returns its value. The caller must bound the wait.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        let answer = self.send(command).await;
        answer.map(WireReply::value).map_err(|error| Failure::from_error(&error))
    }
}

/// Without this, the reader would wait for replies that a dead server never sends.
impl Drop for Wire {
    fn drop(&mut self) {
        self.reader.abort();
        self.line.close();
    }
}

/// Connects and logs in. The caller must bound the wait.
pub async fn dial(address: &Address, tls: &Connector) -> RedisResult<Wire> {
    match &address.at {
        At::Tcp(host) => {
            #[cfg(feature = "simulation")]
            if let Some(dialled) = crate::simulation::dial(&host.name, host.port) {
                // A simulated connection has no socket that the kernel knows of.
                return log_in(address, dialled.await?, None).await;
            }
            let stream = tcp(host).await?;
            let socket = duplicate(&stream)?;
            log_in(address, stream, Some(socket)).await
        }
        At::Tls(host) => {
            let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
            let stream = tcp(host).await?;
            let socket = duplicate(&stream)?;
            log_in(address, tls.get().connect(name, stream).await?, Some(socket)).await
        }
        At::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            let socket = duplicate(&stream)?;
            log_in(address, stream, Some(socket)).await
        }
    }
}

/// Duplicates the descriptor of a socket. That of a Unix socket peeks as one of TCP does.
fn duplicate(socket: &impl AsFd) -> io::Result<std::net::TcpStream> {
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

async fn tcp(host: &Host) -> Result<TcpStream, RedisError> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    // A call is one small write, and the caller waits for its reply: delaying it to fill a packet helps nothing.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends user, password and database before anything else.
async fn log_in<S>(
    address: &Address,
    stream: S,
    socket: Option<std::net::TcpStream>,
) -> RedisResult<Wire>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (line, reader) = line(stream, socket);
    // The wire exists from here on, so that its drop stops the reader if the login fails or takes too long.
    let reader = tokio::spawn(reader).abort_handle();
    let wire = Wire { line, reader };
    let login = address.login.get();
    if let Some(password) = login.password() {
        let mut auth = redis::cmd("AUTH");
        auth.arg(login.username()).arg(password);
        let answer = wire.send(&auth).await;
        // Only the code of the error, since a server that does not know the command quotes the password.
        let code = |error: &RedisError| error.code().unwrap_or_default().to_owned();
        refused(answer, ErrorKind::AuthenticationFailed, "the server refuses the password", code)?;
    }
    if login.db() != 0 {
        let answer = wire.send(redis::cmd("SELECT").arg(login.db())).await;
        let text = RedisError::to_string;
        refused(answer, ErrorKind::InvalidClientConfig, "the server refuses the database", text)?;
    }
    Ok(wire)
}

/// Replaces an error that the server returned, since at login it has another meaning than in a call.
fn refused(
    answer: RedisResult<WireReply>,
    kind: ErrorKind,
    what: &'static str,
    why: impl Fn(&RedisError) -> String,
) -> RedisResult<()> {
    answer.map(drop).map_err(|error| match error.code() {
        Some(_) => (kind, what, why(&error)).into(),
        None => error,
    })
}
