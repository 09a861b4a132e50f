//! Tests the merge in Lua, on a real server, against the merge in Rust.

use std::collections::BTreeMap;

use spillgate_testkit::RedisServer;

use crate::control::{
    AuditRecord, AuditedAction, ChangeNote, Effect, Entry, EntryId, EntrySeal, Record, Stamp,
    Table, WriteReport, id_of, random as drawn,
};
use crate::policy::{Mode, RuntimeEntry};
use crate::subject::{SHARED_SECRET, Secret};
use crate::{Limiter, Policy};
use spillgate_redis::control::{Exchange, Exchanged, StoredEntry};
use spillgate_redis::redis_store::Origin;

/// The record on a server, and the seal that opens its entries.
struct Stored {
    connection: redis::Connection,
    seal: EntrySeal,
}

/// Entries by id, as the tests compare them.
type Known = BTreeMap<EntryId, Entry>;

impl Stored {
    fn new(server: &RedisServer) -> Stored {
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_connection().unwrap();
        let seal = EntrySeal::new(&Secret::new(&SHARED_SECRET));
        Stored { connection, seal }
    }

    fn exchange(
        &mut self,
        seen: &[u8],
        entries: &[(EntryId, Entry)],
        forgotten: &[EntryId],
    ) -> Exchanged {
        let entries = entries.iter().map(|(id, entry)| self.seal.sealed(*id, entry)).collect();
        let (seen, forgotten) = (seen.into(), forgotten.into());
        let (nonce, entries_max, kept_us) = (drawn(), ENTRIES, WEEK_US);
        self.take(Exchange { seen, nonce, entries_max, kept_us, entries, forgotten })
    }

    fn take(&mut self, exchange: Exchange) -> Exchanged {
        let answer = exchange.call("fleet:default").whole().query(&mut self.connection).unwrap();
        Exchanged::read(answer).unwrap()
    }

    fn version(&mut self) -> Vec<u8> {
        redis::cmd("HGET").arg(KEYS[0]).arg("v").query(&mut self.connection).unwrap()
    }

    fn opened(&self, stored: &[StoredEntry]) -> Known {
        stored.iter().map(|stored| (stored.id, self.seal.open(stored).unwrap())).collect()
    }

    /// Returns all keys, as a replica has them.
    fn dump(&mut self) -> Vec<(&'static str, Option<Vec<u8>>)> {
        let mut dumped = |key| redis::cmd("DUMP").arg(key).query(&mut self.connection).unwrap();
        KEYS.map(|key| (key, dumped(key))).into()
    }

    fn restore(&mut self, dumped: &[(&str, Option<Vec<u8>>)]) {
        self.command(&["FLUSHALL"]);
        for (key, value) in dumped {
            if let Some(value) = value {
                let mut restore = redis::cmd("RESTORE");
                restore.arg(key).arg(0).arg(value).exec(&mut self.connection).unwrap();
            }
        }
    }

    fn command(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.exec(&mut self.connection).unwrap();
    }
}

/// Merges entries as the record must, in a second, independent implementation.
fn write_to_model(model: &mut Table, entries: &[(EntryId, Entry)], now_us: u64) -> u64 {
    let mut refused = 0;
    for (id, entry) in entries {
        if entry.forget_at_us().is_some_and(|end| end <= now_us) {
            continue;
        }
        if model.entry(*id).is_none() && model.entries().count() == ENTRIES {
            refused += 1;
            continue;
        }
        model.merge(*id, entry.clone());
    }
    refused
}

fn known(model: &Table) -> Known {
    model.entries().map(|(id, entry)| (id, entry.clone())).collect()
}

/// Deterministic numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (self.0 >> 32) % end
    }
}

/// Returns an entry that is fully determined by its stamp.
fn writing(now_us: u64, draws: &mut Random) -> (EntryId, Entry) {
    let id = u128::from(draws.below(ENTRIES as u64 + 2)) << 64 | 7;
    // So few times that two entries often have the same one, and some are already due to be
    // forgotten.
    let time_us = [now_us, now_us + 1, now_us + 2, now_us / 2][draws.below(4) as usize];
    let random = draws.below(3);
    let what = RuntimeEntry::Mode {
        rule: format!("rule {time_us} {random}").into(),
        mode: [Mode::Enforce, Mode::Off, Mode::Shadow][random as usize],
    };
    let effect = if random == 0 { Effect::Removed } else { Effect::Set };
    let expires_at_us = (random == 1).then_some(time_us + 1_000_000);
    let (stamp, note) = (Stamp { time_us, random }, ChangeNote::by(format!("{random}")));
    (id, Entry { stamp, expires_at_us, what, effect, note })
}

