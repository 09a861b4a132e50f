//! Parses the bodies of checks and batches within their bounds.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use spillgate::http::HeaderStyle;
use spillgate::reservation::Reserve;
use spillgate::{Cost, Limit, Request, Value};

use serde_json::value::RawValue;

use super::json::{self, List, Name, Named, NamedVisitor, Object, Text};
use super::limit::LimitFields;
use super::problem::Problem;
use crate::bounds::{BATCH_MAX, NAME_MAX, RESERVATION_NAME_MAX, VALUE_MAX, WAIT_MAX};

/// One check, by the rules of the policy or with an inline limit. It borrows from the body.
pub type Check<'a> = Object<CheckFields<'a>>;

/// Several checks, each decided by itself. A malformed one is a problem of its own, and the others do not notice it.
pub struct Batch<'a>(Vec<Result<Check<'a>, Problem>>);

/// The fields of a check. A field that is null counts as left out.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"attributes\": {\"ip\": \"203.0.113.7\"}}"
)]
pub struct CheckFields<'a> {
    #[serde(borrow)]
    domain: Option<Name<'a>>,
    #[serde(borrow)]
    attributes: Option<Named<'a, Attribute<'a>>>,
    #[serde(borrow)]
    key: Option<Key<'a>>,
    #[serde(borrow)]
    limit: Option<Object<LimitFields<'a>>>,
    #[serde(borrow)]
    cost: Option<CostField<'a>>,
    wait_ms: Option<Whole>,
    /// A field of reservations only, as `id` is.
    ttl_ms: Option<Whole>,
    #[serde(borrow)]
    id: Option<ReservationName<'a>>,
    headers: Option<HeadersField>,
}

impl CheckFields<'_> {
    fn is_no_reservation(&self) -> Result<(), Problem> {
        for (field, is_there) in [("ttl_ms", self.ttl_ms.is_some()), ("id", self.id.is_some())] {
            if is_there {
                return Err(Problem::in_field(field, NO_RESERVATION));
            }
        }
        Ok(())
    }

    fn reserve(&self) -> Reserve<'_> {
        let reserve = match &self.ttl_ms {
            Some(Whole(ms)) => Reserve::lasting(Duration::from_millis(*ms)),
            None => Reserve::default(),
        };
        match &self.id {
            Some(ReservationName(name)) => reserve.under(name.as_ref()),
            None => reserve,
        }
    }

    fn request<'f>(&'f self, last: &mut LastLimit<'f>) -> Result<Request<'f>, Problem> {
        let request = match (&self.key, &self.limit, &self.attributes) {
            (None, None, _) => self.by_attributes(),
            (Some(_), None, _) => return Err(Problem::in_field("limit", NO_LIMIT)),
            (None, Some(_), _) => return Err(Problem::in_field("key", NO_KEY)),
            (Some(_), Some(_), Some(_)) => return Err(Problem::in_field("attributes", NO_RULES)),
            (Some(key), Some(limit), None) => {
                Request::keyed(key.0.as_ref(), last.or_built(&limit.0)?)
            }
        };
        let request = request.costing(self.cost());
        Ok(match &self.domain {
            Some(Name(domain)) => request.in_domain(domain.as_ref()),
            None => request,
        })
    }

    /// Returns the style of the ready-made header fields in the answer; `None` for none.
    fn headers(&self) -> Option<HeaderStyle> {
        self.headers.as_ref().and_then(|headers| headers.0)
    }

    /// Returns how long the check may wait for its limits.
    fn wait(&self) -> Result<Duration, Problem> {
        let wait_ms = self.wait_ms.as_ref().map_or(0, |wait| wait.0);
        let wait = Duration::from_millis(wait_ms);
        if wait > WAIT_MAX {
            let message = format!(
                "must be at most {}, got {wait_ms}; to wait longer, check again after retry_after_ms",
                WAIT_MAX.as_millis()
            );
            return Err(Problem::in_field("wait_ms", &message));
        }
        Ok(wait)
    }

    fn by_attributes(&self) -> Request<'_> {
        let mut request = Request::new();
        for (name, Attribute(value)) in self.attributes.iter().flat_map(|attributes| &attributes.0)
        {
            request = request.with(name.as_ref(), Value::from(value.as_ref()));
        }
        request
    }

    fn cost(&self) -> Cost<'_> {
        self.cost.as_ref().map(CostField::cost).unwrap_or_default()
    }
}

