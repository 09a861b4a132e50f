//! Starts a primary, its replicas, and real Sentinels that watch them.

use std::path::Path;

use crate::folder::Folder;
use crate::launch::Launch;
use crate::poll::{AGREEMENT_BOUND, COMPLETE_BOUND, FAILOVER_BOUND, poll};
use crate::redis_server::{RedisServer, redis_on_path};
use crate::resp::Reply;
use crate::stepped_clock::{SteppedClock, SteppedServer};

/// A primary with replicas under the watch of Sentinels, which may promote a replica.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// Starts a primary with this many replicas and this many Sentinels; most Sentinels must agree on a failover.
    ///
    /// # Panics
    /// When they have not found each other within a minute.
    #[track_caller]
    #[must_use]
    pub fn start(replicas: usize, sentinels: usize) -> Self {
        Self::start_with(&redis_on_path(), replicas, sentinels)
    }

    /// Starts them with servers of another `binary`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    #[must_use]
    pub fn start_with(binary: &Path, replicas: usize, sentinels: usize) -> Self {
        let primary = RedisServer::start_with(binary, &SERVER_SETTINGS);
        let port = primary.port().to_string();
        let following = [&SERVER_SETTINGS, &["--replicaof", "127.0.0.1", &port][..]].concat();
        let follower = |_| RedisServer::start_with(binary, &following);
        let mut servers = vec![primary];
        servers.extend((0..replicas).map(follower));
        Self::watching(servers, sentinels)
    }

    /// Starts a primary and one replica whose clocks can be stepped.
    ///
    /// # Errors
    /// As [`SteppedServer::start`].
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    pub fn start_stepped(sentinels: usize) -> Result<(Self, [SteppedClock; 2]), String> {
        let (primary, clock) = SteppedServer::start(&SERVER_SETTINGS)?.split();
        let port = primary.port().to_string();
        let following = [&SERVER_SETTINGS, &["--replicaof", "127.0.0.1", &port][..]].concat();
        let (replica, other) = SteppedServer::start(&following)?.split();
        Ok((Self::watching(vec![primary, replica], sentinels), [clock, other]))
    }

    #[track_caller]
    fn watching(servers: Vec<RedisServer>, sentinels: usize) -> Self {
        let watch = |_| start_sentinel(servers[0].port(), sentinels / 2 + 1);
        let sentinels = (0..sentinels).map(watch).collect();
        let all = Self { servers, sentinels };
        all.wait_until_complete();
        all
    }

    /// The Sentinels' name for the primary.
    pub const NAME: &str = "spillgate";

    /// Returns the address of every Sentinel.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// Returns the servers that hold data: the first primary, then its replicas.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns one of the servers that hold data, to kill or restart.
    pub fn server_mut(&mut self, place: usize) -> &mut RedisServer {
        &mut self.servers[place]
    }

    /// Returns one of the Sentinels, to set it up otherwise.
    #[must_use]
    pub fn sentinel(&self, place: usize) -> &RedisServer {
        &self.sentinels[place]
    }

    /// Returns the Sentinels, to pause or kill.
    pub fn sentinels_mut(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Returns the index of the primary, once every Sentinel that answers names it and its own role agrees. After a
    /// kill this waits for the failover.
    ///
    /// # Panics
    /// When they do not agree within half a minute.
    #[track_caller]
    #[must_use]
    pub fn primary(&self) -> usize {
        let agreed = poll(AGREEMENT_BOUND, || {
            let mut named = self.sentinels.iter().filter_map(primary_according_to);
            let port = named.next()?;
            if !named.all(|other| other == port) {
                return None;
            }
            let place = self.servers.iter().position(|server| server.port() == port)?;
            (self.servers[place].role()? == "master").then_some(place)
        });
        agreed.unwrap_or_else(|| panic!("the sentinels do not agree on a primary"))
    }

    /// Has the Sentinels promote a replica that has everything that the primary wrote, and returns the index of the
    /// new primary. The old one is a replica when this returns: in between both take writes, and those of the old one
    /// are lost.
    ///
    /// # Panics
    /// When it has not happened within half a minute.
    #[track_caller]
    pub fn fail_over(&self) -> usize {
        let before = self.primary();
        self.wait_until_seen_by_all(before);
        let moved = poll(AGREEMENT_BOUND, || {
            // Refused while a failover is running, or no replica is up to date yet.
            self.sentinels[0].ask(&["SENTINEL", "FAILOVER", Self::NAME])?;
            poll(FAILOVER_BOUND, || Some(self.primary()).filter(|now| *now != before))
        });
        let now = moved.unwrap_or_else(|| panic!("no replica has taken over from server {before}"));
        let follows = || (self.servers[before].role()? == "slave").then_some(());
        let demoted = poll(AGREEMENT_BOUND, follows);
        assert!(demoted.is_some(), "server {before} is still a primary after {AGREEMENT_BOUND:?}");
        now
    }

    /// Waits until every server has everything that the primary wrote.
    #[track_caller]
    fn wait_until_seen_by_all(&self, primary: usize) {
        let offset = |server: &RedisServer| server.info("replication", "master_repl_offset");
        let seen = poll(AGREEMENT_BOUND, || {
            let written = offset(&self.servers[primary]);
            self.servers.iter().all(|server| offset(server) == written).then_some(())
        });
        assert!(seen.is_some(), "the replicas are behind after {AGREEMENT_BOUND:?}");
    }

    #[track_caller]
    fn wait_until_complete(&self) {
        let (replicas, others) = (self.servers.len() - 1, self.sentinels.len() - 1);
        let complete = poll(COMPLETE_BOUND, || {
            let follows = |server: &RedisServer| {
                server.info_if_any("replication", "master_link_status").as_deref() == Some("up")
            };
            let knows = |sentinel: &RedisServer| {
                let seen = fields(&sentinel.ask(&["SENTINEL", "MASTER", Self::NAME])?);
                let is = |name: &str, count: usize| {
                    seen.iter().any(|(field, value)| field == name && *value == count.to_string())
                };
                (is("num-slaves", replicas) && is("num-other-sentinels", others)).then_some(())
            };
            let all = self.servers[1..].iter().all(follows)
                && self.sentinels.iter().all(|sentinel| knows(sentinel).is_some());
            all.then_some(())
        });
        assert!(complete.is_some(), "the sentinels are not complete after {COMPLETE_BOUND:?}");
    }
}

