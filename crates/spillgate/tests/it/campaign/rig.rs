//! Real servers in one of the topologies, and how each fault is caused on them.

use std::thread::sleep;
use std::time::Duration;

use spillgate_core::time::boottime_us;
use spillgate_testkit::{
    Cluster, Fault as Network, FaultProxy, Node, RedisServer, Reply, Sentinels, ServerVersion,
    SteppedServer, poll,
};

use super::fault::{Fault, LASTS, Shape};
use super::fleet::Fleet;
use crate::support::world::keys;

pub(super) enum Rig {
    Single {
        server: RedisServer,
        proxy: FaultProxy,
    },
    Stepped {
        server: SteppedServer,
    },
    Sentinels {
        watched: Sentinels,
    },
    Cluster {
        cluster: Cluster,
    },
    /// The last server is not part of the ring yet.
    Ring {
        servers: Vec<RedisServer>,
        proxies: Vec<FaultProxy>,
    },
}

impl Rig {
    /// # Errors
    ///
    /// Names the missing program.
    pub(super) fn start(
        version: &ServerVersion,
        shape: Shape,
        fault: Fault,
    ) -> Result<Rig, String> {
        let start = || RedisServer::start_with(&version.path, &[]);
        Ok(match shape {
            Shape::Single if fault.is_of_clocks() => {
                Rig::Stepped { server: SteppedServer::start_version(version, &[])? }
            }
            Shape::Single => {
                let server = start();
                let proxy = FaultProxy::before(server.port());
                Rig::Single { server, proxy }
            }
            Shape::Sentinels => {
                Rig::Sentinels { watched: Sentinels::start_with(&version.path, 1, 3) }
            }
            Shape::Cluster => {
                Rig::Cluster { cluster: Cluster::start_with(&version.path, 3, 1, &PARTLY_SERVED) }
            }
            Shape::Ring => {
                let servers: Vec<_> = (0..4).map(|_| start()).collect();
                let proxies = servers.iter().map(|server| FaultProxy::before(server.port()));
                let proxies = proxies.collect();
                Rig::Ring { servers, proxies }
            }
        })
    }

    /// The store as passed to a worker process.
    pub(super) fn store(&self) -> String {
        let description = |kind: &str, urls: Vec<String>| format!("{kind} {}", urls.join(" "));
        match self {
            Rig::Single { proxy, .. } => description("url", vec![proxy.url()]),
            Rig::Stepped { server } => description("url", vec![server.server.url()]),
            Rig::Sentinels { watched } => description("sentinels", watched.urls()),
            Rig::Cluster { cluster } => description("cluster", cluster.urls()),
            Rig::Ring { proxies, .. } => {
                description("ring", proxies[..3].iter().map(FaultProxy::url).collect())
            }
        }
    }

    /// Causes the fault and returns when it is over. Returns for how long two primaries or two rings counted,
    /// if the fault allows that.
    pub(super) fn cause(&mut self, fault: Fault, fleet: &mut Fleet) -> u64 {
        match (fault, self) {
            (Fault::None, _) => sleep(LASTS),
            (Fault::ProcessesKilled, rig) => {
                let store = rig.store();
                (0..fleet.processes()).for_each(|number| fleet.replace(number, &store));
            }
            (Fault::Grows, Rig::Ring { proxies, .. }) => {
                let urls: Vec<String> = proxies.iter().map(FaultProxy::url).collect();
                let store = format!("ring {}", urls.join(" "));
                let began_us = boottime_us();
                (0..fleet.processes()).for_each(|number| fleet.replace(number, &store));
                return boottime_us() - began_us;
            }
            (fault, Rig::Single { server, proxy }) => cause_on_server(fault, server, proxy),
            (fault, Rig::Ring { servers, proxies }) => {
                for (server, proxy) in servers.iter_mut().zip(proxies) {
                    cause_on_ring_node(fault, server, proxy);
                }
            }
            (fault, Rig::Stepped { server }) => {
                let by_ms = if fault == Fault::ClockBack { -STEP_MS } else { STEP_MS };
                server.set_ahead_by_ms(by_ms);
                sleep(LASTS);
            }
            (Fault::HandedOver, Rig::Sentinels { watched }) => return hand_over(watched),
            (fault, Rig::Sentinels { watched }) => cause_on_sentinels(fault, watched),
            (fault, Rig::Cluster { cluster }) => cause_on_cluster(fault, cluster),
        }
        0
    }
}

fn cause_on_server(fault: Fault, server: &mut RedisServer, proxy: &FaultProxy) {
    let network = |fault| {
        proxy.set(fault);
        sleep(LASTS);
        proxy.set(Network::None);
    };
    match fault {
        Fault::ScriptsFlushed => repeat(|| {
            server.command(&["SCRIPT", "FLUSH"]);
        }),
        Fault::RepliesLost => repeat(|| proxy.set(Network::LoseNextReply)),
        Fault::Flushed => {
            server.command(&["FLUSHALL"]);
            sleep(LASTS);
        }
        Fault::Killed => {
            server.kill();
            sleep(LASTS);
            server.restart();
        }
        Fault::RestartedEmpty => server.restart(),
        Fault::Paused => {
            server.pause();
            sleep(LASTS);
            server.resume();
        }
        Fault::BlackHoled => network(Network::BlackHole),
        Fault::Slow => network(Network::Delay(Duration::from_millis(100))),
        Fault::Reset => network(Network::Reset),
        Fault::OutOfMemory => {
            server.run_out_of_memory();
            sleep(LASTS);
            server.find_memory();
        }
        Fault::ReadOnly => {
            server.become_a_replica();
            sleep(LASTS);
            server.become_a_primary();
        }
        Fault::CannotSave => {
            server.fail_to_save();
            sleep(LASTS);
            server.save_again();
        }
        Fault::Loading => server.restart_loading(LASTS),
        Fault::Busy => {
            let busy = server.keep_busy(Duration::from_millis(500));
            sleep(LASTS);
            drop(busy);
        }
        _ => panic!("{fault:?} is not a fault of one server"),
    }
}

