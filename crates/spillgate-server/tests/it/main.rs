//! The binary as its users have it: started as a process, asked over real sockets, stopped by
//! signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod bad_input;
mod check;
mod client;
mod http;
mod load;
mod server;
mod settings;
mod stop;
mod validate;
