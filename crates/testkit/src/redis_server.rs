//! Starts a real server for a test: Redis, or another server with its protocol.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::folder::Folder;
use crate::launch::{Launch, START_BOUND, answers};
use crate::port::free_port;
use crate::process::Process;
use crate::resp::{Connection, Reply};

/// A server on a free port of 127.0.0.1, in memory only, in a folder of its own. It is killed and its folder removed
/// on drop.
#[derive(Debug)]
pub struct RedisServer {
    // Dropped in this order: the process, then its folder.
    process: Process,
    folder: Folder,
    launch: Launch,
    port: u16,
}

impl RedisServer {
    /// Starts the `redis-server` on PATH.
    ///
    /// # Panics
    /// When there is none (the message names how to install it), or it does not answer within ten seconds.
    #[track_caller]
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&redis_on_path(), &[])
    }

    /// Starts the server of `binary`, with more `arguments` as on its command line: `&["--maxmemory", "10mb"]`. Later
    /// ones override earlier ones.
    ///
    /// # Panics
    /// When it cannot be started, or does not answer within ten seconds.
    #[track_caller]
    #[must_use]
    pub fn start_with(binary: &Path, arguments: &[&str]) -> Self {
        Self::launch(Launch::new(binary, arguments), Folder::create())
    }

    #[track_caller]
    pub(crate) fn launch(launch: Launch, folder: Folder) -> Self {
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            let mut process = launch.spawn(&folder, port);
            if answers(&mut process, port, is_pong) {
                let server = Self { process, folder, launch, port };
                server.admit_user();
                return server;
            }
            // Another process may have taken the port before the bind. Any other cause would be the same again.
            if !folder.log().contains("Address already in use") {
                break;
            }
        }
        panic!(
            "{} {:?} ended, or did not answer within {START_BOUND:?}; its log:\n{}",
            launch.binary.display(),
            launch.arguments,
            folder.log()
        );
    }

    /// Returns every installed server: the `redis-server` on PATH first, then those that `./check --full` installs
    /// and names in the environment. Tests that depend on the version run on each.
    ///
    /// # Panics
    /// When there is no `redis-server` on PATH, or the environment names a file that cannot be run.
    #[track_caller]
    #[must_use]
    pub fn versions() -> Vec<ServerVersion> {
        let default = ServerVersion { name: "redis-server on PATH", path: redis_on_path() };
        let others = OTHER_VERSIONS.iter().filter_map(|&(name, variable)| {
            let path = PathBuf::from(std::env::var_os(variable)?);
            assert!(
                is_program(&path),
                "{variable} names {}, which is not a program: run ./check --full, or unset it",
                path.display()
            );
            Some(ServerVersion { name, path })
        });
        std::iter::once(default).chain(others).collect()
    }

    /// Returns `redis://127.0.0.1:port`; if the environment has [`USER_RULES`](Self::USER_RULES), with a user of
    /// those rights.
    #[must_use]
    pub fn url(&self) -> String {
        match std::env::var_os(Self::USER_RULES) {
            None => format!("redis://127.0.0.1:{}", self.port),
            Some(_) => format!("redis://{USER}:{PASSWORD}@127.0.0.1:{}", self.port),
        }
    }

    /// The variable with the rights of a connection by [`url`](Self::url), in the syntax of `ACL SETUSER`: a whole
    /// suite can run as that user. The fixture itself has all rights.
    pub const USER_RULES: &str = "SPILLGATE_TEST_USER_RULES";

    /// Returns the port, which a restart keeps.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the process id, which a restart changes.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends one command on a connection of its own.
    ///
    /// # Panics
    /// When the server does not answer. If that is expected, use [`connect`](Self::connect), which returns the error.
    #[track_caller]
    pub fn command(&self, arguments: &[impl AsRef<[u8]>]) -> Reply {
        match self.connect().command(arguments) {
            Ok(reply) => reply,
            Err(error) => {
                let words: Vec<_> =
                    arguments.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect();
                panic!("no answer to {words:?} from {}: {error}", self.url())
            }
        }
    }

    /// Returns how often the server has executed a command, such as `evalsha`, since it started or since
    /// `CONFIG RESETSTAT`.
    ///
    /// # Panics
    /// When the server does not answer.
    #[track_caller]
    #[must_use]
    pub fn calls_of(&self, command: &str) -> u64 {
        let field = format!("cmdstat_{command}");
        let Some(stats) = self.info_if_any("commandstats", &field) else { return 0 };
        let calls =
            stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok());
        calls.unwrap_or_else(|| panic!("{field} of {} is {stats:?}", self.url()))
    }

    /// Returns how often the server has run the scripts of decisions and leases. A heartbeat runs by name too, and calls
    /// HMGET once, as no decision does.
    ///
    /// # Panics
    /// When the server does not answer.
    #[track_caller]
    #[must_use]
    pub fn decisions(&self) -> u64 {
        // One reply, so that no heartbeat lies between the two counts.
        let stats = self.command(&["INFO", "commandstats"]);
        let calls = |command: &str| -> u64 {
            let line = stats.text().lines().find_map(|line| {
                line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")
            });
            line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        calls("evalsha") - calls("hmget")
    }

    /// Sends one command on a connection of its own. Returns `None` if the server is paused or dead.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Option<Reply> {
        let mut connection = Connection::open(self.port).ok()?;
        connection.set_patience(REACHABLE).ok()?;
        connection.command(arguments).ok()
    }

    /// Returns `master` or `slave`, the role that the server sees itself in; `None` if it is paused or dead.
    pub(crate) fn role(&self) -> Option<String> {
        match self.ask(&["ROLE"])? {
            Reply::Array(role) => Some(role[0].text().to_owned()),
            _ => None,
        }
    }

    /// Returns a connection for several commands.
    ///
    /// # Panics
    /// When the server does not listen.
    #[track_caller]
    #[must_use]
    pub fn connect(&self) -> Connection {
        match Connection::open(self.port) {
            Ok(connection) => connection,
            Err(error) => panic!("cannot connect to {}: {error}", self.url()),
        }
    }

    /// Pauses it (SIGSTOP): connections stay open, and nothing is answered.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes it (SIGCONT); it then executes the commands sent meanwhile.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills it at once (SIGKILL): connections break, and the state is lost.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it if it runs, and starts it again on the same port with the same arguments. It is then empty, unless
    /// the arguments load data.
    ///
    /// # Panics
    /// When it does not answer within ten seconds, such as when another process took the port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.restart_with(&[], is_pong);
        self.admit_user();
    }

    /// Restarts it once with more arguments, until its reply to PING satisfies `ready`.
    #[track_caller]
    pub(crate) fn restart_with(&mut self, more: &[&str], ready: impl Fn(&Reply) -> bool) {
        self.kill();
        let mut launch = self.launch.clone();
        launch.arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        self.process = launch.spawn(&self.folder, self.port);
        assert!(
            answers(&mut self.process, self.port, ready),
            "{} did not come back; its log:\n{}",
            self.url(),
            self.folder.log()
        );
    }

    #[track_caller]
    fn admit_user(&self) {
        if let Ok(rules) = std::env::var(Self::USER_RULES) {
            let rules: Vec<&str> = rules.split(' ').collect();
            let _url = self.url_of_user(USER, PASSWORD, &rules);
        }
    }

    /// Returns the folder that it writes to.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }
}

