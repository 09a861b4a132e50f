//! The integration tests: one binary, one vocabulary, every body on both engines.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::float_arithmetic,
    unreachable_pub,
    reason = "tests fail by panicking, print their tables, and are nobody's interface"
)]

mod accidents;
mod differential;
mod fleet;
mod limiter;
mod log_budget;
mod oracle;
mod store;
mod support;
mod tidy;
mod vectors;
