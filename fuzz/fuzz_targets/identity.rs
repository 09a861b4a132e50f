//! Forwarded addresses as a client and its proxies may write them.
#![no_main]

#[path = "../bodies/identity.rs"]
mod identity;

libfuzzer_sys::fuzz_target!(|input: &[u8]| identity::holds(input));
