//! A simulated Redis: one thread executes commands on its data, one after another, by its own clock. It runs
//! our real scripts; `equivalence.rs` compares it with a real server.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use spillgate_testkit::Reply;

use super::keyspace::{Keyspace, Words};
use super::lua::Host;

/// One server.
pub(crate) struct Server {
    pub(crate) keys: Rc<RefCell<Keyspace>>,
    host: Rc<Host>,
    scripts: BTreeMap<String, String>,
    pub(crate) mood: Mood,
    /// The offset of its clock from the world's.
    pub(crate) ahead_us: i64,
    /// The instant of the last command, and how many commands shared it: no two calls have one instant.
    last_us: (u64, u64),
    /// The slots' owners, if it is a node of a Cluster.
    pub(crate) cluster: Option<Node>,
    /// The primary that a sentinel names; `None` if this is no sentinel.
    pub(crate) primary: Option<String>,
}

/// A node's view of its Cluster.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) me: usize,
    pub(crate) owners: Rc<RefCell<Vec<usize>>>,
    /// Slots that their owner is migrating: some of their keys have moved already.
    pub(crate) moving: Rc<RefCell<BTreeMap<usize, usize>>>,
    pub(crate) names: Vec<String>,
}

/// The error that a server returns to writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Fine,
    Loading,
    ReadOnly,
    OutOfMemory,
    CannotSave,
    Busy,
}

/// The client's state that replies depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    /// The suffix of server names for this process.
    pub(crate) suffix: String,
    /// Whether the client sent ASKING: the next command may use slots that are being imported.
    asking: Cell<bool>,
}

impl Session {
    pub(crate) fn of(process: u32) -> Session {
        Session { suffix: format!(".p{process}"), ..Session::default() }
    }
}

/// A command and its result.
pub(crate) struct Done {
    pub(crate) reply: Reply,
    /// The instant, by this server's clock.
    pub(crate) now_us: u64,
    /// How much it wrote.
    pub(crate) writes: u64,
}

impl Server {
    pub(crate) fn new(host: &Rc<Host>) -> Server {
        Server {
            keys: Rc::default(),
            host: Rc::clone(host),
            scripts: BTreeMap::new(),
            mood: Mood::Fine,
            ahead_us: 0,
            last_us: (0, 0),
            cluster: None,
            primary: None,
        }
    }

    /// Executes a command that arrives when the world's clock is at `world_us`.
    pub(crate) fn execute(&mut self, words: &Words, session: &Session, world_us: u64) -> Done {
        let now_us = self.now_us(world_us);
        let writes = self.keys.borrow().writes;
        let reply = self.answer(words, session, now_us);
        let writes = self.keys.borrow().writes - writes;
        Done { reply, now_us, writes }
    }

    /// Like a restart: scripts are gone, and so is the data unless it was saved.
    pub(crate) fn restart(&mut self, saved: bool) {
        self.scripts.clear();
        self.mood = Mood::Fine;
        if !saved {
            self.keys.borrow_mut().clear();
        }
    }

    /// Removes and returns the keys of some slots.
    pub(crate) fn give_away(&self, slots: &Range<usize>) -> Keyspace {
        self.keys.borrow_mut().split_off(|key| slots.contains(&slot_of(key)))
    }

    /// Removes and returns every other key of some slots.
    pub(crate) fn give_half_away(&self, slots: &Range<usize>) -> Keyspace {
        let is_odd = |key: &[u8]| key.iter().fold(0, |sum: u8, byte| sum ^ byte) & 1 == 1;
        self.keys.borrow_mut().split_off(|key| slots.contains(&slot_of(key)) && is_odd(key))
    }

    /// Begins to import these slots: their owners redirect commands on keys that have moved.
    pub(crate) fn import(&self, slots: &Range<usize>) {
        let Some(Node { me, owners, moving, .. }) = &self.cluster else { return };
        let here = slots.clone().filter(|slot| owners.borrow()[*slot] != *me);
        moving.borrow_mut().extend(here.map(|slot| (slot, *me)));
    }

