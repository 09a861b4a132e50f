//! Builds a policy in code.
//!
//! A [`RuleSpec`] holds the tree that a `[[rule]]` of the policy file becomes, so that one check
//! makes the rules of both and returns the same errors.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::file::{Place, Table};
use super::overrides::Overrides;
use super::problem::{PolicyError, Problems};
use super::rule::{Mode, OnOutage, RequestLimit, Rule};
use super::tree::{Fields, Value, tree_of};
use super::types::Types;
use super::{Policy, Rules};
use crate::limit::LimitSpec;

/// Collects the rules of a policy. Made by [`Policy::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "the builder makes a policy only when it is built"]
pub struct PolicyBuilder {
    rules: Vec<RuleSpec>,
}

/// A rule as written, not checked yet. Made by [`Rule::new`], and checked by
/// [`PolicyBuilder::build`].
///
/// ```
/// # use spillgate_core as spillgate;
/// use std::time::Duration;
/// use spillgate::policy::{DenialSpec, LeaseSpec};
/// use spillgate::{Limit, Mode, OnOutage, Policy, Rule};
///
/// let uploads = Rule::new("uploads")
///     .domain("web")
///     .matching("route", "/upload/*")
///     .matching("method", "POST")
///     .matching("method", "PUT")
///     .key(["tenant", "user"])
///     .anchor(["tenant"])
///     .limit(Limit::per_second(100).burst(200))
///     .limit("10000/day")
///     .lease(LeaseSpec::new(0.05, Duration::from_secs(1)).hot([("tenant", "acme"), ("user", "ann")]))
///     .on_outage(OnOutage::Deny)
///     .local_share(0.25)
///     .denial(DenialSpec::new().status(402).text("Your free uploads are used up."))
///     .mode(Mode::Shadow);
/// let policy = Policy::builder().rule(uploads).build()?;
/// assert_eq!(policy.rule("uploads").unwrap().limits().len(), 2);
/// # Ok::<(), spillgate::PolicyError>(())
/// ```
#[derive(Clone)]
#[must_use = "a rule has an effect only in a policy"]
pub struct RuleSpec {
    name: String,
    /// For each attribute of `match`, its patterns.
    patterns: BTreeMap<String, Vec<Value>>,
    limits: Vec<Value>,
    /// The other fields.
    fields: Fields,
}

/// The lease terms of a rule as written, not checked yet. See [`RuleSpec::lease`].
#[derive(Clone)]
#[must_use = "a lease has an effect only in a rule"]
pub struct LeaseSpec {
    share: f64,
    ttl: Duration,
    hot: Vec<BTreeMap<String, String>>,
}

/// The denial of a rule as written, not checked yet. See [`RuleSpec::denial`].
#[derive(Clone, Debug, Default)]
#[must_use = "a denial has an effect only in a rule"]
pub struct DenialSpec {
    /// Status and body.
    fields: Fields,
    headers: BTreeMap<String, String>,
}

impl Policy {
    /// Returns a builder, for a policy without a file.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Policy, Rule};
    ///
    /// let login = Rule::new("login").key(["ip"]).limit(Limit::per_minute(5));
    /// let policy = Policy::builder().rule(login).build()?;
    /// assert!(policy.rule("login").is_some());
    ///
    /// let keyless = Rule::new("login").limit(Limit::per_minute(5));
    /// let error = Policy::builder().rule(keyless).build().unwrap_err();
    /// assert!(error.to_string().starts_with("rule \"login\", field `key`: missing; "));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::default()
    }
}

impl PolicyBuilder {
    /// Adds a rule, after those added before.
    pub fn rule(mut self, rule: RuleSpec) -> PolicyBuilder {
        self.rules.push(rule);
        self
    }

