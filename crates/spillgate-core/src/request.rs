//! Requests: domain, attributes and cost, or a key with its inline limit. Callers never join
//! attributes into a key string.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::limit::{Limit, REQUESTS};
use crate::subject::DEFAULT_DOMAIN;

mod value;

pub(crate) use value::SEVERAL_PATHS;
pub use value::Value;

/// One request: what a caller wants to do, and for which subject. Every call of the limiter takes
/// it.
///
/// Most requests have attributes, and the rules of the policy that match them decide:
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::{Cost, Request};
/// let request = Request::new()
///     .in_domain("web")
///     .with("ip", "203.0.113.7")
///     .with("route", "/login")
///     .costing(Cost::requests(1).and("tokens", 900));
/// ```
///
/// A request with a key and an inline limit needs no policy:
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::{Limit, Request};
/// let request = Request::keyed("user:42", Limit::per_minute(5)).costing(2);
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    domain: Option<Cow<'a, str>>,
    attributes: SmallVec<[(Cow<'a, str>, Value<'a>); 4]>,
    cost: Cost<'a>,
    brought: BroughtLimit<'a>,
    refunds: bool,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Request::new()
    }
}

/// The limit that a request brings, if it brings one.
#[derive(Clone, Debug, Default)]
enum BroughtLimit<'a> {
    #[default]
    None,
    /// The only limit of the request, for one key.
    Inline { key: Cow<'a, str>, limit: Cow<'a, Limit> },
    /// A limit beside or in place of those of the rules that the request matches.
    Asked(Cow<'a, Limit>),
}

impl<'a> Request<'a> {
    /// Makes a request without attributes, with a cost of one request, in the domain `default`.
    #[inline(always)] // else `with` moves the whole request
    pub fn new() -> Request<'a> {
        Request::bringing(BroughtLimit::None)
    }

    /// Makes a request for one key with an inline limit. Only this limit decides: no rule of the
    /// policy applies, so attributes have no effect.
    ///
    /// Requests with equal domain, key, algorithm and period share a counter. With another count or
    /// burst it is the same counter under a changed limit.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Request};
    /// let request = Request::keyed("user:42", Limit::per_second(10).burst(20));
    /// let (key, limit) = request.inline_limit().unwrap();
    /// assert_eq!((key, limit.capacity()), ("user:42", Some(20)));
    /// ```
    #[inline(always)] // else the request is moved once more
    pub fn keyed(key: impl Into<Cow<'a, str>>, limit: impl Into<Cow<'a, Limit>>) -> Request<'a> {
        Request::bringing(BroughtLimit::Inline { key: key.into(), limit: limit.into() })
    }

    #[inline(always)] // with `new` and `keyed`
    fn bringing(brought: BroughtLimit<'a>) -> Request<'a> {
        Request {
            domain: None,
            attributes: SmallVec::new(),
            cost: Cost::default(),
            brought,
            refunds: false,
        }
    }

    /// Sets the domain.
    pub fn in_domain(self, domain: impl Into<Cow<'a, str>>) -> Request<'a> {
        Request { domain: Some(domain.into()), ..self }
    }

    /// Adds an attribute, or replaces the one of this name.
    #[inline(always)] // else a chain of calls moves the whole request at each link
    pub fn with(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Value<'a>>,
    ) -> Request<'a> {
        self.set(name, value);
        self
    }

    /// Adds an attribute in place, or replaces the one of this name.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Request;
    ///
    /// let mut request = Request::new();
    /// request.set("ip", "203.0.113.7");
    /// assert_eq!(request.attribute("ip"), Some(&b"203.0.113.7"[..]));
    /// ```
    #[inline(always)] // with `with`
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) {
        let (name, value) = (name.into(), value.into());
        match self.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.attributes.push((name, value)),
        }
    }

    /// Sets the cost. The default is one request.
    #[inline]
    pub fn costing(self, cost: impl Into<Cost<'a>>) -> Request<'a> {
        Request { cost: cost.into(), ..self }
    }

    /// Asks for a limit of the caller's own, as Envoy's descriptors do.
    ///
    /// It has an effect only on rules with [`request_limit`](crate::RuleSpec::request_limit). With
    /// `"lower"` it holds beside each limit of the rule that is larger, with a counter of its own.
    /// With `"replace"` it holds in place of the rule's limit, be it lower or higher.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Request};
    /// let request = Request::new().with("user", "ada").limited_to(Limit::per_minute(3));
    /// assert_eq!(request.request_limit(), Some(&Limit::per_minute(3)));
    /// ```
    pub fn limited_to(self, limit: impl Into<Cow<'a, Limit>>) -> Request<'a> {
        match self.brought {
            BroughtLimit::Inline { .. } => self,
            BroughtLimit::None | BroughtLimit::Asked(_) => {
                Request { brought: BroughtLimit::Asked(limit.into()), ..self }
            }
        }
    }

    /// Turns the charge into a refund, as Envoy's negative hits do. The request charges nothing and
    /// is never denied.
    ///
    /// The cost goes back to rules with `negative_hits = true`, or to the inline limit, until
    /// nothing is used. Unlike the end of a reservation, such a refund may return quota that was
    /// never charged.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Request;
    /// assert!(Request::new().with("user", "ada").costing(3).refunding().refunds());
    /// ```
    pub fn refunding(self) -> Request<'a> {
        Request { refunds: true, ..self }
    }

    /// Returns the domain. The default is `default`.
    #[inline]
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(DEFAULT_DOMAIN)
    }

    /// Returns the value of an attribute, if the request has it.
    pub fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.value(name).map(Value::as_bytes)
    }

    /// Returns every reading of an attribute's value. A rule matches by any of them.
    pub(crate) fn readings(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.value(name).into_iter().flat_map(Value::readings)
    }

    /// Returns the value of an attribute with all its readings, if the request has it.
    #[inline]
    pub(crate) fn value(&self, name: &str) -> Option<&Value<'a>> {
        self.attributes.iter().find(|(known, _)| is_same(known, name)).map(|(_, value)| value)
    }

    /// Returns all attributes with their values, in the order in which they were given.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Request, Value};
    /// let request = Request::new().with("path", Value::of_path("/%2Flogin"));
    /// let (_, path) = request.values().next().unwrap();
    /// assert_eq!(path, &Value::of_path("/%2Flogin"));
    /// ```
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.attributes.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Returns all attributes, in the order in which they were given.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_bytes()))
    }

    /// Returns the cost.
    #[inline]
    pub fn cost(&self) -> &Cost<'a> {
        &self.cost
    }

    /// Returns the key and the inline limit of a request that [`Request::keyed`] made.
    #[inline]
    pub fn inline_limit(&self) -> Option<(&str, &Limit)> {
        match &self.brought {
            BroughtLimit::Inline { key, limit } => Some((key, limit)),
            BroughtLimit::None | BroughtLimit::Asked(_) => None,
        }
    }

    /// Returns the limit that [`Request::limited_to`] asks for.
    #[inline]
    pub fn request_limit(&self) -> Option<&Limit> {
        match &self.brought {
            BroughtLimit::Asked(limit) => Some(limit),
            BroughtLimit::None | BroughtLimit::Inline { .. } => None,
        }
    }

    /// Returns whether the request refunds its cost, as [`Request::refunding`] says.
    #[inline]
    pub fn refunds(&self) -> bool {
        self.refunds
    }
}

