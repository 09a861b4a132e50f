//! Following the file: a good one is in force from the next request on, a bad one changes nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::time::interval;

use crate::app::App;
use crate::commands::counted;
use crate::config::{self, Change, ConfigError, Version};
use crate::systemd::Manager;

/// A file of settings and policy, as it was read last.
pub(crate) struct Followed {
    file: PathBuf,
    stamp: Stamp,
    version: Version,
}

impl Followed {
    /// As it is now; to be taken before the file is loaded, so that no change is missed.
    pub(crate) fn now(file: &Path) -> Followed {
        let stamp = Stamp::of(file);
        let text = config::read(file).unwrap_or_default();
        let version = Version::of(&file.display().to_string(), &text);
        Followed { file: file.to_owned(), stamp, version }
    }

    /// Reads the file again whenever it changes, and at each hangup signal.
    pub(crate) async fn follow(mut self, app: App, mut hangup: Signal, manager: Manager) {
        let mut ticks = interval(LOOK);
        loop {
            let asked = tokio::select! {
                asked = hangup.recv() => if asked.is_some() { true } else { return },
                _ = ticks.tick() => if Stamp::of(&self.file) == self.stamp { continue } else { false },
            };
            if asked {
                manager.reloading();
            }
            let (followed, change) = self.read().await;
            self = followed;
            let status = match change {
                Ok(change) => apply(&self.file, change, &app),
                Err(error) => {
                    app.reloads.count_refused();
                    tracing::error!(target: "spillgate", "{error}\nthe policy in force stays");
                    format!("the policy in force stays: {error}")
                }
            };
            manager.ready(&status);
        }
    }

    /// Away from the requests: a million overrides take seconds to read.
    async fn read(mut self) -> (Followed, Result<Change, ConfigError>) {
        let reading = tokio::task::spawn_blocking(move || {
            // Taken before reading: what is written meanwhile is another change.
            self.stamp = Stamp::of(&self.file);
            let change = config::read(&self.file)
                .map_err(ConfigError::from)
                .and_then(|text| self.version.next(&self.file.display().to_string(), &text));
            (self, change)
        });
        reading.await.expect("reading a file answers errors and does not panic")
    }
}

/// Puts a change in force; answers what is in force now.
fn apply(file: &Path, change: Change, app: &App) -> String {
    let rules = change.policy.rules().len();
    app.set_policy(change.policy);
    app.reloads.count_applied();
    let in_force = format!("{}: {} in force", file.display(), counted(rules, "rule"));
    tracing::info!(target: "spillgate", "{in_force}");
    if change.other_settings {
        tracing::warn!(
            target: "spillgate",
            "{}: settings under [server], [store] and [telemetry] changed too; but for credentials \
             of the store they take effect at the next start",
            file.display()
        );
    }
    in_force
}

/// What a file looks like from outside; through links, so that a swapped link shows.
#[derive(PartialEq, Eq)]
struct Stamp(Option<(SystemTime, u64)>);

impl Stamp {
    fn of(file: &Path) -> Stamp {
        let metadata = std::fs::metadata(file).ok();
        Stamp(metadata.and_then(|metadata| Some((metadata.modified().ok()?, metadata.len()))))
    }
}

/// A change is in force about as fast as one made through the store.
const LOOK: Duration = Duration::from_millis(500);
