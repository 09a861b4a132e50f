//! `spillgate serve`: opens the store and the listeners, and keeps both until a signal ends the process.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use spillgate::Limiter;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::app::App;
use crate::config::{self, Config, Flags, Settings};
use crate::counted::counted;
use crate::doctor;
use crate::history::{self, EventKind};
use crate::listener::admin;
use crate::reload::Followed;
use crate::systemd::Manager;
use crate::telemetry::Telemetry;
use crate::telemetry::sink;

mod listeners;
mod store_access;

use listeners::Listeners;
use store_access::StoreSettings;

type Failure = Box<dyn Error>;

/// Runs the service with the settings of this file, of the environment and of these flags. At SIGTERM or Ctrl-C it
/// answers the requests under way, then returns. `warnings` are findings about the file, which the log shows at the
/// start.
///
/// # Errors
///
/// If the settings are wrong, or a listener or the log cannot be opened. An unreachable store is no error.
pub fn serve(
    file: Option<&Path>,
    flags: Flags<'_>,
    warnings: &[String],
) -> Result<(), Box<dyn Error>> {
    sink::start(config::log_format(file))?;
    let followed = file.map(Followed::now);
    let config = Config::load(file, flags)?;
    let Settings { http, grpc, resp, admin, .. } = config.settings;
    if [http, grpc, resp, admin].iter().all(Option::is_none) {
        return Err(ALL_OFF.into());
    }
    // Each connection is a file. If the system does not report its bound, the usual least is assumed.
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(FILES_AT_LEAST);
    let store =
        StoreSettings { file: file.map(Path::to_owned), redis: flags.redis.map(str::to_owned) };
    let runtime = Runtime::new()?;
    let kept = runtime.block_on(keep(config, followed, store, files, warnings));
    // A thread that reads a file may hang, for example on a file system of the network that is gone.
    runtime.shutdown_background();
    kept
}

async fn keep(
    config: Config,
    followed: Option<Followed>,
    store: StoreSettings,
    files: u64,
    warnings: &[String],
) -> Result<(), Failure> {
    let Config { settings, policy } = config;
    let telemetry = Telemetry::begin(settings.log, &settings.otlp)?;
    // From here on signals stop or reload the service; before, they just end the process.
    let stop = stop_on_signals()?;
    let hangup = signal(SignalKind::hangup())?;
    let manager = Manager::from_environment();
    let app = App::open_to_serve(&settings, policy, telemetry.traces.clone()).await?;
    let mut listeners = Listeners::open(&settings, &app, files, stop.clone()).await?;
    let mut credentials = std::mem::take(&mut listeners.credentials);
    summarise(store.file.as_deref(), &app, warnings, listeners.dashboard.as_deref());
    for (setting, file) in settings.open_secrets() {
        let file = file.display();
        tracing::warn!(target: "spillgate", "every user of this machine may read {file}, the {setting}; to fix it: chmod o= {file}");
    }
    if settings.store.is_shared() {
        store_access::follow(&mut credentials, store, app.clone());
    }
    tokio::spawn(credentials.keep(signal(SignalKind::hangup())?));

    let ready = format!("{}, store: {}", listeners.names.join(", "), settings.store.topology);
    for line in listeners.generated.iter().chain([&ready]) {
        // Operators need the tokens, and scripts wait for the last line.
        sink::announce("INFO", line);
    }
    manager.ready(&ready);
    if let Err(why) = app.takes_reservations() {
        sink::announce("WARN", why);
    }
    let log = settings.log;
    tokio::spawn(warn_of_store(app.clone(), settings));
    tokio::spawn(history::keep(app.history.clone(), app.limiter().clone()));
    let reload = match followed {
        Some(followed) => tokio::spawn(followed.follow(app.clone(), hangup, manager.clone())),
        None => tokio::spawn(nothing_to_read_again(hangup, manager.clone())),
    };
    tokio::join!(listeners.closed(), end_waiting(app.limiter(), stop, &manager));
    reload.abort();
    app.limiter().note_event(EventKind::Stop.name(), "stops");
    app.limiter().close().await;
    admin::warn_of_unsaved(app.limiter(), log);
    telemetry.close().await;
    Ok(())
}

/// Logs the rules in force, the warnings about their file, and the address of the dashboard.
fn summarise(file: Option<&Path>, app: &App, warnings: &[String], dashboard: Option<&str>) {
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        tracing::warn!(target: "spillgate", "{warning}");
    }
    match file {
        None => {
            tracing::info!(target: "spillgate", "no rules: name a file of rules with --config, or send inline limits");
        }
        Some(file) => {
            let rules = counted(app.limiter().policy().rules().len(), "rule");
            let warnings = match warnings.len() {
                0 => String::new(),
                count => format!(", {}", counted(count, "warning")),
            };
            let file = file.display();
            tracing::info!(target: "spillgate", "{rules} in {file}{warnings}; see: spillgate validate {file}");
        }
    }
    if let Some(url) = dashboard {
        tracing::info!(target: "spillgate", "dashboard: {url}");
    }
}

/// Answers each reload by signal where there is no file: the service's manager waits for an answer.
async fn nothing_to_read_again(mut hangup: Signal, manager: Manager) {
    while hangup.recv().await.is_some() {
        manager.reloading();
        manager.ready("there is no file to read again");
    }
}

/// Reports when the service stops, and denies requests that still wait for their limits, so that they are answered in
/// time.
async fn end_waiting(limiter: &Limiter, mut stop: watch::Receiver<bool>, manager: &Manager) {
    if stop.wait_for(|stop| *stop).await.is_ok() {
        manager.stopping();
        limiter.end_waiting();
    }
}

/// Logs once each finding of `spillgate doctor` that makes the store unsafe. An unsafe store never stops the start.
///
/// A store that does not answer, or cannot run the script yet, is looked at again until it does: Redis may start later.
async fn warn_of_store(app: App, settings: Settings) {
    let (mut logged, mut pause) = (HashSet::new(), LOOK_AGAIN_MIN);
    loop {
        let probe = app.probe(0).await;
        let mut findings = doctor::findings(&probe, &settings);
        findings.extend(doctor::without_map(&probe, app.limiter().shards()));
        app.unsafe_store.note(&findings);
        findings.retain(|finding| finding.level == doctor::Level::Unsafe);
        let is_incomplete =
            findings.iter().any(|finding| ["reach", "script"].contains(&finding.check));
        for finding in findings {
            if logged.insert((finding.check, finding.server.clone())) {
                tracing::warn!(target: "spillgate", "{}", finding.for_log());
            }
        }
        if !is_incomplete {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LOOK_AGAIN_MAX);
    }
}

/// Returns a value that becomes true at SIGTERM or Ctrl-C. From here on these signals no longer end the process.
///
/// # Errors
///
/// If the system refuses a signal handler.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn stop_on_signals() -> io::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.send_replace(true);
        stop.closed().await;
    });
    Ok(stopped)
}

const LOOK_AGAIN_MIN: Duration = Duration::from_secs(1);
/// A server that is down for longer costs one attempt a minute.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(60);

const ALL_OFF: &str = "all listeners are off, so no client could ask; open one with --http, --grpc, --resp or \
     --admin ADDRESS, or under [server]";

/// The most warnings about the file that the log shows at the start.
const WARNINGS_SHOWN: usize = 8;

/// The open files that Linux allows a process by default.
const FILES_AT_LEAST: u64 = 1_024;
