//! The listening sockets that a service manager has opened and passed to this process. They outlive it, so that clients
//! wait during a restart instead of being refused, and several instances can accept from one.

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use nix::sys::socket::{getsockopt, sockopt::AcceptConn};

use super::overlap;

/// The sockets that no listener has taken yet, with their addresses.
pub(crate) struct PassedSockets(Vec<(SocketAddr, TcpListener)>);

impl PassedSockets {
    /// Takes the sockets that `LISTEN_FDS` announces.
    ///
    /// # Errors
    ///
    /// If one of them is not a TCP socket that listens, or two have the same address.
    pub(crate) fn from_environment() -> Result<PassedSockets, String> {
        let mut passed = ListenFd::from_env();
        let mut sockets: Vec<(SocketAddr, TcpListener)> = Vec::new();
        let wrong = |error: &dyn std::fmt::Display| {
            format!("the service manager passed a socket that cannot be used: {error}; {REMEDY}")
        };
        for place in 0..passed.len() {
            let socket = passed.take_tcp_listener(place).map_err(|error| wrong(&error))?;
            let socket = socket.expect("each place is taken once");
            let address = socket.local_addr().map_err(|error| wrong(&error))?;
            // A socket that does not listen, such as that of one connection, would never accept any.
            if !getsockopt(&socket, AcceptConn).map_err(|error| wrong(&error))? {
                return Err(wrong(&format_args!("{address} does not listen")));
            }
            if sockets.iter().any(|(other, _)| *other == address) {
                return Err(wrong(&format_args!("{address} is passed twice")));
            }
            socket.set_nonblocking(true).map_err(|error| wrong(&error))?;
            sockets.push((address, socket));
        }
        Ok(PassedSockets(sockets))
    }

    /// Takes the socket of an address, if one was passed.
    pub fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let place = self.0.iter().position(|(of, _)| *of == address)?;
        Some(self.0.swap_remove(place).1)
    }

    /// Returns the address of a socket that keeps this one from being opened.
    pub fn in_the_way_of(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.0.iter().map(|(of, _)| *of).find(|of| overlap(*of, address))
    }

    /// Refuses sockets that no listener has taken: their clients would never get an answer.
    pub(crate) fn all_taken(&self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((address, _)) => Err(format!(
                "the service manager passed a socket that listens on {address}, and no listener has this address; \
                 correct ListenStream, or name the address under [server]"
            )),
        }
    }
}

const REMEDY: &str =
    "in its unit, write ListenStream=ADDRESS:PORT for each listener, and leave out Accept=yes";
