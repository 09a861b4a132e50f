//! The room that a check or a batch takes: its decoded requests, its decisions and its answer. All count against the
//! listener's budget before anything is charged.

use smallvec::SmallVec;
use spillgate::http::HeaderStyle;
use spillgate::policy::{DenialBody, RuleDenial};
use spillgate::{Policy, Request, Rule};

use super::problem::Problem;

/// The most bytes that the decisions and the answer to some requests may have.
pub struct Room {
    /// The most limits of each request.
    limits: SmallVec<[usize; 1]>,
    answer: usize,
}

/// Returns the most bytes of a body and of the `count` requests that it lists, once they are decoded.
pub fn decoded(body: &[u8], count: usize) -> usize {
    // Each attribute and each unit has a colon.
    let named = body.iter().filter(|byte| **byte == b':').count();
    body.len() + count * DECODED_OF_ONE + named * DECODED_OF_NAMED
}

impl Room {
    /// Returns the room of requests, each with the style of its ready-made headers.
    pub fn new<'r, 'a: 'r>(
        policy: &Policy,
        requests: impl IntoIterator<Item = (&'r Request<'a>, Option<HeaderStyle>)>,
    ) -> Room {
        let mut room = Room { limits: SmallVec::new(), answer: 0 };
        for (request, headers) in requests {
            let (limits, bytes) = limits_of(policy, request, headers);
            room.limits.push(limits);
            room.answer += ANSWER_OF_ONE + bytes;
            // It will be refused, and to match the other requests takes time from those of others.
            if room.answer > ANSWER_MAX {
                break;
            }
        }
        room
    }

    /// Returns whether it is more than most checks take, which need no budget.
    pub fn is_large(&self) -> bool {
        self.limits.iter().sum::<usize>() > FEW_LIMITS
    }

    /// Returns the most bytes of the answer.
    ///
    /// # Errors
    ///
    /// If the answer could have more bytes than one answer may have. Nothing was charged.
    pub fn answer(&self) -> Result<usize, Problem> {
        if self.answer <= ANSWER_MAX {
            return Ok(self.answer);
        }
        let fit = self.limits.len() * ANSWER_MAX / self.answer;
        Err(Problem::answer_too_large(ANSWER_MAX, fit))
    }

    /// Returns the most bytes of the decisions that are in memory at once.
    pub fn decided(&self) -> usize {
        let all: usize = self.limits.iter().sum();
        let largest = self.limits.iter().copied().max().unwrap_or_default();
        all.min(DECIDED_AT_ONCE.max(largest)) * DECISION_OF_LIMIT
    }

    /// Returns how many of the last `rest` requests to decide at once: at least one, if there are any.
    pub fn next(&self, rest: usize) -> usize {
        part_of(self.limits[self.limits.len() - rest..].iter().copied())
    }
}

