//! Decodes the operations in a call of the script and their results, so that a server's history can be
//! checked. The head of `check.lua` documents the format.

use spillgate_testkit::Reply;

/// An element of a program.
#[derive(Clone, Debug)]
pub(crate) enum Packed {
    Number(u64),
    Text(Vec<u8>),
}

/// The kind of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A charge, with a receipt or without.
    Charge,
    Peek,
    Force,
    Refund,
    Lower,
    /// Refunds everything that its record was charged.
    Undo,
}

/// One counter of one operation, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) kind: Kind,
    /// The key of its value.
    pub(crate) key: Vec<u8>,
    /// The cost, or the amount forced or refunded.
    pub(crate) amount: u64,
    pub(crate) charged: bool,
    /// The record of the charge, with which it can be sent again and counts once.
    pub(crate) record: Option<Vec<u8>>,
}

/// Decodes the numbers and strings of a msgpack array.
pub(crate) fn unpacked(packed: &[u8]) -> Option<Vec<Packed>> {
    let mut rest = packed;
    let mut bytes = |width: usize| {
        let (bytes, left) = rest.split_at_checked(width)?;
        rest = left;
        Some(bytes)
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let length = match bytes(1)?[0] {
        head @ 0x90..=0x9f => u64::from(head & 15),
        0xdc => number(bytes(2)?),
        0xdd => number(bytes(4)?),
        _ => return None,
    };
    let elements = (0..length).map(|_| match bytes(1)?[0] {
        small @ 0..=0x7f => Some(Packed::Number(u64::from(small))),
        head @ 0xcc..=0xcf => Some(Packed::Number(number(bytes(1 << (head - 0xcc))?))),
        head @ 0xa0..=0xbf => Some(Packed::Text(bytes(usize::from(head & 31))?.to_vec())),
        0xda => {
            let length = number(bytes(2)?) as usize;
            Some(Packed::Text(bytes(length)?.to_vec()))
        }
        _ => None,
    });
    elements.collect()
}

/// Returns the numbers of a program, with 0 for a text. The short form for one bucket is expanded.
fn words(program: &[u8]) -> Option<Vec<u64>> {
    if let Some(sole) = program.strip_prefix(b"B") {
        let mut rest = sole;
        let mut number = |width: usize| {
            let (bytes, left) = rest.split_at_checked(width)?;
            rest = left;
            Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let [now_us, nonce, name, burst, most, n] =
            [number(7)?, number(6)?, number(1)?, number(4)?, number(6)?, number(6)?];
        let [count, period_us, code, cost] = [number(4)?, number(6)?, number(1)?, number(4)?];
        let limit = [BUCKET as u64, name, 0, burst, most, n, 1, count, period_us, code];
        return Some([&[now_us, nonce, 15, 1][..], &limit, &[0, 1, 1, 0, 5, cost, 0]].concat());
    }
    let program = unpacked(program)?;
    let number = |element| match element {
        Packed::Number(number) => number,
        Packed::Text(_) => 0,
    };
    Some(program.into_iter().map(number).collect())
}

/// Returns the operations that a call executed, and none if the reply reports that nothing was executed.
pub(crate) fn executed(keys: &[Vec<u8>], program: &[u8], answer: &Reply) -> Vec<Executed> {
    // Calls of leases are skipped: `leases.rs` checks their admissions.
    if keys.first().is_some_and(|key| key.windows(3).any(|part| part == b":e:")) {
        return Vec::new();
    }
    let (Some(program), Reply::Array(answer)) = (words(program), answer) else {
        return Vec::new();
    };
    if matches!(answer.get(1), None | Some(Reply::Integer(-2 | -3))) {
        return Vec::new();
    }
    let mut reader = Reader { keys, program, answer, read_until: 1, all: Vec::new() };
    let mut at = reader.word(3) as usize;
    while at <= reader.program.len() {
        at = reader.operation(at);
    }
    reader.all
}

struct Reader<'r> {
    keys: &'r [Vec<u8>],
    program: Vec<u64>,
    answer: &'r [Reply],
    /// How much of the reply was read.
    read_until: usize,
    all: Vec<Executed>,
}

impl Reader<'_> {
    /// Counted from 1, as Lua does.
    fn word(&self, at: usize) -> u64 {
        self.program[at - 1]
    }

    /// Reads the operation at a position. Returns the position of the next one.
    fn operation(&mut self, at: usize) -> usize {
        let (kind, receipts) = match self.word(at) {
            0 => (Kind::Charge, false),
            1 => (Kind::Charge, true),
            2 => (Kind::Peek, false),
            3 => return self.change(Kind::Force, at),
            4 => return self.change(Kind::Refund, at),
            6 => return self.open(at),
            7 => return self.close(at),
            8 => return self.coalesced(at),
            _ => return self.change(Kind::Lower, at),
        };
        self.groups(kind, receipts, at + 1)
    }

    /// A charge with a record: made just now, or known and charged before.
    fn open(&mut self, at: usize) -> usize {
        let is_new = self.answer.get(self.read_until) == Some(&Reply::Integer(0));
        self.read_until += 1;
        let first = self.all.len();
        let after = self.groups(Kind::Charge, true, at + 5);
        let record = self.keys[self.word(at + 1) as usize - 1].clone();
        for counter in &mut self.all[first..] {
            counter.charged &= is_new;
            counter.record = Some(record.clone());
        }
        after
    }

    /// The end of an open record: its counters have no reply.
    fn close(&mut self, at: usize) -> usize {
        let undone =
            self.word(at + 2) == 1 && self.answer.get(self.read_until) == Some(&Reply::Integer(0));
        self.read_until += 1;
        let count = self.word(at + 5) as usize;
        let record = self.keys[self.word(at + 1) as usize - 1].clone();
        for counter in (0..count).filter(|_| undone) {
            self.note(Kind::Undo, at + 6 + 4 * counter, 0);
            if let Some(counter) = self.all.last_mut() {
                counter.record = Some(record.clone());
            }
        }
        at + 6 + 4 * count
    }

    /// Equal decisions, each of which becomes an operation of its own here.
    fn coalesced(&mut self, at: usize) -> usize {
        let times = self.word(at + 1);
        let after = self.coalesced_group(times, at + 2);
        let shadows = self.word(after);
        (0..shadows).fold(after + 1, |at, _| self.coalesced_group(times, at))
    }

    fn coalesced_group(&mut self, times: u64, at: usize) -> usize {
        let charged = match self.answer.get(self.read_until) {
            Some(Reply::Integer(charged)) => (*charged).max(0).cast_unsigned(),
            _ => 0,
        };
        self.read_until += 1;
        let count = self.word(at) as usize;
        // The reply of each counter to the first decision, and to the denied ones.
        for counter in (0..count).chain(0..count) {
            self.read_reply(self.word(at + 3 + 4 * counter), 0);
        }
        for number in 0..times {
            for counter in 0..count {
                let at = at + 1 + 4 * counter;
                self.note(Kind::Charge, at, self.word(at + 3));
                if let Some(counter) = self.all.last_mut() {
                    counter.charged = number < charged && counter.amount > 0;
                }
            }
        }
        at + 1 + 4 * count
    }

    fn groups(&mut self, kind: Kind, receipts: bool, at: usize) -> usize {
        let after = self.group(kind, receipts, at);
        let shadows = self.word(after);
        (0..shadows).fold(after + 1, |at, _| self.group(kind, receipts, at))
    }

    fn group(&mut self, kind: Kind, receipts: bool, at: usize) -> usize {
        let count = self.word(at) as usize;
        let first = self.all.len();
        let mut fits = true;
        for counter in 0..count {
            let at = at + 1 + 4 * counter;
            let limit = self.word(at + 2);
            // A receipt is an incarnation and a mark.
            let has_receipt = receipts || self.algorithm(limit) == PERMITS;
            let words = if has_receipt { 2 } else { 0 };
            fits &= self.read_reply(limit, words);
            self.note(kind, at, self.word(at + 3));
        }
        for counter in &mut self.all[first..] {
            counter.charged = fits && kind == Kind::Charge && counter.amount > 0;
        }
        at + 1 + 4 * count
    }

    fn change(&mut self, kind: Kind, at: usize) -> usize {
        if kind != Kind::Force {
            self.read_until += 1;
        }
        self.read_reply(self.word(at + 3), 0);
        let unused = if kind == Kind::Refund { 8 } else { 4 };
        self.note(kind, at + 1, self.word(at + unused));
        at + unused + 1
    }

    fn note(&mut self, kind: Kind, at: usize, amount: u64) {
        let key = self.keys[self.word(at) as usize - 1].clone();
        self.all.push(Executed { kind, key, amount, charged: false, record: None });
    }

    /// Reads the reply of a counter whose limit begins at a position. Returns whether the cost fits.
    fn read_reply(&mut self, limit: u64, receipt: usize) -> bool {
        let fits = self.answer.get(self.read_until) == Some(&Reply::Integer(1));
        self.read_until += 1 + WIDTHS[self.algorithm(limit) - 1] + receipt;
        fits
    }

    fn algorithm(&self, limit: u64) -> usize {
        self.word(limit as usize) as usize
    }
}

/// How many integers each algorithm replies, in the order of their numbers.
const WIDTHS: [usize; 5] = [3, 2, 3, 4, 3];
const BUCKET: usize = 1;
const PERMITS: usize = 5;
