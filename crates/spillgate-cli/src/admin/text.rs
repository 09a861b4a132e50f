//! What the lists of the admin API have in common, as text.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::items;

/// Returns a change or an override as text: `api tenant=acme 1000/minute until 2030-01-31T18:00:00Z  (ticket 88)`.
pub fn change(change: &Value) -> String {
    let text = |name: &str| change[name].as_str();
    let mut parts = vec![text("rule").unwrap_or_default().to_owned()];
    parts.extend(change["subject"].as_object().filter(|of| !of.is_empty()).map(subject));
    parts.extend(text("mode").map(str::to_owned));
    parts.extend(items(change, "limits").iter().map(limit));
    let cost = change["cost"].as_object().into_iter().flatten();
    parts.extend(cost.map(|(unit, amount)| format!("{amount} {unit}")));
    parts.extend(instant(&change["expires_at"]).map(|end| format!("until {end}")));
    let reason = text("reason").map_or(String::new(), |reason| format!("  ({reason})"));
    parts.join(" ") + &reason
}

/// Returns the attributes of a subject: `tenant=acme user=ann`.
pub fn subject(attributes: &Map<String, Value>) -> String {
    let pairs = attributes.iter();
    let pairs = pairs.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
    pairs.collect::<Vec<_>>().join(" ")
}

/// Returns a limit: `1000/minute`, or `daily=1000/day burst 20` for a named one with a burst.
pub fn limit(limit: &Value) -> String {
    // A file may have the quota alone.
    let quota = limit.as_str().or(limit["quota"].as_str()).unwrap_or_default();
    let name = limit["name"].as_str().map_or(String::new(), |name| format!("{name}="));
    let burst = limit["burst"].as_u64().map_or(String::new(), |burst| format!(" burst {burst}"));
    format!("{name}{quota}{burst}")
}

/// Returns an instant to the second, if there is one.
pub fn instant(value: &Value) -> Option<String> {
    Some(to_the_second(value.as_str()?.parse().ok()?))
}

pub fn to_the_second(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