/// Returns how many of these requests to decide at once: at least one, if there are any.
pub fn of_one_part(policy: &Policy, requests: &[Request<'_>]) -> usize {
    part_of(requests.iter().map(|request| limits_of(policy, request, None).0))
}

/// Returns how many of the requests that meet so many limits fit in one part.
fn part_of(limits: impl ExactSizeIterator<Item = usize>) -> usize {
    let (rest, mut sum) = (limits.len(), 0);
    let fits = |of_one: &usize| {
        sum += of_one;
        sum <= DECIDED_AT_ONCE
    };
    limits.take_while(fits).count().max(1).min(rest)
}

/// Returns the most limits that a request meets, and the most bytes of these and of its ready-made headers in its
/// answer.
fn limits_of(
    policy: &Policy,
    request: &Request<'_>,
    headers: Option<HeaderStyle>,
) -> (usize, usize) {
    // Counts the headers of an answer whose limits have these names, and the denial of one of these rules.
    let headers_of = |limits: usize, names: usize, denial: usize| match headers {
        Some(_) => HEADERS_OF_ONE + limits * HEADERS_OF_LIMIT + NAMED_IN_HEADERS * names + denial,
        None => 0,
    };
    if request.inline_limit().is_some() {
        return (1, LIMIT_WITH_NAMES + headers_of(1, NAMES, 0));
    }
    let all = policy.limit_count();
    let few = if headers.is_some() { FEW_LIMITS_WITH_HEADERS } else { FEW_LIMITS };
    if all <= few {
        let denial = headers.map_or(0, |_| largest_denial(policy.rules()));
        return (all, all * LIMIT_WITH_NAMES + headers_of(all, all * NAMES, denial));
    }
    let (mut limits, mut names) = (0, 0);
    let matched = policy.matched(&policy.typed(request));
    for one in &matched {
        let rule = one.rule.name().len();
        for limit in one.limits {
            limits += 1;
            names += rule + limit.name().len() + limit.limit().unit().len();
        }
    }
    let denial = headers.map_or(0, |_| largest_denial(matched.iter().map(|one| one.rule)));
    (limits, limits * LIMIT + names + headers_of(limits, names, denial))
}

/// Returns the most bytes that the denial of one of these rules adds to an answer.
fn largest_denial<'p>(rules: impl Iterator<Item = &'p Rule>) -> usize {
    rules.filter_map(Rule::denial).map(bytes_of_denial).max().unwrap_or_default()
}

fn bytes_of_denial(denial: &RuleDenial) -> usize {
    let field = |(name, value): (&str, &str)| name.len() + escaped(value) + MEMBER;
    let fields: usize = denial.headers().map(field).sum();
    let body = match denial.body() {
        Some(DenialBody::Text(text) | DenialBody::Json(text)) => escaped(text),
        Some(DenialBody::Problem(members)) => {
            members.iter().map(|(name, value)| escaped(name) + escaped(value) + MEMBER).sum()
        }
        None => 0,
    };
    fields + body
}

/// Returns the most bytes of a string in JSON. A control character takes six, such as `\u0001`.
pub fn escaped(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        0..=0x1f => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}

