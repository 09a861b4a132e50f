//! The simulated server answers as a real one: both get the same random commands and the same decisions.

use std::rc::Rc;

use spillgate_testkit::{RedisServer, Reply};

use super::keyspace::Words;
use super::lua::Host;
use super::server::{Server, Session};
use super::support::random::Random;

#[test]
fn random_commands_get_the_replies_of_a_real_server() {
    let (real, seed) = (RedisServer::start(), 11);
    println!("seed {seed}");
    let (mut random, mut line) = (Random::new(seed), real.connect());
    let mut simulated = Server::new(&Rc::new(Host::new()));
    for number in 0..COMMANDS {
        let words = command(&mut random);
        let theirs = line.command(&words).unwrap();
        let ours = simulated.execute(&words, &Session::default(), 1_000_000).reply;
        let shown = words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>();
        assert_eq!(
            comparable(&words, ours),
            comparable(&words, theirs),
            "command {number}: {shown:?}"
        );
    }
}

#[test]
fn scripts_get_the_results_of_a_real_server() {
    let (real, mut simulated) = (RedisServer::start(), Server::new(&Rc::new(Host::new())));
    let mut line = real.connect();
    for script in SCRIPTS {
        let words: Words =
            ["EVAL", script, "2", "a", "b", "x", "7"].map(|word| word.as_bytes().to_vec()).into();
        let theirs = line.command(&words).unwrap();
        let ours = simulated.execute(&words, &Session::default(), 1_000_000).reply;
        assert_eq!(code_of(ours), code_of(theirs), "{script}");
    }
}

/// One of the commands that our scripts and calls use, on few keys, so that types clash.
fn command(random: &mut Random) -> Words {
    let key = format!("k{}", random.below(5));
    let other = format!("k{}", random.below(5));
    let member = format!("m{}", random.below(6));
    let score = random.below(4) * random.pick(&[1, 1_000, 1 << 52, 1 << 58]);
    let (score, place) = (score.to_string(), (random.below(7) as i64 - 3).to_string());
    let bound = match random.below(5) {
        0 => "-inf".to_owned(),
        1 => "+inf".to_owned(),
        2 => format!("({}", random.below(4_000)),
        _ => (random.below(4) * random.pick(&[1, 1_000, 1 << 58])).to_string(),
    };
    let words: Vec<&str> = match random.below(26) {
        0 => vec!["GET", &key],
        1 => vec!["MGET", &key, &other],
        2 => vec!["SET", &key, &member],
        3 if random.one_in(2) => vec!["SET", &key, &member, "KEEPTTL"],
        3 => vec!["SET", &key, &member, "PX", "3600000"],
        4 => vec!["DEL", &key, &other],
        5 => vec!["EXISTS", &key, &other, &key],
        6 => vec!["PEXPIRE", &key, "3600000"],
        7 => vec!["HMGET", &key, &member],
        8 => vec!["GETRANGE", &key, "1", &place],
        9 => vec!["HSET", &key, &member, &score],
        10 => vec!["HDEL", &key, &member, "m1"],
        11 => vec!["HLEN", &key],
        12 => vec!["HKEYS", &key],
        13 | 14 => vec!["ZADD", &key, &score, &member],
        15 => vec!["ZCARD", &key],
        16 => vec!["ZSCORE", &key, &member],
        17 => vec!["ZCOUNT", &key, "(0", &bound],
        18 => vec!["ZRANGE", &key, &place, "-1"],
        19 => vec!["ZREVRANGE", &key, "0", &place, "WITHSCORES"],
        20 => vec!["ZRANGEBYSCORE", &key, "-inf", &bound, "WITHSCORES", "LIMIT", "0", "2"],
        21 => vec!["ZRANGEBYSCORE", &key, "0", &bound, "WITHSCORES", "LIMIT", "1", "1"],
        22 => vec!["ZREMRANGEBYSCORE", &key, &bound, "1000"],
        23 => vec!["SETRANGE", &key, "3", &member],
        24 => vec!["STRLEN", &key],
        _ => vec!["ZREM", &key, &member, "m2"],
    };
    words.into_iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A set of fields has no order.
fn comparable(words: &Words, reply: Reply) -> Reply {
    match reply {
        Reply::Array(mut fields) if words[0] == b"HKEYS" => {
            fields.sort_by_key(|field| field.text().to_owned());
            Reply::Array(fields)
        }
        reply => reply,
    }
}

/// Servers word their errors differently; only the code is compared.
fn code_of(reply: Reply) -> Reply {
    match reply {
        Reply::Error(text) => Reply::Error(text.split(' ').next().unwrap_or_default().to_owned()),
        reply => reply,
    }
}

const COMMANDS: usize = 4_000;
const SCRIPTS: [&str; 12] = [
    "return { 1, 2.9, -2.9, 'x', true, false, 3 }",
    "return { 1, nil, 3 }",
    "return { ok = 'fine' }",
    "return { err = 'MINE is wrong' }",
    "return { KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV }",
    "redis.call('SET', KEYS[1], 12345678901234) return redis.call('GET', KEYS[1])",
    "redis.call('ZADD', KEYS[2], (4503599627370496 + 1795000000000000) * 64, 'm') return redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')",
    "return redis.call('HGET', KEYS[1], 'f')",
    "return redis.pcall('HGET', KEYS[1], 'f').err and 1 or 0",
    "return { struct.unpack('>I1I7c2', struct.pack('>I1I7c2', 200, 1795000000000000, 'xyz')) }",
    "return { struct.unpack('>I2', 'abcd', 3) }",
    "local all = cmsgpack.unpack('\\221\\0\\3\\7\\205\\1\\0\\250sgsgsgsg') return { #all, all[1], all[2] }",
];
