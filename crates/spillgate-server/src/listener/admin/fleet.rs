//! Lists the live instances of the fleet: `/admin/v1/fleet`.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use spillgate::store::{FleetInstance, Report};

use super::Problem;
use crate::app::App;
use crate::listener::http::answer;

#[derive(Serialize)]
struct FleetAnswer<'f> {
    instances: Vec<InstanceAnswer<'f>>,
}

/// One instance, as it reported itself in the last second. Times are in milliseconds since 1970-01-01 00:00 UTC.
#[derive(Serialize)]
struct InstanceAnswer<'f> {
    id: String,
    name: &'f str,
    /// Whether this is the instance that answers.
    answered: bool,
    version: &'f str,
    started_ms: u64,
    policy: String,
    policy_loaded_ms: u64,
    /// The decisions of the last minute.
    allowed: u64,
    denied: u64,
    /// Null if none was timed in the last minute.
    p99_us: Option<u64>,
    degraded_since_ms: Option<u64>,
    /// The revision of the runtime changes in force.
    changes: u64,
    /// In which settings it differs from the instance that answers.
    differs_in: &'f [&'static str],
}

/// The decisions of all instances in the last minute.
#[derive(Serialize)]
pub struct FleetLoad {
    instances: usize,
    allowed: u64,
    denied: u64,
}

pub async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let mut fleet = app.limiter().fleet().await?;
    fleet.sort_by(|one, other| (&one.report.name, one.id).cmp(&(&other.report.name, other.id)));
    let answer = FleetAnswer { instances: fleet.iter().map(InstanceAnswer::new).collect() };
    Ok(answer::json(&answer, answer::ANSWER_BYTES * (1 + fleet.len())))
}

impl<'f> InstanceAnswer<'f> {
    fn new(instance: &'f FleetInstance) -> InstanceAnswer<'f> {
        let Report { name, version, decided, .. } = &instance.report;
        let report = &instance.report;
        InstanceAnswer {
            id: format!("{:016x}", instance.id),
            name,
            answered: instance.is_own,
            version,
            started_ms: report.started_ms,
            policy: format!("{:016x}", report.policy),
            policy_loaded_ms: report.policy_loaded_ms,
            allowed: decided.allowed,
            denied: decided.denied,
            p99_us: report.p99_us,
            degraded_since_ms: report.degraded_since_ms,
            changes: report.changes,
            differs_in: &instance.differs_in,
        }
    }
}

impl FleetLoad {
    /// Returns the sums over all instances; `None` in memory, and while the store does not answer.
    pub async fn of_all(limiter: &spillgate::Limiter) -> Option<FleetLoad> {
        if limiter.shards().is_empty() {
            return None;
        }
        let fleet = tokio::time::timeout(ANSWER, limiter.fleet()).await.ok()?.ok()?;
        let sum =
            |count: fn(&FleetInstance) -> u64| fleet.iter().map(count).fold(0, u64::saturating_add);
        Some(FleetLoad {
            instances: fleet.len(),
            allowed: sum(|it| it.report.decided.allowed),
            denied: sum(|it| it.report.decided.denied),
        })
    }
}

/// How long a page waits for the store.
const ANSWER: Duration = Duration::from_millis(250);
