//! `spillgate admin`: changes rules and subjects through the admin API of a server, and lists what is in force.

use std::fmt;
use std::process::ExitCode;

use form_urlencoded::{Serializer, byte_serialize};
use hyper::{Method, Request};
use jiff::Timestamp;
use serde_json::{Value, json};
use spillgate_tools::{Failure, printable, say};
use tokio::runtime::Runtime;

use crate::cli::{
    Action, AdminArgs, BlockArgs, Cost, Expiry, ModeArgs, NewMode, Note, OverrideArgs, RefundArgs,
    ResetArgs, Subject, UnblockArgs,
};
use crate::client;

mod audit;
mod import;
mod overrides;
mod rules;
mod text;

pub(crate) fn run(args: &AdminArgs) -> Result<ExitCode, Failure> {
    let now = Timestamp::now();
    let call = match &args.action {
        Action::Rules => return rules::list(args),
        Action::Overrides(asked) => return overrides::list(args, asked),
        Action::Import(asked) => return import::run(args, asked),
        Action::Audit(asked) => return audit::list(args, asked),
        Action::Mode(change) => Call::of_mode(change, now),
        Action::Override(change) => Call::of_override(change, now),
        Action::Block(change) => Call::of_block(change, now),
        Action::Unblock(change) => Call::of_unblock(change),
        Action::Refund(change) => Call::of_refund(change),
        Action::Reset(change) => Call::of_reset(change),
    };
    let answer: Value = Runtime::new()?.block_on(call.send(args))?;
    let asked = &call.body["subject"];
    let shown = Answer { server: &args.api.url, done: &call.done, asked, answer: &answer };
    match args.json {
        true => say(&answer)?,
        false => say(&shown)?,
    }
    Ok(if shown.why_unsaved().is_some() { ExitCode::from(PENDING) } else { ExitCode::SUCCESS })
}

/// Returns the list at a path of the admin API.
fn fetch(args: &AdminArgs, path: &str) -> Result<Value, Failure> {
    let ask = client::ask_admin_api(&args.api, Request::get(path), Vec::new());
    client::read(&Runtime::new()?.block_on(ask)?)
}

/// Returns the items of a list in an answer.
fn items<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// One call of the admin API.
struct Call {
    method: Method,
    path: String,
    /// Null for none.
    body: Value,
    /// What has been done once the server has answered.
    done: String,
}

/// The answer to a change.
struct Answer<'s> {
    server: &'s str,
    done: &'s str,
    /// The subject of the call, if it names one.
    asked: &'s Value,
    answer: &'s Value,
}

impl Call {
    fn of_override(args: &OverrideArgs, now: Timestamp) -> Call {
        let mut limits: Vec<Value> = args.quota.iter().map(|text| limit(text)).collect();
        if let (Some(burst), Some(first)) = (args.burst, limits.first_mut()) {
            first["burst"] = burst.into();
        }
        Call::to_override(&args.subject, limits, expires_at(&args.expiry, now), &args.note)
    }

    fn of_block(args: &BlockArgs, now: Timestamp) -> Call {
        let (limits, ends) = (vec![json!("block")], expires_at(&args.expiry, now));
        Call::to_override(&args.subject, limits, ends, &args.note)
    }

    fn of_unblock(args: &UnblockArgs) -> Call {
        let Subject { rule, attributes } = &args.subject;
        let done = format!("the override of {} is removed", named(rule, attributes));
        let query = with_reason(query(rule, attributes), &args.note);
        Call::without_body(Method::DELETE, format!("{OVERRIDES}?{query}"), done)
    }

    fn of_reset(args: &ResetArgs) -> Call {
        let mut query = query(&args.rule, &args.attributes);
        if args.all {
            query.append_pair("all", "true");
        }
        let query = with_reason(query, &args.note);
        let whose = if args.all { " for every subject" } else { "" };
        let done = format!("{} starts afresh{whose}", named(&args.rule, &args.attributes));
        Call::without_body(Method::DELETE, format!("/admin/v1/state?{query}"), done)
    }

    fn of_mode(args: &ModeArgs, now: Timestamp) -> Call {
        let rule: String = byte_serialize(args.rule.as_bytes()).collect();
        let path = format!("/admin/v1/rules/{rule}/mode");
        let mode = match args.mode {
            NewMode::Enforce => "enforce",
            NewMode::Shadow => "shadow",
            NewMode::Off => "off",
            NewMode::File => {
                let query = with_reason(Serializer::new(String::new()), &args.note);
                let done = format!("{} has the mode of the policy file", args.rule);
                return Call::without_body(Method::DELETE, format!("{path}?{query}"), done);
            }
        };
        let expires_at = expires_at(&args.expiry, now);
        let body = json!({"mode": mode, "expires_at": expires_at, "reason": args.note.reason});
        let done = format!("{}{}", args.rule, text::change(&body));
        Call { method: Method::PUT, path, body, done }
    }

    fn of_refund(args: &RefundArgs) -> Call {
        let refund = match &args.cost {
            Cost::Requests(amount) => json!(amount),
            Cost::ByUnit(amounts) => amounts.iter().cloned().collect(),
        };
        let body = json!({
            "rule": args.subject.rule, "subject": attributes(&args.subject), "refund": refund,
            "reason": args.note.reason,
        });
        let units = match &args.cost {
            Cost::Requests(amount) => json!({"requests": amount}),
            Cost::ByUnit(_) => body["refund"].clone(),
        };
        let returned = json!({"rule": body["rule"], "subject": body["subject"], "cost": units});
        let done = format!("returned to {}", text::change(&returned));
        Call { method: Method::POST, path: "/admin/v1/state".to_owned(), body, done }
    }

