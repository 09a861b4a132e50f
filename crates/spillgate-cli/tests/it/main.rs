//! The binary as users have it: started as a process, called over real sockets, stopped by signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod admin;
mod alerts;
mod auth;
mod bad_input;
mod bench;
mod check;
mod client;
mod clock;
mod credentials;
mod denials;
mod deploy;
mod doctor;
mod documents;
mod domains;
mod envoy;
mod fuzzed;
mod http;
mod import;
mod instances;
mod listeners;
mod load;
mod openapi;
mod packages;
mod protection;
mod reload;
mod reservations;
mod resp;
mod server;
mod settings;
mod simulate;
mod soak;
mod stalled_log;
mod start;
mod stop;
mod stores;
mod story;
mod systemd;
mod telemetry;
mod traces;
mod validate;
