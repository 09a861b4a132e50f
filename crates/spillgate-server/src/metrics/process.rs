//! The metrics of the process itself: its build, and the families that Prometheus's client libraries export for each
//! process, under their names and in their units.

use std::fs;
use std::time::Duration;

use nix::time::ClockId;
use rlimit::Resource;

use super::{Kind, family, sample};

/// The process that serves.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    /// Since 1970-01-01 00:00 UTC.
    started: Option<Duration>,
}

impl Process {
    pub(crate) fn started_now() -> Process {
        Process { started: now(ClockId::CLOCK_REALTIME) }
    }

    /// Writes the families. A family whose value the system does not show is absent: memory and open files are known
    /// on Linux only.
    pub(crate) fn text(self) -> String {
        let mut text = String::new();
        family(&mut text, Kind::Gauge, "spillgate_build_info", "1, with version and commit.");
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", COMMIT)];
        sample(&mut text, "spillgate_build_info", &labels, 1);
        let mut write = |kind, name: &str, help, value: Option<String>| {
            if let Some(value) = value {
                family(&mut text, kind, name, help);
                sample(&mut text, name, &[], value);
            }
        };
        let cpu = now(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(seconds);
        write(Kind::Counter, "process_cpu_seconds_total", CPU, cpu);
        let memory = resident_bytes().map(|bytes| bytes.to_string());
        write(Kind::Gauge, "process_resident_memory_bytes", MEMORY, memory);
        let files = open_fds().map(|files| files.to_string());
        write(Kind::Gauge, "process_open_fds", OPEN_FDS, files);
        let files_max = Resource::NOFILE.get_soft().ok().map(|files| files.to_string());
        write(Kind::Gauge, "process_max_fds", MAX_FDS, files_max);
        write(Kind::Gauge, "process_start_time_seconds", START_TIME, self.started.map(seconds));
        text
    }
}

fn now(clock: ClockId) -> Option<Duration> {
    clock.now().ok().map(Duration::from)
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

fn open_fds() -> Option<usize> {
    // One of them is open for the listing itself.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// The commit, as the environment of the build names it; the release does.
const COMMIT: &str = match option_env!("BUILD_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
const CPU: &str = "User and system CPU time of the process in seconds.";
const MEMORY: &str = "Resident memory of the process in bytes.";
const OPEN_FDS: &str = "Open file descriptors of the process.";
const MAX_FDS: &str = "Most file descriptors that the process may open.";
const START_TIME: &str = "Start of the process in seconds since 1970-01-01 00:00 UTC.";
