//! `spillgate top`: lists the subjects with the most use and the most denials, on a terminal every second.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use hyper::Request;
use serde::Deserialize;
use spillgate_tools::{Failure, printable, say};
use tokio::runtime::Runtime;

use crate::cli::TopArgs;
use crate::client;

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let repeats = !args.json && !args.once && io::stdout().is_terminal();
    Runtime::new()?.block_on(async {
        loop {
            let reply = ask(args).await?;
            if args.json {
                say(&String::from_utf8_lossy(&reply))?;
                return Ok(ExitCode::SUCCESS);
            }
            let answer: Answer = client::read(&reply)?;
            let clear = if repeats { CLEAR } else { "" };
            say(&format!("{clear}{answer}"))?;
            if !repeats {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(REFRESH).await;
        }
    })
}

async fn ask(args: &TopArgs) -> Result<hyper::body::Bytes, Failure> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("n", &args.number.to_string());
    if let Some(rule) = &args.rule {
        query.append_pair("rule", rule);
    }
    let request = Request::get(format!("/admin/v1/top?{}", query.finish()));
    client::ask_admin_api(&args.api, request, Vec::new()).await
}

#[derive(Deserialize)]
struct Answer {
    window_ms: u64,
    rules: Vec<Rule>,
    decisions_left_out: u64,
}

#[derive(Deserialize)]
struct Rule {
    rule: Option<String>,
    unit: String,
    consumed: u64,
    denied: u64,
    consumers: Vec<Subject>,
    most_denied: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    subject: BTreeMap<String, String>,
    whole: bool,
    count: u64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Last {} s, this instance", self.window_ms.div_ceil(1_000))?;
        if self.rules.is_empty() {
            f.write_str(": no decisions")?;
        }
        for rule in &self.rules {
            write!(f, "\n\n{rule}")?;
        }
        match self.decisions_left_out {
            0 => Ok(()),
            left_out => write!(f, "\n\nNot shown: {left_out} decisions by other rules"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { unit, consumed, denied, .. } = self;
        f.write_str(self.rule.as_deref().unwrap_or("inline limits"))?;
        subjects(f, &format!("most use, of {consumed} {unit}"), &self.consumers)?;
        subjects(f, &format!("most denials, of {denied}"), &self.most_denied)
    }
}

fn subjects(f: &mut fmt::Formatter<'_>, head: &str, subjects: &[Subject]) -> fmt::Result {
    if subjects.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {head}")?;
    for Subject { subject, whole, count } in subjects {
        let named: Vec<String> =
            subject.iter().map(|(name, value)| format!("{name}={}", printable(value))).collect();
        let named = if named.is_empty() { "all requests".to_owned() } else { named.join(" ") };
        write!(f, "\n  {count:>12}  {named}{}", if *whole { "" } else { "…" })?;
    }
    Ok(())
}

/// Moves the cursor to the top and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";
const REFRESH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_aligned_and_names_cannot_steer_the_terminal() {
        let reply = r#"{"window_ms": 61001, "decisions_left_out": 7, "rules": [{
            "rule": "api", "unit": "tokens", "consumed": 12345, "denied": 3,
            "consumers": [
                {"subject": {"tenant": "acme", "user": "a\u001bnn"}, "whole": true, "count": 12000},
                {"subject": {}, "whole": false, "count": 5}
            ],
            "most_denied": []
        }]}"#;
        let answer: Answer = serde_json::from_str(reply).unwrap();
        assert_eq!(
            answer.to_string(),
            "Last 62 s, this instance\n\napi\n  most use, of 12345 tokens\n         12000  \
             tenant=acme user=a\u{FFFD}nn\n             5  all requests…\n\nNot shown: 7 decisions by other rules"
        );
    }
}
