//! A server that answers and will not serve: each state in which a healthy process refuses, made
//! for real, and undone.

use std::fs;
use std::time::Duration;

use crate::poll::{PATIENCE, poll};
use crate::port::free_port;
use crate::redis_server::RedisServer;
use crate::resp::{Connection, Reply};

impl RedisServer {
    /// From now on `OOM` for what would take memory, under the policy `noeviction`.
    ///
    /// # Panics
    /// As [`command`](Self::command), here and below.
    #[track_caller]
    pub fn run_out_of_memory(&self) {
        self.set("maxmemory-policy", "noeviction");
        self.set("maxmemory", "1");
    }

    /// Memory without a bound again.
    #[track_caller]
    pub fn find_memory(&self) {
        self.set("maxmemory", "0");
    }

    /// From now on `MISCONF` for writes, scripts that write and PING: a snapshot could not be
    /// written.
    ///
    /// # Panics
    /// When the server does not notice within ten seconds.
    #[track_caller]
    pub fn fail_to_save(&self) {
        // Once an hour, if anything changed: enough for a failure to count, and none comes by itself.
        self.set("save", "3600 1");
        let in_the_way = self.folder().join("dump.rdb").join("in-the-way");
        fs::create_dir_all(in_the_way).expect("the server's folder is ours to write to");
        self.save_in_background("err");
    }

    /// Snapshots succeed again.
    ///
    /// # Panics
    /// When the server does not notice within ten seconds.
    #[track_caller]
    pub fn save_again(&self) {
        fs::remove_dir_all(self.folder().join("dump.rdb")).expect("it was made by `fail_to_save`");
        self.save_in_background("ok");
        self.set("save", "");
        let _ = fs::remove_file(self.folder().join("dump.rdb"));
    }

    /// From now on `READONLY` for writes: it follows a server that is not there, as an old primary
    /// does after a failover.
    #[track_caller]
    pub fn become_a_replica(&self) {
        self.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    }

    /// Takes writes again.
    #[track_caller]
    pub fn become_a_primary(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// From now on `NOREPLICAS` for writes: as many replicas are wanted, and there are none.
    #[track_caller]
    pub fn demand_replicas(&self, count: u8) {
        self.set("min-replicas-to-write", &count.to_string());
    }

    /// Restarts it with data that takes about `time` to load: until then `LOADING` for everything.
    ///
    /// # Panics
    /// When it does not begin within ten seconds.
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
        let mut slowly = vec!["--key-load-delay", &each_us];
        let known = self.command(&["CONFIG", "GET", LOOK_UP_EVERY]);
        if known != Reply::Array(Vec::new()) {
            slowly.extend(["--loading-process-events-interval-bytes", "1024"]);
        }
        self.restart_with(
            &slowly,
            |reply| matches!(reply, Reply::Error(text) if text.starts_with("LOADING")),
        );
        // Read already; the next restart is an empty one again.
        let _ = fs::remove_file(self.folder().join("dump.rdb"));
    }

    /// Keeps it busy with a script that never ends, until the answer is dropped: nothing is
    /// answered for `silent`, and `BUSY` from then on.
    #[track_caller]
    #[must_use]
    pub fn keep_busy(&self, silent: Duration) -> BusyServer {
        // The older name, which the newer servers know too.
        self.set("lua-time-limit", &silent.as_millis().to_string());
        let mut endless = self.connect();
        endless.send(&["EVAL", "while true do end", "0"]).expect("the server runs");
        // Once nobody is answered, it has begun.
        let begun = poll(PATIENCE, || {
            let mut connection = Connection::open(self.port()).ok()?;
            connection.set_patience(Duration::from_millis(5)).ok()?;
            let answer = connection.command(&["PING"]);
            (!matches!(answer, Ok(Reply::Status(_)))).then_some(())
        });
        assert!(begun.is_some(), "{} goes on answering", self.url());
        BusyServer { port: self.port(), _endless: endless }
    }

    /// A user who may do what `rules` say, as `ACL SETUSER` takes them; and the url to connect as
    /// that user.
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

    /// `CONFIG SET`.
    ///
    /// # Panics
    /// When the server does not take it.
    #[track_caller]
    pub fn set(&self, setting: &str, value: &str) {
        let reply = self.command(&["CONFIG", "SET", setting, value]);
        assert_eq!(reply, Reply::Status("OK".into()), "{setting} {value}");
    }

    /// A field of `INFO`.
    ///
    /// # Panics
    /// When the server names none.
    #[track_caller]
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> String {
        let found = self.info_if_any(section, field);
        found.unwrap_or_else(|| panic!("no {field} in INFO {section} of {}", self.url()))
    }

    /// A field of `INFO` that the server may not name: a primary has no link to a primary.
    #[track_caller]
    #[must_use]
    pub fn info_if_any(&self, section: &str, field: &str) -> Option<String> {
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
        // Before it has been silent for long enough, the server does not even listen to this.
        poll(PATIENCE, || {
            let mut connection = Connection::open(self.port).ok()?;
            connection.command(&["SCRIPT", "KILL"]).ok()?;
            // It ends a moment after it is told to.
            match connection.command(&["PING"]).ok()? {
                Reply::Error(text) if text.starts_with("BUSY") => None,
                _ => Some(()),
            }
        });
    }
}

/// While loading, a server looks at its sockets after so many bytes: two million, and Redis 6.2
/// knows no other number.
const LOOK_UP_EVERY: &str = "loading-process-events-interval-bytes";

/// Enough together that it looks up several times even so.
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
    fn each_trouble_is_refused_by_its_code_on_every_version_and_can_be_undone() {
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
    fn a_user_may_do_what_the_rules_say() {
        let server = RedisServer::start();
        let url = server.url_of_user("teller", "secret", &["+get", "~open:*"]);
        assert_eq!(url, format!("redis://teller:secret@127.0.0.1:{}", server.port()));
        let mut connection = server.connect();
        assert_eq!(connection.command(&["AUTH", "teller", "secret"]).unwrap().text(), "OK");
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
