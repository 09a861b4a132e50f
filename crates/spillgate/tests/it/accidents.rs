//! Accidents of other limiters, each made impossible here. The name of a test states the guarantee, and its
//! comment describes the accident elsewhere.
//!
//! Each test runs in memory and on a real Redis if the accident could happen in both, and over all algorithms
//! unless it concerns one.

mod admission;
mod arithmetic;
mod articles;
mod expiry;
mod http;
mod keys;
mod time;
