//! The integration tests: one binary with shared helpers, every test on both engines where it applies.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::float_arithmetic,
    unreachable_pub,
    reason = "tests fail by panicking, print their tables, and are no interface"
)]

mod accidents;
mod acl;
mod allocations;
mod atomic;
mod batches;
mod binding;
mod calendar;
mod campaign;
mod coalescing;
mod conformance;
mod control;
mod denial_cache;
mod denials;
mod differential;
mod exactness;
mod explain;
mod failure;
mod fast_path;
mod fleet;
mod group_commit;
mod history;
mod http;
mod leases;
mod limiter;
mod log_budget;
mod many_subjects;
mod oracle;
mod postpaid;
mod readme;
mod request_limits;
mod reserving;
mod serialize;
mod shards;
mod shorter_periods;
mod store;
mod stores;
mod subject_bytes;
mod support;
mod tidy;
mod timing;
mod top;
mod vectors;
mod waiting;
