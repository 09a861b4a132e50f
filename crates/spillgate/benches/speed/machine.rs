//! Describes the machine that the figures come from.

use std::process::Command;

pub fn description() -> String {
    let processor =
        file_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let redis = Command::new("redis-server").arg("--version").output();
    let redis = redis
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let redis = redis.split_whitespace().find_map(|word| word.strip_prefix("v="));
    format!(
        "{cores} cores of {processor}, {}; redis-server {}; everything on this one machine",
        std::env::consts::OS,
        redis.unwrap_or("not found")
    )
}

/// Returns the bytes that this process has written itself, if the system reports them. Code that is mapped on
/// first use does not count.
pub fn own_bytes() -> Option<u64> {
    let kib = file_field("/proc/self/status", "RssAnon")?;
    Some(kib.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
}

fn file_field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
