//! What comes over a wire, cut into answers: pure, with no socket in it.

use ::redis::{RedisResult, Value, parse_redis_value};

/// What a server said to one command.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Answer {
    /// A list of integers and of nothing else, as the script answers: by far the most there are.
    Integers(Vec<i64>),
    /// Anything else.
    Other(Value),
}

impl Answer {
    /// Reads one whole answer.
    pub(super) fn of(frame: &[u8]) -> RedisResult<Answer> {
        match integers(frame) {
            Some(integers) => Ok(Answer::Integers(integers)),
            None => parse_redis_value(frame).map(Answer::Other),
        }
    }

    /// An error of the server's is none.
    pub(super) fn unless_error(self) -> RedisResult<Answer> {
        match self {
            Answer::Integers(_) => Ok(self),
            Answer::Other(value) => value.extract_error().map(Answer::Other),
        }
    }

    /// As the library says it.
    pub(in super::super) fn value(self) -> Value {
        match self {
            Answer::Integers(integers) => {
                Value::Array(integers.into_iter().map(Value::Int).collect())
            }
            Answer::Other(value) => value,
        }
    }
}

/// How far into an answer its bytes have been looked at: long ones come in pieces.
#[derive(Debug)]
pub(super) struct Cut {
    at: usize,
    /// How many values are still to come; whoever holds others brings so many more.
    due: u64,
}

/// What is no answer, wherever it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbled;

impl Cut {
    /// At the beginning of an answer.
    pub(super) fn new() -> Cut {
        Cut { at: 0, due: 1 }
    }

    /// The length of the answer that `bytes` begin with, once all of it is there; `bytes` are those of
    /// the call before, and more.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Garbled> {
        while self.due > 0 {
            let rest = &bytes[self.at..];
            let Some(line) = line(rest) else {
                return if rest.len() >= LINE_MAX { Err(Garbled) } else { Ok(None) };
            };
            let (kind, word) = line.split_first().ok_or(Garbled)?;
            let mut length = line.len() + 2;
            let mut holds = 0;
            match kind {
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
                b'$' | b'!' | b'=' => {
                    if let Some(text) = count(word)? {
                        length += text + 2;
                    }
                }
                b'*' | b'~' | b'>' => holds = count(word)?.unwrap_or(0) as u64,
                b'%' => holds = 2 * count(word)?.unwrap_or(0) as u64,
                // Whatever it is about comes after it.
                b'|' => holds = 2 * count(word)?.unwrap_or(0) as u64 + 1,
                _ => return Err(Garbled),
            }
            if rest.len() < length {
                return Ok(None);
            }
            self.at += length;
            self.due += holds;
            self.due -= 1;
        }
        let end = self.at;
        *self = Cut::new();
        Ok(Some(end))
    }
}

/// Whether an answer is none to anything that was asked.
pub(super) fn is_pushed(frame: &[u8]) -> bool {
    frame.first() == Some(&b'>')
}

/// The answer that bytes begin with, if it is there whole.
#[cfg(any(test, fuzzing))]
pub(in super::super) fn first(bytes: &[u8]) -> Option<RedisResult<Value>> {
    let end = Cut::new().end(bytes).ok()??;
    Some(Answer::of(&bytes[..end]).map(Answer::value))
}

/// A line without its end, if the end is there.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = &bytes[..bytes.len().min(LINE_MAX)];
    let mut from = 0;
    loop {
        let end = from + bytes[from..].iter().position(|byte| *byte == b'\r')?;
        if bytes.get(end + 1) == Some(&b'\n') {
            return Some(&bytes[..end]);
        }
        from = end + 1;
    }
}

/// How long a text or a list is; nothing where there is none.
fn count(word: &[u8]) -> Result<Option<usize>, Garbled> {
    match number(word).ok_or(Garbled)? {
        -1 => Ok(None),
        count => match usize::try_from(count) {
            Ok(count) if count <= COUNT_MAX => Ok(Some(count)),
            _ => Err(Garbled),
        },
    }
}

/// A list of integers and of nothing else.
fn integers(frame: &[u8]) -> Option<Vec<i64>> {
    let (head, mut rest) = split_line(frame)?;
    let length = number(head.strip_prefix(b"*")?)?;
    // Each takes three bytes at least, and all of them are here.
    let mut integers = Vec::with_capacity(usize::try_from(length).ok()?.min(frame.len() / 4));
    while !rest.is_empty() {
        let (line, others) = split_line(rest)?;
        integers.push(number(line.strip_prefix(b":")?)?);
        rest = others;
    }
    Some(integers)
}

#[inline]
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    Some((&bytes[..end], bytes.get(end + 2..)?))
}

/// An integer as servers write it.
#[inline]
fn number(word: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number: u64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Nineteen digits fit.
        number = number * 10 + u64::from(digit);
    }
    match is_negative {
        false => i64::try_from(number).ok(),
        true => 0_i64.checked_sub_unsigned(number),
    }
}

/// More than any error says: lines are short, and long texts tell their length.
const LINE_MAX: usize = 64 * 1024;
/// Redis itself has no longer texts.
const COUNT_MAX: usize = 512 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [&str; 17] = [
        "+OK\r\n",
        "+a\rb\r\n",
        "-NOSCRIPT No matching script. Please use EVAL.\r\n",
        ":-12\r\n",
        "$5\r\nab\r\nc\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n:-9007199254740992\r\n:9223372036854775807\r\n",
        "*2\r\n*2\r\n:1\r\n$1\r\nx\r\n*0\r\n",
        "*1\r\n*1\r\n*1\r\n:7\r\n",
        "%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n",
        "~1\r\n#t\r\n",
        "=7\r\ntxt:abc\r\n",
        "_\r\n",
        "!8\r\nOOM full\r\n",
    ];

    /// Every way to break a stream of answers in two pieces.
    #[test]
    fn answers_are_cut_where_they_end_however_they_come() {
        let stream = ANSWERS.concat();
        for piece in 0..=stream.len() {
            let (mut from, mut cut, mut found) = (0, Cut::new(), Vec::new());
            for upto in [piece, stream.len()] {
                while from < upto {
                    let Some(end) = cut.end(&stream.as_bytes()[from..upto]).unwrap() else { break };
                    found.push(&stream[from..from + end]);
                    from += end;
                }
            }
            assert_eq!(found, ANSWERS, "broken at {piece}");
        }
    }

    /// The library reads the same of every answer; lists of integers it reads too, only later.
    #[test]
    fn what_is_read_is_what_the_library_reads() {
        for answer in ANSWERS {
            let known = parse_redis_value(answer.as_bytes()).unwrap();
            let read = Answer::of(answer.as_bytes()).unwrap();
            assert_eq!(read.value(), known, "{answer:?}");
        }
        let lists = ANSWERS.iter().filter(|answer| integers(answer.as_bytes()).is_some());
        assert_eq!(lists.count(), 2, "the empty list, and the one of integers");
    }

    #[test]
    fn integers_out_of_range_are_none() {
        for (word, known) in [
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("1x", None),
        ] {
            assert_eq!(number(word.as_bytes()), known, "{word:?}");
        }
    }

    #[test]
    fn what_no_server_says_is_garbled() {
        for garbled in ["x\r\n", "*x\r\n", "$-2\r\n", "$999999999999\r\n", "\r\n"] {
            assert_eq!(Cut::new().end(garbled.as_bytes()), Err(Garbled), "{garbled:?}");
        }
        let endless = vec![b'+'; LINE_MAX + 1];
        assert_eq!(Cut::new().end(&endless), Err(Garbled));
    }
}
