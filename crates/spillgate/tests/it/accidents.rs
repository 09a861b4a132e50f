//! The accidents of other limiters, each made impossible here: the name of a test is what holds,
//! its comment says what happened elsewhere.
//!
//! Every body runs in memory and on a real Redis where the accident could happen in both, and over
//! all algorithms unless it belongs to one.

mod admission;
mod arithmetic;
mod articles;
mod expiry;
mod http;
mod keys;
mod time;
