//! What HTTP fields can say of a decision, in the styles in use: nothing that is not true, and nothing
//! of shadow rules.

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use smallvec::{SmallVec, smallvec};

use crate::decision::Decision;
use crate::refusal::Refusal;

mod advice;

use advice::Advice;
pub(crate) use advice::{PolicyName, enforced_tiers, whole_seconds};

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
/// the time until the limit is untouched; all times are seconds from now, rounded up. Slots come back
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

impl Decision {
    /// Adds the fields of a style, and `Retry-After` to a refusal that knows when. Fields that are
    /// there already stay, and are not doubled: whoever wrote them stands nearer to the work.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use http::HeaderMap;
    /// use spillgate::{HeaderStyle, Limiter, Policy, Request};
    ///
    /// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]";
    /// let policy = Policy::from_toml(rule).unwrap();
    /// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    ///
    /// let decision = limiter.check(&Request::new().with("ip", "203.0.113.7")).await;
    /// let mut headers = HeaderMap::new();
    /// decision.write_headers(HeaderStyle::Ietf, &mut headers);
    /// assert_eq!(headers["ratelimit-policy"], "\"login\";q=5;w=60");
    /// assert_eq!(headers["ratelimit"], "\"login\";r=4;t=12");
    /// # });
    /// ```
    pub fn write_headers(&self, style: HeaderStyle, headers: &mut HeaderMap) {
        Fields::of(style, [self]).add_to(headers);
        let retry_after = Refusal::of(self).and_then(|refusal| refusal.retry_after_seconds());
        if let Some(seconds) = retry_after
            && !headers.contains_key(RETRY_AFTER)
        {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}

/// The fields of one answer, ready to be added to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(SmallVec<[(HeaderName, HeaderValue); 2]>);

impl Fields {
    /// What several decisions over one request say together.
    pub(crate) fn of<'d>(
        style: HeaderStyle,
        decisions: impl IntoIterator<Item = &'d Decision>,
    ) -> Fields {
        if style == HeaderStyle::None {
            return Fields::default();
        }
        let advice = Advice::of(decisions);
        match style {
            HeaderStyle::Ietf => Fields::ietf(&advice),
            HeaderStyle::Draft7 => Fields::draft7(&advice),
            HeaderStyle::Draft6 => Fields::separate(&advice, DRAFT6).with_policies(&advice),
            HeaderStyle::Legacy => Fields::separate(&advice, LEGACY),
            HeaderStyle::None => Fields::default(),
        }
    }

    /// Adds them, unless one of them is there.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        if self.0.iter().any(|(name, _)| headers.contains_key(name)) {
            return;
        }
        for (name, value) in self.0 {
            headers.insert(name, value);
        }
    }

    fn ietf(advice: &[Advice<'_>]) -> Fields {
        if advice.is_empty() {
            return Fields::default();
        }
        let (mut policies, mut limits) = (Text::new(), Text::new());
        for one in advice {
            policies.member().name(one.name).number(";q=", one.capacity);
            policies.known(";w=", one.window_s());
            if let Some(unit) = one.unit() {
                policies.text(";qu=\"").text(unit).text("\"");
            }
            limits.member().name(one.name).number(";r=", one.remaining);
            limits.known(";t=", one.more_after_s());
        }
        Fields(smallvec![(RATELIMIT_POLICY, policies.value()), (RATELIMIT, limits.value())])
    }

    fn draft7(advice: &[Advice<'_>]) -> Fields {
        let Some((one, reset_s)) = resetting(advice).next() else { return Fields::default() };
        let mut text = Text::new();
        text.number("limit=", one.capacity).number(", remaining=", one.remaining);
        text.number(", reset=", reset_s);
        Fields(smallvec![(RATELIMIT, text.value())]).with_policies(advice)
    }

    /// Of the tightest, a field for each number.
    fn separate(advice: &[Advice<'_>], names: [HeaderName; 3]) -> Fields {
        let Some((one, reset_s)) = resetting(advice).next() else { return Fields::default() };
        let numbers = [one.capacity, one.remaining, reset_s].map(HeaderValue::from);
        Fields(names.into_iter().zip(numbers).collect())
    }

    /// `5;w=60` for each: before names had a place.
    fn with_policies(mut self, advice: &[Advice<'_>]) -> Fields {
        let mut text = Text::new();
        for (one, _) in resetting(advice) {
            text.member().number("", one.capacity).known(";w=", one.window_s());
        }
        if !text.0.is_empty() {
            self.0.push((RATELIMIT_POLICY, text.value()));
        }
        self
    }
}

/// What the older styles can tell of: they have no way to leave the time out.
fn resetting<'a, 'd>(advice: &'a [Advice<'d>]) -> impl Iterator<Item = (&'a Advice<'d>, u64)> {
    advice.iter().filter_map(|one| Some((one, one.reset_s()?)))
}

/// A field's value as it grows.
struct Text(SmallVec<[u8; 128]>);

impl Text {
    fn new() -> Text {
        Text(SmallVec::new())
    }

    fn text(&mut self, text: &str) -> &mut Text {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// Begins the next member of a list.
    fn member(&mut self) -> &mut Text {
        if self.0.is_empty() { self } else { self.text(", ") }
    }

    /// As a string of structured fields; a name holds nothing that must be escaped.
    fn name(&mut self, name: PolicyName<'_>) -> &mut Text {
        self.text("\"");
        for part in name.parts() {
            self.text(part);
        }
        self.text("\"")
    }

    fn number(&mut self, before: &str, number: u64) -> &mut Text {
        self.text(before);
        let (mut digits, mut rest, mut place) = ([b'0'; 20], number, 20);
        while place == 20 || rest > 0 {
            place -= 1;
            digits[place] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.0.extend_from_slice(&digits[place..]);
        self
    }

    fn known(&mut self, before: &str, number: Option<u64>) -> &mut Text {
        match number {
            Some(number) => self.number(before, number),
            None => self,
        }
    }

    fn value(&self) -> HeaderValue {
        HeaderValue::from_bytes(&self.0).expect("names, digits and punctuation of ours")
    }
}

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT6: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