    /// Makes the policy.
    ///
    /// # Errors
    /// Returns the first rule and field that are invalid, with the remedy.
    pub fn build(&self) -> Result<Policy, PolicyError> {
        let (types, mut problems) = (Types::default(), Problems::in_text(""));
        let mut rules = Rules::default();
        for rule in &self.rules {
            let fields = rule.fields();
            let fields = tree_of(&fields);
            rules.fingerprint.add_rule(&fields);
            let place = Place::Rule(Some(&rule.name));
            rules.check(&Table::without_file(&fields, place), &types, &mut problems);
        }
        let first = problems.into_errors("").into_iter().next();
        first.map_or_else(|| Ok(rules.into_policy(types, Overrides::default())), Err)
    }
}

impl Rule {
    /// Begins a rule with this name, which must be unique in its policy. It also needs a key and a
    /// limit.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Policy, Rule};
    /// let login = Rule::new("login").key(["ip"]).limit(Limit::per_minute(5));
    /// assert!(Policy::builder().rule(login).build().is_ok());
    /// ```
    #[expect(
        clippy::new_ret_no_self,
        reason = "a rule is always valid, so it is made of a spec by the policy's builder"
    )]
    pub fn new(name: impl Into<String>) -> RuleSpec {
        RuleSpec {
            name: name.into(),
            patterns: BTreeMap::new(),
            limits: Vec::new(),
            fields: Fields::new(),
        }
    }
}

impl RuleSpec {
    /// Sets the domain of the requests that it matches. The default is `default`.
    pub fn domain(self, domain: impl Into<String>) -> RuleSpec {
        self.with("domain", Value::text(domain))
    }

    /// Adds a condition: the attribute must match this pattern. Each `*` stands for any text, so
    /// `"/api/*"` matches every value that starts with `/api/`, and `"*"` every value.
    ///
    /// If one attribute has several patterns, one of them must match.
    pub fn matching(self, attribute: impl Into<String>, pattern: impl Into<String>) -> RuleSpec {
        self.with_pattern(attribute.into(), Value::text(pattern))
    }

    /// Adds a condition like [`RuleSpec::matching`]: the attribute must be equal to this value, in
    /// which a `*` is not special.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Rule};
    ///
    /// // The value is the text `a*b`, not a pattern.
    /// let rule = Rule::new("files").matching_exactly("file", "a*b").limit(Limit::per_minute(5));
    /// ```
    pub fn matching_exactly(
        self,
        attribute: impl Into<String>,
        value: impl Into<String>,
    ) -> RuleSpec {
        self.with_pattern(attribute.into(), Value::members([("exact", value)]))
    }

    /// Sets the attributes of its subjects: each combination of their values is limited by itself.
    /// Without any, all requests share one counter.
    pub fn key(self, attributes: impl IntoIterator<Item: Into<String>>) -> RuleSpec {
        self.with("key", Value::texts(attributes))
    }

    /// Sets the key attributes that choose the shard, so that subjects with equal values of these
    /// share one. The default is the whole key.
    pub fn anchor(self, attributes: impl IntoIterator<Item: Into<String>>) -> RuleSpec {
        self.with("anchor", Value::texts(attributes))
    }

    /// Adds a limit: a [`Limit`](crate::Limit), a quota such as `"5/minute"`, or a [`LimitSpec`].
    pub fn limit(mut self, limit: impl Into<LimitSpec>) -> RuleSpec {
        self.limits.push(limit_value(limit.into()));
        self
    }

    /// Sets the effect of the rule. The default is [`Mode::Enforce`].
    pub fn mode(self, mode: Mode) -> RuleSpec {
        self.with("mode", Value::text(mode.name()))
    }

    /// Sets the behaviour while the store is out of reach. The default is [`OnOutage::Local`].
    pub fn on_outage(self, on_outage: OnOutage) -> RuleSpec {
        self.with("on_outage", Value::text(on_outage.name()))
    }

    /// Sets the part of each limit that one instance enforces while the store is out of reach,
    /// above 0 and at most 1. The default is one part for each instance.
    pub fn local_share(self, share: f64) -> RuleSpec {
        self.with("local_share", Value::number(share))
    }

