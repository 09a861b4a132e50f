//! Speed of the APIs beside baselines, by the baselines' own load generators: `./evidence speed`.
//!
//! Server and client share the machine. Whatever it does besides meets all contenders alike, for they
//! run in turn; what counts are the ratios. Nothing here fails for being slow.
#![allow(
    clippy::disallowed_methods,
    clippy::float_arithmetic,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    dead_code,
    reason = "a bench reads clocks, divides, prints its tables, is nobody's interface, and shares files with the library's"
)]

use std::error::Error;
use std::process::ExitCode;

mod articles;
#[path = "../../../spillgate/benches/speed/baseline.rs"]
mod bare;
mod contender;
mod crowd;
mod echo;
mod grpc;
mod http;
#[path = "../../../spillgate/benches/speed/machine.rs"]
mod machine;
mod pair;
mod resp;
#[path = "../../../spillgate/benches/speed/rounds.rs"]
mod rounds;
mod store;
#[path = "../../../spillgate/benches/speed/table.rs"]
mod table;

use rounds::Effort;
use table::Table;

type Outcome = Result<Vec<Table>, Box<dyn Error>>;
type Section = fn(Effort) -> Outcome;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match arguments.as_slice() {
        [flag] if flag == echo::FLAG => return echo::serve(),
        [flag] if flag == grpc::FLAG => return grpc::serve(),
        [flag, url, connections] if flag == articles::FLAG => {
            return articles::serve(url, connections);
        }
        _ => {}
    }
    let (quick, words): (Vec<String>, Vec<String>) =
        arguments.into_iter().partition(|word| word == "--quick");
    let effort = if quick.is_empty() { Effort::FULL } else { Effort::QUICK };
    let sections: [(&str, Section); 5] = [
        ("resp", resp::against_baselines),
        ("crowd", crowd::against_a_quiet_server),
        ("http", http::against_baselines),
        ("grpc", grpc::against_a_baseline),
        ("store", store::against_the_articles),
    ];
    if let Some(word) = words.iter().find(|word| sections.iter().all(|(name, _)| name != word)) {
        let names = sections.map(|(name, _)| name).join(" ");
        eprintln!(
            "{word} is not a section\nUsage: cargo bench -p spillgate-cli --bench apis -- [--quick] [{names}]"
        );
        return ExitCode::from(2);
    }
    println!("{}\n", machine::description());
    for (name, section) in sections {
        if !words.is_empty() && words.iter().all(|word| word != name) {
            continue;
        }
        match section(effort) {
            Ok(tables) => tables.iter().for_each(|table| println!("{table}")),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