impl Check<'_> {
    /// Returns the request of the check.
    ///
    /// # Errors
    ///
    /// If fields are missing, contradict each other or belong to reservations.
    pub fn request(&self) -> Result<Request<'_>, Problem> {
        self.0.is_no_reservation()?;
        self.0.request(&mut LastLimit::default())
    }

    /// Returns the style of the ready-made header fields in the answer; `None` for none.
    pub fn headers(&self) -> Option<HeaderStyle> {
        self.0.headers()
    }

    /// Returns how long the check may wait for its limits.
    pub fn wait(&self) -> Result<Duration, Problem> {
        self.0.wait()
    }

    /// Returns the request of a reservation, with its time to live and its id.
    ///
    /// # Errors
    ///
    /// If fields are missing or contradict each other, or if the reservation asks to wait.
    pub fn reservation(&self) -> Result<(Request<'_>, Reserve<'_>), Problem> {
        if self.wait()? > Duration::ZERO {
            return Err(Problem::in_field("wait_ms", NO_WAITING_RESERVATION));
        }
        Ok((self.0.request(&mut LastLimit::default())?, self.0.reserve()))
    }
}

impl<'a> Batch<'a> {
    /// Returns the items that a body lists, not yet decoded.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON array of at most 1,000 items. A malformed item is not an error here.
    pub fn listed(body: &'a [u8]) -> Result<Vec<&'a RawValue>, Problem> {
        // Only the bounds of each item: an error inside one would leave a parser of the whole array at a place from
        // which it cannot find the next.
        let List(items) = json::parse::<List<&'a RawValue, BATCH_MAX>>(body)?;
        Ok(items)
    }

    /// Decodes the items.
    pub fn decode(items: Vec<&'a RawValue>) -> Batch<'a> {
        let checks = items.into_iter().map(|item| json::parse(item.get().as_bytes()));
        Batch(checks.collect())
    }

    /// Returns the request of each check in order, with the style of the ready-made header fields in its answer, or the
    /// problem of an item that is malformed.
    pub fn requests(
        &self,
    ) -> impl Iterator<Item = Result<(Request<'_>, Option<HeaderStyle>), Problem>> {
        let mut last = LastLimit::default();
        self.0.iter().map(move |check| {
            let Object(check) = check.as_ref().map_err(Problem::clone)?;
            check.is_no_reservation()?;
            match check.wait() {
                Ok(Duration::ZERO) => Ok((check.request(&mut last)?, check.headers())),
                _ => Err(Problem::in_field("wait_ms", NOT_IN_A_BATCH)),
            }
        })
    }
}

/// The inline limit that was built last. Most checks of a batch have the same one, and building it for each would be
/// slow: a decision of a batch of 100 takes 1.5 µs, a check by itself 14 µs.
#[derive(Default)]
struct LastLimit<'f>(Option<(&'f LimitFields<'f>, Limit)>);

impl<'f> LastLimit<'f> {
    fn or_built(&mut self, fields: &'f LimitFields<'f>) -> Result<Limit, Problem> {
        if let Some((known, limit)) = &self.0
            && *known == fields
        {
            return Ok(limit.clone());
        }
        let limit = built(fields)?;
        self.0 = Some((fields, limit.clone()));
        Ok(limit)
    }
}

/// Builds an inline limit. It has no name, since its key and period identify its counter, and no unit, since it counts the
/// cost of the check.
fn built(fields: &LimitFields<'_>) -> Result<Limit, Problem> {
    let spec = fields.spec();
    for (field, given) in [("name", &spec.name), ("unit", &spec.unit)] {
        if given.is_some() {
            return Err(Problem::in_field(&format!("limit.{field}"), NOT_BESIDE_KEY));
        }
    }
    spec.build()
        .map_err(|error| Problem::in_field(&format!("limit.{}", error.field()), error.message()))
}

/// The subject of an inline limit.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(key) = Text::deserialize(deserializer)?;
        match key.len() {
            1..=VALUE_MAX => Ok(Key(key)),
            // Most likely a variable that was never set: all such clients would share one counter.
            0 => Err(D::Error::custom("an empty key; name the subject of the limit")),
            length => Err(too_long(length)),
        }
    }
}

