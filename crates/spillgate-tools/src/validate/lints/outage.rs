//! Finds rules that admit too much while the store is out of reach.

use spillgate::OnOutage;

use super::super::rules::{covers, decides};
use super::{Checked, Found};

pub(super) fn fails_open(checked: &Checked<'_>) -> Vec<Found> {
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
        let problem = "while the store is out of reach nothing limits these requests";
        let remedy = "write on_outage = \"local\" unless the service behind can take them all";
        written.note(written.entry.line_of("on_outage"), problem, remedy)
    });
    found.collect()
}

/// Each instance enforces its local share by itself, so the shares of all instances must not exceed the limit.
pub(super) fn shares_above_limit(checked: &Checked<'_>) -> Vec<Found> {
    let Some(instances) = checked.service.expected_instances else { return Vec::new() };
    let mut found = Vec::new();
    for written in checked.rules() {
        let share = written.entry.local_share.as_deref();
        let Some((part, of)) = share.and_then(fraction) else { continue };
        if u64::from(instances) * part > of {
            let share = share.unwrap_or_default();
            let problem = format!(
                "while the store is out of reach {instances} instances admit {share} of the limit each, which is more than the limit"
            );
            let remedy = format!("write 1 ÷ {instances} or less, or leave local_share out");
            found.push(written.warning(written.entry.line_of("local_share"), problem, remedy));
        }
    }
    found
}

/// Returns a decimal number as a part of a power of ten.
fn fraction(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let of = 10_u64.checked_pow(fraction.len().try_into().ok()?)?;
    let whole: u64 = whole.parse().ok()?;
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.checked_mul(of)?.checked_add(fraction)?, of))
}
