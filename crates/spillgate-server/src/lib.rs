//! The service of Spillgate: listeners, settings, reload and the dashboard. [`serve`] runs it.
//!
//! The program `spillgate` uses the rest for its other commands: the settings, the findings on a store, and the routes
//! of the listeners without a listener.

mod app;
mod bounds;
pub mod config;
mod counted;
mod credentials;
pub mod doctor;
mod files;
mod history;
mod listener;
mod metrics;
mod reload;
mod serve;
mod status;
mod systemd;
mod telemetry;

pub use app::App;
pub use bounds::{ATTRIBUTES_MAX, ENTRIES_MAX};
pub use listener::admin::{EXPLAIN, explain_routes};
pub use listener::http::routes as http_routes;
pub use serve::{serve, stop_on_signals};
pub use telemetry::sink::{FlushAtEnd, complain};
