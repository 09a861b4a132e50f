//! Starts a server, and detects when it answers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::folder::Folder;
use crate::poll::poll;
use crate::process::Process;
use crate::resp::{Connection, Reply};

/// The command line of a server; a restart uses it again.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) binary: PathBuf,
    /// The arguments; later ones override earlier ones.
    pub(crate) arguments: Vec<String>,
    /// Additions to the environment of this process.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// A file of settings in its folder, which the server may write to.
    pub(crate) settings: Option<PathBuf>,
}

impl Launch {
    pub(crate) fn new(binary: &Path, arguments: &[&str]) -> Self {
        Self {
            binary: binary.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: Vec::new(),
            settings: None,
        }
    }

    #[track_caller]
    pub(crate) fn spawn(&self, folder: &Folder, port: u16) -> Process {
        let (output, errors) = folder.create_log();
        let mut command = Command::new(&self.binary);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(&self.settings).args(DEFAULTS);
        command.args(["--port", &port.to_string()]).args(&self.arguments);
        // Everything that the server writes stays in its working directory, which also identifies a server that was
        // left behind.
        command.current_dir(&folder.0).stdin(Stdio::null()).stdout(output).stderr(errors);
        Process::start_owning(&mut command, Some(&folder.0))
    }
}

/// Returns whether this very process, not another one on the port, sends a reply that satisfies `ready` within the
/// bound; `false` at once if the process ends.
#[track_caller]
pub(crate) fn answers(process: &mut Process, port: u16, ready: impl Fn(&Reply) -> bool) -> bool {
    let own_id = format!("process_id:{}\r\n", process.pid());
    poll(START_BOUND, || {
        let mut connection = match Connection::open(port) {
            Ok(connection) => connection,
            Err(_) if process.is_running() => return None,
            Err(_) => return Some(false),
        };
        let Ok(Reply::Bulk(info)) = connection.command(&["INFO", "server"]) else {
            return None;
        };
        if !String::from_utf8_lossy(&info).contains(&own_id) {
            // Another process listens here; ours will end when its bind fails.
            return (!process.is_running()).then_some(false);
        }
        ready(&connection.command(&["PING"]).ok()?).then_some(true)
    })
    .unwrap_or(false)
}

/// In memory only, and for this machine only.
const DEFAULTS: [&str; 8] =
    ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--protected-mode", "no"];

/// A start takes 10 to 30 ms, and longer on a machine with every core busy.
pub(crate) const START_BOUND: Duration = Duration::from_secs(10);
