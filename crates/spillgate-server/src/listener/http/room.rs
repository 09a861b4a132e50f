//! The room that a check or a batch takes: its decoded requests, its decisions and its answer. All count against the
//! listener's budget before anything is charged.

use smallvec::SmallVec;
use spillgate::http::HeaderStyle;
use spillgate::{Policy, Request};

use super::problem::Problem;

/// The most bytes that the decisions and the answer to some requests may have.
pub(super) struct Room {
    /// The most limits of each request.
    limits: SmallVec<[usize; 1]>,
    answer: usize,
}

/// Returns the most bytes of a body and of the `count` requests that it lists, once they are decoded.
pub(super) fn decoded(body: &[u8], count: usize) -> usize {
    // Each attribute and each unit has a colon.
    let named = body.iter().filter(|byte| **byte == b':').count();
    body.len() + count * DECODED_OF_ONE + named * DECODED_OF_NAMED
}

impl Room {
    /// Returns the room of requests, each with the style of its ready-made headers.
    pub(super) fn of<'r, 'a: 'r>(
        policy: &Policy,
        requests: impl IntoIterator<Item = (&'r Request<'a>, Option<HeaderStyle>)>,
    ) -> Room {
        let mut room = Room { limits: SmallVec::new(), answer: 0 };
        for (request, headers) in requests {
            let (limits, bytes) = limits_of(policy, request);
            room.limits.push(limits);
            room.answer += ANSWER_OF_ONE + bytes + headers.map_or(0, |_| HEADERS_OF_ONE);
        }
        room
    }

    /// Returns whether it is more than most checks take, which need no budget.
    pub(super) fn is_large(&self) -> bool {
        self.limits.iter().sum::<usize>() > FEW_LIMITS
    }

    /// Returns the most bytes of the answer.
    ///
    /// # Errors
    ///
    /// If the answer could have more bytes than one answer may have. Nothing was charged.
    pub(super) fn answer(&self) -> Result<usize, Problem> {
        if self.answer <= ANSWER_MAX {
            return Ok(self.answer);
        }
        let fit = self.limits.len() * ANSWER_MAX / self.answer;
        Err(Problem::answer_too_large(self.answer, ANSWER_MAX, fit))
    }

    /// Returns the most bytes of the decisions that are in memory at once.
    pub(super) fn decided(&self) -> usize {
        let all: usize = self.limits.iter().sum();
        let largest = self.limits.iter().copied().max().unwrap_or_default();
        all.min(DECIDED_AT_ONCE.max(largest)) * DECISION_OF_LIMIT
    }

    /// Returns how many of the last `rest` requests to decide at once: at least one.
    pub(super) fn next(&self, rest: usize) -> usize {
        let rest = &self.limits[self.limits.len() - rest..];
        let mut limits = 0;
        let fits = |of_one: &&usize| {
            limits += **of_one;
            limits <= DECIDED_AT_ONCE
        };
        rest.iter().take_while(fits).count().max(1).min(rest.len())
    }
}

/// Returns the most limits that a request meets, and the most bytes of these in its answer.
fn limits_of(policy: &Policy, request: &Request<'_>) -> (usize, usize) {
    if request.inline_limit().is_some() {
        return (1, LIMIT_WITH_NAMES);
    }
    let all = policy.limit_count();
    if all <= FEW_LIMITS {
        return (all, all * LIMIT_WITH_NAMES);
    }
    let (mut limits, mut bytes) = (0, 0);
    for matched in policy.matched(&policy.typed(request)) {
        let rule = matched.rule.name().len();
        for limit in matched.limits {
            limits += 1;
            bytes += LIMIT + rule + limit.name().len() + limit.limit().unit().len();
        }
    }
    (limits, bytes)
}

