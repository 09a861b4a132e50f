//! Settings, from three places with one meaning: the file, over it the environment, over that the
//! flags. The file holds the policy too.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillgate::Policy;

mod file;
mod problem;
mod value;

use problem::Place;
pub(crate) use problem::{ConfigError, Problem};

/// All that a command runs on.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    pub(crate) policy: Policy,
}

/// What was set, with the defaults of what was not.
pub(crate) struct Settings {
    pub(crate) http: SocketAddr,
    /// Whether whoever reaches a door may use it.
    pub(crate) insecure: bool,
    pub(crate) store: Store,
}

/// Where state lives. No `Debug`: the address may hold credentials.
#[derive(Default)]
pub(crate) struct Store {
    /// In memory if absent.
    pub(crate) url: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) key_secret_file: Option<PathBuf>,
    pub(crate) keys_max: Option<usize>,
}

/// The flags that are settings too.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags<'a> {
    pub(crate) http: Option<&'a str>,
    pub(crate) redis: Option<&'a str>,
}

impl Config {
    /// Reads the file, the process's environment, and the flags.
    pub(crate) fn load(file: Option<&Path>, flags: Flags<'_>) -> Result<Config, ConfigError> {
        let contents = match file {
            Some(file) => Contents::of(&file.display().to_string(), &read(file)?),
            None => Contents::default(),
        };
        let mut given = contents.given;
        given.extend(from_environment(std::env::vars_os()));
        given.extend(from_flags(flags));

        let mut settings = Settings::default();
        let mut problems = contents.problems;
        problems.extend(settings.apply(&given));
        problems.extend(settings.contradiction());
        match problems.is_empty() {
            true => Ok(Config { settings, policy: contents.policy }),
            false => Err(ConfigError(problems)),
        }
    }
}

/// Reads a file of settings and policy.
pub(crate) fn read(file: &Path) -> Result<String, Problem> {
    let unreadable = |error| Problem::File(format!("cannot read {}: {error}", file.display()));
    std::fs::read_to_string(file).map_err(unreadable)
}

/// The policy of a file, or everything that keeps the file from loading, in the order of its lines.
pub(crate) fn check(file: &str, text: &str) -> Result<Policy, Vec<Problem>> {
    let Contents { given, policy, mut problems } = Contents::of(file, text);
    problems.extend(Settings::default().apply(&given));
    problems.sort_by_key(Problem::line);
    if problems.is_empty() { Ok(policy) } else { Err(problems) }
}

/// What a file holds.
#[derive(Default)]
struct Contents {
    given: Vec<Given>,
    policy: Policy,
    problems: Vec<Problem>,
}

impl Contents {
    fn of(file: &str, text: &str) -> Contents {
        let mut contents = Contents::default();
        match Policy::from_toml_file(file, text) {
            Ok(policy) => contents.policy = policy,
            Err(_) => {
                let problems = Policy::problems_in(file, text).into_iter();
                contents.problems = problems.map(Problem::Policy).collect();
            }
        }
        match file::settings_in(file, text) {
            Ok(given) => contents.given = given,
            // What is no TOML here is none to the policy either, and is told once.
            Err(_) if !contents.problems.is_empty() => {}
            Err(syntax) => contents.problems.push(syntax),
        }
        contents
    }
}

/// One setting as somebody gave it.
struct Given {
    /// `server.http`.
    name: String,
    /// Absent if it is none that text can hold.
    value: Option<String>,
    place: Place,
}

fn from_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<Given> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let setting = |(variable, value): (String, String)| {
        let name = variable.strip_prefix("SPILLGATE_")?.replace("__", ".").to_lowercase();
        let ours = name.split_once('.').is_some_and(|(section, _)| SECTIONS.contains(&section));
        // A variable that is set to nothing is what some launchers make of one that is not set.
        let given = ours && !value.is_empty();
        given.then_some(Given { name, value: Some(value), place: Place::Variable(variable) })
    };
    let mut given: Vec<Given> = variables.filter_map(text).filter_map(setting).collect();
    given.sort_by(|a, b| a.name.cmp(&b.name));
    given
}

fn from_flags(flags: Flags<'_>) -> impl Iterator<Item = Given> {
    let flags = [("server.http", "--http", flags.http), ("store.url", "--redis", flags.redis)];
    flags.into_iter().filter_map(|(name, flag, value)| {
        Some(Given {
            name: name.to_owned(),
            value: Some(value?.to_owned()),
            place: Place::Flag(flag),
        })
    })
}

impl Default for Settings {
    fn default() -> Self {
        Settings { http: HTTP_DEFAULT, insecure: false, store: Store::default() }
    }
}

impl Settings {
    /// Takes them in order, the later over the earlier; returns those that mean nothing.
    fn apply(&mut self, given: &[Given]) -> Vec<Problem> {
        let wrong = |given: &Given, message| Problem::Setting {
            place: given.place.clone(),
            name: given.name.clone(),
            message,
        };
        given
            .iter()
            .filter_map(|given| self.set(given).err().map(|message| wrong(given, message)))
            .collect()
    }

    fn set(&mut self, given: &Given) -> Result<(), String> {
        if is_for_later(&given.name) {
            return Err("not in this version yet; leave it out".to_owned());
        }
        let text = given.value.as_deref().ok_or("takes one string, whole number, true or false")?;
        match given.name.as_str() {
            "server.http" => self.http = value::address(text)?,
            "server.insecure" => self.insecure = value::boolean(text)?,
            "store.url" => self.store.url = Some(value::store_url(text)?),
            "store.timeout" => self.store.timeout = Some(value::duration(text)?),
            "store.key_secret_file" => self.store.key_secret_file = Some(text.into()),
            "store.keys_max" => self.store.keys_max = Some(value::count(text)?),
            _ => {
                return Err(format!("no such setting; there are {}", SETTINGS.join(", ")));
            }
        }
        Ok(())
    }

    /// What is wrong only with all of them together.
    fn contradiction(&self) -> Option<Problem> {
        let exposed = !self.http.ip().to_canonical().is_loopback();
        let message = || {
            format!(
                "{} is open to other machines, and this version asks nobody for a token; \
                 listen on 127.0.0.1:{}, or, where the network keeps strangers out, write \
                 insecure = true under [server] or set SPILLGATE_SERVER__INSECURE=true",
                self.http,
                self.http.port(),
            )
        };
        (exposed && !self.insecure).then(|| Problem::of_setting("server.http", message()))
    }
}

fn is_for_later(name: &str) -> bool {
    let is_or_is_in = |later: &&str| {
        name.strip_prefix(*later).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    LATER.iter().any(is_or_is_in)
}

/// Only this machine, so that a first try opens nothing to strangers.
const HTTP_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The tables of the file that are ours; the others are the policy's.
const SECTIONS: [&str; 3] = ["server", "store", "telemetry"];

const SETTINGS: [&str; 6] = [
    "server.http",
    "server.insecure",
    "store.url",
    "store.timeout",
    "store.key_secret_file",
    "store.keys_max",
];

/// Settings and tables of settings that are designed but not built: said apart from misspelt ones.
const LATER: [&str; 19] = [
    "server.grpc",
    "server.resp",
    "server.admin",
    "server.trusted_proxies",
    "server.admin_token_file",
    "server.domains",
    "server.data_token_file",
    "server.auth",
    "server.tls",
    "store.sentinel",
    "store.cluster",
    "store.ring",
    "store.on_state_loss",
    "store.connections",
    "store.clock",
    "store.secret_previous_file",
    "store.expected_nodes",
    "store.tls",
    "telemetry",
];
