//! The script with a TIME that the test chooses. The store's clock and a caller's estimate of it can differ,
//! as they do in a fleet.

use spillgate::Algorithm;
use spillgate_core::limit::NamedLimit;
use spillgate_redis::script_text;
use spillgate_testkit::{Connection, RedisServer, Reply};

use super::target::params;

pub(crate) struct Script {
    connection: Connection,
    text: String,
    keys: [String; 2],
    calls: u64,
}

/// The reply to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckReply {
    /// When it was decided.
    pub(crate) now_us: u64,
    pub(crate) fits: bool,
}

impl Script {
    pub(crate) fn new(server: &RedisServer, subject: &str) -> Script {
        let keys = [format!("script:{{{subject}}}"), format!("script:{{{subject}}}:own")];
        let text = format!("{FAKED_TIME}{}", script_text());
        Script { connection: server.connect(), text, keys, calls: 0 }
    }

    /// Makes a check at the store's time, by a caller that estimates it as `estimate_us`. If no window that
    /// the caller sent holds the store's time, the caller sends again with that time, as the engine does.
    pub(crate) fn check(
        &mut self,
        limit: &NamedLimit,
        cost: u64,
        store_us: u64,
        estimate_us: u64,
    ) -> CheckReply {
        let mut answer = self.run(limit, cost, store_us, estimate_us);
        if answer[1] == OUTSIDE {
            answer = self.run(limit, cost, store_us, answer[0] as u64);
        }
        CheckReply { now_us: answer[0] as u64, fits: answer[1] == 1 }
    }

    /// Returns the bytes of the command of such a check.
    pub(crate) fn command(
        &mut self,
        limit: &NamedLimit,
        cost: u64,
        store_us: u64,
        estimate_us: u64,
    ) -> Vec<Vec<u8>> {
        self.calls += 1;
        let own =
            u64::from(matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency));
        // The second key is an own key, so the script reads one.
        let mut program = vec![READ_TIME, self.calls, 0, 1, 1 + limit.algorithm() as u64, 0, 0];
        params(limit).counting().words(&mut program, estimate_us);
        // Counted from 1: where the decisions begin.
        program[2] = program.len() as u64 + 1;
        program.extend([CHARGE, 1, 1, own, 5, cost, 0]);
        let (seconds, us) = (store_us / 1_000_000, store_us % 1_000_000);
        let words: [&[u8]; 8] = [
            b"EVAL",
            self.text.as_bytes(),
            b"2",
            self.keys[0].as_bytes(),
            self.keys[1].as_bytes(),
            &packed(&program),
            // In the format of TIME: two numbers as text, the second not padded.
            &seconds.to_string().into_bytes(),
            &us.to_string().into_bytes(),
        ];
        words.map(<[u8]>::to_vec).into()
    }

    fn run(&mut self, limit: &NamedLimit, cost: u64, store_us: u64, estimate_us: u64) -> Vec<i64> {
        let command = self.command(limit, cost, store_us, estimate_us);
        match self.connection.command(&command).unwrap() {
            Reply::Array(integers) => integers.iter().map(Reply::integer).collect(),
            other => panic!("the script returned {other:?}"),
        }
    }
}

/// Encodes one msgpack array of 64-bit numbers.
pub(crate) fn packed(program: &[u64]) -> Vec<u8> {
    let mut packed = vec![0xdd];
    packed.extend((program.len() as u32).to_be_bytes());
    for word in program {
        packed.push(0xcf);
        packed.extend(word.to_be_bytes());
    }
    packed
}

const FAKED_TIME: &str = "
local real, seconds, us = redis, ARGV[2], ARGV[3]
local ARGV = { ARGV[1] }
local redis = setmetatable({
    call = function(command, ...)
        if command == 'TIME' then
            return { seconds, us }
        end
        return real.call(command, ...)
    end,
}, { __index = real })
";
const READ_TIME: u64 = 0;
const CHARGE: u64 = 0;
const OUTSIDE: i64 = -2;