/// The most bytes of an answer. Eight of them may exceed the budget of a listener.
const ANSWER_MAX: usize = 16 * 1024 * 1024;
/// The limits of the decisions that are in memory at once.
const DECIDED_AT_ONCE: usize = 4096;
/// The most limits of a policy for which a request is not matched to find its own: matching takes a fifth of the time
/// of a decision.
const FEW_LIMITS: usize = 16;
/// The most bytes of an answer, its limits and headers left out.
const ANSWER_OF_ONE: usize = 512;
/// The most bytes of one limit in an answer, its names left out.
const LIMIT: usize = 256;
/// The most bytes of one limit in an answer: three names have 64 bytes each.
const LIMIT_WITH_NAMES: usize = LIMIT + 3 * 64;
/// The most bytes of ready-made headers in an answer: the body and the fields that a rule sets for its denials.
const HEADERS_OF_ONE: usize = (4 + 2) * 1024;
/// The bytes around the problem of an item.
pub(super) const PROBLEM: usize = 16;
/// The bytes of one limit in a decision.
const DECISION_OF_LIMIT: usize = 256;
/// The bytes of a decoded check without its attributes, and of its request.
const DECODED_OF_ONE: usize = 1536;
/// The bytes of an attribute or unit, of 48 in the check, in its request and in the copy that has types, with room to
/// grow.
const DECODED_OF_NAMED: usize = 256;

#[cfg(test)]
mod tests {
    use axum::body::HttpBody;

    use super::*;
    use crate::app::App;
    use crate::config::Store;
    use crate::listener::http::answer::Answers;
    use crate::listener::http::request::Batch;

    fn policy(rules: usize, limits: usize) -> Policy {
        let limits: Vec<String> = (1..=limits).map(|n| format!("'{n}/{n}d'")).collect();
        let limits = limits.join(",");
        let rule = |n| {
            let key = if n % 2 == 0 { "user" } else { "other" };
            format!(
                "[[rule]]\nname = 'a-rule-with-a-long-name-{n}'\nkey = ['{key}']\nlimits = [{limits}]\n"
            )
        };
        Policy::from_toml(&(0..rules).map(rule).collect::<String>()).unwrap()
    }

    #[tokio::test]
    async fn the_answer_to_a_batch_has_no_more_bytes_than_are_counted() {
        for (rules, limits) in [(1, 1), (64, 1), (8, 64)] {
            let app = App::open(&Store::default(), policy(rules, limits)).await.unwrap();
            for check in
                [r#"{"attributes":{"user":"u"}}"#, r#"{"key":"u","limit":{"quota":"5/day"}}"#]
            {
                let body = format!("[{check},{check},{check}]");
                let batch = Batch::of(Batch::listed(body.as_bytes()).unwrap());
                let requests: Vec<_> = batch.requests().map(|item| item.unwrap().0).collect();
                let policy = app.limiter().policy();
                let counted = Room::of(&policy, requests.iter().map(|request| (request, None)));
                let decisions = app.check_batch(&requests).await;
                let mut answers = Answers::to(requests.len());
                decisions.iter().for_each(|decision| answers.add(decision, None));
                let length = answers.response().body().size_hint().exact().unwrap() as usize;
                let counted = counted.answer().unwrap();
                assert!(length <= counted, "{rules} rules: {length} bytes of {counted}");
                assert!(counted <= 4 * length, "{rules} rules: {length} bytes of {counted}");
            }
        }
    }

    #[test]
    fn a_batch_over_many_limits_is_decided_in_parts_and_refused_if_its_answer_is_too_large() {
        let policy = policy(32, 64);
        let request = Request::new().with("user", "u");
        let room = |count| Room::of(&policy, std::iter::repeat_n((&request, None), count));
        assert_eq!(room(3).answer().unwrap() / 3, room(1).answer().unwrap());
        assert_eq!((room(3).next(3), room(9).next(9), room(9).next(1)), (3, 4, 1));
        assert_eq!(room(1_000).decided(), DECIDED_AT_ONCE * DECISION_OF_LIMIT);
        let refused = String::from_utf8(room(1_000).answer().unwrap_err().json()).unwrap();
        assert!(
            refused.contains("\"status\":413") && refused.contains("send at most"),
            "{refused}"
        );
    }
}
