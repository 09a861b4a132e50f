//! Sets the overrides of a file of JSON lines.
//!
//! All lines are checked before the first is set, and those that are in force already are left alone. So a run that
//! failed half-way can be repeated: it sets only what is missing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use hyper::header::IF_MATCH;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use spillgate_server::complain;
use spillgate_tools::{Failure, counted, printable, say};
use tokio::runtime::Runtime;

use super::overrides::{expires_at, importable};
use super::{OVERRIDES, PENDING, items, text};
use crate::ERROR;
use crate::cli::{AdminArgs, FileArgs};
use crate::client::{self, Session};

/// An override of the file.
struct Line<'t> {
    number: usize,
    text: &'t str,
    fields: Value,
}

/// The overrides of a file beside those of the server.
struct Plan<'t> {
    /// Each with whether it replaces another override of its subject.
    changes: Vec<(Line<'t>, bool)>,
    unchanged: usize,
    expired: usize,
}

/// The result of setting overrides.
#[derive(Default)]
struct Outcome {
    set: usize,
    /// Those of them that the store gets later.
    pending: usize,
    failures: Vec<Mistake>,
}

/// The number of a line, and its problem with the fix.
type Mistake = (usize, String);

pub fn run(args: &AdminArgs, asked: &FileArgs) -> Result<ExitCode, Failure> {
    let name = match asked.file.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => asked.file.display().to_string(),
    };
    let text = read(&asked.file).map_err(|error| format!("cannot read {name}: {error}"))?;
    let lines = parse(&text).map_err(|mistakes| refusal(&name, &mistakes))?;
    Runtime::new()?.block_on(async {
        let mut session = Session::of_admin_api(&args.api)?;
        let known = client::read(&session.ask(Request::get(OVERRIDES), Vec::new()).await?)?;
        let plan = Plan::new(lines, &known, Timestamp::now());
        let mistakes = plan.check(&mut session).await?;
        if !mistakes.is_empty() {
            return Err(refusal(&name, &mistakes).into());
        }
        match asked.dry_run {
            true => plan.show(args),
            false => plan.set(&mut session).await.show(args, &plan),
        }
    })
}

fn read(file: &Path) -> io::Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Reads the lines of a file, without empty ones. The server judges the fields of each.
fn parse(text: &str) -> Result<Vec<Line<'_>>, Vec<Mistake>> {
    let (mut lines, mut mistakes, mut first) = (Vec::new(), Vec::new(), HashMap::new());
    for (number, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let fields = match serde_json::from_str::<Value>(text) {
            Ok(fields) if fields.is_object() => importable(&fields),
            other => {
                let at = other.err().map_or(String::new(), |error| {
                    format!(", but column {} breaks it", error.column())
                });
                mistakes.push((number, format!("expected one override in JSON{at}; {EXAMPLE}")));
                continue;
            }
        };
        match first.entry(subject(&fields)) {
            Entry::Vacant(place) => drop(place.insert(number)),
            Entry::Occupied(of) => {
                let of = of.get();
                mistakes
                    .push((number, format!("the subject of line {of} again; remove one of them")));
            }
        }
        lines.push(Line { number, text, fields });
    }
    if mistakes.is_empty() { Ok(lines) } else { Err(mistakes) }
}

/// Returns a text that names the rule and the subject of an override.
fn subject(fields: &Value) -> String {
    json!([fields["rule"], fields["subject"]]).to_string()
}

