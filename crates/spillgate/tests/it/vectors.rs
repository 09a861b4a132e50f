//! Runs the vectors of `tests/vectors`, written by an independent program, through every implementation:
//! oracle, pure algorithm, memory engine, Lua in a real Redis, and Redis engine.

use spillgate::{Algorithm, LimitSpec};
use spillgate_core::algorithm::Reading;
use spillgate_core::limit::NamedLimit;
use spillgate_testkit::RedisServer;

use crate::oracle::oracle;
use crate::support::target::{Act, Answer, InLua, OnEngine, Pure, Target, subject};

/// The lines of one story: a limit, and the calls on it.
struct Story {
    limit: NamedLimit,
    checks: Vec<(u64, u64, Answer)>,
}

fn stories(algorithm: Algorithm, text: &str) -> Vec<Story> {
    let mut stories: Vec<Story> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["limit", quota, options @ ..] => {
                let mut spec = LimitSpec::new(*quota).algorithm(algorithm.name());
                for option in options.chunks(2) {
                    spec = match option {
                        ["burst", burst] => spec.burst(burst.parse().unwrap()),
                        ["zone", zone] => spec.time_zone(*zone),
                        _ => panic!("{line}"),
                    };
                }
                let limit = NamedLimit::new(spec.build().unwrap(), 0);
                stories.push(Story { limit, checks: Vec::new() });
            }
            [at, "check", cost, "|", verdict, remaining, retry_after, reset_after] => {
                let number = |word: &str| word.parse::<u64>().unwrap();
                let answer = Answer {
                    fits: *verdict == "allowed",
                    reading: Reading {
                        remaining: number(remaining),
                        retry_after_us: Some(number(retry_after)),
                        reset_after_us: number(reset_after),
                    },
                    returned: 0,
                };
                let story = stories.last_mut().expect("a limit comes first");
                story.checks.push((number(at), number(cost), answer));
            }
            _ => panic!("{line}"),
        }
    }
    stories
}

fn read(stories: &[Story], mut target: impl FnMut(u128) -> Box<dyn Target>) {
    for (number, story) in stories.iter().enumerate() {
        let mut target = target(number as u128);
        for (at, cost, expected) in &story.checks {
            let answer = target.act(Act::Check(*cost), &story.limit, *at);
            let (limit, name) = (story.limit.limit(), target.name());
            assert_eq!(answer, *expected, "{name}: {limit} at {at}, cost {cost}");
        }
    }
}

macro_rules! vectors {
    ($name:ident, $algorithm:expr, $file:literal) => {
        mod $name {
            use super::*;

            const TEXT: &str = include_str!(concat!("../vectors/", $file));

            #[test]
            fn hold_in_this_process() {
                let stories = stories($algorithm, TEXT);
                read(&stories, |_| oracle($algorithm));
                read(&stories, |_| Box::new(Pure::default()));
                read(&stories, |number| Box::new(OnEngine::memory(subject(number))));
            }

            #[test]
            fn hold_in_redis() {
                let server = &*Box::leak(Box::new(RedisServer::start()));
                let stories = stories($algorithm, TEXT);
                read(&stories, |number| Box::new(InLua::new(server, number)));
                read(&stories, |number| Box::new(OnEngine::redis(server, subject(number))));
            }
        }
    };
}

vectors!(token_bucket, Algorithm::TokenBucket, "token-bucket.txt");
vectors!(fixed_window, Algorithm::FixedWindow, "fixed-window.txt");
vectors!(sliding_log, Algorithm::SlidingLog, "sliding-log.txt");
vectors!(sliding_window, Algorithm::SlidingWindow, "sliding-window.txt");
