//! What the instances of a fleet share besides counters: heartbeats, probes and the fleet's record.
//!
//! All keys of the record have one tag, so one server has the record, whatever the topology.

pub mod control;
pub mod heartbeat;
pub mod probe;
pub mod probing;

/// The tag of the record's keys.
pub const RECORD: &str = "fleet";