/// A server that is still loading answers LOADING, an error.
fn is_pong(reply: &Reply) -> bool {
    *reply == Reply::Status("PONG".into())
}

/// One of the installed servers.
#[derive(Clone, Debug)]
pub struct ServerVersion {
    /// The name in messages.
    pub name: &'static str,
    /// The program, for [`RedisServer::start_with`].
    pub path: PathBuf,
}

#[track_caller]
pub(crate) fn redis_on_path() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match find_program("redis-server", std::env::split_paths(&path)) {
        Some(program) => program,
        None => panic!(
            "no redis-server on PATH: this test needs a real one; run ./check, which installs it or names the command"
        ),
    }
}

fn find_program(name: &str, mut folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.find_map(|folder| Some(folder.join(name)).filter(|program| is_program(program)))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The servers that `./check --full` installs, and the variables with their paths.
const OTHER_VERSIONS: [(&str, &str); 3] = [
    ("Redis 6.2", "SPILLGATE_REDIS_6_2"),
    ("Redis 8.2", "SPILLGATE_REDIS_8_2"),
    ("Valkey 9", "SPILLGATE_VALKEY_9"),
];

const USER: &str = "tester";
const PASSWORD: &str = "secret";

/// A paused server accepts connections and answers nothing.
const REACHABLE: Duration = Duration::from_millis(500);
/// The race for a port is rarely lost even once.
const PORTS_TRIED: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_server_answers_and_stores_values() {
        let server = RedisServer::start();
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
        assert_eq!(server.command(&["SET", "key", "value"]), Reply::Status("OK".into()));
        assert_eq!(server.command(&["GET", "key"]).text(), "value");
        assert_eq!(server.command(&["INCR", "count"]).integer(), 1);
        assert_eq!(server.command(&["GET", "missing"]), Reply::Nil);
        assert!(
            matches!(server.command(&["INCR", "key"]), Reply::Error(text) if text.starts_with("ERR"))
        );
        assert_eq!(
            server.command(&["EVAL", "return {1, {2}}", "0"]),
            Reply::Array(vec![Reply::Integer(1), Reply::Array(vec![Reply::Integer(2)])])
        );
    }

    #[test]
    fn counts_the_calls_of_one_command() {
        let server = RedisServer::start();
        assert_eq!(server.calls_of("get"), 0);
        (0..3).for_each(|_| drop(server.command(&["GET", "key"])));
        server.command(&["GETRANGE", "key", "0", "1"]);
        assert_eq!((server.calls_of("get"), server.calls_of("getrange")), (3, 1));
        server.command(&["CONFIG", "RESETSTAT"]);
        assert_eq!(server.calls_of("get"), 0);
    }

    #[test]
    fn every_installed_version_starts_and_writes_nothing_to_disk() {
        for version in RedisServer::versions() {
            let server = RedisServer::start_with(&version.path, &["--maxmemory", "32mb"]);
            let saved = server.command(&["CONFIG", "GET", "save"]);
            assert_eq!(
                saved,
                Reply::Array(vec![Reply::Bulk(b"save".to_vec()), Reply::Bulk(Vec::new())]),
                "{}",
                version.name
            );
            assert_eq!(
                server.command(&["CONFIG", "GET", "maxmemory"]),
                Reply::Array(vec![
                    Reply::Bulk(b"maxmemory".to_vec()),
                    Reply::Bulk(b"33554432".to_vec())
                ]),
                "{}",
                version.name
            );
        }
    }

    #[test]
    fn a_dropped_server_leaves_no_process_and_no_folder() {
        let server = RedisServer::start();
        let (port, folder) = (server.port(), server.folder.0.clone());
        assert!(folder.is_dir());
        drop(server);
        assert!(Connection::open(port).is_err());
        assert!(!folder.exists());
    }

    #[test]
    fn a_paused_server_answers_nothing_until_it_is_resumed() {
        let server = RedisServer::start();
        let mut connection = server.connect();
        connection.set_patience(Duration::from_millis(50)).unwrap();
        server.pause();
        assert!(connection.command(&["PING"]).is_err());
        server.resume();
        assert_eq!(server.command(&["PING"]).text(), "PONG");
    }

    #[test]
    fn a_restarted_server_is_empty_on_the_same_port() {
        let mut server = RedisServer::start();
        let (port, pid) = (server.port(), server.pid());
        server.command(&["SET", "key", "value"]);
        server.restart();
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert_eq!(server.command(&["GET", "key"]), Reply::Nil);
    }

    #[test]
    fn a_killed_server_refuses_connections_until_it_is_restarted() {
        let mut server = RedisServer::start();
        server.kill();
        assert!(Connection::open(server.port()).is_err());
        server.restart();
        assert_eq!(server.command(&["PING"]).text(), "PONG");
    }

    #[test]
    fn many_servers_at_once_get_ports_of_their_own() {
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    let server = RedisServer::start();
                    assert_eq!(
                        server.command(&["SET", "number", &number.to_string()]).text(),
                        "OK"
                    );
                    assert_eq!(server.command(&["GET", "number"]).integer(), number);
                });
            }
        });
    }

    #[test]
    fn a_server_is_not_mistaken_for_another_one_on_its_port() {
        let first = RedisServer::start();
        let folder = Folder::create();
        let mut second = Launch::new(&redis_on_path(), &[]).spawn(&folder, first.port());
        assert!(!answers(&mut second, first.port(), is_pong));
        assert!(folder.log().contains("Address already in use"));
    }

    #[test]
    #[should_panic(expected = "Bad directive")]
    fn a_failed_start_quotes_the_log() {
        let _ = RedisServer::start_with(&redis_on_path(), &["--no-such-setting", "1"]);
    }

    #[test]
    fn only_an_executable_file_counts_as_a_program() {
        let folder = Folder::create();
        let file = folder.0.join("redis-server");
        let find = || {
            find_program("redis-server", [PathBuf::from("/nowhere"), folder.0.clone()].into_iter())
        };
        assert_eq!(find(), None);
        fs::write(&file, "").unwrap();
        assert_eq!(find(), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(), Some(file));
    }
}
