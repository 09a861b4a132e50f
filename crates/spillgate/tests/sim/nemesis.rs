//! The faults of a run: one after another, each for a while, with a pause in between.

use std::time::Duration;

use tokio::time::sleep;

use super::network::{Line, NextCall};
use super::play::{Shape, World};
use super::server::Mood;

/// Causes faults until the run ends.
pub(crate) async fn cause_faults(world: &World) {
    world.is_quiet.set(false);
    for _ in 0..FAULTS {
        let calm_ms = 100 + below(world, 900);
        sleep(Duration::from_millis(calm_ms)).await;
        world.rest().await;
        if world.ledger.is_broken() {
            return;
        }
        if below(world, 4) == 0 {
            world.set_a_limit().await;
        }
        world.ledger.trouble_begins();
        if below(world, 2) == 0 {
            trouble_a_line(world).await
        } else {
            trouble_a_server(world).await
        }
        if below(world, 3) == 0 {
            slow_for_a_while(world).await;
        }
        world.ledger.trouble_ends();
        // Calls in flight are late, and connections are reopened.
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(1)).await;
    world.rest().await;
}

fn below(world: &World, end: u64) -> u64 {
    world.random.borrow_mut().below(end)
}

/// The time after a fault, before recovery: refunds come late, and deferred charges are sent.
async fn slow_for_a_while(world: &World) {
    world.ledger.note(|| "all connections are slow".into());
    let slow = Line { later_ms: 5 + below(world, 5), ..Line::default() };
    for (life, store) in
        world.lives().iter().flat_map(|life| world.stores().iter().map(move |store| (life, store)))
    {
        world.network.set_line(*life, store, slow);
    }
    sleep(Duration::from_millis(1_000)).await;
    world.network.fix_lines();
}

/// Picks a server for a fault.
fn any_store(world: &World) -> &'static str {
    let stores = world.stores();
    stores[below(world, stores.len() as u64) as usize]
}

async fn last(world: &World) {
    sleep(Duration::from_millis(30 + below(world, 3_000))).await;
}

/// Causes a fault of the connections of one process, or of all.
async fn trouble_a_line(world: &World) {
    let lives = world.lives();
    let lives = match below(world, 3) {
        0 => lives,
        _ => vec![lives[below(world, lives.len() as u64) as usize]],
    };
    let store = any_store(world);
    let line = match below(world, 8) {
        0 => Line { later_ms: 5, ..Line::default() },
        1 => Line { later_ms: 30, ..Line::default() },
        2 => Line { is_held: true, ..Line::default() },
        3 => Line { refuses: true, ..Line::default() },
        4 => Line { next_call: NextCall::CutOffBefore, ..Line::default() },
        5 => Line { next_call: NextCall::CutOffAfter, ..Line::default() },
        6 => {
            Line { next_call: NextCall::CutInAnswer(below(world, 20) as usize), ..Line::default() }
        }
        _ => {
            world
                .ledger
                .note(|| format!("connections of {lives:?} to {store} are dropped silently"));
            lives.iter().for_each(|life| world.network.forget_lines(*life, store));
            return last(world).await;
        }
    };
    world.ledger.note(|| format!("connections of {lives:?} to {store}: {line:?}"));
    lives.iter().for_each(|life| world.network.set_line(*life, store, line));
    last(world).await;
    world.ledger.note(|| "connections are fixed".into());
    world.network.fix_lines();
}

