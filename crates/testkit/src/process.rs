//! A child process that cannot outlive the test that started it.

use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::poll::poll;

/// A running program. It is killed on drop, and also when the test process itself is killed or ends with this value
/// in a `static`.
#[derive(Debug)]
pub struct Process {
    program: String,
    child: Child,
    /// Dropped as soon as the child is known to have ended, since its id may then belong to another process.
    guard: Option<Guard>,
}

impl Process {
    /// Starts `command` with the caller's arguments, environment and streams.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self::start_owning(command, None)
    }

    /// Starts `command` like [`start`](Self::start). If this process dies without dropping its values, `folder` is
    /// removed with the child.
    #[track_caller]
    pub(crate) fn start_owning(command: &mut Command, folder: Option<&Path>) -> Self {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot start {program}: {error}"),
        };
        let guard = Some(Guard::watch(child.id(), folder));
        Self { program, child, guard }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its output, once, if the command asked for a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns its error output, once, if the command asked for a pipe.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits until it ends by itself. Returns `None` after `bound`.
    ///
    /// # Panics
    /// When the system does not know the process.
    #[track_caller]
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        poll(bound, || self.exit_status())
    }

    /// Returns whether it still runs (or is paused).
    ///
    /// # Panics
    /// When the system does not know the process.
    #[track_caller]
    pub fn is_running(&mut self) -> bool {
        self.exit_status().is_none()
    }

    /// Sends SIGTERM and waits until it ends.
    ///
    /// # Panics
    /// When it has not ended after `bound`.
    #[track_caller]
    pub fn terminate(&mut self, bound: Duration) -> ExitStatus {
        if self.is_running() {
            self.signal("TERM");
        }
        match self.wait(bound) {
            Some(status) => status,
            None => panic!(
                "{} (process {}) did not end within {bound:?} of SIGTERM",
                self.program,
                self.pid()
            ),
        }
    }

    /// Kills it at once (SIGKILL), also when it is paused, and waits until the system has reaped it.
    pub fn kill(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.guard = None;
    }

    /// Pauses it (SIGSTOP): connections stay open, and nothing is answered. Returns once it has stopped.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn pause(&self) {
        self.signal("STOP");
        // The signal is only queued when `kill` returns. On systems without /proc the check succeeds at once.
        let pid = self.pid();
        poll(STOP_BOUND, || is_stopped(pid).then_some(()));
    }

    /// Resumes it after [`pause`](Self::pause) (SIGCONT).
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn resume(&self) {
        self.signal("CONT");
    }

    #[track_caller]
    fn exit_status(&mut self) -> Option<ExitStatus> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => {
                self.guard = None;
                Some(status)
            }
            Err(error) => {
                panic!(
                    "cannot get the status of {} (process {}): {error}",
                    self.program,
                    self.pid()
                )
            }
        }
    }

    /// Sends a signal, such as `HUP`. The shell's own `kill` does it: the standard library sends SIGKILL only, and a
    /// minimal system has no `kill` program.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status =
            Command::new("sh").args(["-c", r#"kill -s "$1" "$2""#, "sh", name, &pid]).status();
        let sent = status.as_ref().is_ok_and(ExitStatus::success);
        assert!(sent, "cannot send SIG{name} to {} (process {pid}): {status:?}", self.program);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A shell that kills the child at the end of its own input, which comes when this process ends in any way.
#[derive(Debug)]
struct Guard(Child);

impl Guard {
    #[track_caller]
    fn watch(pid: u32, folder: Option<&Path>) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh", &pid.to_string()]).args(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(shell) => Self(shell),
            Err(error) => panic!("cannot start sh to guard process {pid}: {error}"),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Kill it before its input closes, so that it does nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The shell ignores Ctrl-C, which reaches the whole process group: it must outlive the test process.
const GUARD: &str =
    r#"trap "" INT TERM HUP; read -r _; kill -s KILL "$1"; [ -z "$2" ] || rm -rf "$2""#;

/// A signal takes effect within microseconds, and later on a machine that is short of processor time.
const STOP_BOUND: Duration = Duration::from_secs(5);

fn is_stopped(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state follows the name, which is in parentheses and may contain any byte.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped()))
    }

    fn exists(pid: u32) -> bool {
        Command::new("sh")
            .args(["-c", r#"kill -s 0 "$1" 2>/dev/null"#, "sh", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    }

    #[test]
    fn a_dropped_process_ends() {
        let process = shell("exec sleep 1000");
        let pid = process.pid();
        assert!(exists(pid));
        drop(process);
        assert!(!exists(pid));
    }

    #[test]
    fn a_dropped_process_ends_though_it_was_paused() {
        let process = shell("exec sleep 1000");
        let pid = process.pid();
        process.pause();
        assert!(is_stopped(pid));
        drop(process);
        assert!(!exists(pid));
    }

    #[test]
    fn a_paused_process_handles_sigterm_once_resumed() {
        let mut process = shell("exec sleep 1000");
        process.pause();
        process.signal("TERM");
        assert_eq!(process.wait(Duration::from_millis(30)), None);
        process.resume();
        assert!(process.wait(BOUND).is_some());
    }

    #[test]
    fn terminate_returns_the_exit_status() {
        let mut process = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        let mut ready = [0; 5];
        std::io::Read::read_exact(&mut process.stdout().unwrap(), &mut ready).unwrap();
        assert_eq!(process.terminate(BOUND).code(), Some(7));
        assert!(!process.is_running());
    }

    #[test]
    #[should_panic(expected = "did not end within")]
    fn terminate_gives_up_at_its_bound() {
        let mut process = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
        let mut ready = [0; 5];
        std::io::Read::read_exact(&mut process.stdout().unwrap(), &mut ready).unwrap();
        process.terminate(Duration::from_millis(50));
    }

    #[test]
    #[should_panic(expected = "cannot start /nowhere/spillgate")]
    fn a_missing_program_is_named() {
        let _ = Process::start(&mut Command::new("/nowhere/spillgate"));
    }

    #[test]
    fn a_child_dies_with_a_test_process_that_was_killed() {
        let folder = std::env::temp_dir().join(format!("spillgate-guard-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mut orphan = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut guard = Guard::watch(orphan.id(), Some(&folder));
        // The system closes the pipe like this when the process that holds it dies.
        drop(guard.0.stdin.take());
        assert!(poll(BOUND, || orphan.try_wait().unwrap()).is_some());
        assert!(poll(BOUND, || (!folder.exists()).then_some(())).is_some());
    }
}
