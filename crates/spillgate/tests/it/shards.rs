//! State on several servers, and what one of them does to the others' subjects.

mod cluster;
mod connections;
mod equality;
mod outage;
mod ring_change;
mod sentinel;
mod spread;
