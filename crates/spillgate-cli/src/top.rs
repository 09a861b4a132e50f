//! `spillgate top`: lists the subjects with the most use and the most denials, on a terminal every second.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use hyper::Request;
use serde::{Deserialize, Serialize};
use spillgate_server::complain;
use spillgate_tools::{Failure, printable, say};
use tokio::runtime::Runtime;

use crate::cli::TopArgs;
use crate::client::{self, Session};

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let repeats = !args.json && !args.once && io::stdout().is_terminal();
    Runtime::new()?.block_on(async {
        loop {
            let merged = ask_all(args).await?;
            if args.json {
                say(&serde_json::to_string(&merged.answer)?)?;
            } else {
                let clear = if repeats { CLEAR } else { "" };
                say(&format!("{clear}{merged}"))?;
            }
            if !repeats {
                // A list without some of the servers must not pass for that of all.
                merged.silent.iter().for_each(complain);
                return Ok(if merged.silent.is_empty() {
                    ExitCode::SUCCESS
                } else {
                    FAILED.into()
                });
            }
            tokio::time::sleep(REFRESH).await;
        }
    })
}

/// Asks all servers at once. It fails if none answers.
async fn ask_all(args: &TopArgs) -> Result<Merged, Failure> {
    // A subject that is short of the longest list everywhere may be heavy in the sum.
    let number = if args.urls.len() > 1 { LONGEST } else { args.number };
    let answers = join_all(args.urls.iter().map(|url| ask(url, number, args))).await;
    let (mut merged, mut failure) = (None::<Merged>, None);
    let mut silent = Vec::new();
    for answer in answers {
        match (answer, &mut merged) {
            (Ok(answer), Some(merged)) => merged.add(answer),
            (Ok(answer), None) => merged = Some(Merged { answer, servers: 1, silent: Vec::new() }),
            (Err(why), _) => {
                silent.push(why.to_string());
                failure = failure.or(Some(why));
            }
        }
    }
    let Some(mut merged) = merged else { return Err(failure.expect("clap has at least one URL")) };
    merged.answer.cut(args.number.into());
    Ok(Merged { silent, ..merged })
}

async fn ask(url: &str, number: u8, args: &TopArgs) -> Result<Answer, Failure> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("n", &number.to_string());
    if let Some(rule) = &args.rule {
        query.append_pair("rule", rule);
    }
    let request = Request::get(format!("/admin/v1/top?{}", query.finish()));
    client::read(&Session::to(url, &args.access)?.ask(request, Vec::new()).await?)
}

/// The lists of several servers, added up.
struct Merged {
    answer: Answer,
    servers: usize,
    /// Why the others are missing.
    silent: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct Answer {
    window_ms: u64,
    rules: Vec<Rule>,
    decisions_left_out: u64,
}

#[derive(Deserialize, Serialize)]
struct Rule {
    rule: Option<String>,
    unit: String,
    consumed: u64,
    denied: u64,
    consumers: Vec<Subject>,
    most_denied: Vec<Subject>,
}

#[derive(Deserialize, Serialize)]
struct Subject {
    subject: BTreeMap<String, String>,
    whole: bool,
    count: u64,
}

impl Merged {
    fn add(&mut self, other: Answer) {
        let sum = &mut self.answer;
        self.servers += 1;
        sum.window_ms = sum.window_ms.max(other.window_ms);
        sum.decisions_left_out += other.decisions_left_out;
        for rule in other.rules {
            let is_same = |it: &&mut Rule| (&it.rule, &it.unit) == (&rule.rule, &rule.unit);
            let Some(same) = sum.rules.iter_mut().find(is_same) else {
                sum.rules.push(rule);
                continue;
            };
            same.consumed += rule.consumed;
            same.denied += rule.denied;
            add_subjects(&mut same.consumers, rule.consumers);
            add_subjects(&mut same.most_denied, rule.most_denied);
        }
    }
}

fn add_subjects(sum: &mut Vec<Subject>, others: Vec<Subject>) {
    for other in others {
        let is_same = |it: &&mut Subject| (&it.subject, it.whole) == (&other.subject, other.whole);
        match sum.iter_mut().find(is_same) {
            Some(same) => same.count += other.count,
            None => sum.push(other),
        }
    }
    // Stable, so that equal counts stay in the order of the servers.
    sum.sort_by_key(|subject| Reverse(subject.count));
}

impl Answer {
    fn cut(&mut self, number: usize) {
        for rule in &mut self.rules {
            rule.consumers.truncate(number);
            rule.most_denied.truncate(number);
        }
    }
}

impl fmt::Display for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Merged { answer, servers, silent } = self;
        write!(f, "Last {} s, ", answer.window_ms.div_ceil(1_000))?;
        match (servers, silent.len()) {
            (1, 0) => f.write_str("this instance")?,
            (all, 0) => write!(f, "{all} instances")?,
            (some, missing) => write!(f, "{some} of {} instances", some + missing)?,
        }
        write!(f, "{answer}")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
/// The most subjects of a list that a server answers.
const LONGEST: u8 = 100;
/// The exit code if a server did not answer.
const FAILED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(consumers: &str, denied: &str) -> Answer {
        let reply = format!(
            r#"{{"window_ms": 61001, "decisions_left_out": 7, "rules": [{{
                "rule": "api", "unit": "tokens", "consumed": 12345, "denied": 3,
                "consumers": [{consumers}], "most_denied": [{denied}]
            }}]}}"#
        );
        serde_json::from_str(&reply).unwrap()
    }

    fn of(answer: Answer) -> Merged {
        Merged { answer, servers: 1, silent: Vec::new() }
    }

    #[test]
    fn counts_are_aligned_and_names_cannot_steer_the_terminal() {
        let answer = answer(
            r#"{"subject": {"tenant": "acme", "user": "a\u001bnn"}, "whole": true, "count": 12000},
               {"subject": {}, "whole": false, "count": 5}"#,
            "",
        );
        assert_eq!(
            of(answer).to_string(),
            "Last 62 s, this instance\n\napi\n  most use, of 12345 tokens\n         12000  \
             tenant=acme user=a\u{FFFD}nn\n             5  all requests…\n\nNot shown: 7 decisions by other rules"
        );
    }

    #[test]
    fn several_servers_are_added_up_by_rule_and_subject() {
        let subject = |tenant: &str, count: u64| {
            format!(r#"{{"subject": {{"tenant": "{tenant}"}}, "whole": true, "count": {count}}}"#)
        };
        let mut merged =
            of(answer(&[subject("a", 9), subject("b", 5)].join(","), &subject("a", 3)));
        merged.add(answer(&[subject("c", 8), subject("b", 5)].join(","), &subject("b", 3)));
        merged.silent.push("down".to_owned());
        merged.answer.cut(2);
        assert_eq!(
            merged.to_string(),
            "Last 62 s, 2 of 3 instances\n\napi\n  most use, of 24690 tokens\n            10  tenant=b\n             \
             9  tenant=a\n  most denials, of 6\n             3  tenant=a\n             3  tenant=b\n\n\
             Not shown: 14 decisions by other rules"
        );
    }
}
