//! HTTP: header fields and bodies, the identity of clients, and the layer.
//!
//! A parser of another project reads the fields back.

mod attributes;
pub(crate) mod client;
mod denials;
mod diagnostics;
mod examples;
mod fields;
mod goldens;
mod grpc;
mod headers;
mod identity;
mod layer;
mod pace;
mod paths;
mod settling;
mod shared_cases;
