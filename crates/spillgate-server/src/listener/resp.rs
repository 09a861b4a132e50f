//! The RESP API, for clients of Redis. Commands that arrive together are checked in one batch and answered in their
//! order. A client's mistake ends no other client's connection.

mod answer;
mod batch;
mod command;
mod connection;
mod frame;
mod received;
mod reply;
mod request;
mod reservation;
mod session;

pub(crate) use connection::Resp;