/// The most bytes of an answer. Eight of them may exceed the budget of a listener.
const ANSWER_MAX: usize = 16 * 1024 * 1024;
/// The limits of the decisions that are in memory at once.
const DECIDED_AT_ONCE: usize = 4096;
/// The most limits of a policy for which a request is not matched to find its own: matching takes a fifth of the time
/// of a decision.
const FEW_LIMITS: usize = 16;
/// The same for a request with ready-made headers, which repeat each name: the longest names of more limits would count
/// for too much.
const FEW_LIMITS_WITH_HEADERS: usize = 4;
/// The most bytes of an answer, its limits and headers left out.
const ANSWER_OF_ONE: usize = 512;
/// The most bytes of one limit in an answer, its names left out.
const LIMIT: usize = 256;
/// The most bytes of the names of a limit: its rule's, its own and its unit's have 64 bytes each.
const NAMES: usize = 3 * 64;
/// The most bytes of one limit in an answer.
const LIMIT_WITH_NAMES: usize = LIMIT + NAMES;
/// The most bytes of ready-made headers in an answer, and of the usual problem details beside them. Their entries for
/// each limit, and the parts that a rule sets, are left out.
const HEADERS_OF_ONE: usize = 1024;
/// The most bytes of the entries for one limit in `RateLimit`, `RateLimit-Policy` and the problem details, its names
/// left out.
const HEADERS_OF_LIMIT: usize = 160;
/// The entries for one limit that name it.
const NAMED_IN_HEADERS: usize = 3;
/// The bytes around a header field in JSON, or around a member of a body that is a string in JSON.
const MEMBER: usize = 8;
/// The bytes around the problem of an item.
pub const PROBLEM: usize = 16;
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
                let batch = Batch::decode(Batch::listed(body.as_bytes()).unwrap());
                let requests: Vec<_> = batch.requests().map(|item| item.unwrap().0).collect();
                for headers in [None, Some(HeaderStyle::Ietf)] {
                    let (length, counted) = answered(&app, &requests, headers).await;
                    assert!(length <= counted, "{rules} rules: {length} bytes of {counted}");
                    // The longest names are counted, and headers repeat each.
                    let most = if headers.is_some() { 8 } else { 4 };
                    assert!(counted <= most * length, "{rules} rules: {length} bytes of {counted}");
                }
            }
        }
    }

    #[tokio::test]
    async fn the_answer_with_headers_has_no_more_bytes_than_are_counted() {
        let limit = |n: usize| {
            format!(
                "{{ quota = '{n}/{n}d', name = 'a-limit-with-a-name-of-nearly-sixty-four-bytes-{n}' }}"
            )
        };
        let limits: Vec<String> = (1..=64).map(limit).collect();
        let named = format!("limits = [{}]", limits.join(","));
        let block = |denial: &str| format!("limits = ['block']\ndenial = {{ {denial} }}");
        let fields: Vec<String> =
            (0..16).map(|n| format!("x-{n} = '{}'", "\"".repeat(100))).collect();
        for rule in [
            named.clone(),
            format!("{named}\ndenial = {{ status = 402 }}"),
            block(&format!("text = \"{}\"", "\\u0001".repeat(4_000))),
            block(&format!("json = {{ a = \"{}\" }}", "\\u0001".repeat(600))),
            block(&format!("problem = {{ title = \"{}\" }}", "\\\"".repeat(1_000))),
            block(&format!("headers = {{ {} }}", fields.join(", "))),
        ] {
            let rule = format!("[[rule]]\nname = 'r'\nkey = ['user']\n{rule}\n");
            let policy = Policy::from_toml(&rule).unwrap();
            let app = App::open(&Store::default(), policy).await.unwrap();
            let request = Request::new().with("user", "u");
            for style in HeaderStyle::ALL {
                // The second answer is a denial.
                for _ in 0..2 {
                    let requests = std::slice::from_ref(&request);
                    let (length, counted) = answered(&app, requests, Some(style)).await;
                    let name = style.name();
                    assert!(length <= counted, "{name}, {rule}: {length} bytes of {counted}");
                }
            }
        }
    }

    #[test]
    fn a_thousand_checks_with_headers_fit_unless_their_denial_is_long() {
        let answer = |rule: &str| {
            let rule = format!("[[rule]]\nname = 'r'\nkey = ['user']\n{rule}\n");
            let policy = Policy::from_toml(&rule).unwrap();
            let request = Request::new().with("user", "u");
            let headers = Some(HeaderStyle::Ietf);
            Room::new(&policy, std::iter::repeat_n((&request, headers), 1_000)).answer().is_ok()
        };
        let text =
            |text: &str| format!("limits = ['block']\ndenial.text = \"{}\"", text.repeat(4_000));
        assert!(answer("limits = ['5/s']"));
        assert!(answer(&text("a")));
        assert!(!answer(&text("\\u0001")));
    }

    /// Returns the bytes of the answer to these requests, and those that are counted before.
    async fn answered(
        app: &App,
        requests: &[Request<'_>],
        headers: Option<HeaderStyle>,
    ) -> (usize, usize) {
        let policy = app.limiter().policy();
        let counted = Room::new(&policy, requests.iter().map(|request| (request, headers)));
        let decisions = app.check_batch(requests).await;
        let mut answers = Answers::to(requests.len());
        decisions.iter().for_each(|decision| answers.add(decision, headers));
        let length = answers.response(&[]).body().size_hint().exact().unwrap() as usize;
        (length, counted.answer().unwrap())
    }

    #[test]
    fn a_batch_over_many_limits_is_decided_in_parts_and_refused_if_its_answer_is_too_large() {
        let policy = policy(32, 64);
        let request = Request::new().with("user", "u");
        let room = |count| Room::new(&policy, std::iter::repeat_n((&request, None), count));
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
