//! Watches the credentials of the store: users and passwords in its addresses, `store.password_file`, the files of
//! `store.tls`, and that with the password of the sentinels.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use crate::app::App;
use crate::config::{self, ConfigError, Flags, Store};
use crate::credentials::{Credentials, Stamp, fingerprint};

/// The sources of the store's settings, besides the environment.
pub struct StoreSettings {
    pub(crate) file: Option<PathBuf>,
    /// The flag `--redis`, which overrides the file.
    pub(crate) redis: Option<String>,
}

/// The result of the last reading of the settings file.
struct Found {
    /// A hash of the addresses with their credentials.
    urls: u64,
    files: Vec<PathBuf>,
}

impl StoreSettings {
    fn store(&self) -> Result<Store, ConfigError> {
        let flags = Flags { redis: self.redis.as_deref(), ..Flags::default() };
        config::store_now(self.file.as_deref(), flags)
    }

    fn stamp(&self) -> Option<Stamp> {
        Stamp::from_file(self.file.as_deref()?)
    }
}

impl Found {
    fn from_settings(settings: &StoreSettings) -> Option<Found> {
        let store = settings.store().ok()?;
        let mut hasher = DefaultHasher::new();
        store.urls().hash(&mut hasher);
        let tls = &store.tls;
        let passwords = [&store.password_file, &store.sentinel_password_file];
        let files = passwords.into_iter().chain([&tls.ca, &tls.cert, &tls.key]);
        let files = files.flatten().cloned().collect();
        Some(Found { urls: hasher.finish(), files })
    }

    fn fingerprint(&self) -> u64 {
        self.urls ^ fingerprint(self.files.iter().map(PathBuf::as_path))
    }
}

/// Watches the credentials in the store's addresses, and the files that hold others. The settings file is read only when
/// it has changed, because it may hold a large policy.
pub fn follow(credentials: &mut Credentials, settings: StoreSettings, app: App) {
    let settings = Arc::new(settings);
    let looked_at = Arc::clone(&settings);
    let (mut read_at, mut found): (Option<Option<Stamp>>, Option<Found>) = (None, None);
    let look = move || {
        let stamp = looked_at.stamp();
        if read_at != Some(stamp) {
            read_at = Some(stamp);
            // The reload of the policy reports problems of the file; here the last valid version stays.
            found = Found::from_settings(&looked_at).or(found.take());
        }
        found.as_ref().map_or(0, Found::fingerprint)
    };
    let read = move || match settings.store() {
        Ok(store) => app.set_store_access(&store),
        Err(_) => Ok(()),
    };
    credentials.follow("credentials of the store", look, read);
}
