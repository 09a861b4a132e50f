//! Real servers and processes for the tests: started on free ports, paused, killed, and always gone
//! at the end.
//!
//! Everything here panics with what went wrong, where, and the way out: a test that cannot have its
//! server fails, it does not pass by doing nothing. Nothing here is asynchronous; every wait has a
//! bound.

mod poll;
mod port;
mod process;
mod redis_server;
mod resp;

pub use port::free_port;
pub use process::Process;
pub use redis_server::{RedisServer, ServerVersion};
pub use resp::{Connection, Reply};
