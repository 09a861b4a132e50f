//! The two scripts, assembled from the driver, the algorithms and their parts: one decides, one handles leases.

use std::sync::LazyLock;

use assembly::{Line, Source, assemble};

use crate::limit::Algorithm;

mod assembly;

/// A script, the SHA1 that EVALSHA takes, and the source of each line.
#[derive(Debug)]
pub struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
    /// The file and line of each line of the text.
    origins: Vec<(&'static str, usize)>,
}

/// Both scripts, in one variant.
#[derive(Debug)]
pub struct Scripts {
    /// The script that decides.
    pub(crate) decides: LazyLock<Script>,
    /// The script of leases: the driver with the ledger in place of reservations. It is separate so that the
    /// script that decides stays short.
    pub(crate) leases: LazyLock<Script>,
}

/// The scripts with `#!lua`: a server that knows it rejects undeclared keys, and rejects calls on a replica at once.
pub static MARKED: Scripts = Scripts {
    decides: LazyLock::new(|| Script::new(MARK, &DECIDES)),
    leases: LazyLock::new(|| Script::new(MARK, &LEASES)),
};
/// The scripts for servers before 7.0, where `#` is a syntax error.
pub static PLAIN: Scripts = Scripts {
    decides: LazyLock::new(|| Script::new("", &DECIDES)),
    leases: LazyLock::new(|| Script::new("", &LEASES)),
};

static DECIDES: LazyLock<Vec<Line>> = LazyLock::new(|| assembled(OF_DECISIONS));
static LEASES: LazyLock<Vec<Line>> = LazyLock::new(|| assembled(OF_LEASES));

impl Scripts {
    fn both(&self) -> [&Script; 2] {
        [&self.decides, &self.leases]
    }
}

impl Script {
    fn new(mark: &'static str, lines: &[Line]) -> Script {
        let mut text = mark.to_owned();
        for line in lines {
            text.push_str(&line.text);
            text.push('\n');
        }
        let sha = redis::Script::new(&text).get_hash().to_owned();
        let origins = mark.lines().map(|_| ("", 0));
        let origins = origins.chain(lines.iter().map(|line| (line.path, line.number))).collect();
        Script { text, sha, origins }
    }
}

/// Returns the command that loads a script.
pub fn load(script: &Script) -> ::redis::Cmd {
    let mut command = ::redis::cmd("SCRIPT");
    command.arg("LOAD").arg(&script.text);
    command
}

/// Adds the file and line of the source to an error that a server reported for one of these scripts.
pub fn located(error: String) -> String {
    let origin = || {
        let behind = error.split("user_script:").nth(1)?.trim_start();
        let number: usize =
            behind.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()?;
        let mut ours = [&MARKED, &PLAIN].into_iter().flat_map(Scripts::both);
        let script = ours.find(|script| error.contains(&script.sha))?;
        script.origins.get(number.checked_sub(1)?)
    };
    match origin() {
        Some((path, line)) => format!("{error} ({path}:{line})"),
        None => error,
    }
}

/// Returns the text of the script that decides, without the mark.
pub fn text() -> String {
    PLAIN.decides.text.clone()
}

fn assembled(others: [Source; 2]) -> Vec<Line> {
    let mut lines =
        assemble(&[&COMMON[..], &others].concat()).expect("the tests assemble both scripts");
    for line in &mut lines {
        if line.text.contains('@') {
            line.text = line
                .text
                .replace("@sizes@", &escaped(KINDS.map(|(size, _)| size)))
                .replace("@owners@", &escaped(KINDS.map(|(_, owner)| owner.number())));
        }
    }
    lines
}

fn escaped(bytes: [u8; KINDS.len()]) -> String {
    bytes.map(|byte| format!("\\{byte:03}")).concat()
}

const MARK: &str = "#!lua\n";

/// A Lua file below `lua/`.
macro_rules! source {
    ($name:literal) => {
        source!($name, $name)
    };
    ($name:literal, $file:expr) => {
        Source {
            name: $name,
            path: concat!("lua/", $file, ".lua"),
            text: include_str!(concat!("../lua/", $file, ".lua")),
        }
    };
    (algorithm $name:literal) => {
        source!($name, concat!("algorithm/", $name))
    };
}

const COMMON: [Source; 13] = [
    source!("check"),
    source!("single_charge"),
    source!("bucket_loop"),
    source!("log_check"),
    source!("counters"),
    source!("reservation_words"),
    source!(algorithm "token_bucket"),
    source!(algorithm "token_bucket/level"),
    source!(algorithm "fixed_window"),
    source!(algorithm "sliding_log"),
    source!(algorithm "sliding_log/ring"),
    source!(algorithm "sliding_window"),
    source!(algorithm "concurrency"),
];
const OF_DECISIONS: [Source; 2] = [source!("reservation"), source!("bucket_reservation")];
/// The script of leases has another operation under the number of OPEN.
const OF_LEASES: [Source; 2] = [
    source!("reservation", "lease"),
    Source { name: "bucket_reservation", path: "", text: "return function() end\n" },
];
/// For each record kind, the size of its body and the algorithm that owns it. A size never changes; a new
/// body is a new kind.
const KINDS: [(u8, Algorithm); 7] = [
    (11, Algorithm::TokenBucket),
    (25, Algorithm::TokenBucket),
    (33, Algorithm::Concurrency),
    (23, Algorithm::FixedWindow),
    (27, Algorithm::SlidingWindow),
    (34, Algorithm::SlidingLog),
    (41, Algorithm::TokenBucket),
];

#[cfg(test)]
mod tests;
