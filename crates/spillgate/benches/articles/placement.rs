//! How many keys move when a node joins.

use spillgate_redis::ring::Points;

use crate::Outcome;
use crate::grid::{Grid, percent};
use crate::rounds::Effort;

pub fn modulo_against_ring(_: Effort) -> Outcome {
    let names: Vec<String> = (0..=20).map(|number| format!("redis-{number}")).collect();
    let rows = [1, 2, 3, 4, 9, 19].map(|nodes: usize| {
        let ring = |nodes: usize| Points::new(names[..nodes].iter().map(|name| (&**name, 1)));
        let (before, after) = (ring(nodes), ring(nodes + 1));
        let moved = |moves: &dyn Fn(u128) -> bool| {
            percent(tags().filter(|tag| moves(*tag)).count() as f64, f64::from(KEYS))
        };
        vec![
            format!("{nodes} to {}", nodes + 1),
            moved(&|tag| tag % nodes as u128 != tag % (nodes as u128 + 1)),
            moved(&|tag| before.node_of(tag) != after.node_of(tag)),
            percent(1.0, nodes as f64 + 1.0),
        ]
    });
    Ok(vec![Grid {
        title: format!("Keys of {KEYS} that move when a node joins"),
        heads: vec!["nodes", "hash modulo nodes", "Spillgate's ring", "minimum"],
        rows: rows.into(),
    }])
}

/// Hashes of keys. A multiplication spreads them evenly.
fn tags() -> impl Iterator<Item = u128> {
    (1..=u128::from(KEYS))
        .map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835) >> 7)
}

const KEYS: u32 = 100_000;
