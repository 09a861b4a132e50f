//! Decisions as data, in the form of the HTTP API, and limits as a policy writes them.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decision::{Decision, Denial, LimitDecision, Reason, Source};
use crate::limit::{Algorithm, Limit, LimitSpec};
use crate::policy::{Mode, OnOutage};

#[derive(Serialize)]
struct DecisionFields<'d> {
    allowed: bool,
    reason: Option<Reason>,
    rule: Option<&'d str>,
    limit: Option<&'d str>,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    source: Source,
    degraded: bool,
    matched: bool,
    limits: Vec<LimitDecision<'d>>,
}

#[derive(Serialize)]
struct LimitFields<'d> {
    rule: Option<&'d str>,
    limit: &'d str,
    unit: &'d str,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    allowed: bool,
    reason: Option<Reason>,
    source: Source,
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
}

#[derive(Serialize)]
struct DenialFields {
    reason: Reason,
    retry_after_ms: Option<u64>,
}

/// A limit as a policy writes it: a quota alone, or a table.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a quota such as \"5/minute\", or a table with a quota")]
enum Written {
    Quota(String),
    Table(LimitSpec),
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = DecisionFields {
            allowed: self.allowed(),
            reason: self.reason(),
            rule: self.rule(),
            limit: self.limit(),
            capacity: self.capacity(),
            remaining: self.remaining(),
            retry_after_ms: self.retry_after().map(ms),
            reset_after_ms: self.reset_after().map(ms),
            source: self.source(),
            degraded: self.degraded(),
            matched: !self.is_unmatched(),
            limits: self.limits().collect(),
        };
        fields.serialize(serializer)
    }
}

impl Serialize for LimitDecision<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = LimitFields {
            rule: self.rule(),
            limit: self.limit(),
            unit: self.unit(),
            capacity: self.capacity(),
            remaining: self.remaining(),
            retry_after_ms: self.retry_after().map(ms),
            reset_after_ms: self.reset_after().map(ms),
            allowed: self.allowed(),
            reason: self.reason(),
            source: self.source(),
            shadow: self.shadow(),
        };
        fields.serialize(serializer)
    }
}

impl Serialize for Denial {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let retry_after_ms = self.retry_after.map(ms);
        DenialFields { reason: self.reason, retry_after_ms }.serialize(serializer)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spec = LimitSpec::from(self.clone());
        if spec == LimitSpec::new(spec.quota.clone()) {
            serializer.serialize_str(&spec.quota)
        } else {
            spec.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        let spec = match Written::deserialize(deserializer)? {
            Written::Quota(quota) => LimitSpec::new(quota),
            Written::Table(spec) => spec,
        };
        spec.build().map_err(D::Error::custom)
    }
}

/// Writes values by their names in the APIs and in policies.
macro_rules! by_name {
    ($($type:ty, $name:ident;)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.$name())
            }
        }
    )*};
}

by_name! {
    Algorithm, name;
    Mode, name;
    OnOutage, name;
    Reason, as_str;
    Source, name;
}

/// Rounds up: a caller that waits for the answer's time must find room.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
