//! What goes over HTTP: header fields and bodies, whose request it is, the layer.
//!
//! The fields are read back by a parser that is not ours.

pub(crate) mod client;
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
mod who;
