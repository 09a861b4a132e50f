//! Puts a server into each state in which a healthy process refuses to serve, for real, and back.

use std::fs;
use std::time::Duration;

use crate::poll::{PATIENCE, poll};
use crate::port::free_port;
use crate::redis_server::RedisServer;
use crate::resp::{Connection, Reply};

impl RedisServer {
    /// Makes the server answer `OOM` to commands that take memory, under the policy `noeviction`.
    ///
    /// # Panics
    /// As [`command`](Self::command). The functions below panic likewise.
    #[track_caller]
    pub fn run_out_of_memory(&self) {
        self.set("maxmemory-policy", "noeviction");
        self.set("maxmemory", "1");
    }

    /// Removes the bound on memory.
    #[track_caller]
    pub fn find_memory(&self) {
        self.set("maxmemory", "0");
    }

    /// Makes the server answer `MISCONF` to writes, scripts that write and PING, as after a failed snapshot.
    ///
    /// # Panics
    /// When the server does not notice the failure within ten seconds.
    #[track_caller]
    pub fn fail_to_save(&self) {
        // One snapshot an hour if anything changed: failures count, and none is taken meanwhile.
        self.set("save", "3600 1");
        let in_the_way = self.folder().join("dump.rdb").join("in-the-way");
        fs::create_dir_all(in_the_way).expect("the server's folder is ours to write to");
        self.save_in_background("err");
    }

    /// Makes snapshots succeed again.
    ///
    /// # Panics
    /// When the server does not notice it within ten seconds.
    #[track_caller]
    pub fn save_again(&self) {
        fs::remove_dir_all(self.folder().join("dump.rdb")).expect("it was made by `fail_to_save`");
        self.save_in_background("ok");
        self.set("save", "");
        let _ = fs::remove_file(self.folder().join("dump.rdb"));
    }

    /// Makes the server answer `READONLY` to writes: it follows a server that does not exist, like an old primary
    /// after a failover.
    #[track_caller]
    pub fn become_a_replica(&self) {
        self.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    }

    /// Makes the server take writes again.
    #[track_caller]
    pub fn become_a_primary(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Makes the server answer `NOREPLICAS` to writes: it wants this many replicas, and has none.
    #[track_caller]
    pub fn demand_replicas(&self, count: u8) {
        self.set("min-replicas-to-write", &count.to_string());
    }

    /// Restarts the server with data that takes about `time` to load; until then it answers `LOADING` to everything.
    ///
    /// # Panics
    /// When it does not begin to load within ten seconds.
    #[track_caller]
    pub fn restart_loading(&mut self, time: Duration) {
        let mut connection = self.connect();
        let value = "x".repeat(LOADED_VALUE);
        for key in 0..LOADED_KEYS {
            connection.command(&["SET", &format!("key:{key}"), &value]).expect("the server runs");
        }
        self.set("rdbcompression", "no");
        connection.command(&["SAVE"]).expect("the server runs");
        let each_us = (time.as_micros() / u128::from(LOADED_KEYS)).to_string();
        let look_up_every = format!("--{LOOK_UP_EVERY}");
        let mut slowly = vec!["--key-load-delay", &each_us];
        let known = self.command(&["CONFIG", "GET", LOOK_UP_EVERY]);
        if known != Reply::Array(Vec::new()) {
            slowly.extend([look_up_every.as_str(), "1024"]);
        }
        self.restart_with(
            &slowly,
            |reply| matches!(reply, Reply::Error(text) if text.starts_with("LOADING")),
        );
        // The data is loaded; without its file the next restart is empty again.
        let _ = fs::remove_file(self.folder().join("dump.rdb"));
    }

    /// Keeps the server busy with a script that never ends, until the returned value is dropped. It answers nothing
    /// for `silent`, and `BUSY` from then on.
    #[track_caller]
    #[must_use]
    pub fn keep_busy(&self, silent: Duration) -> BusyServer {
        // The older name, which newer servers have too.
        self.set("lua-time-limit", &silent.as_millis().to_string());
        let mut endless = self.connect();
        endless.send(&["EVAL", "while true do end", "0"]).expect("the server runs");
        // The script has begun once PING gets no answer.
        let begun = poll(PATIENCE, || {
            let mut connection = Connection::open(self.port()).ok()?;
            connection.set_patience(Duration::from_millis(5)).ok()?;
            let answer = connection.command(&["PING"]);
            (!matches!(answer, Ok(Reply::Status(_)))).then_some(())
        });
        assert!(begun.is_some(), "{} goes on answering", self.url());
        BusyServer { port: self.port(), _endless: endless }
    }

    /// Adds a user with the rights of `rules`, in the syntax of `ACL SETUSER`, and returns the URL to connect as that
    /// user.
    ///
    /// # Panics
    /// When the server does not take the rules.
    #[track_caller]
    #[must_use]
    pub fn url_of_user(&self, name: &str, password: &str, rules: &[&str]) -> String {
        let secret = format!(">{password}");
        let words = [&["ACL", "SETUSER", name, "reset", "on", &secret], rules].concat();
        assert_eq!(self.command(&words), Reply::Status("OK".into()), "{words:?}");
        format!("redis://{name}:{password}@127.0.0.1:{}", self.port())
    }

    /// Sends `CONFIG SET`.
    ///
    /// # Panics
    /// When the server refuses it.
    #[track_caller]
    pub fn set(&self, setting: &str, value: &str) {
        let reply = self.command(&["CONFIG", "SET", setting, value]);
        assert_eq!(reply, Reply::Status("OK".into()), "{setting} {value}");
    }

    /// Returns a field of `INFO`.
    ///
    /// # Panics
    /// When the server has no such field.
    #[track_caller]
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> String {
        let found = self.info_if_any(section, field);
        found.unwrap_or_else(|| panic!("no {field} in INFO {section} of {}", self.url()))
    }

    /// Returns a field of `INFO`, or `None` if the server has no such field: a primary has no link to a primary.
    #[track_caller]
    pub(crate) fn info_if_any(&self, section: &str, field: &str) -> Option<String> {
        let reply = self.command(&["INFO", section]);
        let named = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned());
        reply.text().lines().find_map(named)
    }

