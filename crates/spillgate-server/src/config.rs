//! Settings, from three origins: the environment overrides the file, and flags override both. The file holds the policy
//! too.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use spillgate::policy::FileSetting;
use spillgate::{Policy, http};

use crate::files;

mod auth;
mod contradictions;
mod environment;
mod envoy;
mod expose;
mod problem;
mod store;
mod table;
mod telemetry;
mod value;

pub(crate) use auth::{Auth, Original, deny_status};
pub(crate) use envoy::{Envoy, OnOutageDeny};
use problem::Origin;
pub use problem::{ConfigError, Problem};
pub use store::Store;
pub(crate) use store::StoreTls;
pub use table::setting_names;
pub(crate) use telemetry::{Format, Log, Otlp, Sample, log_format};

/// The settings and the policy of a command.
pub struct Config {
    /// Listeners, store, log and everything else that is not policy.
    pub settings: Settings,
    /// The rules.
    pub policy: Policy,
}

/// Every setting, with its default where nothing is set.
pub struct Settings {
    /// The name of this instance, if it is not the host's.
    pub(crate) name: Option<String>,
    pub(crate) http: Listen,
    pub(crate) grpc: Listen,
    pub(crate) domains: Names,
    pub(crate) attributes: Names,
    pub(crate) units: Names,
    pub(crate) envoy: Envoy,
    pub(crate) resp: Listen,
    /// The file with the password of the RESP listener. Without it the listener asks for the data token.
    pub(crate) resp_password_file: Option<PathBuf>,
    pub(crate) admin: Listen,
    /// Allows data listeners that other machines reach without a token or a certificate.
    pub(crate) insecure: bool,
    /// The file with the token that the data listeners ask for.
    pub(crate) data_token_file: Option<PathBuf>,
    /// The file with the token that the admin listener asks for.
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Makes exposed listeners that no setting guards ask for a generated token: `--expose`.
    pub(crate) generates_tokens: bool,
    /// The proxies whose `X-Forwarded-For` names the client's address.
    pub(crate) trusted_proxies: http::ByIp,
    pub(crate) auth: Auth,
    pub(crate) tls: Tls,
    /// The store that holds the counters.
    pub store: Store,
    pub(crate) log: Log,
    pub(crate) otlp: Otlp,
}

/// The address of a listener; `None` if it is off.
pub(crate) type Listen = Option<SocketAddr>;

/// `server.domains`, `server.attributes` and `server.units`: the names that are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Names {
    /// Every name; a request that matches no rule is allowed.
    #[default]
    Open,
    /// Names that a rule uses; a request with another is refused as a mistake of the client.
    Known,
}

/// The files of `[server.tls]`.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// The authority that must have signed a client's certificate.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The flags that are settings too, as the operator wrote them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// `--http`: the address of the HTTP API.
    pub http: Option<&'a str>,
    /// `--grpc`: the address of Envoy's gRPC API.
    pub grpc: Option<&'a str>,
    /// `--resp`: the address of the RESP API.
    pub resp: Option<&'a str>,
    /// `--admin`: the address of the admin API.
    pub admin: Option<&'a str>,
    /// `--redis`: the URL of the store.
    pub redis: Option<&'a str>,
    /// `--expose`: other machines reach the listeners, by a token.
    pub expose: bool,
}

impl Config {
    /// Reads the file, the process's environment, and the flags.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a setting or a rule is wrong; the error holds every problem.
    pub fn load(file: Option<&Path>, flags: Flags<'_>) -> Result<Config, ConfigError> {
        let name = file.map_or(String::new(), |file| file.display().to_string());
        let contents = match file {
            Some(file) => Contents::parse(&name, &read(file)?),
            None => Contents::default(),
        };
        let mut given = given_in(&name, &contents.set);
        let (from_environment, unknown) = environment::settings_in(std::env::vars_os());
        given.extend(from_environment);
        given.extend(from_flags(flags));

        let mut settings = if flags.expose { Settings::exposed() } else { Settings::default() };
        let mut problems = contents.problems;
        problems.extend(unknown);
        problems.extend(settings.apply(&given));
        problems.extend(settings.contradictions(&given));
        match problems.is_empty() {
            true => Ok(Config { settings, policy: contents.policy }),
            false => Err(problems.into()),
        }
    }
}

/// Reads the settings of the store anew from file, environment and flags. Problems of other settings are left to the
/// reload of the policy, which reports them.
///
/// # Errors
///
/// If the file cannot be read, or a setting of the store is wrong.
pub(crate) fn store_now(file: Option<&Path>, flags: Flags<'_>) -> Result<Store, ConfigError> {
    let mut given = match file {
        Some(file) => settings_in(&file.display().to_string(), &read(file)?)?,
        None => Vec::new(),
    };
    given.extend(environment::settings_in(std::env::vars_os()).0);
    given.extend(from_flags(flags));
    given.retain(|given| given.name.starts_with("store."));
    let mut settings = Settings::default();
    match settings.apply(&given) {
        problems if problems.is_empty() => Ok(settings.store),
        problems => Err(problems.into()),
    }
}

/// Reads a file of settings and policy.
///
/// # Errors
///
/// If the file cannot be read.
pub fn read(file: &Path) -> Result<String, Problem> {
    files::read_text(file, files::POLICY_BYTES_MAX).map_err(|why| Problem::unreadable(file, why))
}

