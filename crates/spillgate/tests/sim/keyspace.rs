//! The data of a simulated server, and the commands that read and change it.

use std::collections::{BTreeMap, BTreeSet};

use spillgate_testkit::Reply;

/// Keys with their values, and when they expire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// How often data was written.
    pub(crate) writes: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// In µs; `None` means never.
    ends_us: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// Members by their scores.
    Scored(BTreeMap<Vec<u8>, f64>),
    /// Ids of a stream, with the value of their only field.
    Stream(Vec<(Vec<u8>, [Vec<u8>; 2])>),
}

/// A command's words, its name first.
pub(crate) type Words = Vec<Vec<u8>>;
type Answer = Result<Reply, Reply>;

impl Keyspace {
    /// Executes a command at an instant. Returns `None` if it is not a command on data.
    pub(crate) fn execute(&mut self, name: &str, words: &Words, now_us: u64) -> Option<Reply> {
        self.entries.retain(|_, entry| entry.ends_us.is_none_or(|ends_us| ends_us > now_us));
        let answer = match name {
            "GET" => self.text(&words[1]).map(bulk_or_nil),
            "MGET" => {
                Ok(list(words[1..].iter().map(|key| bulk_or_nil(self.text(key).unwrap_or(None)))))
            }
            "SET" => self.set(words, now_us),
            "STRLEN" => self
                .text(&words[1])
                .map(|text| Reply::Integer(text.map_or(0, |text| text.len()) as i64)),
            "GETRANGE" => self.text(&words[1]).map(|text| Reply::Bulk(part(&text, words))),
            "SETRANGE" => self.set_range(words),
            "DEL" | "UNLINK" => Ok(self.remove(&words[1..])),
            "EXISTS" => Ok(count(words[1..].iter().filter(|key| self.entries.contains_key(*key)))),
            "PEXPIRE" => Ok(self.expire(&words[1], now_us + 1_000 * whole(&words[2]))),
            "PTTL" => Ok(self.ttl_ms(&words[1], now_us)),
            "DBSIZE" => Ok(Reply::Integer(self.entries.len() as i64)),
            "HGET" | "HMGET" | "HSET" | "HDEL" | "HLEN" | "HKEYS" | "HGETALL" => {
                self.on_hash(name, words)
            }
            "XADD" => self.append(words, now_us),
            "XREVRANGE" => self.newest(words),
            _ if name.starts_with('Z') => return self.on_scored(name, words).map(either),
            _ => return None,
        };
        Some(either(answer))
    }

    /// Deletes all keys.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Removes and returns a part of the keys.
    pub(crate) fn split_off(&mut self, goes: impl Fn(&[u8]) -> bool) -> Keyspace {
        let entries = std::mem::take(&mut self.entries).into_iter();
        let (gone, kept) = entries.partition(|(key, _)| goes(key));
        self.entries = kept;
        Keyspace { entries: gone, writes: 0 }
    }

    pub(crate) fn take_in(&mut self, other: Keyspace) {
        self.entries.extend(other.entries);
    }

