//! Opens the listeners that are on, each with its certificate, its token and its share of the open files.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Failure;
use crate::app::App;
use crate::config::{self, Problem, Settings};
use crate::credentials::Credentials;
use crate::listener::admin::{self, Guard, Tokens};
use crate::listener::auth;
use crate::listener::envoy::{self, Grpc};
use crate::listener::http::{self, Http};
use crate::listener::resp::Resp;
use crate::listener::{
    self, Browsers, Capacity, Cores, FailedLogins, PassedSockets, Protocol, Shares, Tls, Token,
};

/// The listeners that are on. All of them listen before any of them answers.
pub struct Listeners {
    /// The API and address of each, for the line that reports the start.
    pub(crate) names: Vec<String>,
    /// The addresses that are taken, with the flags that name them.
    addresses: Vec<(SocketAddr, &'static str)>,
    /// The sockets that the service manager passed and that no listener has taken yet.
    passed: PassedSockets,
    /// The URL of the dashboard, if the admin listener is on.
    pub(crate) dashboard: Option<String>,
    open: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    shares: Shares,
    /// The certificates that were read, until [`Listeners::follow_tls`] watches them.
    certificates: Vec<Tls>,
    /// Their certificates, and the tokens and passwords that they ask for.
    pub(crate) credentials: Credentials,
    /// Lines for the operator, with the generated tokens.
    pub(crate) generated: Vec<String>,
    stop: watch::Receiver<bool>,
}

/// The parts that the data listeners have in common.
#[derive(Clone)]
struct Data<'a> {
    settings: &'a Settings,
    app: &'a App,
    token: Option<Token>,
    capacity: Capacity,
}

