//! The same story through every door, on both engines: the same decisions, whoever tells it. What a door
//! cannot express is said in [`DOORS`], and nothing else is left out.

mod chapters;
mod doors;

use chapters::CHAPTERS;
use doors::DOORS;

use crate::server::{Server, TempFile};
use spillgate_testkit::RedisServer;

/// One question, as every door can ask it.
pub(crate) struct Asked<'q> {
    pub(crate) ip: &'q str,
    pub(crate) path: &'q str,
    /// By unit; one request unless said otherwise.
    pub(crate) cost: &'q [(&'q str, u64)],
}

/// What a door answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// `allowed`, `denied` or `denied for good`.
    pub(crate) decision: &'static str,
    pub(crate) remaining: Option<u64>,
    /// In the door's own resolution, rounded up.
    pub(crate) retry_after_ms: Option<u64>,
}

/// A server with the rules of all chapters, and the address of this telling's client.
pub(crate) struct Scene<'s> {
    pub(crate) server: &'s Server,
    pub(crate) rules: &'s TempFile,
    pub(crate) door: &'s doors::Door,
    pub(crate) ip: String,
}

impl Scene<'_> {
    #[track_caller]
    pub(crate) fn ask(&self, path: &str) -> Told {
        self.ask_at(path, &[("requests", 1)])
    }

    #[track_caller]
    pub(crate) fn ask_at(&self, path: &str, cost: &[(&str, u64)]) -> Told {
        (self.door.ask)(self.server, &Asked { ip: &self.ip, path, cost })
    }

    #[track_caller]
    pub(crate) fn decision(&self, path: &str) -> &'static str {
        self.ask(path).decision
    }
}

#[test]
fn every_door_tells_the_same_story_in_memory() {
    tell(Server::start);
}

#[test]
fn every_door_tells_the_same_story_on_redis() {
    let redis = RedisServer::start();
    tell(|arguments| Server::start_on(&redis, arguments));
}

#[expect(clippy::print_stdout, reason = "a chapter that fails is the one told last")]
fn tell(start: impl Fn(&[&str]) -> Server) {
    for (number, door) in (1..).zip(DOORS) {
        // A chapter changes the rules, so each door has its own.
        let rules = TempFile::new("story.toml", chapters::RULES);
        let server = start(&["--config", rules.path()]);
        let scene =
            Scene { server: &server, rules: &rules, door, ip: format!("203.0.113.{number}") };
        for (name, chapter) in CHAPTERS {
            if door.cannot.iter().any(|(cannot, _)| cannot == name) {
                continue;
            }
            println!("{} {name}", door.name);
            chapter(&scene);
        }
    }
}

#[test]
fn what_a_door_cannot_tell_is_a_chapter_and_has_a_reason() {
    for door in DOORS {
        for (chapter, why) in door.cannot {
            assert!(CHAPTERS.iter().any(|(name, _)| name == chapter), "{}: {chapter}", door.name);
            assert!(!why.is_empty());
            println!("{:<14} {chapter:<30} not told: {why}", door.name);
        }
    }
}