    /// Every key, and whether it has a TTL.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Vec<u8>, bool)> {
        self.entries.iter().map(|(key, entry)| (key, entry.ends_us.is_some()))
    }

    pub(crate) fn holds(&self, key: &[u8], now_us: u64) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| entry.ends_us.is_none_or(|ends_us| ends_us > now_us))
    }

    fn text(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Reply> {
        match self.entries.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(wrong_type()),
        }
    }

    fn set(&mut self, words: &Words, now_us: u64) -> Answer {
        let ends_us = match words.get(3).map(|word| &word[..]) {
            Some(b"KEEPTTL") => self.entries.get(&words[1]).and_then(|entry| entry.ends_us),
            _ => words.get(4).map(|ms| now_us + 1_000 * whole(ms)),
        };
        self.writes += 1;
        self.entries
            .insert(words[1].clone(), Entry { value: Value::Text(words[2].clone()), ends_us });
        Ok(Reply::Status("OK".into()))
    }

    fn set_range(&mut self, words: &Words) -> Answer {
        let mut text = self.text(&words[1])?.unwrap_or_default();
        let (first, new) = (whole(&words[2]) as usize, &words[3]);
        text.resize(text.len().max(first + new.len()), 0);
        text[first..first + new.len()].copy_from_slice(new);
        let length = text.len() as i64;
        let ends_us = self.entries.get(&words[1]).and_then(|entry| entry.ends_us);
        self.writes += 1;
        self.entries.insert(words[1].clone(), Entry { value: Value::Text(text), ends_us });
        Ok(Reply::Integer(length))
    }

    fn remove(&mut self, keys: &[Vec<u8>]) -> Reply {
        let removed = keys.iter().filter(|key| self.entries.remove(*key).is_some()).count();
        self.writes += removed as u64;
        Reply::Integer(removed as i64)
    }

    fn expire(&mut self, key: &[u8], ends_us: u64) -> Reply {
        let Some(entry) = self.entries.get_mut(key) else { return Reply::Integer(0) };
        entry.ends_us = Some(ends_us);
        self.writes += 1;
        Reply::Integer(1)
    }

    fn ttl_ms(&self, key: &[u8], now_us: u64) -> Reply {
        let ends_us = self.entries.get(key).map(|entry| entry.ends_us);
        Reply::Integer(match ends_us {
            None => -2,
            Some(None) => -1,
            Some(Some(ends_us)) => ((ends_us - now_us) / 1_000) as i64,
        })
    }

    /// `XADD key MAXLEN ~ count * field value`
    fn append(&mut self, words: &Words, now_us: u64) -> Answer {
        let [_, key, _, _, _, _, field, value] = &words[..] else { panic!("not simulated") };
        let new = Entry { value: Value::Stream(Vec::new()), ends_us: None };
        let Value::Stream(stream) = &mut self.entries.entry(key.clone()).or_insert(new).value
        else {
            return Err(wrong_type());
        };
        let id = format!("{}-{}", now_us / 1_000, stream.len()).into_bytes();
        stream.push((id.clone(), [field.clone(), value.clone()]));
        stream.drain(..stream.len().saturating_sub(whole(&words[4]) as usize));
        self.writes += 1;
        Ok(Reply::Bulk(id))
    }

    /// `XREVRANGE key end - COUNT count`
    fn newest(&mut self, words: &Words) -> Answer {
        let stream = match self.entries.get(&words[1]).map(|entry| &entry.value) {
            None => return Ok(Reply::Array(Vec::new())),
            Some(Value::Stream(stream)) => stream,
            Some(_) => return Err(wrong_type()),
        };
        let before = words[2].strip_prefix(b"(");
        let end = stream.iter().position(|(id, _)| Some(&id[..]) == before).unwrap_or(stream.len());
        let entry = |(id, fields): &(Vec<u8>, [Vec<u8>; 2])| {
            Reply::Array(vec![
                Reply::Bulk(id.clone()),
                Reply::Array(fields.iter().cloned().map(Reply::Bulk).collect()),
            ])
        };
        let count = whole(&words[5]) as usize;
        Ok(Reply::Array(stream[..end].iter().rev().take(count).map(entry).collect()))
    }

    fn on_hash(&mut self, name: &str, words: &Words) -> Answer {
        let key = &words[1];
        let empty = BTreeMap::new();
        let hash = match self.entries.get_mut(key).map(|entry| &mut entry.value) {
            None => &empty,
            Some(Value::Hash(hash)) => hash,
            Some(_) => return Err(wrong_type()),
        };
        let field = |field: &Vec<u8>| bulk_or_nil(hash.get(field).cloned());
        match name {
            "HGET" => Ok(field(&words[2])),
            "HMGET" => Ok(list(words[2..].iter().map(field))),
            "HLEN" => Ok(Reply::Integer(hash.len() as i64)),
            "HKEYS" => Ok(list(hash.keys().cloned().map(Reply::Bulk))),
            "HGETALL" => Ok(list(
                hash.iter().flat_map(|(field, value)| [field, value]).cloned().map(Reply::Bulk),
            )),
            "HSET" => {
                self.writes += 1;
                let new = Entry { value: Value::Hash(BTreeMap::new()), ends_us: None };
                let entry = self.entries.entry(key.clone()).or_insert(new);
                let Value::Hash(hash) = &mut entry.value else { return Err(wrong_type()) };
                let set = words[2..]
                    .chunks_exact(2)
                    .map(|pair| hash.insert(pair[0].clone(), pair[1].clone()));
                Ok(count(set.filter(Option::is_none)))
            }
            _ => {
                let Some(Entry { value: Value::Hash(hash), .. }) = self.entries.get_mut(key) else {
                    return Ok(Reply::Integer(0));
                };
                let removed =
                    words[2..].iter().filter(|field| hash.remove(*field).is_some()).count();
                if hash.is_empty() {
                    self.entries.remove(key);
                }
                self.writes += removed as u64;
                Ok(Reply::Integer(removed as i64))
            }
        }
    }

    fn on_scored(&mut self, name: &str, words: &Words) -> Option<Answer> {
        let key = &words[1];
        let empty = BTreeMap::new();
        let scored = match self.entries.get(key).map(|entry| &entry.value) {
            None => &empty,
            Some(Value::Scored(scored)) => scored,
            Some(_) => return Some(Err(wrong_type())),
        };
        let answer = match name {
            "ZCARD" => Reply::Integer(scored.len() as i64),
            "ZSCORE" => bulk_or_nil(scored.get(&words[2]).map(|score| score_text(*score))),
            "ZCOUNT" => {
                let (least, most) = (Bound::read(&words[2]), Bound::read(&words[3]));
                count(
                    scored
                        .values()
                        .filter(|score| least.is_below(**score) && most.is_above(**score)),
                )
            }
            "ZRANGE" | "ZREVRANGE" => {
                let members = in_order(scored, name == "ZREVRANGE");
                let place = |word: &[u8]| match signed(word) {
                    place @ ..0 => members.len() as i64 + place,
                    place => place,
                };
                // If the last index is before the first element, no member is selected.
                let (first, end) = (place(&words[2]).max(0) as usize, place(&words[3]).max(-1) + 1);
                let taken = members.into_iter().take(end as usize).skip(first);
                reply(taken, words)
            }
            "ZRANGEBYSCORE" => {
                let (least, most) = (Bound::read(&words[2]), Bound::read(&words[3]));
                let members = in_order(scored, false).into_iter();
                let within =
                    members.filter(|(_, score)| least.is_below(*score) && most.is_above(*score));
                let limit = words.iter().position(|word| word == b"LIMIT");
                let (skipped, most) = limit.map_or((0, usize::MAX), |at| {
                    (whole(&words[at + 1]) as usize, whole(&words[at + 2]) as usize)
                });
                reply(within.skip(skipped).take(most), words)
            }
            _ => return self.change_scored(name, words),
        };
        Some(Ok(answer))
    }

    fn change_scored(&mut self, name: &str, words: &Words) -> Option<Answer> {
        let key = &words[1];
        if name == "ZADD" {
            self.writes += 1;
            let new = Entry { value: Value::Scored(BTreeMap::new()), ends_us: None };
            let entry = self.entries.entry(key.clone()).or_insert(new);
            let Value::Scored(scored) = &mut entry.value else { return Some(Err(wrong_type())) };
            let added = words[2..]
                .chunks_exact(2)
                .map(|pair| scored.insert(pair[1].clone(), float(&pair[0])));
            return Some(Ok(count(added.filter(Option::is_none))));
        }
        let Some(Entry { value: Value::Scored(scored), .. }) = self.entries.get_mut(key) else {
            return ["ZREM", "ZREMRANGEBYSCORE"].contains(&name).then_some(Ok(Reply::Integer(0)));
        };
        let before = scored.len();
        match name {
            "ZREM" => {
                let removed: BTreeSet<&Vec<u8>> = words[2..].iter().collect();
                scored.retain(|member, _| !removed.contains(member));
            }
            "ZREMRANGEBYSCORE" => {
                let (least, most) = (Bound::read(&words[2]), Bound::read(&words[3]));
                scored.retain(|_, score| !(least.is_below(*score) && most.is_above(*score)));
            }
            _ => return None,
        }
        let (removed, is_empty) = (before - scored.len(), scored.is_empty());
        if is_empty {
            self.entries.remove(key);
        }
        self.writes += removed as u64;
        Some(Ok(Reply::Integer(removed as i64)))
    }
}

