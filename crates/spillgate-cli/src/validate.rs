//! `spillgate validate`: loads a file, and prints the report on it, or the problems that keep it from loading.

use std::process::ExitCode;

use serde::Serialize;
use spillgate_server::ENTRIES_MAX;
use spillgate_server::config::{self, Loaded, Problem};
use spillgate_tools::validate::{self, InForce, Report, Service};
use spillgate_tools::{Failure, say};

use crate::cli::ValidateArgs;

pub(crate) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let Some(file) = args.file.as_deref() else {
        // The command line allows a call without a file only with `--schema`.
        say(&SCHEMA.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let name = file.display().to_string();
    let text = config::read_once(file)?;
    match config::load_text(&name, &text) {
        Ok(file) => {
            if let Some(problem) = file.settings.store.wrong_address() {
                return print_problems(&[problem], args.json);
            }
            // If the old file does not load, there is nothing to compare with, which is an error.
            let old = args.against.as_deref().map(config::load_file).transpose()?;
            let old = old.as_ref().map(|old| InForce {
                policy: &old.policy,
                apart: file.settings.store.apart_from(&old.settings.store),
            });
            let unreadable = file.settings.unreadable_files();
            let loaded = loaded(&name, &text, &file, &unreadable);
            let report = Report::new(loaded, old, args.subjects);
            if args.json {
                say(&serde_json::to_string(&report)?)?
            } else {
                report.print()?
            }
            let fails = args.deny.is_some() && report.has_warnings();
            Ok(if fails { ExitCode::from(DENIED) } else { ExitCode::SUCCESS })
        }
        Err(problems) => print_problems(&problems, args.json),
    }
}

/// Returns the warnings about a file that loads, one line each. Files that cannot be read are left out, since the
/// service reports them when it opens them.
pub(crate) fn warnings(name: &str, text: &str, file: &Loaded) -> Vec<String> {
    Report::new(loaded(name, text, file, &[]), None, None).warnings().collect()
}

fn loaded<'a>(
    name: &'a str,
    text: &'a str,
    file: &'a Loaded,
    unreadable: &'a [(&'static str, String)],
) -> validate::Loaded<'a> {
    let Loaded { policy, settings, set } = file;
    let store = &settings.store;
    let service = Service {
        attributes_max: ENTRIES_MAX,
        has_several_shards: store.has_several_shards(),
        expected_instances: store.expected_instances,
        trusts_everyone: settings.trusts_everyone(),
        auth_attributes: settings.auth_attributes(),
    };
    validate::Loaded { name, text, policy, settings: set, unreadable, service }
}

fn print_problems(problems: &[Problem], json: bool) -> Result<ExitCode, Failure> {
    if json {
        let problems = problems.iter().map(|problem| ShownProblem {
            line: problem.line,
            field: &problem.field,
            message: problem.to_string(),
        });
        say(&serde_json::to_string(&Fails { ok: false, problems: problems.collect() })?)?;
    } else {
        problems.iter().try_for_each(say)?;
    }
    Ok(ExitCode::from(DENIED))
}

#[derive(Serialize)]
struct Fails<'a> {
    ok: bool,
    problems: Vec<ShownProblem<'a>>,
}

#[derive(Serialize)]
struct ShownProblem<'a> {
    line: Option<usize>,
    field: &'a str,
    /// The whole text of the problem, with its place.
    message: String,
}

/// The schema by which editors complete and check the file.
const SCHEMA: &str = include_str!("validate/schema.json");

/// The exit code for a file that does not load, or that has denied warnings.
const DENIED: u8 = 1;
