//! The RESP door: whatever speaks to Redis can ask here. Requests are decoded, those that came together
//! are judged together, and answered in their order. One client's mistake ends no other's connection.

mod answer;
mod batch;
mod command;
mod connection;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod question;
mod received;
mod reply;
mod reservation;
mod session;

pub(crate) use connection::Resp;
