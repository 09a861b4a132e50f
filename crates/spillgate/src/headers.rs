//! Writes a decision as HTTP header fields, in the styles in use. Only known numbers are written,
//! and none of shadow rules.

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};
use smallvec::{SmallVec, smallvec};

use crate::decision::Decision;

mod advice;
mod text;

use advice::Advice;
pub(crate) use advice::{PolicyName, enforced_counters, whole_seconds};
use text::Text;

/// The header fields that show how much quota is left.
///
/// | style | fields of a decision |
/// |---|---|
/// | `ietf` | `RateLimit-Policy: "login";q=5;w=60` and `RateLimit: "login";r=4;t=12`, the tightest limits first (draft-ietf-httpapi-ratelimit-headers-11) |
/// | `draft-7` | `RateLimit: limit=5, remaining=4, reset=12` of the tightest, `RateLimit-Policy: 5;w=60` |
/// | `draft-6` | `RateLimit-Limit: 5`, `RateLimit-Remaining: 4`, `RateLimit-Reset: 12`, `RateLimit-Policy: 5;w=60` |
/// | `legacy` | `X-RateLimit-Limit: 5`, `X-RateLimit-Remaining: 4`, `X-RateLimit-Reset: 12` |
/// | `none` | nothing |
///
/// The name of a limit is its rule's, or `rule/limit` if the rule has several. All times are
/// seconds from now, rounded up.
///
/// `t` is the wait until the same request would be allowed if it was denied, else the time until
/// one more unit is free. For sliding logs and windows the latter is unknown, and `t` is absent.
/// `reset` is the same wait if the request was denied, else the time until the limit is full.
///
/// A field has at most 4 KiB, which has room for 16 limits with the longest names and for some 50 with usual ones. The
/// tightest are shown.
///
/// Permits come back when they are released, so no field gives a time for them, and the older
/// styles leave them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// The two structured fields of the current IETF draft.
    #[default]
    Ietf,
    /// The two fields of draft 7.
    Draft7,
    /// The fields of draft 6.
    Draft6,
    /// The fields from before the drafts, with times in seconds from now.
    Legacy,
    /// No fields except `Retry-After`.
    None,
}

impl HeaderStyle {
    /// All styles, newest first.
    pub const ALL: [HeaderStyle; 5] = [
        HeaderStyle::Ietf,
        HeaderStyle::Draft7,
        HeaderStyle::Draft6,
        HeaderStyle::Legacy,
        HeaderStyle::None,
    ];

    /// Returns the name of the style: `ietf`, `draft-7`, `draft-6`, `legacy` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            HeaderStyle::Ietf => "ietf",
            HeaderStyle::Draft7 => "draft-7",
            HeaderStyle::Draft6 => "draft-6",
            HeaderStyle::Legacy => "legacy",
            HeaderStyle::None => "none",
        }
    }

    /// Returns the style with this name, if there is one.
    ///
    /// ```
    /// # use spillgate::http::HeaderStyle;
    /// assert_eq!(HeaderStyle::named("draft-7"), Some(HeaderStyle::Draft7));
    /// assert_eq!(HeaderStyle::named("draft-5"), None);
    /// ```
    pub fn named(name: &str) -> Option<HeaderStyle> {
        HeaderStyle::ALL.into_iter().find(|style| style.name() == name)
    }
}

/// The header fields of one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    names: &'static [HeaderName],
    /// The values, one for each name.
    values: SmallVec<[HeaderValue; 2]>,
}

impl Fields {
    /// Makes the fields of a decision, together with those of earlier decisions on the same
    /// request.
    pub(crate) fn new(style: HeaderStyle, decision: &Decision, before: &[Decision]) -> Fields {
        if style == HeaderStyle::None {
            return Fields::default();
        }
        match Advice::sole(decision) {
            Some(one) if before.is_empty() => Fields::saying(style, std::slice::from_ref(&one)),
            _ => Fields::saying(style, &Advice::new([decision].into_iter().chain(before))),
        }
    }