    /// Lets instances take tokens ahead of use, and spend them without asking the store.
    pub fn lease(self, lease: LeaseSpec) -> RuleSpec {
        self.with("lease", lease.value())
    }

    /// Sets the response to the requests that the rule denies, where it differs from the usual one.
    pub fn denial(self, denial: DenialSpec) -> RuleSpec {
        self.with("denial", denial.value())
    }

    /// Makes the rule post-paid: it is charged whether it has room or not, and whatever other rules
    /// decide. Only peeks are denied.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Rule};
    ///
    /// let rule = Rule::new("bytes").key(["user"]).limit(Limit::per_minute(5)).postpaid();
    /// ```
    pub fn postpaid(self) -> RuleSpec {
        self.with("postpaid", Value::Truth(true))
    }

    /// Lets requests refund without a receipt, by [`Request::refunding`](crate::Request::refunding).
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Rule};
    ///
    /// let rule = Rule::new("api").key(["user"]).limit(Limit::per_minute(5)).negative_hits();
    /// ```
    pub fn negative_hits(self) -> RuleSpec {
        self.with("negative_hits", Value::Truth(true))
    }

    /// Sets the effect of a limit that a request asks for, by
    /// [`Request::limited_to`](crate::Request::limited_to). The default is
    /// [`RequestLimit::Ignore`].
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, Rule, policy::RequestLimit};
    ///
    /// let rule = Rule::new("api").key(["tenant"]).limit(Limit::per_minute(5));
    /// let rule = rule.request_limit(RequestLimit::Replace);
    /// ```
    pub fn request_limit(self, request_limit: RequestLimit) -> RuleSpec {
        self.with("request_limit", Value::text(request_limit.name()))
    }

    fn with(mut self, field: &str, value: Value) -> RuleSpec {
        self.fields.insert(field.to_owned(), value);
        self
    }

    fn with_pattern(mut self, attribute: String, pattern: Value) -> RuleSpec {
        self.patterns.entry(attribute).or_default().push(pattern);
        self
    }

    /// Returns the fields that a file would have.
    fn fields(&self) -> Fields {
        let mut fields = self.fields.clone();
        fields.insert("name".to_owned(), Value::text(&self.name));
        if !self.patterns.is_empty() {
            let patterns = self.patterns.iter();
            let patterns =
                patterns.map(|(name, any_of)| (name.clone(), Value::List(any_of.clone())));
            fields.insert("match".to_owned(), Value::Table(patterns.collect()));
        }
        if !self.limits.is_empty() {
            fields.insert("limits".to_owned(), Value::List(self.limits.clone()));
        }
        fields
    }
}

impl LeaseSpec {
    /// Makes lease terms: the share of each limit that all instances together may hold ahead of
    /// use, above 0 and at most 1, and the time for which one may be spent, from 10 ms to 60 s.
    pub fn new(share: f64, ttl: Duration) -> LeaseSpec {
        LeaseSpec { share, ttl, hot: Vec::new() }
    }

    /// Adds a subject for which an instance takes tokens when it starts: each attribute of the
    /// rule's key with its value.
    pub fn hot<N: Into<String>, V: Into<String>>(
        mut self,
        subject: impl IntoIterator<Item = (N, V)>,
    ) -> LeaseSpec {
        let owned = subject.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.hot.push(owned.collect());
        self
    }

    fn value(self) -> Value {
        let ttl = match self.ttl.subsec_nanos().is_multiple_of(1_000_000) {
            true => format!("{}ms", self.ttl.as_millis()),
            // No length of time of the policy file is so fine, and the error shows this text.
            false => format!("{:?}", self.ttl),
        };
        let hot = Value::List(self.hot.into_iter().map(Value::members).collect());
        Value::table([
            ("share", Value::number(self.share)),
            ("ttl", Value::text(ttl)),
            ("hot", hot),
        ])
    }
}

impl DenialSpec {
    /// Begins a denial that is the usual response.
    pub fn new() -> DenialSpec {
        DenialSpec::default()
    }

