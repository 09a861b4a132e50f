//! Requests: domain, attributes and cost. Callers never join them into a key string.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::limit::{Limit, REQUESTS};
use crate::subject::DEFAULT_DOMAIN;

/// One request: what a caller wants to do, and for which subject.
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

/// The value of an attribute, of any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value<'a>(Cow<'a, [u8]>);

impl<'a> Request<'a> {
    /// Makes a request without attributes, with a cost of one request, in the domain `default`.
    #[inline]
    pub fn new() -> Request<'a> {
        Request::default()
    }

    /// Sets the domain.
    #[inline]
    pub fn in_domain(self, domain: impl Into<Cow<'a, str>>) -> Request<'a> {
        Request { domain: Some(domain.into()), ..self }
    }

    /// Adds an attribute, or replaces the one of this name.
    #[inline]
    pub fn with(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Value<'a>>,
    ) -> Request<'a> {
        self.set(name, value);
        self
    }

    /// Adds an attribute in place, or replaces the one of this name.
    #[inline]
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

    /// Returns the domain. The default is `default`.
    #[inline]
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(DEFAULT_DOMAIN)
    }

    /// Returns the value of an attribute, if the request has it.
    #[inline]
    pub fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_bytes())
    }

    /// Returns all attributes, in the order in which they were given.
    #[inline]
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.attributes.iter().map(|(name, value)| (name.as_ref(), value.as_bytes()))
    }

    /// Returns the cost.
    #[inline]
    pub fn cost(&self) -> &Cost<'a> {
        &self.cost
    }
}

impl Value<'_> {
    /// Returns the bytes of the value.
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

/// The cost of a request, in one unit or several.
///
/// A limit in a unit that is not named is only peeked at: it denies if it has no room for one more,
/// and is not charged.
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
    /// Makes a cost in requests. A cost of 0 peeks.
    pub fn requests(amount: u64) -> Cost<'a> {
        Cost { requests: amount, others: SmallVec::new() }
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
    pub fn of(&self, unit: &str) -> u64 {
        if unit == REQUESTS {
            return self.requests;
        }
        self.others.iter().find(|(known, _)| known == unit).map_or(0, |(_, amount)| *amount)
    }
}

impl Cost<'_> {
    /// Returns the amount in a limit's unit.
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