    fn saying(style: HeaderStyle, advice: &[Advice<'_>]) -> Fields {
        let advice = fitting(advice);
        match style {
            HeaderStyle::Ietf => Fields::ietf(advice),
            HeaderStyle::Draft7 => Fields::draft7(advice),
            HeaderStyle::Draft6 => Fields::separate(advice, &DRAFT6).with_policies(advice),
            HeaderStyle::Legacy => Fields::separate(advice, &LEGACY),
            HeaderStyle::None => Fields::default(),
        }
    }

    /// Adds the fields, unless one of them exists already.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        for (place, (name, value)) in self.names.iter().zip(self.values).enumerate() {
            match headers.entry(name) {
                Entry::Vacant(vacant) => drop(vacant.insert(value)),
                Entry::Occupied(_) => {
                    // All or none: fields of two sources would contradict each other.
                    self.names[..place].iter().for_each(|ours| drop(headers.remove(ours)));
                    return;
                }
            }
        }
    }

    fn ietf(advice: &[Advice<'_>]) -> Fields {
        if advice.is_empty() {
            return Fields::default();
        }
        let mut limits = Text::new();
        for one in advice {
            limits.member().name(one.name).number(";r=", one.remaining);
            limits.known(";t=", one.more_after_s());
        }
        Fields { names: &IETF, values: smallvec![policies(advice), limits.value()] }
    }

    fn draft7(advice: &[Advice<'_>]) -> Fields {
        let Some((one, reset_s)) = resetting(advice).next() else { return Fields::default() };
        let mut text = Text::new();
        text.number("limit=", one.capacity).number(", remaining=", one.remaining);
        text.number(", reset=", reset_s);
        Fields { names: &DRAFT7, values: smallvec![text.value()] }.with_policies(advice)
    }

    /// Makes one field for each number of the tightest limit.
    fn separate(advice: &[Advice<'_>], names: &'static [HeaderName]) -> Fields {
        let Some((one, reset_s)) = resetting(advice).next() else { return Fields::default() };
        let numbers = [one.capacity, one.remaining, reset_s].map(HeaderValue::from);
        Fields { names, values: numbers.into_iter().collect() }
    }

    /// Adds `5;w=60` for each limit, if there is any. These styles have no place for names.
    fn with_policies(mut self, advice: &[Advice<'_>]) -> Fields {
        if self.values.is_empty() {
            return self;
        }
        let mut text = Text::new();
        for (one, _) in resetting(advice) {
            text.member().number("", one.capacity).known(";w=", one.window_s());
        }
        self.values.push(text.value());
        self
    }
}

/// Returns the tightest limits, as many as surely fit into one field.
///
/// Proxies bound the head of an answer. One that refuses a denial for its length may admit the request.
fn fitting<'a, 'd>(advice: &'a [Advice<'d>]) -> &'a [Advice<'d>] {
    let mut room = FIELD_MAX;
    let fits = |one: &&Advice<'_>| {
        let names = one.name.parts().chain(one.unit()).map(str::len).sum::<usize>();
        let left = room.checked_sub(names + BESIDE_NAMES);
        room = left.unwrap_or_default();
        left.is_some()
    };
    &advice[..advice.iter().take_while(fits).count()]
}

/// Makes the value of `RateLimit-Policy`. The text of a limit is the same for every request and
/// most answers show one limit, so it is cached.
fn policies(advice: &[Advice<'_>]) -> HeaderValue {
    if let [one] = advice {
        return match one.kept() {
            Some(kept) => {
                let text = kept.get_or_init(|| Bytes::copy_from_slice(policy(one).as_bytes()));
                HeaderValue::from_maybe_shared(text.clone()).unwrap_or_else(|_| policy(one).value())
            }
            None => policy(one).value(),
        };
    }
    let mut policies = Text::new();
    for one in advice {
        policies.member().bytes(policy(one).as_bytes());
    }
    policies.value()
}

fn policy(one: &Advice<'_>) -> Text {
    let mut text = Text::new();
    text.name(one.name).number(";q=", one.capacity).known(";w=", one.window_s());
    if let Some(unit) = one.unit() {
        text.text(";qu=\"").text(unit).text("\"");
    }
    text
}

/// Returns the limits that the older styles can show: those with a known reset time, which these
/// styles cannot leave out.
fn resetting<'a, 'd>(advice: &'a [Advice<'d>]) -> impl Iterator<Item = (&'a Advice<'d>, u64)> {
    advice.iter().filter_map(|one| Some((one, one.reset_s()?)))
}

/// The most bytes of a field. HAProxy holds a head in 16 KiB by default, and there are two fields.
const FIELD_MAX: usize = 4 * 1024;
/// The most bytes of a limit in a field beside its names: two numbers of 20 digits, and `, "";q=;w=;qu=""`.
const BESIDE_NAMES: usize = 56;
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static IETF: [HeaderName; 2] = [RATELIMIT_POLICY, RATELIMIT];
static DRAFT7: [HeaderName; 2] = [RATELIMIT, RATELIMIT_POLICY];
static DRAFT6: [HeaderName; 4] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    RATELIMIT_POLICY,
];
static LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
