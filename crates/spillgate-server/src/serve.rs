//! `spillgate serve`: opens the store and the listeners, and keeps both until a signal ends the process.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app::{App, NO_RESERVATIONS};
use crate::config::{self, Config, Flags, Format, Problem, Settings};
use crate::counted::counted;
use crate::credentials::Credentials;
use crate::doctor;
use crate::history;
use crate::listener::admin::{self, Guard, Tokens};
use crate::listener::auth;
use crate::listener::envoy::{self, Grpc};
use crate::listener::http::{self, Http};
use crate::listener::resp::Resp;
use crate::listener::{self, Browsers, Capacity, Cores, Protocol, Shares, Strangers, Tls, Token};
use crate::reload::Followed;
use crate::systemd::Manager;
use crate::telemetry::Telemetry;
use crate::telemetry::sink::{self, complain};

mod store_access;

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
    sink::start()?;
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
    Runtime::new()?.block_on(keep(config, followed, store, files, warnings))
}

async fn keep(
    config: Config,
    followed: Option<Followed>,
    store: StoreSettings,
    files: u64,
    warnings: &[String],
) -> Result<(), Failure> {
    let Config { settings, policy } = config;
    let mut telemetry = Telemetry::begin(settings.log, &settings.otlp)?;
    // From here on signals stop or reload the service; before, they just end the process.
    let stop = stop_on_signals()?;
    let hangup = signal(SignalKind::hangup())?;
    let manager = Manager::from_environment();
    let app = App::open_to_serve(&settings, policy).await?;
    let app = app.for_domains(settings.domains).traced_by(telemetry.traces.clone());
    let app =
        if settings.strangers_can_forge_receipts() { app.without_reservations() } else { app };
    let mut listeners = Listeners::open(&settings, &app, files, stop.clone()).await?;
    let mut credentials = std::mem::take(&mut listeners.credentials);
    summarise(store.file.as_deref(), &app, warnings, listeners.dashboard.as_deref());
    if settings.store.is_shared() {
        store_access::follow(&mut credentials, store, app.clone());
    }
    tokio::spawn(credentials.keep(signal(SignalKind::hangup())?));
    tokio::spawn(end_waiting(app.clone(), stop, manager.clone()));

    let ready = format!("{}, store: {}", listeners.names.join(", "), settings.store.topology);
    for line in listeners.generated.iter().chain([&ready]) {
        match settings.log.format {
            // Written at any level of the log, because operators need the tokens and scripts wait for the last line.
            Format::Text => complain(line),
            Format::Json => tracing::info!(target: "spillgate", "{line}"),
        }
    }
    manager.ready(&ready);
    if app.takes_reservations().is_err() {
        complain(&NO_RESERVATIONS);
    }
    let counted = app.clone();
    let log = settings.log;
    telemetry.push(&settings.otlp, move || counted.metrics_text())?;
    tokio::spawn(warn_of_store(app.clone(), settings));
    tokio::spawn(history::keep(app.history.clone(), app.limiter().clone()));
    let reload = match followed {
        Some(followed) => tokio::spawn(followed.follow(app.clone(), hangup, manager)),
        None => tokio::spawn(nothing_to_read_again(hangup, manager)),
    };
    listeners.closed().await;
    reload.abort();
    app.limiter().end_leases().await;
    admin::warn_of_unsaved(app.limiter(), log);
    telemetry.close().await;
    Ok(())
}

