//! Renders the metrics for scrapers: by one thread at a time and at most once a second, for any number of scrapers.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::app::App;

/// The last rendering. Clones share it.
#[derive(Clone)]
pub(crate) struct Scrapes {
    app: App,
    /// Locked while a rendering is made.
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
    /// The time at which the next scraper gets its answer.
    next: Arc<Mutex<Instant>>,
}

impl Scrapes {
    pub(super) fn new(app: App) -> Scrapes {
        Scrapes { app, last: Arc::default(), next: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Returns the metrics for a scraper. Scrapers are answered one after another, [`EVERY`] apart: with many rules an
    /// answer has a megabyte, and writing it takes the processor from threads that decide.
    pub(super) async fn in_turn(&self) -> Bytes {
        let mut next = self.next.lock().await;
        sleep_until(*next).await;
        *next = Instant::now() + EVERY;
        drop(next);
        self.text(SHARED).await
    }

    /// Returns the metrics, at most this old.
    pub(super) async fn text(&self, age_max: Duration) -> Bytes {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < age_max
        {
            return text.clone();
        }
        let app = self.app.clone();
        // The lock moves into the blocking thread: if the scraper leaves, its future is dropped but the rendering goes
        // on, and no second rendering may begin beside it.
        let rendering = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let text = Bytes::from(app.metrics_text());
            *last = Some((began, text.clone()));
            text
        });
        rendering.await.expect("rendering formats numbers and does not panic")
    }
}

/// The time within which scrapers share a rendering: Prometheus asks every few seconds.
const SHARED: Duration = Duration::from_secs(1);

/// The time between two answers: fifty a second are more than a fleet of scrapers needs.
const EVERY: Duration = Duration::from_millis(20);
