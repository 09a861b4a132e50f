//! Renders the metrics for scrapers: by one thread at a time and at most once a second, for a bounded number of
//! scrapers at once.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::Problem;
use crate::app::App;

/// The last rendering. Clones share it.
#[derive(Clone)]
pub(crate) struct Scrapes {
    app: App,
    /// Locked while a rendering is made.
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
    /// The time at which the next scraper gets its answer.
    next: Arc<Mutex<Instant>>,
    /// Permits to wait for that time.
    waiting: Arc<Semaphore>,
}

impl Scrapes {
    pub fn new(app: App) -> Scrapes {
        let next = Arc::new(Mutex::new(Instant::now()));
        Scrapes { app, last: Arc::default(), next, waiting: Arc::new(Semaphore::new(WAITING_MAX)) }
    }

    /// Returns the metrics for a scraper. Scrapers are answered one after another, [`EVERY`] apart: with many rules an
    /// answer has a megabyte, and writing it takes the processor from threads that decide.
    ///
    /// # Errors
    ///
    /// If [`WAITING_MAX`] scrapers wait already.
    pub async fn in_turn(&self) -> Result<Bytes, Problem> {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return Err(Problem::overloaded(TOO_MANY.to_owned()));
        };
        let mut next = self.next.lock().await;
        sleep_until(*next).await;
        *next = Instant::now() + EVERY;
        drop(next);
        Ok(self.text().await)
    }

    /// Returns the metrics, not older than [`SHARED`].
    async fn text(&self) -> Bytes {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < SHARED
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

/// The most scrapers that wait for an answer. A connection with a request under way is never closed for another, so
/// scrapers without a bound could take every connection of the admin listener from probes and operators. The bound is
/// far above the scrapers of a fleet, because waiting slows a scraper down: one that is refused may ask again at once.
const WAITING_MAX: usize = 64;
const TOO_MANY: &str = "too many scrapers wait for the metrics; scrape again later, and let each of a few scrapers \
     ask every few seconds";
