//! What a caller asks: a domain, attributes and costs; never a key string glued by the caller.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::limit::{Limit, REQUESTS};
use crate::subject::DEFAULT_DOMAIN;

/// One question: may this happen now?
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
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    domain: Option<Cow<'a, str>>,
    attributes: SmallVec<[(Cow<'a, str>, Value<'a>); 4]>,
    cost: Cost<'a>,
}

/// The value of an attribute: any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value<'a>(Cow<'a, [u8]>);

impl<'a> Request<'a> {
    /// No attributes, a cost of one request, the domain `default`.
    #[inline]
    pub fn new() -> Request<'a> {
        Request::default()
    }

    /// The same request in another domain.
    #[inline]
    pub fn in_domain(self, domain: impl Into<Cow<'a, str>>) -> Request<'a> {
        Request { domain: Some(domain.into()), ..self }
    }

    /// With one attribute more; one of the same name is replaced.
    #[inline]
    pub fn with(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Value<'a>>,
    ) -> Request<'a> {
        self.set(name, value);
        self
    }

    /// The same in place.
    #[inline]
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) {
        let (name, value) = (name.into(), value.into());
        match self.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.attributes.push((name, value)),
        }
    }

    /// With another cost than one request.
    #[inline]
    pub fn costing(self, cost: impl Into<Cost<'a>>) -> Request<'a> {
        Request { cost: cost.into(), ..self }
    }

    /// The domain, `default` unless said otherwise.
    #[inline]
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(DEFAULT_DOMAIN)
    }

    /// The value of an attribute, if the request has it.
    #[inline]
    pub fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_bytes())
    }

    /// All attributes, in the order they were given.
    #[inline]
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_bytes()))
    }

    /// What it costs.
    #[inline]
    pub fn cost(&self) -> &Cost<'a> {
        &self.cost
    }
}

impl Value<'_> {
    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> From<&'a str> for Value<'a> {
    #[inline]
    fn from(value: &'a str) -> Value<'a> {
        Value(Cow::Borrowed(value.as_bytes()))
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    #[inline]
    fn from(value: &'a [u8]) -> Value<'a> {
        Value(Cow::Borrowed(value))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    #[inline]
    fn from(value: &'a String) -> Value<'a> {
        Value(Cow::Borrowed(value.as_bytes()))
    }
}

impl From<String> for Value<'_> {
    #[inline]
    fn from(value: String) -> Self {
        Value(Cow::Owned(value.into_bytes()))
    }
}

impl From<Vec<u8>> for Value<'_> {
    #[inline]
    fn from(value: Vec<u8>) -> Self {
        Value(Cow::Owned(value))
    }
}

/// What a request costs, in one unit or several.
///
/// A limit whose unit is not named is peeked at: it refuses when it has no room for one more, and
/// is not charged.
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::Cost;
/// let cost = Cost::requests(1).and("tokens", 900);
/// assert_eq!((cost.of("requests"), cost.of("tokens"), cost.of("bytes")), (1, 900, 0));
/// assert_eq!(Cost::of_unit("tokens", 7).of("requests"), 0);
/// assert_eq!(Cost::default(), Cost::requests(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost<'a> {
    requests: u64,
    others: SmallVec<[(Cow<'a, str>, u64); 1]>,
}

impl<'a> Cost<'a> {
    /// So many requests; 0 peeks.
    pub fn requests(amount: u64) -> Cost<'a> {
        Cost { requests: amount, others: SmallVec::new() }
    }

    /// So much of another unit, and no requests.
    pub fn of_unit(unit: impl Into<Cow<'a, str>>, amount: u64) -> Cost<'a> {
        Cost::requests(0).and(unit, amount)
    }

    /// And so much of another unit.
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

    /// Both together, as much of each unit as there can be.
    pub fn add(&mut self, other: &Cost<'_>) {
        self.requests = self.requests.saturating_add(other.requests);
        for (unit, amount) in &other.others {
            match self.others.iter_mut().find(|(known, _)| known == unit) {
                Some((_, known)) => *known = known.saturating_add(*amount),
                None => self.others.push((Cow::Owned(unit.clone().into_owned()), *amount)),
            }
        }
    }

    /// Each unit that it is in, but for requests of which there are none.
    pub fn amounts(&self) -> impl Iterator<Item = (&str, u64)> {
        let others = self.others.iter().map(|(unit, amount)| (unit.as_ref(), *amount));
        let requests = Some((REQUESTS, self.requests)).filter(|(_, amount)| *amount > 0);
        others.chain(requests)
    }

    /// How much of a unit.
    pub fn of(&self, unit: &str) -> u64 {
        if unit == REQUESTS {
            return self.requests;
        }
        self.others.iter().find(|(known, _)| known == unit).map_or(0, |(_, amount)| *amount)
    }
}

impl Cost<'_> {
    /// How much of what a limit counts.
    #[inline]
    pub fn of_limit(&self, limit: &Limit) -> u64 {
        if limit.counts_requests() { self.requests } else { self.of(limit.unit()) }
    }
}

impl Default for Cost<'_> {
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
