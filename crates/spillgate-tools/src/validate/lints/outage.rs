//! Finds rules that admit too much while the store is out of reach.

use spillgate::OnOutage;

use super::super::rules::{covers, decides};
use super::{Checked, Finding};

pub fn fails_open(checked: &Checked<'_>) -> Vec<Finding> {
    let rules = checked.compared();
    let open = rules.iter().filter(|written| {
        let closed_by = |other: &super::Written<'_>| {
            decides(other.rule)
                && other.rule.on_outage() != OnOutage::Allow
                && covers(other.rule, written.rule, None)
        };
        decides(written.rule)
            && written.rule.on_outage() == OnOutage::Allow
            && !rules.iter().any(closed_by)
    });
    let found = open.map(|written| {
        let problem = "while the store is down nothing limits these requests";
        let remedy = "write on_outage = \"local\" unless the service behind can take them all";
        written.note(written.entry.line_of("on_outage"), problem, remedy)
    });
    found.collect()
}

/// Each instance enforces its local share by itself, so the shares of all instances must not exceed the limit.
pub fn shares_above_limit(checked: &Checked<'_>) -> Vec<Finding> {
    let Some(instances) = checked.service.expected_instances else { return Vec::new() };
    let mut found = Vec::new();
    for written in checked.rules() {
        let Some(share) = written.rule.local_share() else { continue };
        // A share has at most six decimals.
        let millionths = share.part_of(1_000_000);
        if u64::from(instances) * millionths > 1_000_000 {
            let share = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
            let share = share.trim_end_matches('0').trim_end_matches('.');
            let problem = format!(
                "while the store is down {instances} instances admit {share} of the limit each, which is more than the limit"
            );
            let remedy = format!("write 1 ÷ {instances} or less, or leave local_share out");
            found.push(written.warning(written.entry.line_of("local_share"), problem, remedy));
        }
    }
    found
}
