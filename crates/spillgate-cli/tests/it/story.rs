//! The same story through every API, with both stores: every API makes the same decisions. [`APIS`] lists the
//! chapters that an API cannot express; all others run.

mod apis;
mod chapters;

use apis::APIS;
use chapters::CHAPTERS;

use crate::server::{Server, TempFile};
use spillgate_testkit::RedisServer;

/// A request that every API can make.
pub(crate) struct Check<'q> {
    pub(crate) ip: &'q str,
    pub(crate) path: &'q str,
    /// The cost by unit; one request by default.
    pub(crate) cost: &'q [(&'q str, u64)],
}

/// The answer of an API.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// `allowed`, `denied` or `denied for good`.
    pub(crate) decision: &'static str,
    pub(crate) remaining: Option<u64>,
    /// In the API's own resolution, rounded up.
    pub(crate) retry_after_ms: Option<u64>,
}

/// A server with the rules of all chapters, and the address of this run's client.
pub(crate) struct Scene<'s> {
    pub(crate) server: &'s Server,
    pub(crate) rules: &'s TempFile,
    pub(crate) api: &'s apis::Api,
    pub(crate) ip: String,
}

impl Scene<'_> {
    #[track_caller]
    pub(crate) fn ask(&self, path: &str) -> Answer {
        self.ask_at(path, &[("requests", 1)])
    }

    #[track_caller]
    pub(crate) fn ask_at(&self, path: &str, cost: &[(&str, u64)]) -> Answer {
        (self.api.ask)(self.server, &Check { ip: &self.ip, path, cost })
    }

    #[track_caller]
    pub(crate) fn decision(&self, path: &str) -> &'static str {
        self.ask(path).decision
    }
}

#[test]
fn every_api_makes_the_same_decisions_in_memory() {
    run_chapters(|arguments| (Server::start(arguments), None));
}

#[test]
fn every_api_makes_the_same_decisions_on_redis() {
    run_chapters(|arguments| {
        let redis = RedisServer::start();
        (Server::start_on(&redis, arguments), Some(redis))
    });
}

/// Runs the APIs side by side. A chapter changes rules and overrides, so each API has its own file and store.
#[expect(clippy::print_stdout, reason = "a failure names the API by its thread")]
fn run_chapters(start: impl Fn(&[&str]) -> (Server, Option<RedisServer>) + Sync) {
    std::thread::scope(|scope| {
        for (number, api) in (1..).zip(APIS) {
            let start = &start;
            let run = move || {
                let rules = TempFile::new("story.toml", chapters::RULES);
                let (server, _redis) = start(&["--config", rules.path()]);
                let ip = format!("203.0.113.{number}");
                let scene = Scene { server: &server, rules: &rules, api, ip };
                for (name, chapter) in CHAPTERS {
                    if api.cannot.iter().any(|(cannot, _)| cannot == name) {
                        continue;
                    }
                    println!("{} {name}", api.name);
                    chapter(&scene);
                }
            };
            let thread = std::thread::Builder::new().name(api.name.to_owned());
            thread.spawn_scoped(scope, run).unwrap();
        }
    });
}

#[test]
fn every_exception_is_a_chapter_and_has_a_reason() {
    for api in APIS {
        for (chapter, why) in api.cannot {
            assert!(CHAPTERS.iter().any(|(name, _)| name == chapter), "{}: {chapter}", api.name);
            assert!(!why.is_empty());
            println!("{:<14} {chapter:<30} left out: {why}", api.name);
        }
    }
}