/// Causes the fault on one node of a ring after the other. The node that is not part of the ring is left
/// alone.
fn cause_on_ring_node(fault: Fault, server: &mut RedisServer, proxy: &FaultProxy) {
    let network = |fault| {
        proxy.set(fault);
        sleep(BRIEFLY);
        proxy.set(Network::None);
    };
    match fault {
        Fault::Flushed => {
            server.command(&["FLUSHALL"]);
        }
        Fault::Killed => {
            server.kill();
            sleep(BRIEFLY);
            server.restart();
        }
        Fault::Paused => {
            server.pause();
            sleep(BRIEFLY);
            server.resume();
        }
        Fault::BlackHoled => network(Network::BlackHole),
        _ => panic!("{fault:?} is not a fault of a ring"),
    }
}

/// Hands over, and returns for how many µs calls may reach both primaries: from the first write that the new
/// primary accepts until all sentinels name it, plus the second in which every process follows. The old
/// primary may accept writes for longer.
fn hand_over(watched: &Sentinels) -> u64 {
    let before = watched.primary();
    let elected = || {
        let mut others = watched.servers().iter().enumerate().filter(|(place, _)| *place != before);
        others.any(|(_, server)| is_primary(server)).then(boottime_us)
    };
    let named = || (watched.primary() != before).then(boottime_us);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let elected_us = poll(HANDED_OVER, elected).expect("a replica takes over");
            let named_us = poll(HANDED_OVER, named).expect("the sentinels agree on it");
            named_us - elected_us + HEEDED_US
        });
        watched.fail_over();
        looking.join().expect("the polling thread does not panic")
    })
}

/// Before a server changes its role it closes all connections.
fn is_primary(server: &RedisServer) -> bool {
    let role = server.connect().command(&["ROLE"]);
    matches!(role, Ok(Reply::Array(role)) if role[0].text() == "master")
}

fn cause_on_sentinels(fault: Fault, watched: &mut Sentinels) {
    let primary = watched.primary();
    match fault {
        Fault::Killed => {
            watched.server_mut(primary).kill();
            assert_ne!(watched.primary(), primary, "the replica takes over");
        }
        Fault::Paused => {
            // Shorter than the time after which sentinels act.
            watched.servers()[primary].pause();
            sleep(Duration::from_millis(700));
            watched.servers()[primary].resume();
        }
        _ => panic!("{fault:?} is not a fault of a watched primary"),
    }
}

fn cause_on_cluster(fault: Fault, cluster: &mut Cluster) {
    let primaries: Vec<Node> = (0..cluster.nodes().len())
        .map(Node)
        .filter(|node| cluster.node(*node).info("replication", "role") == "master")
        .collect();
    match fault {
        Fault::HandedOver => {
            for primary in primaries {
                cluster.fail_over(primary);
            }
        }
        Fault::SlotsMove => {
            let held = primaries.iter().flat_map(|node| keys(cluster.node(*node)));
            let of_subjects = held.filter(|key| key.len() > SHORTEST_OF_COUNTERS);
            let mut slots: Vec<u16> = of_subjects.map(|key| cluster.slot_of(&key)).collect();
            slots.sort_unstable();
            slots.dedup();
            for slot in slots {
                let home = cluster.owner_of(slot);
                let place = primaries.iter().position(|node| *node == home).unwrap_or(0);
                cluster.migrate(slot, primaries[(place + 1) % primaries.len()]);
                cluster.migrate(slot, home);
            }
        }
        Fault::Killed => {
            let slot = 0;
            let primary = cluster.owner_of(slot);
            cluster.node_mut(primary).kill();
            assert_ne!(cluster.owner_of(slot), primary, "the replica takes over");
        }
        _ => panic!("{fault:?} is not a fault of a cluster"),
    }
}

fn repeat(action: impl Fn()) {
    let until_us = boottime_us() + LASTS.as_micros() as u64;
    while boottime_us() < until_us {
        action();
        sleep(Duration::from_millis(50));
    }
}

/// Keys that are not of one subject are shorter.
const SHORTEST_OF_COUNTERS: usize = 50;
/// The loss of one primary must not stop the others.
const PARTLY_SERVED: [&str; 2] = ["--cluster-require-full-coverage", "no"];
const HANDED_OVER: Duration = Duration::from_secs(60);
const HEEDED_US: u64 = 1_000_000;
const BRIEFLY: Duration = Duration::from_millis(700);
const STEP_MS: i64 = 30_000;
