//! The placement of a decision's counters changes no answer: random decisions over many subjects, on a ring
//! and on a Cluster, against the same decisions in memory.

use spillgate::Algorithm;
use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_testkit::Cluster;

use crate::support::random::Random;
use crate::support::world::{Costs, World, limit};

/// ACCIDENTS A8, 30. Two keys of one decision without a hash tag: CROSSSLOT on a Cluster, and the limiter
/// failed open.
#[test]
fn decisions_over_many_shards_equal_those_in_memory() {
    let cluster = Cluster::start(3, 0);
    let worlds = [World::on_ring(), World::on_cluster(&cluster)];
    for (seed, spread) in (1..).zip(worlds) {
        let memory = World::in_memory(100_000);
        let mut random = Random::new(seed);
        let limits: Vec<NamedLimit> =
            Algorithm::ALL.iter().map(|algorithm| limit(*algorithm, 6, "1000s")).collect();
        let (mut allowed, mut denied) = (0, 0);
        for number in 0..600 {
            let costs = random_costs(&mut random, &limits);
            let intent = if random.one_in(8) { Intent::Peek } else { Intent::Charge };
            let expected = memory.decide_one(intent, &costs);
            let reply = spread.decide_one(intent, &costs);
            assert_eq!(reply.allowed, expected.allowed, "{number} of seed {seed}: {costs:?}");
            for (reply, expected) in reply.replies.iter().zip(&expected.replies) {
                assert_eq!(
                    (reply.fits, reply.reading),
                    (expected.fits, expected.reading),
                    "{}, {number} of seed {seed}: {costs:?}",
                    spread.name()
                );
            }
            *(if reply.allowed { &mut allowed } else { &mut denied }) += 1;
            let on_us = random.below(20_000_000);
            memory.after(on_us);
            spread.after(on_us);
        }
        println!("{}: {allowed} allowed, {denied} denied", spread.name());
        assert!(allowed > 100 && denied > 100, "{allowed} allowed, {denied} denied");
    }
}

fn random_costs<'l>(random: &mut Random, limits: &'l [NamedLimit]) -> Vec<Costs<'l>> {
    let mut costs: Vec<Costs<'l>> = Vec::new();
    for _ in 0..=random.below(5) {
        let subject = u128::from(random.below(12));
        let limit = &limits[random.below(limits.len() as u64) as usize];
        let known = |cost: &Costs<'_>| cost.0 == subject && cost.1.mix() == limit.mix();
        if !costs.iter().any(known) {
            costs.push((subject, limit, 1 + random.below(3)));
        }
    }
    costs
}
