//! Encodes calls of `check.lua`. The header of that file documents the layout.

use std::slice::ChunkBy;
use std::sync::Arc;

use ::redis::Cmd;

use super::guard::Guard;
use super::keys;
use crate::algorithm::{Charge, Intent, Refund};
use crate::counter::{Change, PlannedCharge};
use crate::limit::{Algorithm, NamedLimit, RecordName};
use crate::plan::{RecordAction, Transaction};
use crate::reservation::{Closes, Closing, Opening, kept};
use crate::subject::SubjectKey;

pub mod lease;
mod reply;

pub(crate) use reply::{Reply, ReplyRange, reply_from, reply_ranges};

/// The words before the limits of every call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// The instant to decide at; 0 means the store's own time.
    pub(crate) given_us: u64,
    /// The estimate of the store's time, for calendar windows.
    pub(crate) estimate_us: u64,
    /// Names the incarnations and permits that begin in this call.
    pub(crate) nonce: u64,
}

/// A transaction, and the number of equal decisions that it stands for.
pub type Times<'q> = (&'q Transaction, u32);

/// One call of the script.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    header: Header,
    subjects: Vec<(SubjectKey, u64)>,
    /// Each with the index in the program at which it begins.
    limits: Vec<(&'a NamedLimit, u64)>,
    limit_words: Msgpack,
    keys: Vec<Vec<u8>>,
    /// The keys of logs and permits. The script never reads them as a whole.
    own_keys: Vec<Vec<u8>>,
    operations: Vec<u64>,
    /// Byte strings, by the index among `operations` where each replaces a number, in order.
    texts: Vec<(usize, Vec<u8>)>,
    nonce: Option<u64>,
    guard: Option<Arc<Guard>>,
    /// Whether the call is for the script of leases.
    pub(crate) is_of_leases: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(header: Header) -> Call<'a> {
        Call {
            header,
            subjects: Vec::new(),
            limits: Vec::new(),
            limit_words: Msgpack::default(),
            keys: Vec::new(),
            own_keys: Vec::new(),
            operations: Vec::new(),
            texts: Vec::new(),
            nonce: None,
            guard: None,
            is_of_leases: false,
        }
    }

    /// Returns the call, to be executed only if the shard's guard is the expected one.
    pub(crate) fn guarded(self, guard: Option<Arc<Guard>>) -> Call<'a> {
        Call { guard, ..self }
    }

    /// Encodes transactions, in order, each with its number of equal decisions.
    pub(crate) fn encode(header: Header, transactions: &[Times<'a>]) -> Call<'a> {
        let mut call = Call::new(header);
        transactions.iter().for_each(|(transaction, times)| call.coalesced(transaction, *times));
        call
    }

    /// Adds a transaction that stands for `times` equal decisions.
    fn coalesced(&mut self, transaction: &'a Transaction, times: u32) {
        if is_coalesced(transaction, times) {
            self.operations.extend([COALESCED, u64::from(times)]);
            self.groups(transaction);
        } else {
            self.decision(transaction);
        }
    }

    /// Adds one decision. Its deferred charges come first, by force.
    pub(crate) fn decision(&mut self, transaction: &'a Transaction) {
        for counter in transaction.charges.iter().filter(|counter| counter.deferred > 0) {
            self.change(counter, Change::Force(counter.deferred));
        }
        match &transaction.record {
            RecordAction::None => {}
            RecordAction::Open(opening) => self.open(transaction, opening),
            RecordAction::Close(closing) => return self.close(transaction, closing),
        }
        let operation = match transaction.intent {
            Intent::Charge => CHARGE,
            Intent::Reserve { nonce } => {
                self.nonce.get_or_insert(nonce);
                RESERVE
            }
            Intent::Peek => PEEK,
        };
        if !matches!(transaction.record, RecordAction::Open(_)) {
            self.operations.push(operation);
        }
        self.groups(transaction);
    }

    /// Adds the enforced counters, and those of each shadow rule.
    fn groups(&mut self, transaction: &'a Transaction) {
        let mut groups = groups(transaction);
        self.group(groups.next().unwrap_or_default());
        let shadows: Vec<_> = groups.collect();
        self.operations.push(shadows.len() as u64);
        shadows.into_iter().for_each(|group| self.group(group));
    }

    /// Adds the words of a reservation's record.
    fn open(&mut self, transaction: &'a Transaction, opening: &Opening) {
        let key = self.record_key(transaction, opening.id);
        self.operations.extend([OPEN, key, opening.lasting_us]);
        self.text(opening.body.to_be_bytes().to_vec());
        self.text(kept::encoded(&transaction.charges));
    }

    /// Adds the end or the renewal of a reservation. The `cost` of each counter is its final charge.
    fn close(&mut self, transaction: &'a Transaction, closing: &Closing) {
        let key = self.record_key(transaction, closing.id);
        let (how, for_us) = match closing.how {
            Closes::Ends => (0, 0),
            Closes::Undoes => (1, 0),
            Closes::Renews { for_us } => (2, for_us),
            Closes::Looks => (3, 0),
        };
        self.operations.extend([CLOSE, key, how]);
        self.text(closing.mark.to_be_bytes().to_vec());
        self.operations.push(for_us);
        self.group(&transaction.charges);
    }

    /// Returns the index of a record's key. A record is stored beside the first of its counters.
    fn record_key(&mut self, transaction: &'a Transaction, id: u128) -> u64 {
        let tag = transaction.charges.first().map_or(0, |counter| counter.key.tag);
        index_of(&mut self.keys, keys::record(tag, id))
    }

    fn text(&mut self, text: Vec<u8>) {
        // The 0 below keeps the place; the text replaces it when the program is encoded.
        self.texts.push((self.operations.len(), text));
        self.operations.push(0);
    }

    pub(crate) fn change(&mut self, counter: &'a PlannedCharge, change: Change) {
        let operation = match change {
            Change::Force(_) => FORCE,
            Change::Refund(Refund::Unused { .. }) => REFUND,
            Change::Refund(Refund::Amount(_)) => LOWER,
        };
        self.operations.push(operation);
        self.place(counter);
        match change {
            Change::Force(amount) | Change::Refund(Refund::Amount(amount)) => {
                self.operations.push(amount.min(AMOUNT_MAX));
            }
            Change::Refund(Refund::Unused { charge, unused }) => {
                let Charge { incarnation, at_us, amount, mark } = charge;
                self.operations.extend([incarnation, at_us, amount, mark, unused.min(amount)]);
            }
        }
    }

    /// Builds the command that runs this call: EVALSHA with a script's hash, or EVAL with its text.
    pub(crate) fn command(&self, name: &str, script: &str, program: &[u8]) -> Cmd {
        let mut command = ::redis::cmd(name);
        command.arg(script).arg(self.keys_read() + self.own_keys.len());
        command.arg(&self.keys);
        if let Some(guard) = &self.guard {
            command.arg(&guard.key);
        }
        command.arg(&self.own_keys).arg(program);
        if let Some(guard) = &self.guard {
            command.arg(&guard.text).arg(guard.lost_us);
        }
        command
    }

    /// Returns the number of keys before the own keys.
    fn keys_read(&self) -> usize {
        self.keys.len() + usize::from(self.guard.is_some())
    }

    /// Encodes the program, in its short form if possible, else as one msgpack array.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        self.single_charge().unwrap_or_else(|| self.program())
    }

    /// Encodes a charge of one token bucket and nothing else, as `single_charge.lua` reads it.
    ///
    /// Returns `None` if the call is another, or a number does not fit its width.
    fn single_charge(&self) -> Option<Vec<u8>> {
        // One operation: CHARGE for one counter with the first key, no own key, the first limit and a cost; and no
        // shadow rules.
        let (&[(limit, _)], &[CHARGE, 1, 1, 0, LIMITS_AT, cost, 0]) =
            (&self.limits[..], &self.operations[..])
        else {
            return None;
        };
        // The short form has no room for a guard.
        let is_plain = cost > 0 && self.guard.is_none() && !self.is_of_leases;
        let (true, Algorithm::TokenBucket, RecordName::Position(name)) =
            (is_plain, limit.algorithm(), limit.record())
        else {
            return None;
        };
        let mut words = Vec::new();
        limit.params()?.counting().words(&mut words, self.header.estimate_us);
        let &[burst, most, n, 1, count, period_us, code] = &words[..] else { return None };
        let nonce = self.nonce.unwrap_or(self.header.nonce);
        let mut bytes = Vec::with_capacity(SINGLE_CHARGE_BYTES);
        bytes.push(b'B');
        for (number, width) in [
            (self.header.given_us, 7),
            (nonce, 6),
            (u64::from(name), 1),
            (burst, 4),
            (most, 6),
            (n, 6),
            (count, 4),
            (period_us, 6),
            (code, 1),
            (cost, 4),
        ] {
            let whole = number.to_be_bytes();
            let (above, kept) = whole.split_at(8 - width);
            if above.iter().any(|byte| *byte > 0) {
                return None;
            }
            bytes.extend(kept);
        }
        Some(bytes)
    }

    /// Encodes the program as `check.lua` unpacks it: the call's own words, the limits, and the operations.
    fn program(&self) -> Vec<u8> {
        let nonce = self.nonce.unwrap_or(self.header.nonce);
        let operations_at = LIMITS_AT + u64::from(self.limit_words.elements);
        let header = [self.header.given_us, nonce, operations_at, self.keys_read() as u64];
        let mut words = Msgpack::default();
        header.iter().for_each(|word| words.number(*word));
        words.append(&self.limit_words);
        let mut texts = self.texts.iter().peekable();
        for (place, word) in self.operations.iter().enumerate() {
            match texts.next_if(|(at, _)| *at == place) {
                Some((_, text)) => words.text(text),
                None => words.number(*word),
            }
        }
        words.finish()
    }

    fn group(&mut self, counters: &'a [PlannedCharge]) {
        self.operations.push(counters.len() as u64);
        for counter in counters {
            self.place(counter);
            self.operations.push(counter.cost);
        }
    }

    /// Adds the indices of the counter's key, its own key and its limit.
    fn place(&mut self, counter: &'a PlannedCharge) {
        let value = match self.subjects.iter().find(|(known, _)| *known == counter.key) {
            Some((_, value)) => *value,
            None => {
                let value = self.add_key(keys::value(counter.key));
                self.subjects.push((counter.key, value));
                value
            }
        };
        let own = keys::own(counter.key, &counter.limit)
            .map_or(0, |own| index_of(&mut self.own_keys, own));
        let limit = self.limit(counter);
        self.operations.extend([value, own, limit]);
    }

    fn add_key(&mut self, key: Vec<u8>) -> u64 {
        self.keys.push(key);
        self.keys.len() as u64
    }

    /// Returns the index in the program at which the counter's limit begins.
    // A limit stands once in the program, however many counters use it.
    fn limit(&mut self, counter: &'a PlannedCharge) -> u64 {
        let same = |(limit, _): &&(&NamedLimit, u64)| {
            limit.mix() == counter.limit.mix() && limit.params() == counter.limit.params()
        };
        if let Some((_, at)) = self.limits.iter().find(same) {
            return *at;
        }
        let at = LIMITS_AT + u64::from(self.limit_words.elements);
        self.limits.push((&counter.limit, at));
        let words = &mut self.limit_words;
        words.number(u64::from(counter.limit.algorithm().number()));
        match counter.limit.record() {
            RecordName::Position(position) => {
                words.number(u64::from(position));
                words.number(0);
            }
            RecordName::Given(name) => {
                words.number(NAMED);
                words.bytes(&name);
            }
        }
        let mut params = Vec::new();
        counter.params().counting().words(&mut params, self.header.estimate_us);
        params.iter().for_each(|word| words.number(*word));
        at
    }
}