    /// Takes over these slots, and all nodes know.
    pub(crate) fn own(&self, slots: &Range<usize>) {
        let Some(Node { me, owners, moving, .. }) = &self.cluster else { return };
        owners.borrow_mut()[slots.clone()].fill(*me);
        moving.borrow_mut().retain(|slot, _| !slots.contains(slot));
    }

    /// Like SCRIPT FLUSH.
    pub(crate) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    fn now_us(&mut self, world_us: u64) -> u64 {
        let now_us = world_us.saturating_add_signed(self.ahead_us);
        let (last_us, shared) = self.last_us;
        self.last_us = (now_us, if last_us == now_us { shared + 1 } else { 0 });
        now_us + self.last_us.1.min(999)
    }

    fn answer(&mut self, words: &Words, session: &Session, now_us: u64) -> Reply {
        let name = String::from_utf8_lossy(&words[0]).to_uppercase();
        if let Some(mood_error) = self.mood_error(&name) {
            return Reply::Error(mood_error.into());
        }
        let second = words.get(1).map(|word| String::from_utf8_lossy(word).to_uppercase());
        match (name.as_str(), second.as_deref()) {
            ("PING", _) => Reply::Status("PONG".into()),
            ("ASKING", _) => {
                session.asking.set(true);
                Reply::Status("OK".into())
            }
            ("CLIENT" | "SELECT" | "AUTH", _) => Reply::Status("OK".into()),
            ("TIME", _) => time(now_us),
            ("INFO", _) => Reply::Bulk(b"role:master\r\n".to_vec()),
            ("ROLE", _) => role(self.mood),
            ("SENTINEL", _) => self.watched(session),
            ("CLUSTER", _) => self.slots(session),
            ("SCRIPT", Some("LOAD")) => {
                let text = String::from_utf8_lossy(&words[2]).into_owned();
                Reply::Bulk(self.load(text).into_bytes())
            }
            ("SCRIPT", _) => {
                self.forget_scripts();
                Reply::Status("OK".into())
            }
            ("FLUSHALL", _) => {
                self.keys.borrow_mut().clear();
                Reply::Status("OK".into())
            }
            ("EVAL", _) => {
                let sha = self.load(String::from_utf8_lossy(&words[1]).into_owned());
                self.run(&sha, words, session, now_us)
            }
            ("EVALSHA", _) => {
                let sha = String::from_utf8_lossy(&words[1]).into_owned();
                if !self.scripts.contains_key(&sha) {
                    session.asking.set(false);
                    return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".into());
                }
                self.run(&sha, words, session, now_us)
            }
            _ => {
                if let Some(elsewhere) =
                    self.elsewhere(&words[1..2.min(words.len())], session, now_us)
                {
                    return elsewhere;
                }
                let done = self.keys.borrow_mut().execute(&name, words, now_us);
                done.unwrap_or_else(|| Reply::Error(format!("ERR unknown command '{name}'")))
            }
        }
    }

