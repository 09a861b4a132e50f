//! Each algorithm again, straight from its definition: big integers, no packing, no short cuts.

pub mod concurrency;
pub mod fixed_window;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;
