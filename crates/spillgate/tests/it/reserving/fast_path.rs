//! Reservations of a single bucket take a fast path through the script. Its answers and state equal those of
//! the general path: the same programs run through the script with and without the fast path.

use spillgate::LimitSpec;
use spillgate_core::limit::NamedLimit;
use spillgate_redis::script_text;
use spillgate_testkit::{Connection, RedisServer, Reply};

use crate::support::random::Random;
use crate::support::target::params;
use crate::support::world::TODAY_US;

#[test]
fn the_fast_path_equals_the_general_path() {
    let text = script_text();
    let disabled = text.replace("operation == OPEN or operation == CLOSE", "false");
    assert_ne!(text, disabled, "the script has no fast path to disable");
    let servers = [RedisServer::start(), RedisServer::start()];
    let mut ways = [Variant::new(&servers[0], &text), Variant::new(&servers[1], &disabled)];
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut history = History::new(&mut random);
        for step in 0..STEPS {
            let (keys, program) = history.call(&mut random);
            let [fast, general] = ways.each_mut().map(|way| way.call(&keys, &program));
            assert_eq!(fast, general, "seed {seed}, step {step}: {program:?}");
        }
        let [fast, general] = ways.each_mut().map(Variant::drain);
        assert_eq!(fast, general, "seed {seed}: remaining state");
    }
}

/// The caller sends such a call again. A record without its charge would make that one a repetition, which charges nothing.
#[test]
fn a_call_outside_its_calendar_opens_no_reservation() {
    let server = RedisServer::start();
    let mut script = Variant::new(&server, &script_text());
    let bucket = NamedLimit::new(LimitSpec::new("7/minute").build().unwrap(), 0);
    let daily = LimitSpec::new("7/day").algorithm("fixed-window").time_zone("UTC");
    let daily = NamedLimit::new(daily.build().unwrap(), 0);
    let mut head = vec![TODAY_US, 1, 0, 3, 1, 0, 0];
    params(&bucket).counting().words(&mut head, TODAY_US);
    let window = head.len() as u64 + 1;
    head.extend([2, 0, 0]);
    params(&daily).counting().words(&mut head, TODAY_US - 9 * 86_400_000_000);
    head[2] = head.len() as u64 + 1;
    let mut program: Vec<Word> = head.into_iter().map(Word::from).collect();
    add(&mut program, &[6, 1, 60_000_000]);
    program.extend([Word::Text(vec![0; 16]), Word::Text(Vec::new())]);
    add(&mut program, &[1, 2, 0, 5, 1, 0, 0, 1, 3, 0, window, 1, 0]);
    let keys = ["record", "bucket", "window"].map(str::to_owned);
    let outside = vec![Reply::Integer(TODAY_US as i64), Reply::Integer(-2)];
    assert_eq!(script.call(&keys, &program), Reply::Array(outside));
    assert_eq!(script.drain(), []);
}

#[derive(Clone, Debug)]
enum Word {
    Number(u64),
    Text(Vec<u8>),
}

impl From<u64> for Word {
    fn from(number: u64) -> Word {
        Word::Number(number)
    }
}

/// One bucket, two subjects, and their reservations.
struct History {
    limits: [NamedLimit; 2],
    now_us: u64,
    calls: u64,
    records: Vec<(u64, u64)>,
}

impl History {
    fn new(random: &mut Random) -> History {
        let quotas = [
            ("100/second", "90/second", 200),
            ("5/minute", "6/minute", 5),
            ("40/1000s", "50/1000s", 40),
            ("7/minute", "8/minute", 7),
            ("3/10s", "3/10s", 9),
        ];
        let (quota, other, burst) = *random.pick(&quotas);
        let limits = [quota, other]
            .map(|quota| NamedLimit::new(LimitSpec::new(quota).burst(burst).build().unwrap(), 0));
        History { limits, now_us: TODAY_US, calls: 0, records: Vec::new() }
    }

    /// Returns one to five operations at one instant, with their keys.
    fn call(&mut self, random: &mut Random) -> (Vec<String>, Vec<Word>) {
        let limit = &self.limits[usize::from(random.one_in(60))];
        let (wait_us, capacity) =
            (params(limit).counting().longest_wait_us(), params(limit).capacity());
        let step_us = match random.below(4) {
            0 => 0,
            1 => random.spread(wait_us / capacity * 2),
            _ => random.spread(2 * wait_us) / (1 + random.below(8)),
        };
        self.now_us += step_us;
        if random.one_in(50) {
            self.now_us -= random.below(5_000_000);
        }
        self.calls += 1;
        let mut head = vec![self.now_us, self.calls * 7_919, 0, 0, 1, 0, 0];
        params(limit).counting().words(&mut head, self.now_us);
        head[2] = head.len() as u64 + 1;
        let mut program: Vec<Word> = head.into_iter().map(Word::from).collect();
        let mut keys = Vec::new();
        let operations = if random.one_in(3) { 1 + random.below(5) } else { 1 };
        for _ in 0..operations {
            self.operation(random, capacity, &mut keys, &mut program);
        }
        // All of them are read: a bucket has no own key.
        program[3] = Word::from(keys.len() as u64);
        (keys, program)
    }