/// Whether an answer carries ready-made header fields: `true` is the default style, `false` is none.
struct HeadersField(Option<HeaderStyle>);

impl<'de> Deserialize<'de> for HeadersField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadersVisitor).map(HeadersField)
    }
}

struct HeadersVisitor;

impl Visitor<'_> for HeadersVisitor {
    type Value = Option<HeaderStyle>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "true, false or a style: {}", HeaderStyle::ALL.map(HeaderStyle::name).join(", "))
    }

    fn visit_bool<E: Error>(self, wanted: bool) -> Result<Self::Value, E> {
        Ok(wanted.then(HeaderStyle::default))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let style = HeaderStyle::named(name);
        style.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }
}

/// The id that a client gives a reservation.
struct ReservationName<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ReservationName<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(name) = Text::deserialize(deserializer)?;
        match name.len() {
            1..=RESERVATION_NAME_MAX => Ok(ReservationName(name)),
            length => Err(D::Error::custom(format_args!(
                "{length} bytes; a reservation's id has 1 to {RESERVATION_NAME_MAX}, such as a UUID"
            ))),
        }
    }
}

/// The value of an attribute: a string, or an integer as its digits.
pub struct Attribute<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Attribute<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AttributeVisitor).map(Attribute)
    }
}

struct AttributeVisitor;

impl<'de> Visitor<'de> for AttributeVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or an integer of 64 bits")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        bounded(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        bounded(Cow::Owned(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }
}

fn bounded<E: Error>(value: Cow<'_, str>) -> Result<Cow<'_, str>, E> {
    if value.len() > VALUE_MAX {
        return Err(too_long(value.len()));
    }
    Ok(value)
}

fn too_long<E: Error>(length: usize) -> E {
    E::custom(format_args!("must have at most {VALUE_MAX} bytes, got {length}; send a hash of it"))
}

/// A cost: a number of requests, or a number for each unit.
pub enum CostField<'a> {
    Requests(u64),
    ByUnit(Vec<(Cow<'a, str>, Whole)>),
}

impl CostField<'_> {
    pub fn cost(&self) -> Cost<'_> {
        match self {
            CostField::Requests(amount) => Cost::requests(*amount),
            CostField::ByUnit(amounts) => {
                let nothing = Cost::requests(0);
                amounts
                    .iter()
                    .fold(nothing, |cost, (unit, Whole(amount))| cost.and(unit.as_ref(), *amount))
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for CostField<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

impl<'de> Visitor<'de> for CostVisitor {
    type Value = CostField<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {}, or an object of such numbers by unit", u64::MAX)
    }

    fn visit_u64<E: Error>(self, amount: u64) -> Result<Self::Value, E> {
        Ok(CostField::Requests(amount))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        NamedVisitor::<Whole, NAME_MAX>(PhantomData).visit_map(map).map(CostField::ByUnit)
    }
}

/// A whole number that 64 bits hold.
#[derive(PartialEq, Eq)]
pub struct Whole(pub u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor).map(Whole)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its field may have narrower bounds, and checks them itself.
        f.write_str("a whole number, not below 0")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}

const NOT_IN_A_BATCH: &str =
    "a check that waits would delay the whole batch; leave it out, or send the check by itself";
const NO_WAITING_RESERVATION: &str =
    "a reservation does not wait; leave it out, and reserve again after retry_after_ms";
const NO_RESERVATION: &str = "is for POST /v1/reserve; leave it out, or reserve";
const NO_LIMIT: &str = "missing beside key; add for example \"limit\": {\"quota\": \"5/minute\"}, \
     or send attributes in place of key";
const NO_KEY: &str =
    "missing beside limit; add the subject of the limit, for example \"key\": \"user:42\"";
const NO_RULES: &str = "a check with key and limit uses no rules, so attributes have no effect; leave \
     attributes out, or key and limit";
const NOT_BESIDE_KEY: &str = "is for the limits of rules; leave it out";
