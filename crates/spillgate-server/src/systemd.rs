//! Reports the state of the service to its manager, by the protocol of `sd_notify`: ready, reloading, stopping.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A report that cannot be sent is logged and lost: a broken manager must not
//! keep the service from starting.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use nix::time::ClockId;

/// The manager that started this process, if it asked for reports. Clones report to the same manager.
#[derive(Clone, Default)]
pub(crate) struct Manager(Option<Arc<(UnixDatagram, SocketAddr)>>);

impl Manager {
    pub(crate) fn from_environment() -> Manager {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Manager::default();
        };
        match open(&name) {
            Ok(socket) => Manager(Some(Arc::new(socket))),
            Err(error) => {
                tracing::warn!(target: "spillgate", "NOTIFY_SOCKET: cannot open the socket: {error}");
                Manager::default()
            }
        }
    }

    /// Reports that every listener is open, or that a reload is over.
    pub(crate) fn ready(&self, status: &str) {
        // Each line of a report is a field of its own.
        self.send(&format!("READY=1\nSTATUS={}", status.replace('\n', "; ")));
    }

    /// Reports that a reload has begun. systemd distinguishes reloads by the instant.
    pub(crate) fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_us()));
    }

    /// Reports that the service takes no new connections.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, state: &str) {
        let Some(manager) = &self.0 else { return };
        let (socket, address) = &**manager;
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(target: "spillgate", "NOTIFY_SOCKET: cannot send {state:?}: {error}");
        }
    }
}

/// Returns the time by the clock that the protocol names; 0 if the system has none.
fn monotonic_us() -> u128 {
    ClockId::CLOCK_MONOTONIC.now().map_or(0, |now| Duration::from(now).as_micros())
}

/// Opens a socket to an address: a path, or with an `@` in front a name in the abstract namespace.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_encoded_bytes() {
        [b'@', name @ ..] => abstract_address(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not block this process.
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