/// Returns an entry about the rule `api` that never expires.
fn about_api(stamp: Stamp, mode: Mode, effect: Effect) -> Entry {
    let what = RuntimeEntry::Mode { rule: "api".into(), mode };
    Entry { stamp, expires_at_us: None, what, effect, note: ChangeNote::default() }
}

#[test]
fn the_record_equals_the_model_and_a_follower_misses_nothing() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    let mut model = Table::default();
    let mut follower = Known::new();
    let mut seen = Vec::new();
    let now_us = stored.exchange(b"", &[], &[]).now_us;
    assert!(matches!(server.command(&["DBSIZE"]).integer(), 0), "a look writes nothing");
    let seed = drawn();
    println!("seed {seed}");
    let mut draws = Random(seed);
    for step in 0..3_000 {
        let entries: Vec<_> = (0..draws.below(4)).map(|_| writing(now_us, &mut draws)).collect();
        match draws.below(100) {
            0 => {
                stored.command(&["FLUSHALL"]);
                model = Table::default();
            }
            1 => stored.command(&["DEL", "sg1:{fleet:default}:r"]),
            2 => stored.command(&["HDEL", "sg1:{fleet:default}:c", "v"]),
            3 => {
                stored.command(&["DEL", "sg1:{fleet:default}:c"]);
                model = Table::default();
            }
            _ => {}
        }
        let before = known(&model);
        let refused = write_to_model(&mut model, &entries, now_us);
        let whole = stored.exchange(b"", &entries, &[]);
        let context = format!("step {step}: given {entries:?}");
        assert_eq!(whole.refused, refused, "{context}");
        assert_eq!(stored.opened(&whole.unseen), known(&model), "{context}, before {before:?}");
        if draws.below(3) == 0 {
            let news = stored.exchange(&seen, &[], &[]);
            if news.is_from_start || news.version.is_empty() {
                follower.clear();
            }
            follower.extend(stored.opened(&news.unseen));
            seen = news.version;
            assert_eq!(follower, known(&model), "{context}, the follower");
        }
    }
}

#[test]
fn the_record_lets_go_only_entries_that_have_ended_by_its_own_clock() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    let now_us = stored.exchange(b"", &[], &[]).now_us;
    let entry = |ends_us| Entry {
        expires_at_us: Some(ends_us),
        ..about_api(Stamp { time_us: now_us, random: 0 }, Mode::Off, Effect::Set)
    };
    let (lasting, short) = (entry(now_us + WEEK_US), entry(now_us + 300_000));
    let entries = [(1, lasting.clone()), (2, short)];
    assert_eq!(stored.exchange(b"", &entries, &[]).unseen.len(), 2);
    assert_eq!(stored.exchange(b"", &[], &[1, 2, 3]).unseen.len(), 2, "it is not time");
    let only_lasting: Known = [(1, lasting)].into();
    for _ in 0..1_000 {
        let unseen = stored.exchange(b"", &[], &[1, 2, 3]).unseen;
        if stored.opened(&unseen) == only_lasting {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("ten seconds on, the entry that ended is still there");
}

/// The part of an instance that exchanges entries.
struct Node {
    table: Table,
    record: Record,
    /// Its clock. At 0 no entry is ever due to be forgotten.
    now_us: u64,
    /// How many failovers its connections have shown.
    failovers: u64,
}

impl Node {
    fn new() -> Node {
        let secret = Secret::new(&SHARED_SECRET);
        Node { table: Table::default(), record: Record::new(&secret), now_us: 0, failovers: 0 }
    }

    /// Exchanges once with the record.
    fn meet(&mut self, stored: &mut Stored, writing: Option<&(EntryId, Entry)>) {
        self.meet_through(stored, writing, |_| 0);
    }

    /// Exchanges once with the record. `fail_over` comes after the call was made and before the server gets it, and
    /// returns how many failovers the connections show.
    fn meet_through(
        &mut self,
        stored: &mut Stored,
        writing: Option<&(EntryId, Entry)>,
        fail_over: impl FnOnce(&mut Stored) -> u64,
    ) {
        let writing = writing.map(|(id, entry)| (*id, entry));
        let origin = Origin::after_failovers(self.failovers);
        let exchange = self.record.exchange(Some(origin), writing, &self.table, self.now_us);
        self.failovers += fail_over(stored);
        let answer = stored.take(exchange.clone());
        let origin = Origin::after_failovers(self.failovers);
        let news = self.record.note(&exchange, &answer, Some(&origin));
        news.into_iter().for_each(|(id, entry)| {
            self.table.merge(id, entry);
        });
    }
}

/// The script stores no such removal, so an instance that kept it would call the store at every
/// look, and report the removal as lost.
#[test]
fn an_idle_instance_forgets_a_removal_when_the_record_does() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let limiter = Limiter::builder().redis(server.url()).build().await.unwrap();
        let (inner, control) = (&limiter.inner, &limiter.inner.control);
        let time_us = stored.exchange(b"", &[], &[]).now_us - WEEK_US + 500_000;
        let removed = about_api(Stamp { time_us, random: 0 }, Mode::Off, Effect::Removed);
        let id = id_of(&removed.what, &inner.secret);
        inner.learn([(id, removed.clone())]);
        inner.save(id, &removed).await.unwrap();
        assert_eq!(stored.exchange(b"", &[], &[]).unseen.len(), 1, "it is not time");
        for _ in 0..1_000 {
            inner.report_and_follow().await;
            let answer = stored.exchange(b"", &[], &[]);
            let wants = {
                let (table, now_us) = (control.table.lock(), control.now_us());
                let origin = inner.engine.store().and_then(|store| store.origin());
                control.record.wants_exchange(origin.as_ref(), &answer.version, &table, now_us)
            };
            if answer.unseen.is_empty() && !wants {
                assert!(limiter.unsaved_changes().is_empty());
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("ten seconds on, the instance still exchanges the removal");
    });
}

