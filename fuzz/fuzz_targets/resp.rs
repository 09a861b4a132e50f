//! Requests in the protocol of Redis as anybody may send them.
#![no_main]

#[path = "../../crates/spillgate-server/src/door/resp/frame.rs"]
mod frame;
#[path = "../bodies/resp.rs"]
mod resp;

libfuzzer_sys::fuzz_target!(|input: &[u8]| resp::holds(input));
