//! Divides the open files of the process among its listeners: each connection is a file.
//!
//! The clients of one listener must not take the files that another listener, the store or a reload needs. So each
//! listener has a share of its own, and the files of the process itself are set aside first.

/// The shares, in connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The share of each listener that decides.
    pub(crate) data: u32,
    /// The share of the admin listener.
    pub(crate) admin: u32,
}

impl Shares {
    /// Divides `files` among `listeners` that decide and the admin listener. Some files are set aside for each of
    /// `threads`, and two for each of `store` connections, since a new one is opened before the old one is closed.
    pub(crate) fn divide(files: u64, listeners: usize, store: usize, threads: usize) -> Shares {
        let files = u32::try_from(files).unwrap_or(u32::MAX);
        let wanted = FILES_RESERVED + FILES_OF_THREAD * bounded(threads) + 2 * bounded(store);
        let left = files - wanted.min(files / 2);
        let admin = (left / 4).clamp(1, ADMIN_MAX);
        let data = left.saturating_sub(admin) / bounded(listeners).max(1);
        Shares { data: data.clamp(1, CONNECTIONS_MAX), admin }
    }

    /// Returns whether a busy service could need more connections.
    pub(crate) fn are_small(self) -> bool {
        self.data < SMALL
    }
}

fn bounded(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).min(FILES_RESERVED * 64)
}

/// The most connections of a listener that decides: more than a busy fleet of sidecars opens to one instance. Silent
/// ones take some 20 KiB each, together 400 MiB.
pub const CONNECTIONS_MAX: u32 = 20_000;

/// The most connections to the admin listener, which has some dozens of operators, probes and scrapers.
const ADMIN_MAX: u32 = 1_000;

/// Files for listeners, standard streams, the policy's file and those it names, signals, the journal, the collector of
/// traces and name resolution. Each listener also accepts one connection before it closes another.
const FILES_RESERVED: u32 = 32;

/// Files that a tokio runtime opens for each thread, and one to spare.
const FILES_OF_THREAD: u32 = 4;

/// The share below which the service warns: a few hundred clients, each with a pool, need more.
const SMALL: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_and_the_reserve_fit_into_the_bound() {
        for (files, store) in [(64, 4), (200, 8), (1_024, 8), (1_024, 600), (65_536, 8)] {
            let shares = Shares::divide(files, 3, store, 2);
            let taken = u64::from(shares.data * 3 + shares.admin);
            let reserve = files - taken;
            assert!(reserve >= (40 + 2 * store as u64).min(files / 2), "{files}: {shares:?}");
            assert!(shares.data >= 5 && shares.admin >= 5, "{files}: {shares:?}");
        }
        assert_eq!(Shares::divide(1 << 20, 3, 8, 2), Shares { data: 20_000, admin: 1_000 });
        assert_eq!(Shares::divide(200, 3, 8, 2), Shares { data: 36, admin: 36 });
    }
}