/// Once, an instance asked for some deletions and forgot about the others, so the record filled up with entries that no
/// instance knew.
#[test]
fn all_entries_that_can_be_forgotten_leave_the_record_however_many_there_are() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    let now_us = stored.exchange(b"", &[], &[]).now_us;
    let entry = |number: u64| StoredEntry {
        id: number.into(),
        time_us: now_us,
        random: 0,
        forget_at_us: now_us + 1_000_000,
        sealed: Vec::new(),
    };
    let entries = (1..=700).map(entry).collect();
    stored.take(Exchange { entries, entries_max: ROOM, ..Exchange::default() });
    assert_eq!(server.command(&["ZCARD", KEYS[1]]).integer(), 700);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let limiter = Limiter::builder().redis(server.url()).build().await.unwrap();
        for _ in 0..1_000 {
            limiter.inner.report_and_follow().await;
            if server.command(&["ZCARD", KEYS[1]]).integer() == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("ten seconds on, entries are left");
    });
}

/// The record has a version from the future, as an instance with a wrong clock makes it. The change is stamped again to
/// win over it.
#[test]
fn a_change_that_is_stamped_again_is_listed_once() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"1/day\"]";
    let policy = Policy::from_toml(policy).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let builder = Limiter::builder().policy(policy).redis(server.url());
        let limiter = builder.timeout(std::time::Duration::from_secs(10)).build().await.unwrap();
        limiter.inner.report_and_follow().await;
        let time_us = stored.exchange(b"", &[], &[]).now_us + 60_000_000;
        let newer = about_api(Stamp { time_us, random: 0 }, Mode::Shadow, Effect::Set);
        let id = id_of(&newer.what, &limiter.inner.secret);
        stored.exchange(b"", &[(id, newer)], &[]);
        assert!(limiter.set_mode("api", Mode::Off, None).await.unwrap().is_saved());
        assert_eq!(limiter.modes()[0].in_force(), Mode::Off);
        let listed: Vec<_> = limiter.audit().iter().map(|record| record.action().clone()).collect();
        let modes = [Mode::Off, Mode::Shadow].map(AuditedAction::SetMode);
        assert_eq!(listed, modes);
        let saved = limiter.audit_log(None, 10).await.records;
        assert!(saved.iter().map(AuditRecord::action).eq(&modes), "{saved:?}");
    });
}

