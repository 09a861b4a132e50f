//! Leases that never come to be.

use super::{Found, Looked};

pub(super) fn of_nothing(looked: &Looked<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for written in looked.rules() {
        let Some(lease) = written.rule.lease() else { continue };
        for (position, limit) in written.rule.limits().enumerate() {
            // Without a bound there is nothing to take ahead.
            let bounded = limit.capacity().is_some_and(|capacity| capacity > 0);
            if bounded && lease.tokens_of(limit) == 0 {
                let what = format!(
                    "its lease's share of {limit} is less than one, so nothing of it is ever taken ahead"
                );
                let remedy = "write a larger share, or leave the lease out";
                found.push(written.warning(written.entry.line_of_limit(position), what, remedy));
            }
        }
    }
    found
}
