//! The fields of a limit, as in the policy file.

use spillgate::LimitSpec;

use super::json::Text;
use super::request::Whole;

#[derive(PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"quota\": \"5/minute\"}")]
pub struct LimitFields<'a> {
    #[serde(borrow)]
    quota: Text<'a>,
    burst: Option<Whole>,
    #[serde(borrow)]
    algorithm: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    unit: Option<Text<'a>>,
    #[serde(borrow)]
    time_zone: Option<Text<'a>>,
    #[serde(borrow)]
    max_hold: Option<Text<'a>>,
}

impl LimitFields<'_> {
    /// Returns the limit as it was written, valid or not.
    pub fn spec(&self) -> LimitSpec {
        let owned = |text: &Option<Text<'_>>| text.as_ref().map(|Text(text)| text.to_string());
        LimitSpec {
            quota: self.quota.0.to_string(),
            burst: self.burst.as_ref().map(|Whole(burst)| *burst),
            algorithm: owned(&self.algorithm),
            name: owned(&self.name),
            unit: owned(&self.unit),
            time_zone: owned(&self.time_zone),
            max_hold: owned(&self.max_hold),
        }
    }
}
