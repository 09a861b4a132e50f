//! Measurements that articles on rate limiting make, and how speed changes with growth: `./evidence
//! articles`.
//!
//! Each section prints tables measured on this machine. Curves are written into the folder that `--plots`
//! names. Slow results do not fail.
#![allow(
    clippy::disallowed_methods,
    clippy::float_arithmetic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "a bench reads clocks, divides, prints its tables, is no interface, and shares files with others"
)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

#[path = "../speed/baseline.rs"]
mod baseline;
mod connections;
mod fleet;
mod grid;
mod growth;
#[path = "../speed/load.rs"]
mod load;
mod local;
#[path = "../speed/machine.rs"]
mod machine;
mod placement;
#[path = "../../../spillgate-tools/src/plot.rs"]
mod plot;
#[path = "../speed/rounds.rs"]
mod rounds;
mod wire;

use grid::Grid;
use rounds::Effort;

type Outcome = Result<Vec<Grid>, Box<dyn Error>>;

/// How long to measure, and where to write drawings.
#[derive(Clone)]
pub struct Job {
    effort: Effort,
    plots: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut job = Job { effort: Effort::FULL, plots: None };
    let mut words = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo passes this flag.
            "--bench" => {}
            "--quick" => job.effort = Effort::QUICK,
            "--plots" => job.plots = arguments.next().map(PathBuf::from),
            _ => words.push(argument),
        }
    }
    let unknown = words.iter().find(|word| SECTIONS.iter().all(|(name, _)| name != word));
    if let Some(word) = unknown {
        let names = SECTIONS.map(|(name, _)| name).join(" ");
        eprintln!(
            "{word} is no section\nUsage: cargo bench -p spillgate --bench articles --features redis -- \
             [--quick] [--plots FOLDER] [{names}]"
        );
        return ExitCode::from(2);
    }
    println!("{}\n", machine::description());
    for (name, section) in SECTIONS {
        if !words.is_empty() && words.iter().all(|word| word != name) {
            continue;
        }
        match section(&job) {
            Ok(grids) => grids.iter().for_each(|grid| println!("{grid}")),
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

type Section = fn(&Job) -> Outcome;

const SECTIONS: [(&str, Section); 6] = [
    ("fleet", fleet::three_ways),
    ("wire", wire::eval_against_evalsha),
    ("placement", placement::modulo_against_ring),
    ("connections", connections::one_to_fifty),
    ("local", local::share_decided_here),
    ("growth", growth::curves),
];