/// Compares two names, those of 4 to 8 bytes without a call.
#[inline]
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    match one.len() {
        4..=8 => {
            one.first_chunk::<4>() == other.first_chunk()
                && one.last_chunk::<4>() == other.last_chunk()
        }
        _ => one == other,
    }
}

/// The cost of a request, in one unit or several.
///
/// A limit in a unit that is not named is only peeked at: it denies if it has no room for one more,
/// and is not charged.
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::Cost;
/// let cost = Cost::requests(1).and("tokens", 900);
/// assert_eq!((cost.amount("requests"), cost.amount("tokens"), cost.amount("bytes")), (1, 900, 0));
/// assert_eq!(Cost::of_unit("tokens", 7).amount("requests"), 0);
/// assert_eq!(Cost::default(), Cost::requests(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost<'a> {
    requests: u64,
    others: Vec<(Cow<'a, str>, u64)>,
}

impl<'a> Cost<'a> {
    /// Makes a cost in requests. A cost of 0 peeks.
    pub fn requests(amount: u64) -> Cost<'a> {
        Cost { requests: amount, others: Vec::new() }
    }

    /// Makes a cost in another unit, without requests.
    pub fn of_unit(unit: impl Into<Cow<'a, str>>, amount: u64) -> Cost<'a> {
        Cost::requests(0).and(unit, amount)
    }

    /// Adds a cost in another unit, or replaces the one in that unit.
    pub fn and(mut self, unit: impl Into<Cow<'a, str>>, amount: u64) -> Cost<'a> {
        let unit = unit.into();
        if unit == REQUESTS {
            return Cost { requests: amount, ..self };
        }
        match self.others.iter_mut().find(|(known, _)| *known == unit) {
            Some((_, known)) => *known = amount,
            None => self.others.push((unit, amount)),
        }
        self
    }

    /// Adds another cost. Each sum is capped at the largest number.
    pub fn add(&mut self, other: &Cost<'_>) {
        self.requests = self.requests.saturating_add(other.requests);
        for (unit, amount) in &other.others {
            match self.others.iter_mut().find(|(known, _)| known == unit) {
                Some((_, known)) => *known = known.saturating_add(*amount),
                None => self.others.push((Cow::Owned(unit.clone().into_owned()), *amount)),
            }
        }
    }

    /// Returns each unit with its amount. Requests are left out if their amount is 0.
    pub fn amounts(&self) -> impl Iterator<Item = (&str, u64)> {
        let others = self.others.iter().map(|(unit, amount)| (unit.as_ref(), *amount));
        let requests = Some((REQUESTS, self.requests)).filter(|(_, amount)| *amount > 0);
        others.chain(requests)
    }

    /// Returns the amount in a unit.
    pub fn amount(&self, unit: &str) -> u64 {
        if unit == REQUESTS {
            return self.requests;
        }
        self.others.iter().find(|(known, _)| known == unit).map_or(0, |(_, amount)| *amount)
    }
}

#[doc(hidden)]
impl Cost<'_> {
    /// Returns the amount in a limit's unit.
    #[inline]
    pub fn of_limit(&self, limit: &Limit) -> u64 {
        if limit.counts_requests() { self.requests } else { self.amount(limit.unit()) }
    }
}

impl Default for Cost<'_> {
    #[inline]
    fn default() -> Self {
        Cost::requests(1)
    }
}

impl From<u64> for Cost<'_> {
    #[inline]
    fn from(amount: u64) -> Self {
        Cost::requests(amount)
    }
}

impl<'a> From<&'a Limit> for Cow<'a, Limit> {
    fn from(limit: &'a Limit) -> Cow<'a, Limit> {
        Cow::Borrowed(limit)
    }
}

impl From<Limit> for Cow<'_, Limit> {
    fn from(limit: Limit) -> Self {
        Cow::Owned(limit)
    }
}
