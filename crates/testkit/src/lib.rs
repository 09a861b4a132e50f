//! Real servers and processes for tests: started on free ports, paused, killed, and always gone at the end.
//!
//! All functions panic with the problem, its place and the remedy: a test without its server fails, and never passes
//! by doing nothing. Nothing here is asynchronous, and every wait has a bound.

mod cluster;
mod fault_proxy;
mod folder;
mod launch;
mod poll;
mod port;
mod process;
mod redis_server;
mod resp;
mod sentinels;
mod stepped_clock;
mod tls;
mod trouble;

pub use cluster::{Cluster, Node};
pub use fault_proxy::{Direction, Fault, FaultProxy};
pub use folder::Folder;
pub use poll::{eventually, poll};
pub use port::free_port;
pub use process::Process;
pub use redis_server::{RedisServer, ServerVersion};
pub use resp::{Connection, Reply};
pub use sentinels::Sentinels;
pub use stepped_clock::{SteppedClock, SteppedServer};
pub use tls::{Certificates, ClientCertificate, TlsServer};
pub use trouble::BusyServer;