    /// Sets the status, from 400 to 599. Without it the status goes by the reason.
    pub fn status(self, status: u16) -> DenialSpec {
        self.with("status", Value::number(status))
    }

    /// Sets the body: a text, sent as `text/plain` unless a header says otherwise.
    pub fn text(self, text: impl Into<String>) -> DenialSpec {
        self.with("text", Value::text(text))
    }

    /// Sets the body: a JSON object with these texts.
    pub fn json<N: Into<String>, V: Into<String>>(
        self,
        members: impl IntoIterator<Item = (N, V)>,
    ) -> DenialSpec {
        self.with("json", Value::members(members))
    }

    /// Sets members of the problem details, in place of the usual ones of these names or beside them.
    pub fn problem<N: Into<String>, V: Into<String>>(
        self,
        members: impl IntoIterator<Item = (N, V)>,
    ) -> DenialSpec {
        self.with("problem", Value::members(members))
    }

    /// Adds a header field. `Content-Type` replaces the type that goes with the body.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> DenialSpec {
        self.headers.insert(name.into(), value.into());
        self
    }

    fn with(mut self, field: &str, value: Value) -> DenialSpec {
        self.fields.insert(field.to_owned(), value);
        self
    }

    fn value(mut self) -> Value {
        if !self.headers.is_empty() {
            self.fields.insert("headers".to_owned(), Value::members(self.headers));
        }
        Value::Table(self.fields)
    }
}

/// Shows the name alone, since conditions and hot subjects may hold values of clients.
impl fmt::Debug for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for LeaseSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseSpec")
            .field("share", &self.share)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