/// Returns the index of a key, counted from 1. Adds the key if the list does not have it yet.
fn index_of(keys: &mut Vec<Vec<u8>>, key: Vec<u8>) -> u64 {
    let place = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
        keys.push(key);
        keys.len() - 1
    });
    place as u64 + 1
}

/// Returns the enforced counters, which may be none, and then the counters of each shadow rule.
fn groups(transaction: &Transaction) -> impl Iterator<Item = &[PlannedCharge]> {
    let enforced = transaction.charges.iter().take_while(|counter| counter.group == 0).count();
    let (enforced, shadows) = transaction.charges.split_at(enforced);
    let shadows: ChunkBy<'_, _, _> = shadows.chunk_by(|one, next| one.group == next.group);
    std::iter::once(enforced).chain(shadows)
}

/// Returns whether a group of equal decisions needs a reply for each: the decisions differ only if they charge.
fn is_coalesced(transaction: &Transaction, times: u32) -> bool {
    times > 1
        && transaction.intent != Intent::Peek
        && transaction.charges.iter().any(|counter| counter.cost > 0)
}

/// A msgpack array of numbers and short byte strings.
#[derive(Debug, Default)]
struct Msgpack {
    elements: u32,
    bytes: Vec<u8>,
}

impl Msgpack {
    fn number(&mut self, number: u64) {
        self.elements += 1;
        // Msgpack: small numbers are one byte; 0xcd, 0xce and 0xcf mark 2, 4 and 8 bytes.
        match number {
            0..=0x7f => self.bytes.push(number as u8),
            0x80..=0xffff => {
                self.bytes.push(0xcd);
                self.bytes.extend((number as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.bytes.push(0xce);
                self.bytes.extend((number as u32).to_be_bytes());
            }
            _ => {
                self.bytes.push(0xcf);
                self.bytes.extend(number.to_be_bytes());
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8; 8]) {
        self.elements += 1;
        self.bytes.push(0xa0 | bytes.len() as u8);
        self.bytes.extend(bytes);
    }

    fn text(&mut self, text: &[u8]) {
        self.elements += 1;
        // The text of a record's counters, of which a receipt holds at most 64.
        let length = u16::try_from(text.len()).expect("64 counters take some 5 KB");
        self.bytes.push(0xda);
        self.bytes.extend(length.to_be_bytes());
        self.bytes.extend(text);
    }

    fn append(&mut self, other: &Msgpack) {
        self.elements += other.elements;
        self.bytes.extend(&other.bytes);
    }

    fn finish(self) -> Vec<u8> {
        let mut array = Vec::with_capacity(self.bytes.len() + 5);
        // An array with a length of 4 bytes.
        array.push(0xdd);
        array.extend(self.elements.to_be_bytes());
        array.extend(self.bytes);
        array
    }
}

/// The most counters in one call. The script blocks the server while it runs: for 128, well below a millisecond.
pub const COUNTERS_MAX: usize = 128;
/// More than any counter holds, and exact in Lua.
const AMOUNT_MAX: u64 = 1 << 40;
const SINGLE_CHARGE_BYTES: usize = 46;
/// The index of the first limit, counted from 1: after the instant, the nonce, the index of the first operation, and the
/// number of keys before the own keys.
const LIMITS_AT: u64 = 5;
const CHARGE: u64 = 0;
const RESERVE: u64 = 1;
const PEEK: u64 = 2;
const FORCE: u64 = 3;
const REFUND: u64 = 4;
const LOWER: u64 = 5;
const OPEN: u64 = 6;
const CLOSE: u64 = 7;
const COALESCED: u64 = 8;
const NAMED: u64 = 15;