async fn trouble_a_server(world: &World) {
    let (store, network) = (any_store(world), &world.network);
    let has_shape = !matches!(world.shape, Shape::One | Shape::Ring);
    if has_shape && below(world, 2) == 0 {
        return change_the_shape(world).await;
    }
    match below(world, 8) {
        0 => {
            world.ledger.note(|| format!("{store} pauses"));
            network.pause(store, true);
            last(world).await;
            network.pause(store, false);
        }
        1 => {
            let saved = below(world, 2) == 0;
            world.ledger.note(|| {
                format!("{store} is killed; its data is {}", if saved { "saved" } else { "lost" })
            });
            network.kill(store);
            if !saved {
                world.ledger.lost(store);
            }
            last(world).await;
            network.start(store, saved);
            if world.shape == Shape::Sentinels && primary(world) != store {
                network.server(store, |server| server.mood = Mood::ReadOnly);
            }
        }
        2 => {
            world.ledger.note(|| format!("{store} is flushed"));
            world.ledger.lost(store);
            network.server(store, |server| server.keys.borrow_mut().clear());
        }
        3 => {
            world.ledger.note(|| format!("{store} forgets its scripts"));
            network.server(store, super::server::Server::forget_scripts);
        }
        4 => {
            let steps = [300_000, -300_000, 5_000_000, -5_000_000, 3_600_000_000, -3_600_000_000];
            let step_us = steps[below(world, steps.len() as u64) as usize];
            world.ledger.note(|| format!("the clock of {store} steps by {step_us} us"));
            world.ledger.stepped(store);
            network.server(store, |server| server.ahead_us += step_us);
        }
        5 | 6 => {
            let moods =
                [Mood::Loading, Mood::ReadOnly, Mood::OutOfMemory, Mood::CannotSave, Mood::Busy];
            // In turn, so that a few seeds reach all of them.
            let mood = moods[world.moods.replace(world.moods.get() + 1) % moods.len()];
            world.ledger.note(|| format!("{store} is {mood:?}"));
            let before = network.server(store, |server| std::mem::replace(&mut server.mood, mood));
            last(world).await;
            network.server(store, |server| server.mood = before);
        }
        _ => restart(world).await,
    }
}

/// A process ends, and another takes its place.
async fn restart(world: &World) {
    let number = below(world, world.lives().len() as u64) as usize;
    world.start(number).await;
    world.ledger.sometimes("a process restarted");
}

/// Changes several servers together.
async fn change_the_shape(world: &World) {
    match world.shape {
        Shape::One | Shape::Ring => {}
        Shape::Sentinels => fail_over(world).await,
        Shape::Cluster => move_slots(world).await,
    }
}

/// The other server becomes primary, with all data of the first or without the last writes.
async fn fail_over(world: &World) {
    let network = &world.network;
    let old = primary(world);
    let new = if old == "one" { "two" } else { "one" };
    let keys = network.server(&old, |server| server.keys.borrow().clone());
    let is_dead = below(world, 2) == 0;
    world.ledger.note(|| {
        format!("{new} takes over from {old}, which {}", if is_dead { "dies" } else { "lives on" })
    });
    world.ledger.sometimes("a failover");
    if is_dead {
        // No replica has seen the last moment's writes.
        network.kill(&old);
        sleep(Duration::from_millis(below(world, 1_000))).await;
        network.start(&old, false);
    }
    world.ledger.moved(&[&old, new]);
    network.server(&old, |server| server.mood = Mood::ReadOnly);
    network.server(new, |server| {
        server.mood = Mood::Fine;
        *server.keys.borrow_mut() = keys;
    });
    for sentinel in ["s1", "s2"] {
        network.server(sentinel, |sentinel| sentinel.primary = Some(new.to_owned()));
    }
    sleep(Duration::from_millis(500 + below(world, 2_000))).await;
}

/// Returns the primary that the sentinels name.
fn primary(world: &World) -> String {
    world
        .network
        .server("s1", |sentinel| sentinel.primary.clone())
        .expect("a sentinel watches a primary")
}

/// Some slots get another owner, with all their keys; half of the time key by key.
async fn move_slots(world: &World) {
    let network = &world.network;
    let stores = world.stores();
    let to = below(world, stores.len() as u64) as usize;
    let first = below(world, 16_384) as usize;
    let slots = first..(first + 4_000).min(16_384);
    world.ledger.note(|| format!("slots {slots:?} move to {}", stores[to]));
    world.ledger.moved(stores);
    if below(world, 2) == 0 {
        network.server(stores[to], |server| server.import(&slots));
        for store in stores.iter().filter(|store| **store != stores[to]) {
            let half = network.server(store, |server| server.give_half_away(&slots));
            network.server(stores[to], |server| server.keys.borrow_mut().take_in(half));
        }
        last(world).await;
    }
    for store in stores {
        let moved = network.server(store, |server| server.give_away(&slots));
        network.server(stores[to], |server| server.keys.borrow_mut().take_in(moved));
    }
    network.server(stores[to], |server| server.own(&slots));
    world.ledger.sometimes("slots moved");
    last(world).await;
}

const FAULTS: u64 = 8;
