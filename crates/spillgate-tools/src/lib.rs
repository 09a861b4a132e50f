//! The tools of Spillgate: [`simulate`] replays logs against rules, [`bench`] measures a limiter or a service,
//! [`import`] converts the rules of another limiter, [`validate`] reports on a file of rules. Each is a command of the
//! program `spillgate`.
//!
//! The crate knows the limiter and nothing of the service. If a command needs the service's settings, the program
//! passes a function that loads them, or the loaded values.

pub mod bench;
mod duration;
mod flag;
pub mod import;
mod output;
#[cfg(test)]
mod random;
pub mod simulate;
mod token;
pub mod validate;

pub use bench::BenchArgs;
pub use flag::{attribute, whole_number};
pub use import::ImportArgs;
pub use output::{Failure, counted, printable, say, table, write};
pub use simulate::SimulateArgs;
pub use token::token;
