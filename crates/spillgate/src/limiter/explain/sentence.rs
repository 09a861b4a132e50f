//! An explanation in words: what is so, since when it matters, until when, and what would change it.

use super::wait::Wait;
use super::{ExplainedLimit, Explanation, Raise};
use crate::decision::{Reason, Source};
use crate::limit::Algorithm;

/// What the request would be told.
pub(super) fn of_all(explained: &Explanation) -> String {
    let answer = explained.answer();
    let by = answer.rule().zip(answer.limit()).map(|(rule, limit)| format!("{rule}/{limit}"));
    let by = by.unwrap_or_default();
    let mut reply = match answer.reason() {
        _ if answer.is_unmatched() => {
            format!("Allowed: no rule of the domain {:?} is met.", explained.domain)
        }
        None => format!("Allowed: every limit has room; {by} is nearest to its end."),
        Some(Reason::Blocked) => format!("Denied: {by} blocks, and no wait helps."),
        Some(Reason::CostExceedsLimit) => {
            format!("Denied: it costs more than {by} ever holds, and no wait helps.")
        }
        Some(_) => match answer.retry_after() {
            Some(wait) => format!("Denied by {by}, for {}.", Wait(wait)),
            None => format!("Denied by {by}; nobody can say for how long."),
        },
    };
    if explained.leased().is_some() {
        reply.push_str(" This process has taken as much ahead, and answers without the store.");
    } else if explained.remembered().is_some() {
        reply.push_str(
            " This process remembers the refusal, and answers without the store for a second at most.",
        );
    }
    if answer.degraded() {
        reply.push_str(" The store is out of reach.");
    }
    reply
}

/// How one counter stands.
pub(super) fn of_counter(counter: &ExplainedLimit<'_>) -> String {
    let decision = counter.decision();
    let (limit, unit) = (decision.definition(), decision.unit());
    let name = match decision.rule() {
        Some(rule) => format!("{rule}/{} ({limit})", decision.limit()),
        None => format!("the limit given ({limit})"),
    };
    let cost = match counter.cost() {
        0 => "and this only looks".to_owned(),
        cost => format!("and this costs {cost}"),
    };
    let left = match (decision.remaining(), decision.capacity()) {
        (Some(left), Some(capacity)) => format!("{left} of {capacity} {unit} are left, {cost}"),
        (None, Some(capacity)) => {
            format!("it holds {capacity} {unit}, {cost}; how much is left is not known")
        }
        (_, None) => cost,
    };
    let mut reply = match (decision.reason(), decision.capacity()) {
        (_, None) => format!("{name} has room for everything."),
        (_, Some(0)) => format!("{name} is a block: nothing passes, and no wait helps."),
        (None, _) => format!("{name} has room: {left}."),
        (Some(Reason::CostExceedsLimit), Some(capacity)) => format!(
            "{name} can never admit this: it costs {}, and the limit holds {capacity} {unit} at most.",
            counter.cost()
        ),
        (Some(_), _) => format!("{name} denies: {left}.{}", until(counter)),
    };
    if let Some(reset) = decision.reset_after().filter(|reset| !reset.is_zero()) {
        reply.push_str(&format!(" Untouched again in {}, if nobody asks.", Wait(reset)));
    }
    reply.push_str(of_source(decision.source()));
    if decision.shadow() {
        reply.push_str(" Its rule is only watched, and refuses nobody.");
    }
    if decision.advisory() {
        reply.push_str(
            " It is charged afterwards, room or not, and refuses nobody who asks for room.",
        );
    }
    reply
}

impl Raise {
    /// For people.
    pub fn sentence(&self) -> String {
        let Raise { quota, remaining, fits } = self;
        let verdict = if *fits { "this would have room" } else { "this would still be refused" };
        format!("At {quota}, {remaining} would be left now, and {verdict}.")
    }
}

fn until(counter: &ExplainedLimit<'_>) -> String {
    let decision = counter.decision();
    match decision.retry_after() {
        Some(wait) if decision.algorithm() == Algorithm::Concurrency => {
            format!(
                " There is room in {} at the latest, and as soon as a slot is released.",
                Wait(wait)
            )
        }
        Some(wait) => format!(" There is room again in {}.", Wait(wait)),
        None => " Nobody can say when there is room again.".to_owned(),
    }
}

fn of_source(source: Source) -> &'static str {
    match source {
        Source::Store | Source::Lease => "",
        Source::DenialCache => " This process remembers it from a moment ago.",
        Source::Fallback => {
            " The store is out of reach or too slow: this process enforces its share of the limit alone."
        }
        Source::OutagePolicy => {
            " The store is out of reach or too slow, and the rule's on_outage decides."
        }
    }
}
