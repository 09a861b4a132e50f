//! The state behind every listener: the limiter, and the settings that its answers depend on. Nothing here knows a
//! protocol.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use spillgate::reservation::{ReservationError, Reserve};
use spillgate::store::{StoreProbe, Tls};
use spillgate::{AtomicDecision, Decision, Limiter, LimiterBuilder, Policy, Request};
use tokio::sync::Semaphore;

use crate::config::{ConfigError, Problem, Settings, Store, StoreTls};
use crate::files;
use crate::history::History;
use crate::metrics::{Process, Reloads, UnsafeStore};
use crate::telemetry::{Traces, sink};

mod names;

use names::NameRules;
pub(crate) use names::UnknownName;

/// The limiter behind every listener. Clones share it.
#[derive(Clone)]
pub struct App {
    limiter: Limiter,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) history: Arc<History>,
    pub(crate) unsafe_store: Arc<UnsafeStore>,
    process: Process,
    /// The name of the store, without credentials.
    pub store: Arc<str>,
    names: Arc<NameRules>,
    pub(crate) traces: Traces,
    /// Whether reservations are refused. They are where remote clients reach a listener and no secret is set: the
    /// default secret is public, so a client could forge receipts.
    no_reservations: bool,
    /// The turns in which parts of large batches are decided in memory: they take at most half of the cores from other
    /// requests. The servers of a shared store bound theirs by their own speed.
    turns: Arc<Semaphore>,
}

/// The future of an app whose store is being opened. It is boxed, so that a caller's crate does not compile another
/// copy of the limiter.
type Opening<'a> = Pin<Box<dyn Future<Output = Result<App, ConfigError>> + Send + 'a>>;