/// Reads the text of a settings file once, which may come from a pipe.
///
/// # Errors
///
/// If the file cannot be read.
pub fn read_once(file: &Path) -> Result<String, Problem> {
    let text = files::read_text_or_pipe(file, files::POLICY_BYTES_MAX);
    text.map_err(|why| Problem::unreadable(file, why))
}

/// Reads the policy and the settings of a file.
///
/// # Errors
///
/// If the file cannot be read or does not load; the error holds every problem.
pub fn load_file(file: &Path) -> Result<Loaded, ConfigError> {
    Ok(load_text(&file.display().to_string(), &read(file)?)?)
}

/// The content of a file, without environment and flags.
pub struct Loaded {
    /// Its rules.
    pub policy: Policy,
    /// Its settings, with the defaults of those that it leaves out.
    pub settings: Settings,
    /// The fields that it sets, with their lines.
    pub set: Vec<FileSetting>,
}

/// Reads the policy and the settings of a file's text.
///
/// # Errors
///
/// Every problem that keeps the file from loading, in the order of its lines.
pub fn load_text(file: &str, text: &str) -> Result<Loaded, Vec<Problem>> {
    let Contents { set, policy, mut problems } = Contents::parse(file, text);
    let mut settings = Settings::default();
    problems.extend(settings.apply(&given_in(file, &set)));
    problems.sort_by_key(|problem| problem.line);
    match problems.is_empty() {
        true => Ok(Loaded { policy, settings, set }),
        false => Err(problems),
    }
}

/// Returns whether two versions of a file have the same settings, be it in other lines.
pub(crate) fn are_same(old: &[FileSetting], new: &[FileSetting]) -> bool {
    let old = old.iter().map(|setting| (&setting.name, &setting.value));
    old.eq(new.iter().map(|setting| (&setting.name, &setting.value)))
}

/// The parts of a file, and its problems.
#[derive(Default)]
struct Contents {
    set: Vec<FileSetting>,
    policy: Policy,
    problems: Vec<Problem>,
}

impl Contents {
    fn parse(file: &str, text: &str) -> Contents {
        let mut contents = Contents::default();
        match Policy::from_toml_named(file, text) {
            Ok(policy) => contents.policy = policy,
            Err(_) => {
                let problems = Policy::problems_in(file, text).into_iter();
                contents.problems = problems.map(Problem::from).collect();
            }
        }
        match Policy::settings_in(file, text) {
            Ok(set) => contents.set = set,
            // A file that is no TOML is a problem of the policy too, and one report of it is enough.
            Err(_) if !contents.problems.is_empty() => {}
            Err(syntax) => contents.problems.push(syntax.into()),
        }
        contents
    }
}

/// Returns the settings of a file's text.
fn settings_in(file: &str, text: &str) -> Result<Vec<Given>, Problem> {
    Ok(given_in(file, &Policy::settings_in(file, text)?))
}

fn given_in(file: &str, set: &[FileSetting]) -> Vec<Given> {
    let given = set.iter().map(|FileSetting { name, value, line }| Given {
        name: name.clone(),
        value: value.clone(),
        origin: Origin::Line { file: file.to_owned(), line: *line },
    });
    given.collect()
}

/// One setting as an operator gave it.
pub(crate) struct Given {
    /// Its whole name, such as `server.http`.
    name: String,
    /// Its value as text; `None` for a value of a kind that no setting has, such as a table or a date.
    value: Option<String>,
    origin: Origin,
}

fn from_flags(flags: Flags<'_>) -> impl Iterator<Item = Given> {
    let flags = [
        ("server.http", "--http", flags.http),
        ("server.grpc.address", "--grpc", flags.grpc),
        ("server.resp.address", "--resp", flags.resp),
        ("server.admin", "--admin", flags.admin),
        ("store.url", "--redis", flags.redis),
    ];
    flags.into_iter().filter_map(|(name, flag, value)| {
        Some(Given {
            name: name.to_owned(),
            value: Some(value?.to_owned()),
            origin: Origin::Flag(flag),
        })
    })
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            name: None,
            http: Some(local(8080)),
            grpc: Some(local(8081)),
            domains: Names::default(),
            attributes: Names::default(),
            units: Names::default(),
            envoy: Envoy::default(),
            resp: Some(local(6380)),
            resp_password_file: None,
            admin: Some(local(8082)),
            insecure: false,
            data_token_file: None,
            admin_token_file: None,
            generates_tokens: false,
            trusted_proxies: http::ByIp::direct(),
            auth: Auth::default(),
            tls: Tls::default(),
            store: Store::default(),
            log: Log::default(),
            otlp: Otlp::default(),
        }
    }
}

impl Settings {
    /// Returns whether a trusted network is wider than any private one, so that clients are proxies too.
    pub fn trusts_everyone(&self) -> bool {
        self.trusted_proxies.trusts_wider_than(PRIVATE)
    }

    /// Returns the attributes that a request of forward auth may have.
    pub fn auth_attributes(&self) -> Vec<String> {
        self.auth.attributes().map(str::to_owned).collect()
    }

    /// Applies settings in order, so that a later one overrides an earlier one. Returns the problems of those that are
    /// wrong.
    fn apply(&mut self, given: &[Given]) -> Vec<Problem> {
        let wrong = |given: &Given| {
            let message = self.set(given).err()?;
            Some(Problem::new(&given.origin, &given.name, message))
        };
        given.iter().filter_map(wrong).collect()
    }
}

/// Returns an address that only this machine reaches, so that a first try opens nothing to remote clients.
fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The prefix of the widest private network, `fc00::/7`.
const PRIVATE: u8 = 7;