/// The listeners that are on. All of them listen before any of them answers.
struct Listeners {
    /// The API and address of each, for the line that reports the start.
    names: Vec<String>,
    /// The addresses that are taken, with the flags that name them.
    addresses: Vec<(SocketAddr, &'static str)>,
    /// The URL of the dashboard, if the admin listener is on.
    dashboard: Option<String>,
    open: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    shares: Shares,
    /// Their certificates, and the tokens and passwords that they ask for.
    credentials: Credentials,
    /// Lines for the operator, with the generated tokens.
    generated: Vec<String>,
    stop: watch::Receiver<bool>,
}

impl Listeners {
    async fn open(
        settings: &Settings,
        app: &App,
        files: u64,
        stop: watch::Receiver<bool>,
    ) -> Result<Listeners, Failure> {
        let cores = Cores::start()?;
        let (data, store) = (settings.data_listeners(), settings.store.connections_max());
        // Each core has a runtime that decides and a worker for everything else, and each of them opens files.
        let shares = Shares::of(files, data, store, 2 * cores.count());
        if shares.are_small() {
            tracing::warn!(target: "spillgate", "{}", few_files(files, shares));
        }
        let capacity = Capacity { cores, share: shares.data };
        let mut listeners = Listeners {
            names: Vec::new(),
            addresses: Vec::new(),
            dashboard: None,
            open: Vec::new(),
            shares,
            credentials: Credentials::default(),
            generated: Vec::new(),
            stop,
        };
        let token = match settings.generates_data_token() {
            true => {
                let (token, text) = Token::generate()?;
                listeners.print_generated("data token", "server.data_token_file", &text);
                Some(token)
            }
            false => {
                listeners.token("server.data_token_file", settings.data_token_file.as_deref())?
            }
        };
        let mut greetings = Vec::new();
        if let Some(address) = settings.http {
            let tls = Tls::of(&settings.tls, &["http/1.1"])?;
            greetings.extend(tls.clone());
            let name = if tls.is_some() { "HTTP on https://" } else { "HTTP on http://" };
            let (auth, by_ip) = (settings.auth.clone(), settings.trusted_proxies.clone());
            let routes = http::routes(app.clone()).merge(auth::routes(app.clone(), auth, by_ip));
            let http = Http::new(app.traces.over(routes), token.clone(), Strangers::at("HTTP"))
                .with_browsers(browsers_at(address, settings));
            // The fast path for checks goes around the router, and a layer of the router opens the spans. So it is off
            // while requests are traced.
            let http =
                if app.traces.are_made() { http } else { http.with_fast_checks(app.clone()) };
            listeners.add(name, address, "--http", http, tls, capacity.clone()).await?;
        }
        if let Some(address) = settings.grpc {
            let tls = Tls::of(&settings.tls, &["h2"])?;
            greetings.extend(tls.clone());
            let health = envoy::Health::serving().await;
            let routes = app.traces.over(envoy::routes(app.clone(), settings.envoy, &health));
            let (browsers, strangers) = (browsers_at(address, settings), Strangers::at("gRPC"));
            let grpc = Grpc::new(routes, token.clone(), browsers, strangers);
            listeners.add("gRPC on ", address, "--grpc", grpc, tls, capacity.clone()).await?;
            tokio::spawn(health.follow(listeners.stop.clone(), listener::LINGER));
        }
        if let Some(address) = settings.resp {
            let tls = Tls::of(&settings.tls, &[])?;
            greetings.extend(tls.clone());
            let name = if tls.is_some() { "RESP with TLS on " } else { "RESP on " };
            let password = match &settings.resp_password_file {
                Some(file) => listeners.token("server.resp.password_file", Some(file))?,
                None => token,
            };
            let resp = Resp::new(app.clone(), password, Strangers::at("RESP"));
            listeners.add(name, address, "--resp", resp, tls, capacity).await?;
        }
        if let Some(address) = settings.admin {
            let tls = Tls::of(&settings.tls.without_client_ca(), &["http/1.1"])?;
            greetings.extend(tls.clone());
            listeners.add_admin(address, settings, app, tls).await?;
        }
        listeners.follow_tls(&settings.tls, greetings);
        Ok(listeners)
    }

    /// Opens the admin listener. It asks for a token and for no certificate, since its clients are operators and
    /// probes.
    async fn add_admin(
        &mut self,
        address: SocketAddr,
        settings: &Settings,
        app: &App,
        tls: Option<Tls>,
    ) -> Result<(), Failure> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let name = format!("admin on {scheme}://");
        let cores = Cores::start_for_admin()?;
        let guard = self.admin_guard(settings)?;
        let health = admin::Health::new(app.clone(), guard.clone(), self.stop.clone());
        let routes = admin::routes(app.clone(), guard, health);
        let capacity = Capacity { cores, share: self.shares.admin };
        let http = Http::new(routes, None, Strangers::at("admin"));
        let address = self.add(&name, address, "--admin", http, tls, capacity).await?;
        self.dashboard = Some(format!("{scheme}://{}/", reachable(address)));
        Ok(())
    }

    /// Reads the token of a file, and watches the file from here on.
    fn token(
        &mut self,
        setting: &'static str,
        file: Option<&Path>,
    ) -> Result<Option<Token>, Problem> {
        let Some(file) = file else { return Ok(None) };
        let token = Token::read(setting, file)?;
        let (followed, file) = (token.clone(), file.to_owned());
        self.credentials
            .follow_files(setting, [file.clone()], move || followed.read_again(setting, &file));
        Ok(Some(token))
    }