    fn operation(
        &mut self,
        random: &mut Random,
        capacity: u64,
        keys: &mut Vec<String>,
        program: &mut Vec<Word>,
    ) {
        let mut key = |name: String| {
            let known = keys.iter().position(|key| *key == name);
            known.unwrap_or_else(|| {
                keys.push(name);
                keys.len() - 1
            }) as u64
                + 1
        };
        let subject = random.below(2);
        let counter = |subject: u64| format!("counter{subject}");
        let cost = 1 + random.below(capacity / 2);
        match random.below(20) {
            0..=4 => add(program, &[0, 1, key(counter(subject)), 0, 5, cost, 0]),
            5 => add(
                program,
                &[8, 2 + random.below(7), 1, key(counter(subject)), 0, 5, cost.div_ceil(4), 0],
            ),
            6..=12 => {
                let again = random.one_in(6) && !self.records.is_empty();
                let (number, subject) = if again {
                    *random.pick(&self.records)
                } else {
                    self.records.push((self.records.len() as u64, subject));
                    self.records[self.records.len() - 1]
                };
                let lasting_us = *random.pick(&[1_000, 60_000_000]);
                add(program, &[6, key(format!("record{number}")), lasting_us]);
                let body = number + u64::from(again && random.one_in(3));
                program.push(Word::Text(format!("{body:016}").into_bytes()));
                program.push(Word::Text(b"data of the caller".to_vec()));
                let words = [1, key(counter(subject)), 0, 5, cost, 0];
                program.extend(words.map(Word::from));
            }
            _ if !self.records.is_empty() => {
                let recent = self.records.len() as u64 - 1;
                let (number, subject) =
                    self.records[(recent - random.below(6).min(recent)) as usize];
                let how = [0, 0, 0, 0, 0, 1, 2][random.below(7) as usize];
                add(program, &[7, key(format!("record{number}")), how]);
                program.push(Word::Text(format!("{:08}", random.below(2)).into_bytes()));
                let actual = *random.pick(&[0, cost / 2, cost, cost, 1 << 41]);
                let words = [5_000_000, 1, key(counter(subject)), 0, 5, actual];
                program.extend(words.map(Word::from));
            }
            _ => add(program, &[2, 1, key(counter(subject)), 0, 5, 0, 0]),
        }
    }
}

fn add(program: &mut Vec<Word>, words: &[u64]) {
    program.extend(words.iter().copied().map(Word::from));
}

/// A server, and one variant of the script.
struct Variant {
    connection: Connection,
    script: String,
}

impl Variant {
    fn new(server: &RedisServer, text: &str) -> Variant {
        let mut connection = server.connect();
        let script = match connection.command(&["SCRIPT", "LOAD", text]).unwrap() {
            Reply::Bulk(sha) => String::from_utf8(sha).unwrap(),
            other => panic!("the script does not load: {other:?}"),
        };
        Variant { connection, script }
    }

    fn call(&mut self, keys: &[String], program: &[Word]) -> Reply {
        let count = keys.len().to_string();
        let mut words: Vec<Vec<u8>> =
            ["EVALSHA", &self.script, &count].map(|word| word.as_bytes().to_vec()).into();
        words.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
        words.push(packed(program));
        let reply = self.connection.command(&words).unwrap();
        assert!(matches!(reply, Reply::Array(_)), "{reply:?}");
        reply
    }

    /// Returns everything that the server holds, and deletes it.
    fn drain(&mut self) -> Vec<(String, Reply)> {
        let Reply::Array(keys) = self.connection.command(&["KEYS", "*"]).unwrap() else {
            panic!("KEYS returns a list")
        };
        let mut keys: Vec<String> = keys.iter().map(|key| key.text().to_owned()).collect();
        keys.sort();
        let mut held = Vec::new();
        for key in keys {
            let dumped = self.connection.command(&["DUMP", &key]).unwrap();
            let Reply::Integer(1..) = self.connection.command(&["PTTL", &key]).unwrap() else {
                panic!("{key} has no TTL")
            };
            held.push((key, dumped));
        }
        self.connection.command(&["FLUSHALL"]).unwrap();
        held
    }
}

fn packed(program: &[Word]) -> Vec<u8> {
    let mut packed = vec![0xdd];
    packed.extend((program.len() as u32).to_be_bytes());
    for word in program {
        match word {
            Word::Number(number) => {
                packed.push(0xcf);
                packed.extend(number.to_be_bytes());
            }
            Word::Text(text) => {
                packed.push(0xda);
                packed.extend((text.len() as u16).to_be_bytes());
                packed.extend(text);
            }
        }
    }
    packed
}

const SEEDS: u64 = 60;
const STEPS: u64 = 120;