    fn mood_error(&self, name: &str) -> Option<&'static str> {
        let may_write =
            ["EVAL", "EVALSHA", "SET", "DEL", "UNLINK", "HSET", "ZADD", "XADD"].contains(&name);
        match self.mood {
            Mood::Loading => Some("LOADING Redis is loading the dataset in memory"),
            Mood::Busy => Some("BUSY Redis is busy running a script."),
            Mood::ReadOnly if may_write => {
                Some("READONLY You can't write against a read only replica.")
            }
            Mood::OutOfMemory if may_write && name != "UNLINK" && name != "DEL" => {
                Some("OOM command not allowed when used memory > 'maxmemory'.")
            }
            Mood::CannotSave if may_write => {
                Some("MISCONF Redis is configured to save RDB snapshots.")
            }
            _ => None,
        }
    }

    fn load(&mut self, text: String) -> String {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        self.scripts.insert(sha.clone(), text);
        sha
    }

    /// `EVAL text 2 key key argument…`
    fn run(&self, sha: &str, words: &Words, session: &Session, now_us: u64) -> Reply {
        let count: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
        let (keys, arguments) = words[3..].split_at(count);
        if let Some(elsewhere) = self.elsewhere(keys, session, now_us) {
            return elsewhere;
        }
        let text = &self.scripts[sha];
        let declared: Option<BTreeSet<Vec<u8>>> =
            text.starts_with("#!lua").then(|| keys.iter().cloned().collect());
        let data = Rc::clone(&self.keys);
        let execute = move |words: &Words| {
            let name = String::from_utf8_lossy(&words[0]).to_uppercase();
            if name == "TIME" {
                return time(now_us);
            }
            let last = if ["MGET", "DEL", "UNLINK", "EXISTS"].contains(&name.as_str()) {
                words.len()
            } else {
                2
            };
            let undeclared =
                |keys: &BTreeSet<_>| words[1..last].iter().any(|key| !keys.contains(key));
            if declared.as_ref().is_some_and(undeclared) {
                return Reply::Error(
                    "ERR Script attempted to access a non local key in a cluster node".into(),
                );
            }
            data.borrow_mut()
                .execute(&name, words, now_us)
                .unwrap_or_else(|| panic!("scripts call no {name}"))
        };
        self.host.run(sha, text, keys, arguments, Box::new(execute))
    }

    fn watched(&self, session: &Session) -> Reply {
        let Some(primary) = &self.primary else { return Reply::Nil };
        let host = format!("{primary}{}", session.suffix);
        Reply::Array(vec![Reply::Bulk(host.into_bytes()), Reply::Bulk(b"6379".to_vec())])
    }

    fn slots(&self, session: &Session) -> Reply {
        let Some(Node { owners, names, .. }) = &self.cluster else {
            return Reply::Error("ERR This instance has cluster support disabled".into());
        };
        let owners = owners.borrow();
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new();
        for (slot, owner) in owners.iter().enumerate() {
            match ranges.last_mut() {
                Some((_, last, of)) if of == owner => *last = slot,
                _ => ranges.push((slot, slot, *owner)),
            }
        }
        let number = |number: usize| Reply::Integer(number as i64);
        let range = |(first, last, owner): (usize, usize, usize)| {
            let host = format!("{}{}", names[owner], session.suffix).into_bytes();
            let node = Reply::Array(vec![Reply::Bulk(host), Reply::Integer(6379)]);
            Reply::Array(vec![number(first), number(last), node])
        };
        Reply::Array(ranges.into_iter().map(range).collect())
    }

    /// Returns the redirection of a Cluster node for these keys of one slot, or `None` if it owns them.
    fn elsewhere(&self, keys: &[Vec<u8>], session: &Session, now_us: u64) -> Option<Reply> {
        let Node { me, owners, moving, names } = self.cluster.as_ref()?;
        let asking = session.asking.take();
        let slot = slot_of(keys.first()?);
        let (owner, to) = (owners.borrow()[slot], moving.borrow().get(&slot).copied());
        let sent_on = |how: &str, to: usize| {
            Some(Reply::Error(format!("{how} {slot} {}{}:6379", names[to], session.suffix)))
        };
        let here = keys.iter().filter(|key| self.keys.borrow().holds(key, now_us)).count();
        let half_moved =
            || Some(Reply::Error("TRYAGAIN Multiple keys request during rehashing of slot".into()));
        match to {
            Some(to) if to == *me && asking => {
                if keys.len() > 1 && here < keys.len() {
                    half_moved()
                } else {
                    None
                }
            }
            Some(to) if owner == *me => match here {
                0 => sent_on("ASK", to),
                all if all == keys.len() => None,
                _ => half_moved(),
            },
            _ if owner == *me => None,
            _ => sent_on("MOVED", owner),
        }
    }
}

fn time(now_us: u64) -> Reply {
    let part = |number: u64| Reply::Bulk(number.to_string().into_bytes());
    Reply::Array(vec![part(now_us / 1_000_000), part(now_us % 1_000_000)])
}

fn role(mood: Mood) -> Reply {
    let role: &[u8] = if mood == Mood::ReadOnly { b"slave" } else { b"master" };
    Reply::Array(vec![Reply::Bulk(role.to_vec())])
}

/// CRC16 of the text between a key's braces, or of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> usize {
    let open = key.iter().position(|byte| *byte == b'{').map(|at| at + 1);
    let tag = open.and_then(|open| {
        let close = key[open..].iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &key[open..open + close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ ((crc >> 15) * 0x1021))
    });
    usize::from(crc % 16_384)
}