fn limit_value(limit: LimitSpec) -> Value {
    let LimitSpec { quota, algorithm, burst, name, unit, time_zone, max_hold } = limit;
    let fields = [
        ("quota", Some(Value::text(quota))),
        ("algorithm", algorithm.map(Value::text)),
        ("burst", burst.map(Value::number)),
        ("name", name.map(Value::text)),
        ("unit", unit.map(Value::text)),
        ("time_zone", time_zone.map(Value::text)),
        ("max_hold", max_hold.map(Value::text)),
    ];
    Value::table(fields.into_iter().filter_map(|(field, value)| Some((field, value?))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::Limit;
    use crate::request::Request;

    /// Compares the rules by all their fields.
    #[track_caller]
    fn equals(built: PolicyBuilder, file: &str) {
        let (built, read) = (built.build().unwrap(), Policy::from_toml(file).unwrap());
        let rules = |policy: &Policy| format!("{:#?}", policy.rules().collect::<Vec<_>>());
        assert_eq!(rules(&built), rules(&read));
    }

    #[test]
    fn every_field_is_as_in_the_policy_file() {
        let all = Rule::new("all")
            .domain("web")
            .matching("route", "/a/*")
            .matching("route", "/b")
            .matching_exactly("flag", "x*")
            .key(["user", "tenant"])
            .anchor(["tenant"])
            .limit(Limit::per_second(100).burst(200).named("fast"))
            .limit(LimitSpec::new("5/month").algorithm("fixed-window").time_zone("Europe/Berlin"))
            .lease(
                LeaseSpec::new(0.05, Duration::from_secs(1)).hot([("tenant", "a"), ("user", "b")]),
            )
            .on_outage(OnOutage::Allow)
            .local_share(0.25)
            .mode(Mode::Shadow)
            .denial(
                DenialSpec::new()
                    .status(402)
                    .json([("error", "\"quota\""), ("plan", "free")])
                    .header("X-Plan", "free"),
            )
            .negative_hits()
            .request_limit(RequestLimit::Lower);
        let paid = Rule::new("paid").key([] as [&str; 0]).limit("5/minute").postpaid();
        let text = Rule::new("text").key(["ip"]).limit("5/minute");
        let text = text.denial(DenialSpec::new().text("Slow down.\nPlease."));
        let problem = Rule::new("problem").key(["ip"]).limit("5/minute");
        let problem = problem.denial(DenialSpec::new().problem([("title", "Too many")]));
        equals(
            Policy::builder().rule(all).rule(paid).rule(text).rule(problem),
            r#"
            [[rule]]
            name = "all"
            domain = "web"
            match = { flag = { exact = "x*" }, route = ["/a/*", "/b"] }
            key = ["tenant", "user"]
            anchor = ["tenant"]
            limits = [
                { name = "fast", quota = "100/second", burst = 200 },
                { quota = "5/month", algorithm = "fixed-window", time_zone = "Europe/Berlin" },
            ]
            lease = { share = 0.05, ttl = "1s", hot = [{ tenant = "a", user = "b" }] }
            on_outage = "allow"
            local_share = 0.25
            mode = "shadow"
            denial = { status = 402, json = { error = '"quota"', plan = "free" }, headers = { x-plan = "free" } }
            negative_hits = true
            request_limit = "lower"

            [[rule]]
            name = "paid"
            key = []
            limits = [{ quota = "5/minute" }]
            postpaid = true

            [[rule]]
            name = "text"
            key = ["ip"]
            limits = ["5/minute"]
            denial.text = "Slow down.\nPlease."

            [[rule]]
            name = "problem"
            key = ["ip"]
            limits = ["5/minute"]
            [rule.denial.problem]
            title = "Too many"
            "#,
        );
    }

    #[test]
    fn an_error_names_the_rule_and_the_field() {
        let login = || Rule::new("login").key(["ip"]).limit("5/minute");
        let no_whole_ms = LeaseSpec::new(0.05, Duration::from_micros(10_500));
        for (rule, expected) in [
            (Rule::new("log in").key(["ip"]).limit("5/minute"), "rule \"log in\", field `name`: "),
            (Rule::new("login").limit("5/minute"), "rule \"login\", field `key`: missing; "),
            (Rule::new("login").key(["ip"]), "rule \"login\", field `limits`: missing; "),
            (
                login().limit("5/never"),
                "rule \"login\", limit \"1\", field `quota`: \"5/never\" is not a quota: \"never\" ",
            ),
            (
                login().anchor(["user"]),
                "rule \"login\", field `anchor`: \"user\" is not in the key",
            ),
            (login().local_share(f64::NAN), "rule \"login\", field `local_share`: must be greater"),
            (login().lease(no_whole_ms), "rule \"login\", field `ttl`: \"10.5ms\" is not a length"),
            (
                login().denial(DenialSpec::new().status(200)),
                "rule \"login\", field `status`: must be from 400 to 599, got 200",
            ),
            (
                login().matching("route", "/**"),
                "rule \"login\", field `match`: \"/**\" has two * side by side",
            ),
        ] {
            let error = Policy::builder().rule(rule).build().unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
            assert_eq!((error.file(), error.line()), ("", 0));
        }
        let twice = Policy::builder().rule(login()).rule(login()).build().unwrap_err();
        assert!(
            twice.to_string().starts_with("rule \"login\", field `name`: another rule"),
            "{twice}"
        );
    }

    #[test]
    fn a_policy_without_rules_is_valid() {
        assert_eq!(Policy::builder().build().unwrap().rules().len(), 0);
    }

    proptest! {
        /// No value that an application passes on is taken for another field, rule or pattern.
        #[test]
        fn any_text_is_a_literal_value(attribute in "[^\u{0}]{1,16}", value in any::<String>()) {
            let rule = Rule::new("any")
                .domain("\"]\n[[rule]]")
                .matching_exactly(attribute.clone(), value.clone())
                .key([attribute.clone()])
                .limit("5/minute");
            let policy = Policy::builder().rule(rule).build().unwrap();
            let request = Request::new().in_domain("\"]\n[[rule]]").with(attribute, &value);
            prop_assert_eq!(policy.matched(&request).len(), 1);
            prop_assert_eq!(policy.rules().len(), 1);
        }
    }
}
