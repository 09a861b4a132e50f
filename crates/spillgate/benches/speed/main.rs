//! Speed as ratios to baselines measured beside ours, and bytes per subject: `./evidence speed`.
//!
//! A figure alone describes the machine more than the code. Read the ratios within one round of interleaved
//! runs: the median of all rounds, with their spread. Slow results do not fail.
#![allow(
    clippy::disallowed_methods,
    clippy::float_arithmetic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a bench reads clocks, divides, prints its tables, and is not an interface"
)]

use std::error::Error;
use std::process::ExitCode;

mod algorithms;
mod baseline;
mod batches;
mod bytes;
mod counters;
mod hot;
mod layer;
mod leased;
mod load;
mod machine;
mod memory;
mod reservations;
mod rounds;
mod strict;
mod table;
mod topologies;

use rounds::Effort;
use table::Table;

type Outcome = Result<Vec<Table>, Box<dyn Error>>;

fn main() -> ExitCode {
    let options = match Options::of(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n\n{}", usage());
            return ExitCode::from(2);
        }
    };
    println!("{}\n", machine::description());
    for (name, section) in SECTIONS {
        if !options.filters.iter().all(|filter| name.contains(filter.as_str())) {
            continue;
        }
        match section(options.effort) {
            Ok(tables) => tables.iter().for_each(|table| println!("{table}")),
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

struct Options {
    filters: Vec<String>,
    effort: Effort,
}

impl Options {
    fn of(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { filters: Vec::new(), effort: Effort::FULL };
        for argument in arguments {
            match argument.as_str() {
                // Cargo passes this flag.
                "--bench" => {}
                "--quick" => options.effort = Effort::QUICK,
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                _ => options.filters.push(argument),
            }
        }
        Ok(options)
    }
}

type Section = fn(Effort) -> Outcome;

/// Bytes come first, because memory freed by other sections would hide their growth.
const SECTIONS: [(&str, Section); 12] = [
    ("memory bytes", bytes::in_memory),
    ("memory", memory::against_governor),
    ("memory layer", layer::beside_a_check),
    ("redis bytes", bytes::in_redis),
    ("redis strict", strict::against_baselines),
    ("redis topologies", topologies::against_bare_scripts),
    ("redis hot", hot::against_bare_scripts),
    ("redis batches", batches::of_sizes),
    ("redis counters", counters::one_to_eight),
    ("redis algorithms", algorithms::by_store_time),
    ("redis reservations", reservations::against_checks),
    ("redis leased", leased::against_memory),
];

fn usage() -> String {
    let names = SECTIONS.map(|(name, _)| name).join(", ");
    format!(
        "Usage: cargo bench -p spillgate --bench speed --all-features -- [--quick] [WORD ...]

Runs the sections whose names hold every WORD: {names}."
    )
}
