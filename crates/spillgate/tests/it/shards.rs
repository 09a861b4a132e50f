//! State on several servers, and the effect of one server on the subjects of the others.

mod cluster;
mod connections;
mod equality;
mod outage;
mod ring_change;
mod sentinel;
mod spread;
