//! One limit of any algorithm, as a specification and as text of a policy file.

use spillgate::{Algorithm, LimitSpec};

/// Returns `count` per `period`. A permit is held for at most one `period`.
pub(crate) fn spec(algorithm: Algorithm, count: u64, period: &str) -> LimitSpec {
    let spec = match algorithm {
        Algorithm::Concurrency => LimitSpec::new(count.to_string()).max_hold(period),
        _ => LimitSpec::new(format!("{count}/{period}")),
    };
    spec.algorithm(algorithm.name())
}

/// Returns the same limit as a table of a policy file.
pub(crate) fn written(algorithm: Algorithm, count: u64, period: &str) -> String {
    let LimitSpec { quota, max_hold, .. } = spec(algorithm, count, period);
    let max_hold =
        max_hold.map_or(String::new(), |max_hold| format!(", max_hold = \"{max_hold}\""));
    format!("{{ quota = \"{quota}\"{max_hold}, algorithm = \"{algorithm}\" }}")
}