impl<'t> Plan<'t> {
    /// Compares the lines of a file with the overrides that a server lists.
    fn new(lines: Vec<Line<'t>>, known: &Value, now: Timestamp) -> Plan<'t> {
        let known = items(known, "overrides").iter().map(importable);
        let known: HashMap<String, Value> = known.map(|set| (subject(&set), set)).collect();
        let mut plan = Plan { changes: Vec::new(), unchanged: 0, expired: 0 };
        for line in lines {
            match known.get(&subject(&line.fields)) {
                _ if expires_at(&line.fields).is_some_and(|end| end <= now) => plan.expired += 1,
                Some(set) if *set == line.fields => plan.unchanged += 1,
                other => plan.changes.push((line, other.is_some())),
            }
        }
        plan
    }

    /// Lets the server check each change without making it, and returns the mistakes.
    async fn check(&self, session: &mut Session<'_>) -> Result<Vec<Mistake>, Failure> {
        let mut mistakes = Vec::new();
        for (done, (line, _)) in self.changes.iter().enumerate() {
            self.show_progress("checked", done);
            let request = put().header(IF_MATCH, NO_VERSION);
            let (status, reply) = session.send(request, line.text.into()).await?;
            match status {
                StatusCode::CONFLICT => {}
                StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => {
                    mistakes.push((line.number, client::problem(status, &reply)));
                }
                _ => return Err(client::problem(status, &reply).into()),
            }
        }
        Ok(mistakes)
    }

    /// Makes the changes in the order of the file. It stops if the server no longer answers.
    async fn set(&self, session: &mut Session<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        for (done, (line, _)) in self.changes.iter().enumerate() {
            self.show_progress("set", done);
            match session.send(put(), line.text.into()).await {
                Ok((StatusCode::OK, _)) => outcome.set += 1,
                Ok((StatusCode::ACCEPTED, _)) => {
                    (outcome.set, outcome.pending) = (outcome.set + 1, outcome.pending + 1);
                }
                Ok((status, reply)) => {
                    outcome.failures.push((line.number, client::problem(status, &reply)));
                }
                Err(error) => {
                    let why = format!("{error}; the lines after it were not sent");
                    outcome.failures.push((line.number, why));
                    break;
                }
            }
        }
        outcome
    }

    /// Prints what a run without `--dry-run` would do.
    fn show(&self, args: &AdminArgs) -> Result<ExitCode, Failure> {
        let Plan { changes, unchanged, expired } = self;
        if args.json {
            let changes: Vec<&Value> = changes.iter().map(|(line, _)| &line.fields).collect();
            let report = json!({"would_set": changes, "unchanged": unchanged, "expired": expired});
            say(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        for (line, replaces) in changes {
            let verb = if *replaces { "would replace" } else { "would set" };
            say(&printable(&format!("{verb} {}", text::change(&line.fields))))?;
        }
        let changes = changes.len();
        say(&format!("{}: {changes} would be set, {}", args.api.url, self.rest()))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the lines that are not set, as text.
    fn rest(&self) -> String {
        format!("{} unchanged, {} expired and skipped", self.unchanged, self.expired)
    }

    /// Shows the number of changes that are done, on a terminal.
    fn show_progress(&self, verb: &str, done: usize) {
        if done % 100 == 99 && io::stderr().is_terminal() {
            // Without it the command still reports its result.
            let _ = write!(io::stderr(), "{verb} {} of {}\x1b[K\r", done + 1, self.changes.len());
        }
    }
}

impl Outcome {
    fn show(&self, args: &AdminArgs, plan: &Plan<'_>) -> Result<ExitCode, Failure> {
        let Outcome { set, pending, failures } = self;
        let failed = plan.changes.len() - set;
        match args.json {
            true => {
                let failures = failures.iter();
                let failures =
                    failures.map(|(line, problem)| json!({"line": line, "problem": problem}));
                say(&json!({
                    "set": set, "pending": pending, "unchanged": plan.unchanged,
                    "expired": plan.expired, "failed": failed,
                    "failures": failures.collect::<Vec<_>>(),
                }))?;
            }
            false => {
                let url = &args.api.url;
                say(&format!("{url}: {set} set, {failed} failed, {}", plan.rest()))?;
                if *pending > 0 {
                    say(&format!(
                        "  {pending} of them in force here; the store gets them once it is back"
                    ))?;
                }
            }
        }
        if !failures.is_empty() {
            let failed = counted(failed, "override");
            complain(&format!(
                "{failed} failed; run the command again to set them{}",
                list(failures)
            ));
        }
        Ok(match (failed, pending) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(PENDING),
            _ => ExitCode::from(ERROR),
        })
    }
}

fn put() -> Builder {
    Request::put(OVERRIDES)
}

/// Returns the error about lines that cannot be set.
fn refusal(file: &str, mistakes: &[Mistake]) -> String {
    let wrong = counted(mistakes.len(), "line");
    format!("{file}: nothing was changed; correct {wrong}{}", list(mistakes))
}

fn list(mistakes: &[Mistake]) -> String {
    let shown = mistakes.iter().take(SHOWN);
    let mut list: String =
        shown.map(|(line, problem)| format!("\n  line {line}: {}", printable(problem))).collect();
    if let more @ 1.. = mistakes.len().saturating_sub(SHOWN) {
        list.push_str(&format!("\n  and {more} more"));
    }
    list
}

/// A version that no change has: the server checks the override that replaces it, and makes no change.
const NO_VERSION: &str = "\"1970-01-01T00:00:00Z\"";

const EXAMPLE: &str = r#"write a line such as {"rule": "api", "subject": {"tenant": "acme"}, "limits": ["1000/minute"]}"#;

/// The most mistakes that an error lists.
const SHOWN: usize = 20;