impl App {
    /// Opens the store. An unreachable store is no error: decisions then follow `on_outage` of each rule.
    ///
    /// # Errors
    ///
    /// If the settings name a file that cannot be read, or the library refuses a setting.
    pub fn open(store: &Store, policy: Policy) -> Opening<'_> {
        Box::pin(App::open_with(store, Limiter::builder().policy(policy).top(false)))
    }

    /// Opens the store for a command that asks it once and ends. Live instances do not count this process.
    ///
    /// # Errors
    ///
    /// As [`App::open`].
    pub fn open_to_look(store: &Store, policy: Policy) -> Opening<'_> {
        Box::pin(App::open_with(
            store,
            Limiter::builder().policy(policy).top(false).without_heartbeat(),
        ))
    }

    /// Opens the store for the service, as the settings say. The app records its decisions in these traces.
    pub(crate) async fn open_to_serve(
        settings: &Settings,
        policy: Policy,
        traces: Traces,
    ) -> Result<App, ConfigError> {
        let builder = Limiter::builder().policy(policy);
        let mut builder = builder.log_subjects(settings.log.audit_subjects);
        builder = builder.denials(settings.records_denials());
        if let Some(name) = &settings.name {
            builder = builder.instance_name(name);
        }
        let app = App::open_with(&settings.store, builder).await?;
        let no_reservations = settings.remote_clients_can_forge_receipts();
        let names = NameRules {
            domains: settings.domains,
            attributes: settings.attributes,
            units: settings.units,
            ..NameRules::default()
        };
        Ok(App { names: Arc::new(names), traces, no_reservations, ..app })
    }

    async fn open_with(store: &Store, builder: LimiterBuilder) -> Result<App, ConfigError> {
        let mut builder = with_access(store, builder)?;
        if let Some(file) = &store.key_secret_file {
            builder = builder.key_secret(read_secret("store.key_secret_file", file)?);
        }
        let limiter = builder.build().await.map_err(|error| store.refused(&error))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = if store.is_shared() { Semaphore::MAX_PERMITS } else { cores.div_ceil(2) };
        Ok(App {
            limiter,
            reloads: Arc::new(Reloads::started_now()),
            history: Arc::default(),
            unsafe_store: Arc::default(),
            process: Process::started_now(),
            store: store.topology.to_string().into(),
            names: Arc::default(),
            traces: Traces::default(),
            no_reservations: false,
            turns: Arc::new(Semaphore::new(turns)),
        })
    }

    /// Checks whether reservations are taken.
    ///
    /// # Errors
    ///
    /// The reason for which they are not, and the fix.
    pub(crate) fn takes_reservations(&self) -> Result<(), &'static str> {
        if self.no_reservations { Err(NO_RESERVATIONS) } else { Ok(()) }
    }

    pub(crate) async fn reserve(
        &self,
        request: &Request<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<Decision, ReservationError> {
        let decision = self.limiter.reserve(request, reserve).await?;
        self.traces.record(&decision);
        Ok(decision)
    }

    pub(crate) async fn check(&self, request: &Request<'_>) -> Decision {
        let decision = self.limiter.check(request).await;
        self.traces.record(&decision);
        decision
    }

    /// Charges a request as soon as its limits allow it, and waits at most `within`.
    pub(crate) async fn acquire(&self, request: &Request<'_>, within: Duration) -> Decision {
        let decision = Box::pin(self.limiter.acquire(request, within)).await;
        self.traces.record(&decision);
        decision
    }

    /// Returns the limiter, for every call that is no decision. For decisions use the app, which records them in its
    /// traces.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Returns all metrics, in the text format of Prometheus.
    pub(crate) fn metrics_text(&self) -> String {
        let families = [
            self.limiter.metrics_text(),
            self.reloads.text(),
            self.unsafe_store.text(self.limiter.instance_mismatch()),
            sink::metrics_text(),
            self.process.text(),
        ];
        families.concat()
    }

    /// Puts credentials and certificates of the store in force, from its next connection on.
    ///
    /// # Errors
    ///
    /// If a certificate or password cannot be read, or the library refuses an address.
    pub(crate) fn set_store_access(&self, store: &Store) -> Result<(), ConfigError> {
        let builder = with_access(store, Limiter::builder())?;
        let renewed = self.limiter.set_store_access(&builder);
        Ok(renewed.map_err(|error| store.refused(&error))?)
    }

    /// Probes the store, and measures `samples` calls.
    pub fn probe(&self, samples: usize) -> Pin<Box<dyn Future<Output = StoreProbe> + Send + '_>> {
        Box::pin(self.limiter.probe(samples))
    }

    /// Charges all of these requests or none, and waits for the store at most `within`.
    pub(crate) async fn check_atomic(
        &self,
        requests: &[Request<'_>],
        within: Duration,
    ) -> AtomicDecision {
        let decision = self.limiter.check_atomic_within(requests, within).await;
        self.traces.record(decision.whole());
        decision
    }

    /// Checks each request of a part, which lets others decide before it if its batch has more than one.
    pub(crate) async fn check_part(&self, part: &[Request<'_>], of_several: bool) -> Vec<Decision> {
        let turn = match of_several {
            true => {
                // A batch that has its turn at once would never let others run between its parts.
                tokio::task::yield_now().await;
                self.turns.acquire().await.ok()
            }
            false => None,
        };
        let decisions = self.check_batch(part).await;
        drop(turn);
        decisions
    }

    /// Checks each request by itself, in order.
    pub(crate) async fn check_batch(&self, requests: &[Request<'_>]) -> Vec<Decision> {
        let decisions = self.limiter.check_batch(requests).await;
        self.traces.record_all(&decisions);
        decisions
    }
}

/// Sets up a limiter for the servers of the store, with all that is needed to log in to them.
fn with_access(store: &Store, builder: LimiterBuilder) -> Result<LimiterBuilder, Problem> {
    let read = |setting, file: &Option<PathBuf>| {
        file.as_deref().map(|file| read_password(setting, file)).transpose()
    };
    let password = read("store.password_file", &store.password_file)?;
    let mut builder = store.configure(builder, password.as_deref());
    if let Some(password) = read("store.sentinel.password_file", &store.sentinel_password_file)? {
        builder = builder.sentinel_password(password);
    }
    Ok(match tls(&store.tls)? {
        Some(tls) => builder.tls(tls),
        None => builder,
    })
}

fn read_password(setting: &str, file: &Path) -> Result<String, Problem> {
    let remedy = "write the password alone, on one line";
    let password = read_text(setting, file, remedy)?;
    match password.lines().count() {
        1 => Ok(password),
        lines => Err(problem(setting, file, &format!("has {lines} lines"), remedy)),
    }
}

fn read_secret(setting: &str, file: &Path) -> Result<[u8; 16], Problem> {
    let text = read_text(setting, file, MAKE_ONE)?;
    secret(&text).ok_or_else(|| {
        let why = "holds no secret of 32 hexadecimal digits";
        problem(setting, file, why, MAKE_ONE)
    })
}

fn read_text(setting: &str, file: &Path, remedy: &str) -> Result<String, Problem> {
    let text = files::read_text(file, files::CREDENTIAL_BYTES_MAX);
    let text = text.map_err(|error| problem(setting, file, &error.to_string(), remedy))?;
    Ok(text.trim().to_owned())
}

fn problem(setting: &str, file: &Path, why: &str, remedy: &str) -> Problem {
    Problem::of_file(setting, file, format_args!("{why}; {remedy}"))
}

fn tls(files: &StoreTls) -> Result<Option<Tls>, Problem> {
    let read = |name: &str, file: &PathBuf| {
        let unreadable = |error| {
            let message = format!("cannot read {}: {error}; name a file in PEM", file.display());
            Problem::of_setting(name, message)
        };
        files::read(file, files::CREDENTIAL_BYTES_MAX).map_err(unreadable)
    };
    let mut tls = None;
    if let Some(ca) = &files.ca {
        tls = Some(Tls::new().trusting(read("store.tls.ca", ca)?));
    }
    if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
        let (cert, key) = (read("store.tls.cert", cert)?, read("store.tls.key", key)?);
        tls = Some(tls.unwrap_or_default().presenting(cert, key));
    }
    Ok(tls)
}

fn secret(text: &str) -> Option<[u8; 16]> {
    let digits_only = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = digits_only.then(|| u128::from_str_radix(text, 16).ok())?;
    number.map(u128::to_be_bytes)
}

const MAKE_ONE: &str = "make one with: openssl rand -hex 16";
/// The answer to a refused reservation, and the warning at the start.
const NO_RESERVATIONS: &str = "reservations are off: a listener is open beyond loopback and no \
     secret is set, so any client could forge receipts; set store.key_secret_file";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_32_hexadecimal_digits_and_nothing_else() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(secret("000102030405060708090a0b0c0d0eFF"), Some(bytes));
        for text in
            ["", "00", "+00102030405060708090a0b0c0d0eff", "000102030405060708090a0b0c0d0eff0"]
        {
            assert_eq!(secret(text), None, "{text:?}");
        }
    }
}