/// Returns the bytes that GETRANGE names. Negative places count from the end.
fn part(text: &Option<Vec<u8>>, words: &Words) -> Vec<u8> {
    let text = text.as_deref().unwrap_or_default();
    let place = |word: &[u8]| match signed(word) {
        place @ ..0 => (text.len() as i64 + place).max(-1),
        place => place,
    };
    let (first, last) = (place(&words[2]).max(0) as usize, place(&words[3]));
    let end = ((last + 1) as usize).min(text.len());
    text.get(first..end).unwrap_or_default().to_vec()
}

/// `5`, `(5`, `-inf`, `+inf`.
struct Bound {
    score: f64,
    excluded: bool,
}

impl Bound {
    fn read(word: &[u8]) -> Bound {
        match word.strip_prefix(b"(") {
            Some(score) => Bound { score: float(score), excluded: true },
            None => Bound { score: float(word), excluded: false },
        }
    }

    fn is_below(&self, score: f64) -> bool {
        if self.excluded { self.score < score } else { self.score <= score }
    }

    fn is_above(&self, score: f64) -> bool {
        if self.excluded { self.score > score } else { self.score >= score }
    }
}

fn in_order(scored: &BTreeMap<Vec<u8>, f64>, reversed: bool) -> Vec<(&Vec<u8>, f64)> {
    let mut members: Vec<_> = scored.iter().map(|(member, score)| (member, *score)).collect();
    // Members of one score stay ordered by name.
    members.sort_by(|one, other| one.1.total_cmp(&other.1));
    if reversed {
        members.reverse();
    }
    members
}