    #[track_caller]
    fn save_in_background(&self, outcome: &str) {
        self.command(&["BGSAVE"]);
        let done = poll(PATIENCE, || {
            let running = self.info("persistence", "rdb_bgsave_in_progress");
            let last = self.info("persistence", "rdb_last_bgsave_status");
            (running == "0" && last == outcome).then_some(())
        });
        assert!(done.is_some(), "BGSAVE on {} did not end as {outcome}", self.url());
    }
}

/// A server that runs an endless script; killed on drop (the script, not the server).
#[derive(Debug)]
pub struct BusyServer {
    port: u16,
    _endless: Connection,
}

impl Drop for BusyServer {
    fn drop(&mut self) {
        // The server does not even accept this before it was silent for long enough.
        poll(PATIENCE, || {
            let mut connection = Connection::open(self.port).ok()?;
            connection.command(&["SCRIPT", "KILL"]).ok()?;
            // The script ends a moment after the command.
            match connection.command(&["PING"]).ok()? {
                Reply::Error(text) if text.starts_with("BUSY") => None,
                _ => Some(()),
            }
        });
    }
}

/// The setting after how many bytes of loading a server looks at its sockets. The default is two million, and Redis
/// 6.2 does not have the setting.
const LOOK_UP_EVERY: &str = "loading-process-events-interval-bytes";

/// Enough data that the server looks at its sockets several times with the default.
const LOADED_KEYS: u32 = 256;
const LOADED_VALUE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_refuses(server: &RedisServer, code: &str) {
        let reply = server.command(&["SET", "key", "value"]);
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with(code)), "{reply:?}");
    }

    #[track_caller]
    fn assert_serves(server: &RedisServer) {
        assert_eq!(server.command(&["SET", "key", "value"]).text(), "OK");
    }

    #[test]
    fn each_trouble_has_its_code_on_every_version_and_can_be_undone() {
        for version in RedisServer::versions() {
            println!("{}", version.name);
            let mut server = RedisServer::start_with(&version.path, &[]);
            server.run_out_of_memory();
            assert_refuses(&server, "OOM");
            server.find_memory();
            assert_serves(&server);

            server.fail_to_save();
            assert_refuses(&server, "MISCONF");
            server.save_again();
            assert_serves(&server);

            server.become_a_replica();
            assert_refuses(&server, "READONLY");
            server.become_a_primary();
            assert_serves(&server);

            server.demand_replicas(1);
            assert_refuses(&server, "NOREPLICAS");
            server.demand_replicas(0);
            assert_serves(&server);

            let busy = server.keep_busy(Duration::from_millis(50));
            poll(PATIENCE, || matches!(server.command(&["PING"]), Reply::Error(_)).then_some(()));
            assert_refuses(&server, "BUSY");
            drop(busy);
            assert_serves(&server);

            server.restart_loading(Duration::from_millis(500));
            assert_refuses(&server, "LOADING");
            let loaded = poll(PATIENCE, || {
                (server.command(&["PING"]) == Reply::Status("PONG".into())).then_some(())
            });
            assert!(loaded.is_some());
            assert_serves(&server);
            server.restart();
            assert_eq!(server.command(&["DBSIZE"]).integer(), 0);
        }
    }

    #[test]
    fn a_user_has_exactly_the_rights_of_the_rules() {
        let server = RedisServer::start();
        let url = server.url_of_user("reader", "secret", &["+get", "~open:*"]);
        assert_eq!(url, format!("redis://reader:secret@127.0.0.1:{}", server.port()));
        let mut connection = server.connect();
        assert_eq!(connection.command(&["AUTH", "reader", "secret"]).unwrap().text(), "OK");
        assert_eq!(connection.command(&["GET", "open:1"]).unwrap(), Reply::Nil);
        for refused in [["GET", "shut:1"], ["INCR", "open:1"]] {
            let reply = connection.command(&refused).unwrap();
            assert!(
                matches!(&reply, Reply::Error(text) if text.starts_with("NOPERM")),
                "{reply:?}"
            );
        }
    }
}
