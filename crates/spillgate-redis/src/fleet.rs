//! What the instances of a fleet share besides counters: heartbeats, probes and runtime changes.

pub mod control;
pub mod heartbeat;
pub mod probe;
pub mod probing;
