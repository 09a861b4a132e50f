//! Speed of the doors beside yardsticks, by the yardsticks' own load generators: `./evidence speed`.
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
#[path = "../../../spillgate/benches/speed/table.rs"]
mod table;

use rounds::Effort;
use table::Table;

type Outcome = Result<Vec<Table>, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match arguments.as_slice() {
        [flag] if flag == echo::FLAG => return echo::serve(),
        [flag] if flag == grpc::FLAG => return grpc::serve(),
        _ => {}
    }
    let effort = match arguments.as_slice() {
        [] => Effort::FULL,
        [quick] if quick == "--quick" => Effort::QUICK,
        _ => {
            eprintln!("Usage: cargo bench -p spillgate-server --bench doors -- [--quick]");
            return ExitCode::from(2);
        }
    };
    println!("{}\n", machine::description());
    let sections = [
        resp::against_yardsticks,
        crowd::against_a_quiet_server,
        http::against_yardsticks,
        grpc::against_a_yardstick,
    ];
    for section in sections {
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
