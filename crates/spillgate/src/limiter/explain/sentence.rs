//! An explanation in words: the result and its reason, how long it lasts, and how a raise would change it.

use super::wait::Wait;
use super::{ExplainedLimit, Explanation, Raise};
use crate::decision::{Reason, Source};
use crate::request::Value;

/// The answer that the request would get.
pub fn of_all(explained: &Explanation) -> String {
    let answer = explained.answer();
    let by = answer.rule().zip(answer.limit()).map(|(rule, limit)| format!("{rule}/{limit}"));
    let by = by.unwrap_or_else(|| "the inline limit".to_owned());
    let mut sentence = match answer.reason() {
        _ if answer.is_unmatched() => {
            format!("Allowed: no rule of the domain {:?} matches.", explained.domain)
        }
        None if answer.limits().all(|limit| limit.shadow()) => {
            "Allowed: only rules in shadow mode match, and these deny nothing.".to_owned()
        }
        None => format!("Allowed: every limit has room; {by} has the least left."),
        Some(Reason::Blocked) => format!("Denied by {by}, which blocks."),
        Some(Reason::CostExceedsLimit) => {
            format!("Denied by {by}: the cost exceeds its capacity, and no wait helps.")
        }
        Some(Reason::StoreUnavailable | Reason::Overloaded) => {
            format!("Denied by {by}, since the store gave no answer.")
        }
        Some(_) => match answer.retry_after() {
            Some(wait) => format!("Denied by {by}, for {}.", Wait(wait)),
            None => format!("Denied by {by}; how long is unknown."),
        },
    };
    if explained.leased().is_some() {
        sentence.push_str(" This instance has leased enough, and answers without the store.");
    } else if explained.remembered().is_some() {
        sentence
            .push_str(" This instance repeats the denial without the store, for a second at most.");
    }
    if answer.degraded() {
        sentence.push_str(" The store is unavailable or too slow.");
    }
    sentence.extend(explained.paths.iter().map(|path| format!(" {path}")));
    sentence
}

/// The readings of a value that has several.
pub fn of_readings(attribute: &str, value: &Value<'_>) -> String {
    let quoted = |one: &[u8]| format!("{:?}", String::from_utf8_lossy(one));
    let others: Vec<String> = value.other_readings().map(quoted).collect();
    format!(
        "The attribute {attribute:?} has several readings, since servers differ: {} and {}. Rules match any of them, and a key uses the one that its rule matches.",
        quoted(value.as_bytes()),
        others.join(", ")
    )
}

/// The state of one limit.
pub fn of_counter(counter: &ExplainedLimit<'_>) -> String {
    let decision = counter.decision();
    let (limit, unit) = (decision.definition(), decision.unit());
    let name = match decision.rule() {
        Some(rule) => format!("{rule}/{} ({limit})", decision.limit()),
        None => format!("the inline limit ({limit})"),
    };
    let cost = match counter.cost() {
        0 => "and this only peeks".to_owned(),
        cost => format!("and this costs {cost}"),
    };
    let left = match (decision.remaining(), decision.capacity()) {
        (Some(left), Some(_)) if decision.source() == Source::Fallback => {
            format!("{left} {unit} of this instance's local share are left, {cost}")
        }
        (Some(left), Some(capacity)) => format!("{left} of {capacity} {unit} are left, {cost}"),
        (None, Some(capacity)) => {
            format!("the capacity is {capacity} {unit}, {cost}; how much is left is unknown")
        }
        (_, None) => cost,
    };
    let mut sentence = match (decision.reason(), decision.capacity()) {
        (_, None) => {
            let exempts_not = counter.notes.exempts_not.as_deref().unwrap_or_default();
            format!("{name} allows every request.{exempts_not}")
        }
        (_, Some(0)) => format!("{name} blocks: it allows nothing, and no wait helps."),
        (None, _) => format!("{name} has room: {left}."),
        (Some(Reason::CostExceedsLimit), Some(capacity)) => format!(
            "{name} denies: this costs {}, its capacity is {capacity} {unit}, and no wait helps.",
            counter.cost()
        ),
        (Some(_), _) => format!("{name} denies: {left}.{}", until(counter)),
    };
    if let Some(reset) = decision.reset_after().filter(|reset| !reset.is_zero()) {
        sentence.push_str(&format!(" It is full in {}, without further requests.", Wait(reset)));
    }
    if decision.is_request_limit() {
        sentence.push_str(" The request asked for this limit.");
    }
    sentence.push_str(of_source(decision.source()));
    if decision.shadow() {
        sentence.push_str(" Its rule is in shadow mode, and denies nothing.");
    }
    if decision.advisory() {
        sentence.push_str(match counter.cost() {
            0 => " The request only refunds, so it is never denied.",
            _ => " It is charged afterwards, with or without room, and denies nothing.",
        });
    }
    sentence
}

impl Raise {
    /// Returns the effect of twice the limit in a sentence.
    pub fn sentence(&self) -> String {
        let Raise { quota, remaining, fits } = self;
        let result =
            if *fits { "this request would be allowed" } else { "it would still be denied" };
        format!("At {quota}, {remaining} would be left now, and {result}.")
    }
}

fn until(counter: &ExplainedLimit<'_>) -> String {
    let decision = counter.decision();
    match decision.retry_after() {
        Some(wait) if decision.algorithm().counts_permits() => {
            format!(
                " There is room in {} at the latest, and as soon as a permit is released.",
                Wait(wait)
            )
        }
        Some(wait) => format!(" There is room again in {}.", Wait(wait)),
        None => " When there is room again is unknown.".to_owned(),
    }
}

fn of_source(source: Source) -> &'static str {
    match source {
        Source::DenialCache => " This instance repeats a denial from a moment ago.",
        Source::Fallback => {
            " The store is unavailable or too slow, so each instance enforces a share of the limit."
        }
        Source::OutagePolicy => {
            " The store is unavailable or too slow, and on_outage of the rule decides."
        }
        // The store's own, or a lease of it.
        _ => "",
    }
}
