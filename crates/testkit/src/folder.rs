//! Temporary folders, removed with the test or the server that uses them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder among the system's temporary files; removed on drop.
#[derive(Debug)]
pub struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// When it cannot be created.
    #[track_caller]
    #[must_use]
    pub fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("spillgate-test-{}-{number}", std::process::id()));
        // An earlier process with the same id may have left one behind.
        let _ = fs::remove_dir_all(&path);
        match fs::create_dir(&path) {
            Ok(()) => Self(path),
            Err(error) => panic!("cannot create {}: {error}", path.display()),
        }
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and replaces one of that name. Returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        match fs::write(&path, text) {
            Ok(()) => path,
            Err(error) => panic!("cannot write {}: {error}", path.display()),
        }
    }

    /// Creates the log, and returns it twice: for output and for errors.
    #[track_caller]
    pub(crate) fn create_log(&self) -> (File, File) {
        let log = File::create(self.0.join(LOG));
        match log.and_then(|log| Ok((log.try_clone()?, log))) {
            Ok(handles) => handles,
            Err(error) => panic!("cannot create {LOG} in {}: {error}", self.0.display()),
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.0.join(LOG)).unwrap_or_else(|error| format!("({LOG}: {error})"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover temporary folder is no reason to fail a test.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const LOG: &str = "server.log";
