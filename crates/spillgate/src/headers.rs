//! What HTTP fields can say of a decision, in the styles in use: nothing that is not true, and nothing
//! of shadow rules.

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};
use smallvec::{SmallVec, smallvec};

use crate::decision::Decision;

mod advice;
mod text;

use advice::Advice;
pub(crate) use advice::{PolicyName, enforced_counters, whole_seconds};
use text::Text;

/// Which fields say how much is left.
///
/// | style | fields of a decision |
/// |---|---|
/// | `ietf` | `RateLimit-Policy: "login";q=5;w=60` and `RateLimit: "login";r=4;t=12`, every limit, the tightest first (draft-ietf-httpapi-ratelimit-headers-11) |
/// | `draft-7` | `RateLimit: limit=5, remaining=4, reset=12` of the tightest, `RateLimit-Policy: 5;w=60` |
/// | `draft-6` | `RateLimit-Limit: 5`, `RateLimit-Remaining: 4`, `RateLimit-Reset: 12`, `RateLimit-Policy: 5;w=60` |
/// | `legacy` | `X-RateLimit-Limit: 5`, `X-RateLimit-Remaining: 4`, `X-RateLimit-Reset: 12` |
/// | `none` | nothing |
///
/// A name is the rule's, or `rule/limit` where the rule has several. `t` is the wait until the same
/// request would pass if it was refused, else until one more unit is there; the log and the sliding
/// window cannot tell the latter, and then it is absent. `reset` is the same wait if refused, else
/// the time until the limit is untouched; all times are seconds from now, rounded up. Permits come back
/// when they are released, so that no field gives a time for them, and the older styles leave them
/// out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// The current draft's two structured fields.
    #[default]
    Ietf,
    /// Draft 7's two fields.
    Draft7,
    /// Draft 6's fields.
    Draft6,
    /// The fields from before there was a draft, with seconds from now.
    Legacy,
    /// No fields but `Retry-After`.
    None,
}

impl HeaderStyle {
    /// All styles, the newest first.
    pub const ALL: [HeaderStyle; 5] = [
        HeaderStyle::Ietf,
        HeaderStyle::Draft7,
        HeaderStyle::Draft6,
        HeaderStyle::Legacy,
        HeaderStyle::None,
    ];

    /// The word for it: `ietf`, `draft-7`, `draft-6`, `legacy`, `none`.
    pub fn name(self) -> &'static str {
        match self {
            HeaderStyle::Ietf => "ietf",
            HeaderStyle::Draft7 => "draft-7",
            HeaderStyle::Draft6 => "draft-6",
            HeaderStyle::Legacy => "legacy",
            HeaderStyle::None => "none",
        }
    }

    /// The style of that name.
    ///
    /// ```
    /// # use spillgate::HeaderStyle;
    /// assert_eq!(HeaderStyle::named("draft-7"), Some(HeaderStyle::Draft7));
    /// assert_eq!(HeaderStyle::named("draft-5"), None);
    /// ```
    pub fn named(name: &str) -> Option<HeaderStyle> {
        HeaderStyle::ALL.into_iter().find(|style| style.name() == name)
    }
}

/// The fields of one answer, ready to be added to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    names: &'static [HeaderName],
    /// As many as names.
    values: SmallVec<[HeaderValue; 2]>,
}

impl Fields {
    /// What a decision says, together with those over the same request before it.
    pub(crate) fn of(style: HeaderStyle, decision: &Decision, before: &[Decision]) -> Fields {
        if style == HeaderStyle::None {
            return Fields::default();
        }
        match Advice::sole(decision) {
            Some(one) if before.is_empty() => Fields::saying(style, std::slice::from_ref(&one)),
            _ => Fields::saying(style, &Advice::of([decision].into_iter().chain(before))),
        }
    }

    fn saying(style: HeaderStyle, advice: &[Advice<'_>]) -> Fields {
        match style {
            HeaderStyle::Ietf => Fields::ietf(advice),
            HeaderStyle::Draft7 => Fields::draft7(advice),
            HeaderStyle::Draft6 => Fields::separate(advice, &DRAFT6).with_policies(advice),
            HeaderStyle::Legacy => Fields::separate(advice, &LEGACY),
            HeaderStyle::None => Fields::default(),
        }
    }

    /// Adds them, unless one of them is there.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        for (place, (name, value)) in self.names.iter().zip(self.values).enumerate() {
            match headers.entry(name) {
                Entry::Vacant(vacant) => drop(vacant.insert(value)),
                Entry::Occupied(_) => {
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

    /// Of the tightest, a field for each number.
    fn separate(advice: &[Advice<'_>], names: &'static [HeaderName]) -> Fields {
        let Some((one, reset_s)) = resetting(advice).next() else { return Fields::default() };
        let params = [one.capacity, one.remaining, reset_s].map(HeaderValue::from);
        Fields { names, values: params.into_iter().collect() }
    }

    /// `5;w=60` for each, if there is any: before names had a place.
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

/// `RateLimit-Policy`. The part of a limit is the same for every request and kept, since most answers
/// tell of one limit.
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

/// What the older styles can tell of: they have no way to leave the time out.
fn resetting<'a, 'd>(advice: &'a [Advice<'d>]) -> impl Iterator<Item = (&'a Advice<'d>, u64)> {
    advice.iter().filter_map(|one| Some((one, one.reset_s()?)))
}

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