    /// Reads the tokens of operators, and watches their file from here on.
    fn admin_guard(&mut self, settings: &Settings) -> Result<Guard, Failure> {
        let setting = "server.admin_token_file";
        if settings.generates_admin_token() {
            let (tokens, text) = Tokens::generate()?;
            self.print_generated("admin token", setting, &text);
            return Ok(Guard::Tokens(tokens));
        }
        let Some(file) = settings.admin_token_file.clone() else { return Ok(Guard::SameOrigin) };
        let tokens = Tokens::read(setting, &file)?;
        let followed = tokens.clone();
        self.credentials
            .follow_files(setting, [file.clone()], move || followed.read_again(setting, &file));
        Ok(Guard::Tokens(tokens))
    }

    /// Shows the operator a token that lasts as long as this process, in place of the setting's file.
    fn print_generated(&mut self, name: &str, setting: &str, token: &str) {
        self.generated.push(format!("generated {name}, since {setting} is not set: {token}"));
    }

    /// Watches the certificates of all listeners together, so that a problem is reported once.
    fn follow_tls(&mut self, files: &config::Tls, certificates: Vec<Tls>) {
        let files = [&files.cert, &files.key, &files.client_ca].into_iter().flatten().cloned();
        if !certificates.is_empty() {
            let read = move || certificates.iter().try_for_each(Tls::read_again);
            self.credentials.follow_files("server.tls", files, read);
        }
    }

    async fn add(
        &mut self,
        name: &str,
        address: SocketAddr,
        flag: &'static str,
        protocol: impl Protocol,
        tls: Option<Tls>,
        capacity: Capacity,
    ) -> Result<SocketAddr, Failure> {
        let listener = listener::listen(address, flag, &self.addresses).await?;
        let address = listener.local_addr()?;
        self.addresses.push((address, flag));
        self.names.push(format!("{name}{address}"));
        let mut stop = self.stop.clone();
        self.open.push(Box::pin(async move {
            // The result says whether the sender is gone; it lives as long as the process.
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            listener::serve(listener, protocol, tls, capacity, stopped).await;
        }));
        Ok(address)
    }

    /// Serves until the service stops and every request is answered.
    async fn closed(self) {
        let open: JoinSet<()> = self.open.into_iter().collect();
        open.join_all().await;
    }
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

/// Returns an address at which a browser of this machine reaches a listener.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

fn browsers_at(address: SocketAddr, settings: &Settings) -> Browsers {
    if settings.is_open_to_pages(address) { Browsers::OwnOnly } else { Browsers::Admitted }
}

fn few_files(files: u64, shares: Shares) -> String {
    let Shares { data, admin } = shares;
    format!(
        "this process may open {files} files: {data} connections to each listener that decides, \
         {admin} to admin, the rest for store and files; beyond that idle connections are closed; \
         raise it with LimitNOFILE= of systemd, ulimits of a container, or ulimit -n"
    )
}

/// Answers each reload by signal where there is no file: the service's manager waits for an answer.
async fn nothing_to_read_again(mut hangup: Signal, manager: Manager) {
    while hangup.recv().await.is_some() {
        manager.reloading();
        manager.ready("there is no file to read again");
    }
}

/// Denies requests that still wait for their limits when the service stops, so that they are answered in time.
async fn end_waiting(app: App, mut stop: watch::Receiver<bool>, manager: Manager) {
    if stop.wait_for(|stop| *stop).await.is_ok() {
        manager.stopping();
        app.limiter().end_waiting();
    }
}

/// Logs once each finding of `spillgate doctor` that makes the store unsafe. An unsafe store never stops the start.
async fn warn_of_store(app: App, settings: Settings) {
    let findings = doctor::findings(&app.probe(0).await, &settings);
    app.unsafe_store.note(&findings);
    for finding in findings.iter().filter(|finding| finding.level == doctor::Level::Unsafe) {
        tracing::warn!(target: "spillgate", "{}", finding.for_log());
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

const ALL_OFF: &str = "all listeners are off, so no client could ask; open one with --http, --grpc, --resp or \
     --admin ADDRESS, or under [server]";

/// The most warnings about the file that the log shows at the start.
const WARNINGS_SHOWN: usize = 8;

/// The open files that Linux allows a process by default.
const FILES_AT_LEAST: u64 = 1_024;
