//! Servers whose clocks can be stepped, each by itself, by libfaketime.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::folder::Folder;
use crate::launch::Launch;
use crate::poll::{PATIENCE, poll, wall_us};
use crate::redis_server::{RedisServer, ServerVersion};

/// A server with a wall clock of its own; its timers are not affected.
#[derive(Debug)]
pub struct SteppedServer {
    /// The server.
    pub server: RedisServer,
    /// The name in messages.
    pub name: &'static str,
    clock: SteppedClock,
}

/// The clock of a server that another value owns.
#[derive(Debug)]
pub struct SteppedClock {
    file: PathBuf,
}

impl SteppedServer {
    /// Starts a server whose clock equals this machine's until it is stepped.
    ///
    /// # Errors
    /// When libfaketime is missing, or a server that works with it. Debian's own, whose memory allocator is a
    /// library, hangs with it.
    ///
    /// # Panics
    /// As [`RedisServer::start_with`].
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Result<Self, String> {
        let version = RedisServer::versions().into_iter().nth(1).ok_or(NO_SERVER)?;
        Self::start_version(&version, arguments)
    }

    /// Starts one server of every installed version that works with it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`RedisServer::start_with`].
    #[track_caller]
    pub fn start_each(arguments: &[&str]) -> Result<Vec<Self>, String> {
        let versions: Vec<ServerVersion> = RedisServer::versions().into_iter().skip(1).collect();
        if versions.is_empty() {
            return Err(NO_SERVER.to_owned());
        }
        versions.iter().map(|version| Self::start_version(version, arguments)).collect()
    }

    /// Sets its clock ahead of this machine's, or behind it, by this much from now on.
    ///
    /// # Panics
    /// When the server does not see the change within ten seconds.
    #[track_caller]
    pub fn set_ahead_by_ms(&self, offset_ms: i64) {
        self.clock.set_ahead_by_ms(&self.server, offset_ms);
    }

    /// Splits the server from its clock.
    #[must_use]
    pub fn split(self) -> (RedisServer, SteppedClock) {
        (self.server, self.clock)
    }

    /// Returns the time of its clock, in microseconds since the epoch.
    ///
    /// # Panics
    /// As [`RedisServer::command`].
    #[track_caller]
    #[must_use]
    pub fn now_us(&self) -> i64 {
        now_us(&self.server)
    }

    /// Starts a server of this version.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// As [`RedisServer::start_with`].
    #[track_caller]
    pub fn start_version(version: &ServerVersion, arguments: &[&str]) -> Result<Self, String> {
        let library = library().ok_or(NO_LIBRARY)?;
        let folder = Folder::create();
        let file = folder.0.join("clock");
        write_offset(&file, 0);
        let mut launch = Launch::new(&version.path, arguments);
        launch.environment = vec![
            ("LD_PRELOAD", library.into()),
            ("FAKETIME_TIMESTAMP_FILE", file.clone().into()),
            // Read at every reading of the clock, and not every ten seconds.
            ("FAKETIME_NO_CACHE", OsString::from("1")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", OsString::from("1")),
        ];
        let server = RedisServer::launch(launch, folder);
        Ok(Self { server, name: version.name, clock: SteppedClock { file } })
    }
}

impl SteppedClock {
    /// Sets the clock as [`SteppedServer::set_ahead_by_ms`] does.
    ///
    /// # Panics
    /// When the server does not see the change within ten seconds.
    #[track_caller]
    pub fn set_ahead_by_ms(&self, server: &RedisServer, offset_ms: i64) {
        write_offset(&self.file, offset_ms);
        // Some servers read the clock once for many commands.
        let seen = poll(PATIENCE, || {
            let ahead_ms = (now_us(server) - wall_us()) / 1_000;
            (ahead_ms.abs_diff(offset_ms) < ROUGHLY_MS).then_some(())
        });
        assert!(seen.is_some(), "the server does not see its clock stepped");
    }
}

#[track_caller]
fn now_us(server: &RedisServer) -> i64 {
    let crate::Reply::Array(time) = server.command(&["TIME"]) else {
        panic!("TIME answers a list")
    };
    time[0].integer() * 1_000_000 + time[1].integer()
}

/// Replaces the file as a whole, since the server may read it at any moment.
#[track_caller]
fn write_offset(file: &Path, offset_ms: i64) {
    let sign = if offset_ms < 0 { '-' } else { '+' };
    let (seconds, ms) = (offset_ms.unsigned_abs() / 1_000, offset_ms.unsigned_abs() % 1_000);
    let new = file.with_extension("new");
    let written = std::fs::write(&new, format!("{sign}{seconds}.{ms:03}\n"));
    written.and_then(|()| std::fs::rename(&new, file)).expect("the server's folder is ours");
}

/// Finds the library where system packages install it: in a folder named by the machine's architecture.
fn library() -> Option<PathBuf> {
    let folders =
        ["/usr/lib", "/usr/lib64"].into_iter().filter_map(|top| std::fs::read_dir(top).ok());
    let inside = folders.flatten().filter_map(|entry| Some(entry.ok()?.path()));
    inside
        .chain(["/usr/lib", "/usr/lib64"].map(PathBuf::from))
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.is_file())
}

/// The most that the TIME command itself may take.
const ROUGHLY_MS: u64 = 500;

const NO_LIBRARY: &str = "libfaketime is not installed: ./check --full installs it";
const NO_SERVER: &str = "no installed server works with libfaketime: ./check --full installs one";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs faketime"]
    fn a_stepped_clock_affects_its_server_alone() {
        for stepped in SteppedServer::start_each(&[]).unwrap() {
            println!("{}", stepped.name);
            let before_us = stepped.now_us();
            for offset_ms in [3_600_000, -30_500, 0] {
                stepped.set_ahead_by_ms(offset_ms);
                let moved_ms = (stepped.now_us() - before_us) / 1_000;
                let passed_ms = moved_ms - offset_ms;
                assert!((0..10_000).contains(&passed_ms), "{offset_ms}: {moved_ms}");
            }
        }
    }
}