    fn without_body(method: Method, path: String, done: String) -> Call {
        Call { method, path, body: Value::Null, done }
    }

    fn to_override(
        subject: &Subject,
        limits: Vec<Value>,
        expires_at: Option<String>,
        note: &Note,
    ) -> Call {
        let body = json!({
            "rule": subject.rule, "subject": attributes(subject), "limits": limits,
            "expires_at": expires_at, "reason": note.reason,
        });
        let done = text::change(&body);
        Call { method: Method::PUT, path: OVERRIDES.to_owned(), body, done }
    }

    async fn send(&self, args: &AdminArgs) -> Result<Value, Failure> {
        let request = Request::builder().method(&self.method).uri(&self.path);
        let body = if self.body.is_null() { String::new() } else { self.body.to_string() };
        client::read(&client::ask_admin_api(&args.api, request, body.into_bytes()).await?)
    }
}

impl Answer<'_> {
    /// Returns the reason why the store does not have the change yet.
    fn why_unsaved(&self) -> Option<&str> {
        self.answer["unsaved"].as_str()
    }
}

impl fmt::Display for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = printable(self.done);
        match self.why_unsaved() {
            None => write!(f, "{}: done: {done}", self.server)?,
            Some(why) => write!(
                f,
                "{}: in force here, and saved when the store is back: {done}\n  {}",
                self.server,
                printable(why)
            )?,
        }
        let answer = self.answer;
        // The address of an IPv6 client stands for its whole network.
        if let Some(subject) = answer["subject"].as_object()
            && answer["subject"] != *self.asked
        {
            write!(f, "\n  it applies to {}", printable(&text::subject(subject)))?;
        }
        if let Some(note) = answer["note"].as_str() {
            write!(f, "\n  note: {}", printable(note))?;
        }
        for limit in items(answer, "limits") {
            let text = |name: &str| printable(limit[name].as_str().unwrap_or_default());
            write!(f, "\n  {}/{}: ", text("rule"), text("limit"))?;
            match (&limit["remaining"], &limit["capacity"]) {
                (Value::Null, _) | (_, Value::Null) => f.write_str("unknown")?,
                (remaining, capacity) => {
                    write!(f, "{remaining} of {capacity} {} left", text("unit"))?;
                }
            }
        }
        Ok(())
    }
}

fn expires_at(expiry: &Expiry, now: Timestamp) -> Option<String> {
    expiry.at(now).map(|end| end.to_string())
}

/// Reads `1000/minute`, or `NAME=1000/minute`.
fn limit(text: &str) -> Value {
    match text.split_once('=') {
        None => json!({"quota": text}),
        Some((name, quota)) => json!({"name": name, "quota": quota}),
    }
}

fn attributes(subject: &Subject) -> Value {
    by_name(&subject.attributes)
}

fn by_name(attributes: &[(String, String)]) -> Value {
    attributes.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
}

/// Returns a rule with a subject as text: `api tenant=acme`.
fn named(rule: &str, attributes: &[(String, String)]) -> String {
    text::change(&json!({"rule": rule, "subject": by_name(attributes)}))
}

fn query(rule: &str, attributes: &[(String, String)]) -> Serializer<'static, String> {
    let mut query = Serializer::new(String::new());
    query.append_pair("rule", rule);
    for (name, value) in attributes {
        query.append_pair(&format!("attr.{name}"), value);
    }
    query
}

fn with_reason(mut query: Serializer<'_, String>, note: &Note) -> String {
    if let Some(reason) = &note.reason {
        query.append_pair("reason", reason);
    }
    query.finish()
}

const OVERRIDES: &str = "/admin/v1/overrides";
/// The exit code if a shard gets the change later.
const PENDING: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_why_it_is_unsaved_and_names_a_wider_subject_and_limits() {
        let asked = json!({"ip": "2001:db8::7"});
        let shown = |answer: Value| {
            Answer { server: "http://h", done: "api block", asked: &asked, answer: &answer }
                .to_string()
        };
        assert_eq!(shown(json!({"result": "done", "unsaved": null})), "http://h: done: api block");
        assert_eq!(
            shown(json!({"result": "done", "unsaved": "redis://r is down"})),
            "http://h: in force here, and saved when the store is back: api block\n  redis://r is down"
        );
        assert_eq!(shown(json!({"result": "done", "subject": asked})), "http://h: done: api block");
        assert_eq!(
            shown(json!({"result": "done", "subject": {"ip": "2001:db8::/64"}})),
            "http://h: done: api block\n  it applies to ip=2001:db8::/64"
        );
        assert_eq!(
            shown(json!({"result": "done", "note": "rule \"api\" is off"})),
            "http://h: done: api block\n  note: rule \"api\" is off"
        );
        let limit = json!({"rule": "api", "limit": "0", "remaining": 7, "capacity": 10, "unit": "requests"});
        assert_eq!(
            shown(json!({"limits": [limit]})),
            "http://h: done: api block\n  api/0: 7 of 10 requests left"
        );
    }
}
