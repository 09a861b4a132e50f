//! Certificates, keys, tokens and passwords that change while the service runs: each is read again when its files
//! change, and at each hangup signal. Files that are no good change nothing.

use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::interval;

/// All that is followed.
#[derive(Default)]
pub(crate) struct Credentials(Vec<Watched>);

/// What is read together.
struct Watched {
    /// As the log names it.
    name: &'static str,
    /// Returns what the files hold, as a number: no copy of a secret is kept.
    look: Box<dyn FnMut() -> u64 + Send>,
    read: Box<dyn Fn() -> Result<(), Box<dyn Error>> + Send>,
    /// What was there when it began to be followed.
    at_start: u64,
    /// What was there at the last look.
    seen: Option<u64>,
    /// What is in force, or was found to be no good. Unknown at first: the files may have changed before they were followed.
    settled: Option<u64>,
}

impl Credentials {
    /// Follows these files; `read` reads them again and puts in force what they hold.
    pub(crate) fn follow_files<E: Error + 'static>(
        &mut self,
        name: &'static str,
        files: impl IntoIterator<Item = PathBuf>,
        read: impl Fn() -> Result<(), E> + Send + 'static,
    ) {
        let files: Vec<PathBuf> = files.into_iter().collect();
        self.follow(name, move || fingerprint(files.iter().map(PathBuf::as_path)), read);
    }

    /// Follows what `look` returns.
    pub(crate) fn follow<E: Error + 'static>(
        &mut self,
        name: &'static str,
        mut look: impl FnMut() -> u64 + Send + 'static,
        read: impl Fn() -> Result<(), E> + Send + 'static,
    ) {
        let read = move || read().map_err(Into::into);
        let at_start = look();
        let (look, read) = (Box::new(look), Box::new(read));
        self.0.push(Watched { name, look, read, at_start, seen: None, settled: None });
    }

    /// Looks at all files twice a second, and at each hangup signal.
    pub(crate) async fn keep(mut self, mut hangup: Signal) {
        let mut ticks = interval(LOOK);
        loop {
            let why = tokio::select! {
                asked = hangup.recv() => if asked.is_some() { Why::Asked } else { return },
                _ = ticks.tick() => Why::Time,
            };
            let looking = tokio::task::spawn_blocking(move || {
                self.0.iter_mut().for_each(|watched| watched.look_again(why));
                self
            });
            self = looking.await.expect("reading files answers errors and does not panic");
        }
    }
}

/// Why files are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Asked,
    Time,
}

impl Watched {
    /// Reads what has changed, once it is the same in two looks: a file may be half written, and a certificate is
    /// written before or after its key. An operator who sends a signal has finished writing.
    fn look_again(&mut self, why: Why) {
        let now = (self.look)();
        let is_still = self.seen.replace(now) == Some(now);
        if self.settled == Some(now) || !(is_still || why == Why::Asked) {
            return;
        }
        let is_news = self.settled.replace(now).unwrap_or(self.at_start) != now;
        match (self.read)() {
            Ok(()) if !is_news => {}
            Ok(()) => {
                tracing::info!(target: "spillgate", "{}: read again; new connections use it", self.name);
            }
            Err(error) => {
                tracing::error!(target: "spillgate", "{error}\n{}: what is in force stays", self.name);
            }
        }
    }
}

/// A number for what files hold now; another for one that cannot be read.
pub(crate) fn fingerprint<'f>(files: impl Iterator<Item = &'f Path>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        fs::read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// As often as the policy's file is looked at. These files have a few kilobytes.
const LOOK: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_change_is_read_once_it_is_the_same_in_two_looks_and_at_once_where_asked_for() {
        let (held, reads) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU32::new(0)));
        let mut credentials = Credentials::default();
        let (look, read) = (Arc::clone(&held), Arc::clone(&reads));
        credentials.follow(
            "it",
            move || look.load(Ordering::Relaxed),
            move || {
                read.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::other("no good"))
            },
        );
        let mut look = |value, why| {
            held.store(value, Ordering::Relaxed);
            credentials.0[0].look_again(why);
            reads.load(Ordering::Relaxed)
        };
        assert_eq!((look(1, Why::Time), look(1, Why::Time), look(1, Why::Asked)), (0, 1, 1));
        assert_eq!((look(2, Why::Time), look(3, Why::Time), look(3, Why::Time)), (1, 1, 2));
        assert_eq!(look(4, Why::Asked), 3);
    }
}