/// Starts a Sentinel, a server of its own that writes its knowledge into its settings.
#[track_caller]
fn start_sentinel(primary: u16, quorum: usize) -> RedisServer {
    let name = Sentinels::NAME;
    let settings = format!(
        "sentinel monitor {name} 127.0.0.1 {primary} {quorum}\n\
         sentinel down-after-milliseconds {name} 1000\n\
         sentinel failover-timeout {name} 3000\n"
    );
    let folder = Folder::create();
    let path = folder.write("sentinel.conf", &settings);
    let mut launch = Launch::new(&redis_on_path(), &["--sentinel"]);
    launch.settings = Some(path);
    RedisServer::launch(launch, folder)
}

fn primary_according_to(sentinel: &RedisServer) -> Option<u16> {
    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::NAME];
    let Reply::Array(address) = sentinel.ask(&words)? else { return None };
    address[1].text().parse().ok()
}

/// Reads a flat list of names and values.
fn fields(reply: &Reply) -> Vec<(String, String)> {
    let Reply::Array(flat) = reply else { return Vec::new() };
    let pairs = flat.chunks_exact(2);
    pairs.map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned())).collect()
}

/// A replica's first copy begins at once.
const SERVER_SETTINGS: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_takes_over_on_request_and_when_the_primary_dies() {
        let mut watched = Sentinels::start(2, 3);
        assert_eq!(watched.primary(), 0);
        assert_eq!(watched.servers()[0].command(&["SET", "key", "value"]).text(), "OK");
        assert_eq!(watched.servers()[0].command(&["WAIT", "2", "5000"]).integer(), 2);

        let second = watched.fail_over();
        assert_ne!(second, 0);
        assert_eq!(watched.servers()[second].command(&["GET", "key"]).text(), "value");

        watched.server_mut(second).kill();
        let third = watched.primary();
        assert_ne!(third, second);
        assert_eq!(watched.servers()[third].command(&["GET", "key"]).text(), "value");
    }
}