fn reply<'m>(members: impl Iterator<Item = (&'m Vec<u8>, f64)>, words: &Words) -> Reply {
    let with_scores = words.iter().any(|word| word == b"WITHSCORES");
    list(members.flat_map(|(member, score)| {
        let score = with_scores.then(|| Reply::Bulk(score_text(score)));
        std::iter::once(Reply::Bulk(member.clone())).chain(score)
    }))
}

/// Formats like `%.17g`, for the whole numbers that we store.
pub(crate) fn score_text(score: f64) -> Vec<u8> {
    if score.abs() < 1e17 {
        format!("{score:.0}").into_bytes()
    } else {
        exponential(score).into_bytes()
    }
}

/// `1.8014398509481984e+17`.
fn exponential(number: f64) -> String {
    let shortest = format!("{number:.16e}");
    let (digits, exponent) = shortest.split_once('e').unwrap();
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}e+{exponent}")
}

fn either(answer: Answer) -> Reply {
    answer.unwrap_or_else(|error| error)
}

fn list(replies: impl Iterator<Item = Reply>) -> Reply {
    Reply::Array(replies.collect())
}

fn count<T>(of: impl Iterator<Item = T>) -> Reply {
    Reply::Integer(of.count() as i64)
}

fn bulk_or_nil(value: Option<Vec<u8>>) -> Reply {
    value.map_or(Reply::Nil, Reply::Bulk)
}

fn wrong_type() -> Reply {
    Reply::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into())
}

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).expect("our commands hold numbers as text")
}

fn whole(word: &[u8]) -> u64 {
    text(word).parse().expect("a whole number")
}

fn signed(word: &[u8]) -> i64 {
    text(word).parse().expect("an index")
}

fn float(word: &[u8]) -> f64 {
    text(word).parse().expect("a score")
}
