//! Certificates, keys, tokens and passwords that change while the service runs. Each is read again when its files
//! change, and at each hangup signal. Invalid files change nothing.

use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::interval;

use crate::files;

/// The credentials that the service watches.
#[derive(Default)]
pub(crate) struct Credentials(Vec<Watched>);

/// One credential, in one file or in several that are read together.
struct Watched {
    /// Its name in the log.
    name: &'static str,
    /// Returns a fingerprint of the files' content, so that no copy of a secret is kept.
    look: Box<dyn FnMut() -> u64 + Send>,
    read: Box<dyn Fn() -> Result<(), Box<dyn Error>> + Send>,
    /// The fingerprint when watching began.
    at_start: u64,
    /// The fingerprint at the last look.
    seen: Option<u64>,
    /// The fingerprint that is in force, or that was refused. It is unknown at first: the files may have changed
    /// between their first reading and the start of watching.
    settled: Option<u64>,
}

impl Credentials {
    /// Watches these files; `read` reads them again and puts their content in force.
    pub(crate) fn follow_files<E: Error + 'static>(
        &mut self,
        name: &'static str,
        files: impl IntoIterator<Item = PathBuf>,
        read: impl Fn() -> Result<(), E> + Send + 'static,
    ) {
        let files: Vec<PathBuf> = files.into_iter().collect();
        self.follow(name, move || fingerprint(files.iter().map(PathBuf::as_path)), read);
    }

    /// Watches the fingerprint that `look` returns; `read` reads the credential again.
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
            self = looking.await.expect("reading files returns errors and does not panic");
        }
    }
}

/// The reason for a look at the files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// An operator sent a hangup signal.
    Asked,
    Time,
}

impl Watched {
    /// Reads changed files once two looks in a row find the same content: a file may be half written, and a certificate
    /// is written before or after its key. After a signal one look suffices: the operator has finished writing.
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
                tracing::error!(target: "spillgate", "{error}\n{}: the version in force stays", self.name);
            }
        }
    }
}

/// Returns a fingerprint of the files' content. An unreadable file has another fingerprint than an empty one.
pub(crate) fn fingerprint<'f>(files: impl Iterator<Item = &'f Path>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        files::read(file, files::CREDENTIAL_BYTES_MAX).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// The metadata by which a change of a file shows. It is taken through links, so that a swapped link shows. No program
/// can set the time of a change (`ctime`), so changed content has another stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    pub(crate) length: u64,
    changed_at: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of a file; `None` if its metadata cannot be read.
    pub(crate) fn from_file(file: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(file).ok()?;
        Some(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            changed_at: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// The time between two looks, as for the policy's file. These files have a few kilobytes.
const LOOK: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn reads_a_change_after_two_equal_looks_and_at_once_after_a_signal() {
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
