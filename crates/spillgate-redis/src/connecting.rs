//! From a counter's tag to the server that holds it, and from a call to its reply.
//!
//! A topology (one server, ring or Cluster) maps each tag to a shard. A shard queues calls for its link, and the link
//! sends them over its wires.

pub mod access;
pub mod acl;
pub mod address;
pub mod breaker;
pub mod cluster;
pub mod failure;
pub mod fingerprint;
pub mod link;
pub mod offset;
pub mod polls;
pub mod ring;
pub mod sentinel;
pub mod server;
pub mod shard;
pub mod slot;
pub mod terms;
pub mod tls;
pub mod topology;
pub mod traced;
pub mod wire;
