//! Finds leases that hold no tokens.

use super::{Checked, Finding};

pub fn of_nothing(checked: &Checked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for written in checked.rules() {
        let Some(lease) = written.rule.lease() else { continue };
        for (position, limit) in written.rule.limits().enumerate() {
            // A limit without a capacity has no tokens to lease.
            let bounded = limit.capacity().is_some_and(|capacity| capacity > 0);
            if bounded && lease.tokens_of(limit) == 0 {
                let problem = format!(
                    "its lease's share of {limit} is less than one token, so no token is ever leased"
                );
                let remedy = "write a larger share, or leave the lease out";
                found.push(written.warning(written.entry.line_of_limit(position), problem, remedy));
            }
        }
    }
    found
}