impl Listeners {
    /// Opens the listeners that the settings name. `files` is the number of files that the process may open.
    pub async fn open(
        settings: &Settings,
        app: &App,
        files: u64,
        stop: watch::Receiver<bool>,
    ) -> Result<Listeners, Failure> {
        let cores = Cores::start()?;
        let (data, store) = (settings.data_listeners(), settings.store.connections_max());
        // Each core has a runtime that decides and a worker for everything else, and each of them opens files.
        let shares = Shares::divide(files, data, store, 2 * cores.count());
        if shares.are_small() {
            tracing::warn!(target: "spillgate", "{}", few_files(files, shares));
        }
        let capacity = Capacity { cores, share: shares.data };
        let mut listeners = Listeners {
            names: Vec::new(),
            addresses: Vec::new(),
            passed: PassedSockets::from_environment()?,
            dashboard: None,
            open: Vec::new(),
            shares,
            certificates: Vec::new(),
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
        let data = Data { settings, app, token, capacity };
        if let Some(address) = settings.http {
            listeners.add_http(address, data.clone()).await?;
        }
        if let Some(address) = settings.grpc {
            listeners.add_grpc(address, data.clone()).await?;
        }
        if let Some(address) = settings.resp {
            listeners.add_resp(address, data).await?;
        }
        if let Some(address) = settings.admin {
            listeners.add_admin(address, settings, app).await?;
        }
        listeners.passed.all_taken()?;
        listeners.follow_tls(&settings.tls);
        Ok(listeners)
    }

    async fn add_http(&mut self, address: SocketAddr, data: Data<'_>) -> Result<(), Failure> {
        let Data { settings, app, token, capacity } = data;
        let tls = self.tls(&settings.tls, &["http/1.1"])?;
        let name = if tls.is_some() { "HTTP on https://" } else { "HTTP on http://" };
        let (auth, by_ip) = (settings.auth.clone(), settings.trusted_proxies.clone());
        let routes = http::routes(app.clone()).merge(auth::routes(app.clone(), auth, by_ip));
        let http = Http::new(app.traces.over(routes), token, FailedLogins::at("HTTP"))
            .with_browsers(browsers_at(address, settings));
        // The fast path for checks goes around the router, and a layer of the router opens the spans. So it is off
        // while requests are traced.
        let http = if app.traces.are_made() { http } else { http.with_fast_checks(app.clone()) };
        self.add(name, address, "--http", http, tls, capacity).await?;
        Ok(())
    }

    async fn add_grpc(&mut self, address: SocketAddr, data: Data<'_>) -> Result<(), Failure> {
        let Data { settings, app, token, capacity } = data;
        let tls = self.tls(&settings.tls, &["h2"])?;
        let health = envoy::Health::serving().await;
        let routes = app.traces.over(envoy::routes(app.clone(), settings.envoy, &health));
        let (browsers, failed_logins) = (browsers_at(address, settings), FailedLogins::at("gRPC"));
        let grpc = Grpc::new(routes, token, browsers, failed_logins);
        self.add("gRPC on ", address, "--grpc", grpc, tls, capacity).await?;
        tokio::spawn(health.follow(self.stop.clone(), listener::LINGER));
        Ok(())
    }

    /// Opens the RESP listener, which asks for the token unless it has a password of its own.
    async fn add_resp(&mut self, address: SocketAddr, data: Data<'_>) -> Result<(), Failure> {
        let Data { settings, app, token, capacity } = data;
        let tls = self.tls(&settings.tls, &[])?;
        let name = if tls.is_some() { "RESP with TLS on " } else { "RESP on " };
        let password = match &settings.resp_password_file {
            Some(file) => self.token("server.resp.password_file", Some(file))?,
            None => token,
        };
        let resp = Resp::new(app.clone(), password, FailedLogins::at("RESP"));
        self.add(name, address, "--resp", resp, tls, capacity).await?;
        Ok(())
    }

    /// Opens the admin listener. It asks for a token and for no certificate, since its clients are operators and
    /// probes.
    async fn add_admin(
        &mut self,
        address: SocketAddr,
        settings: &Settings,
        app: &App,
    ) -> Result<(), Failure> {
        let tls = self.tls(&settings.tls.without_client_ca(), &["http/1.1"])?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let name = format!("admin on {scheme}://");
        let cores = Cores::start_for_admin()?;
        let failed_logins = FailedLogins::at("admin");
        let guard = self.admin_guard(settings, failed_logins.clone())?;
        let health = admin::Health::new(app.clone(), guard.clone(), self.stop.clone());
        let routes = admin::routes(app.clone(), guard, health);
        let capacity = Capacity { cores, share: self.shares.admin };
        let http = Http::new(routes, None, failed_logins);
        let address = self.add(&name, address, "--admin", http, tls, capacity).await?;
        self.dashboard = Some(format!("{scheme}://{}/", reachable(address)));
        Ok(())
    }

    /// Reads the certificate of a listener, and keeps it for [`Listeners::follow_tls`].
    fn tls(&mut self, files: &config::Tls, protocols: &[&str]) -> Result<Option<Tls>, Problem> {
        let tls = Tls::load(files, protocols)?;
        self.certificates.extend(tls.clone());
        Ok(tls)
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
    fn admin_guard(
        &mut self,
        settings: &Settings,
        failed_logins: FailedLogins,
    ) -> Result<Guard, Failure> {
        let setting = "server.admin_token_file";
        if settings.generates_admin_token() {
            let (tokens, text) = Tokens::generate()?;
            self.print_generated("admin token", setting, &text);
            return Ok(Guard::Tokens(tokens, failed_logins));
        }
        let Some(file) = settings.admin_token_file.clone() else { return Ok(Guard::SameOrigin) };
        let tokens = Tokens::read(setting, &file)?;
        let followed = tokens.clone();
        self.credentials
            .follow_files(setting, [file.clone()], move || followed.read_again(setting, &file));
        Ok(Guard::Tokens(tokens, failed_logins))
    }

    /// Shows the operator a token that lasts as long as this process, in place of the setting's file.
    fn print_generated(&mut self, name: &str, setting: &str, token: &str) {
        self.generated.push(format!("generated {name}, since {setting} is not set: {token}"));
    }

    /// Watches the certificates of all listeners together, so that a problem is reported once.
    fn follow_tls(&mut self, files: &config::Tls) {
        let certificates = std::mem::take(&mut self.certificates);
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
        let listener = listener::listen(address, flag, &self.addresses, &mut self.passed).await?;
        let address = listener.local_addr()?;
        self.addresses.push((address, flag));
        self.names.push(format!("{name}{address}"));
        let mut stop = self.stop.clone();
        self.open.push(Box::pin(async move {
            // The result only shows whether the sender is gone, and the sender lives as long as the process.
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            listener::serve(listener, protocol, tls, capacity, stopped).await;
        }));
        Ok(address)
    }

    /// Serves until the service stops and every request is answered.
    pub async fn closed(self) {
        let open: JoinSet<()> = self.open.into_iter().collect();
        open.join_all().await;
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
