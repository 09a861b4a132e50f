//! What the service's manager is told, by the protocol of `sd_notify`: ready, reading again, stopping.
//!
//! Where `NOTIFY_SOCKET` names no socket nobody is told. A message that cannot be sent is lost: no
//! manager is worth a door that does not open.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use nix::time::ClockId;

/// Whoever started us and wants to know. Clones tell the same one.
#[derive(Clone, Default)]
pub(crate) struct Manager(Option<Arc<(UnixDatagram, SocketAddr)>>);

impl Manager {
    pub(crate) fn of_environment() -> Manager {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Manager::default();
        };
        match open(&name) {
            Ok(told) => Manager(Some(Arc::new(told))),
            Err(error) => {
                tracing::warn!(target: "spillgate", "NOTIFY_SOCKET: cannot be told anything: {error}");
                Manager::default()
            }
        }
    }

    /// Every door listens, or a reload is over.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", in_one_line(status)));
    }

    /// A reload that was asked for has begun: the instant tells it from those before.
    pub(crate) fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_us()));
    }

    /// No new callers.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, state: &str) {
        let Some(told) = &self.0 else { return };
        let (socket, address) = &**told;
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(target: "spillgate", "NOTIFY_SOCKET: not told {state:?}: {error}");
        }
    }
}

/// Returns the time by the clock that the protocol names; 0 if the system has none.
fn monotonic_us() -> u128 {
    ClockId::CLOCK_MONOTONIC.now().map_or(0, |now| Duration::from(now).as_micros())
}

/// A path, or with an `@` in front a name that is in no file system.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_encoded_bytes() {
        [b'@', name @ ..] => abstract_address(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read holds nobody up.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Each line of a message is a field of its own.
fn in_one_line(text: &str) -> String {
    text.replace('\n', "; ")
}
