//! `spillgate explain`: prints how a request would be decided and why. Nothing is charged.

use std::process::ExitCode;

use axum::body::Body;
use hyper::Request;
use hyper::body::Bytes;
use serde::Deserialize;
use spillgate_server::{EXPLAIN, explain_routes};
use spillgate_tools::{Failure, say};
use tokio::runtime::Runtime;

use crate::cli::{Cost, ExplainArgs};
use crate::client::{self, Session};
use crate::denials;

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let path = format!("{}?{}", EXPLAIN, query(args));
    let (reply, denials) = Runtime::new()?.block_on(async {
        match &args.asked.redis {
            None => ask_server(args, &path).await,
            Some(store) => {
                let request = Request::get(path).body(Body::empty())?;
                let config = args.asked.config.as_deref();
                let reply = client::ask_store(store, config, explain_routes, request).await?;
                Ok((reply, None))
            }
        }
    })?;
    if args.asked.json {
        say(&String::from_utf8_lossy(&reply))?;
        return Ok(ExitCode::SUCCESS);
    }
    let explained: Answer = client::read(&reply)?;
    match denials {
        Some(denials) => say(&format!("{explained}\n\n{denials}"))?,
        None => say(&explained)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the explanation of a server, and the text of the denials that it has recorded.
async fn ask_server(args: &ExplainArgs, path: &str) -> Result<(Bytes, Option<String>), Failure> {
    let mut session = Session::of_admin_api(&args.api)?;
    let reply = session.ask(Request::get(path), Vec::new()).await?;
    if args.asked.json {
        return Ok((reply, None));
    }
    let denials = denials::lately(&mut session, &args.asked.attributes).await;
    // While the store is down there is an explanation, but no record.
    let unknown =
        |error: Failure| Some(format!("Denials of the last 48 hours: unknown, because {error}"));
    Ok((reply, denials.unwrap_or_else(unknown)))
}

fn query(args: &ExplainArgs) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if let Some(domain) = &args.asked.domain {
        query.append_pair("domain", domain);
    }
    match &args.asked.cost {
        None => {}
        Some(Cost::Requests(amount)) => drop(query.append_pair("cost", &amount.to_string())),
        Some(Cost::ByUnit(amounts)) => {
            // The API charges one request by default, but units that the flag does not name cost nothing.
            query.append_pair("cost", "0");
            for (unit, amount) in amounts {
                query.append_pair(&format!("cost.{unit}"), &amount.to_string());
            }
        }
    }
    for (name, value) in &args.asked.attributes {
        query.append_pair(&format!("attr.{name}"), value);
    }
    query.finish()
}

/// The part of the answer that the text output shows.
#[derive(Deserialize)]
struct Answer {
    sentence: String,
    limits: Vec<Limit>,
    rules: Vec<Rule>,
    rules_left_out: usize,
    #[serde(default)]
    other_domains: Vec<OtherDomain>,
    #[serde(default)]
    unused: Vec<String>,
}

#[derive(Deserialize)]
struct OtherDomain {
    rule: String,
    domain: String,
}

#[derive(Deserialize)]
struct Limit {
    sentence: String,
    raise: Option<Raise>,
}

#[derive(Deserialize)]
struct Raise {
    sentence: String,
}

#[derive(Deserialize)]
struct Rule {
    name: String,
    mode: String,
    why: Option<String>,
    overridden: Option<String>,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.sentence)?;
        for Limit { sentence, raise } in &self.limits {
            write!(f, "\n  {sentence}")?;
            if let Some(Raise { sentence }) = raise {
                write!(f, "\n    {sentence}")?;
            }
        }
        for Rule { name, mode, why, overridden } in &self.rules {
            match why {
                Some(why) => write!(f, "\n  not matched: {name}: {why}")?,
                None => write!(f, "\n  matched: {name}")?,
            }
            if mode == "shadow" {
                f.write_str(" (shadow: denies nothing)")?;
            }
            match overridden.as_deref() {
                Some("file") => f.write_str(" (an override of the policy file is in force)")?,
                Some(_) => f.write_str(OVERRIDDEN)?,
                None => {}
            }
        }
        if self.rules_left_out > 0 {
            write!(f, "\n  not matched: {} more", self.rules_left_out)?;
        }
        for OtherDomain { rule, domain } in &self.other_domains {
            write!(f, "\n  would match with --domain {domain}: {rule}")?;
        }
        self.unused.iter().try_for_each(|unused| write!(f, "\n  unused: {unused}"))
    }
}

const OVERRIDDEN: &str =
    " (an override set while running is in force; `spillgate admin overrides` lists them)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_decision_first_then_limits_then_rules() {
        let reply = r#"{"sentence": "Denied by login/0, for 11.1 s.", "degraded": false, "limits": [{
            "sentence": "login/0 (5/minute) denies.", "raise": {"sentence": "At 10/minute, 5 would be left."}
        }], "rules": [
            {"name": "login", "mode": "enforce", "why": null, "overridden": "operator"},
            {"name": "api", "mode": "shadow", "why": "the request has no attribute \"user\"", "overridden": null}
        ], "rules_left_out": 2}"#;
        assert_eq!(
            serde_json::from_str::<Answer>(reply).unwrap().to_string(),
            "Denied by login/0, for 11.1 s.\n  login/0 (5/minute) denies.\n    At 10/minute, 5 would be left.\n  \
             matched: login (an override set while running is in force; `spillgate admin overrides` lists them)\n  \
             not matched: api: the request has no attribute \"user\" (shadow: denies nothing)\n  not matched: 2 more"
        );
    }
}
