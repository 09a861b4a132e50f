//! Measurements that articles on rate limiting make, and how speed changes with growth: `./evidence
//! articles`.
//!
//! Each section prints tables measured on this machine. Slow results do not fail.
#![allow(
    clippy::disallowed_methods,
    clippy::float_arithmetic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "a bench reads clocks, divides, prints its tables, is not an interface, and shares files with others"
)]

use std::error::Error;
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
#[path = "../../../spillgate-tools/src/output.rs"]
mod output;
mod placement;
#[path = "../speed/rounds.rs"]
mod rounds;
mod wire;

use grid::Grid;
use rounds::Effort;

type Outcome = Result<Vec<Grid>, Box<dyn Error>>;

fn main() -> ExitCode {
    let mut effort = Effort::FULL;
    let mut words = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            // Cargo passes this flag.
            "--bench" => {}
            "--quick" => effort = Effort::QUICK,
            _ => words.push(argument),
        }
    }
    let unknown = words.iter().find(|word| SECTIONS.iter().all(|(name, _)| name != word));
    if let Some(word) = unknown {
        let names = SECTIONS.map(|(name, _)| name).join(" ");
        eprintln!(
            "{word} is not a section\nUsage: cargo bench -p spillgate --bench articles --features redis -- \
             [--quick] [{names}]"
        );
        return ExitCode::from(2);
    }
    println!("{}\n", machine::description());
    for (name, section) in SECTIONS {
        if !words.is_empty() && words.iter().all(|word| word != name) {
            continue;
        }
        match section(effort) {
            Ok(grids) => grids.iter().for_each(|grid| println!("{grid}")),
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

type Section = fn(Effort) -> Outcome;

const SECTIONS: [(&str, Section); 6] = [
    ("fleet", fleet::three_ways),
    ("wire", wire::eval_against_evalsha),
    ("placement", placement::modulo_against_ring),
    ("connections", connections::one_to_fifty),
    ("local", local::share_decided_here),
    ("growth", growth::along_each_dimension),
];
