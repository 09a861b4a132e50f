//! Doubles a limit, to show the effect of a raise on the current state.

use super::{Kind, Limit};

impl Limit {
    /// Returns the limit with twice the quota. Returns `None` if that does not fit, or if nothing
    /// is counted.
    pub(crate) fn raised(&self) -> Option<Limit> {
        let Kind::Counted(params) = &self.kind else { return None };
        Some(Limit { kind: Kind::Counted(params.counting().doubled()?), ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use crate::limit::{LimitSpec, NamedLimit};

    #[track_caller]
    fn check(spec: &LimitSpec, raised: Option<&str>) {
        let named = NamedLimit::new(spec.build().unwrap(), 0);
        let twice = named.raised();
        assert_eq!(twice.as_ref().map(|limit| limit.limit().to_string()).as_deref(), raised);
        assert!(
            twice.is_none_or(|limit| limit.mix() == named.mix()),
            "its state must stay the same"
        );
    }

    #[test]
    fn every_algorithm_doubles_and_keeps_its_state() {
        check(&LimitSpec::new("100/minute"), Some("200/minute"));
        check(&LimitSpec::new("5/90s").algorithm("fixed-window"), Some("10/90s"));
        check(&LimitSpec::new("5/minute").algorithm("sliding-log"), Some("10/minute"));
        check(&LimitSpec::new("5/minute").algorithm("sliding-window"), Some("10/minute"));
        let window = LimitSpec::new("600_000_000/minute").algorithm("sliding-window");
        check(&window, Some("1200000000/minute"));
        check(
            &LimitSpec::new("5").algorithm("concurrency").max_hold("30s"),
            Some("10 max_hold 30s"),
        );
    }

    #[test]
    fn limits_that_cannot_be_doubled_are_not_raised() {
        check(&LimitSpec::new("600_000_000/minute"), None);
        check(&LimitSpec::new("6_000/minute").algorithm("sliding-log"), None);
        check(&LimitSpec::new("3_000_000_000/minute").algorithm("sliding-window"), None);
        check(&LimitSpec::new("block"), None);
        check(&LimitSpec::new("unlimited"), None);
    }
}