/// 10,000 blocks that have expired must not stop an operator from switching a rule off.
#[test]
fn expired_changes_leave_room_for_new_ones_on_every_instance() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    let now_us = stored.exchange(b"", &[], &[]).now_us;
    // Their content does not matter here, so they have none: to seal and open them takes seconds.
    let expired = |number: u64| StoredEntry {
        id: number.into(),
        time_us: now_us - 10_000_000,
        random: 0,
        forget_at_us: now_us + WEEK_US - 5_000_000 + number,
        sealed: Vec::new(),
    };
    let entries = (0..ROOM as u64).map(expired).collect();
    assert_eq!(
        stored.take(Exchange { entries, entries_max: ROOM, ..Exchange::default() }).refused,
        0
    );
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"1/day\"]";
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let limiter = || async {
            let policy = Policy::from_toml(policy).unwrap();
            let builder = Limiter::builder().policy(policy).redis(server.url());
            builder.timeout(std::time::Duration::from_secs(10)).build().await.unwrap()
        };
        let first = limiter().await;
        first.inner.report_and_follow().await;
        let report = first.set_mode("api", Mode::Off, None).await;
        assert!(report.as_ref().is_ok_and(WriteReport::is_saved), "{report:?}");
        let second = limiter().await;
        second.inner.report_and_follow().await;
        assert_eq!(second.modes()[0].in_force(), Mode::Off);
        let report = second.reset_rule("api").await;
        assert!(report.as_ref().is_ok_and(WriteReport::is_saved), "{report:?}");
        // Now both rest: neither sends again what the other let go.
        first.inner.report_and_follow().await;
        let version = stored.version();
        for limiter in [&first, &second] {
            let control = &limiter.inner.control;
            let (table, now_us) = (control.table.lock(), control.now_us());
            let origin = limiter.inner.engine.store().and_then(|store| store.origin());
            assert!(!control.record.wants_exchange(origin.as_ref(), &version, &table, now_us));
        }
    });
}

/// Instances exchange in random order, write while the store is down, restart, and the store is flushed, loses half of
/// its keys, or fails over to a replica that lags. No entry that any of them still has is lost, and in the end all
/// have the same.
#[test]
fn all_instances_and_the_record_end_with_the_same_entries() {
    let server = RedisServer::start();
    let mut stored = Stored::new(&server);
    let mut nodes = [Node::new(), Node::new(), Node::new()];
    let now_us = stored.exchange(b"", &[], &[]).now_us;
    let seed = drawn();
    println!("seed {seed}");
    let mut draws = Random(seed);
    for round in 0..200 {
        let replica = stored.dump();
        for step in 0..20 {
            let node = draws.below(3) as usize;
            match draws.below(20) {
                0 => nodes[node] = Node::new(),
                1 => stored.command(&["FLUSHALL"]),
                2 => stored.command(&["DEL", "sg1:{fleet:default}:r"]),
                3 => {
                    nodes[node].meet_through(&mut stored, None, |stored| {
                        stored.restore(&replica);
                        0
                    });
                    nodes.iter_mut().for_each(|node| node.failovers += 1);
                }
                4 => {
                    nodes[node].meet_through(&mut stored, None, |stored| {
                        stored.restore(&replica);
                        1
                    });
                    let others = nodes.iter_mut().enumerate().filter(|(other, _)| *other != node);
                    others.for_each(|(_, node)| node.failovers += 1);
                }
                5..=11 => {
                    let id = u128::from(draws.below(9));
                    // Each entry is different, and none is ever due to be forgotten.
                    let stamp =
                        Stamp { time_us: now_us + draws.below(100), random: round * 20 + step };
                    let mode = [Mode::Off, Mode::Shadow][draws.below(2) as usize];
                    let writing = (id, about_api(stamp, mode, Effect::Set));
                    // In half of the cases the store is down.
                    nodes[node].table.merge(writing.0, writing.1.clone());
                    if draws.below(2) == 0 {
                        nodes[node].meet(&mut stored, Some(&writing));
                    }
                }
                _ => nodes[node].meet(&mut stored, None),
            }
        }
        let mut all = Table::default();
        let held = stored.exchange(b"", &[], &[]).unseen;
        let held = stored.opened(&held).into_iter();
        let known_by_nodes = nodes.iter().flat_map(|node| known(&node.table));
        held.chain(known_by_nodes).for_each(|(id, entry)| {
            all.merge(id, entry);
        });
        // A node reads the record first, and then writes what it lacks. The last round brings the entries of all
        // nodes to every one.
        for _ in 0..3 {
            nodes.iter_mut().for_each(|node| node.meet(&mut stored, None));
        }
        for (node, number) in nodes.iter().zip(0..) {
            assert_eq!(known(&node.table), known(&all), "round {round}, node {number}");
            let is_saved = |(id, entry)| node.record.has(id, entry, 0);
            assert!(all.entries().all(is_saved), "round {round}, node {number}");
        }
        let held = stored.exchange(b"", &[], &[]).unseen;
        assert_eq!(stored.opened(&held), known(&all), "round {round}");
    }
}

const KEYS: [&str; 2] = ["sg1:{fleet:default}:c", "sg1:{fleet:default}:r"];
const ENTRIES: usize = 5;
/// The most entries of the record in use.
const ROOM: usize = 11_000;
const WEEK_US: u64 = 7 * 86_400_000_000;
