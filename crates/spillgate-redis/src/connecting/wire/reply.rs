//! Cuts a stream of bytes into replies, and parses them. Pure: no socket.

use ::redis::{RedisResult, Value, parse_redis_value};

/// The reply to one command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WireReply {
    /// A list of integers only, as the script returns. Almost all replies are of this kind.
    Integers(Vec<i64>),
    /// Anything else.
    Other(Value),
}

impl WireReply {
    /// Parses one whole reply.
    pub(crate) fn parse(frame: &[u8]) -> RedisResult<WireReply> {
        match integers(frame) {
            Some(integers) => Ok(WireReply::Integers(integers)),
            None => parse_redis_value(frame).map(WireReply::Other),
        }
    }

    /// Returns the reply, or the error that the server returned.
    pub(crate) fn unless_error(self) -> RedisResult<WireReply> {
        match self {
            WireReply::Integers(_) => Ok(self),
            WireReply::Other(value) => value.extract_error().map(WireReply::Other),
        }
    }

    /// Returns the integers that the script returned, or what is wrong with the reply.
    pub(crate) fn integers(self) -> Result<Vec<i64>, String> {
        match self {
            WireReply::Integers(integers) => Ok(integers),
            WireReply::Other(other) => {
                let other = format!("{other:?}");
                let start: String = other.chars().take(SHOWN_MAX).collect();
                Err(format!("the script returned no list of integers: {start}"))
            }
        }
    }

    /// Converts the reply to the library's type.
    pub(crate) fn value(self) -> Value {
        match self {
            WireReply::Integers(integers) => {
                Value::Array(integers.into_iter().map(Value::Int).collect())
            }
            WireReply::Other(value) => value,
        }
    }
}

/// The position in a reply that arrives in pieces, so that no byte is examined twice.
#[derive(Debug)]
pub struct Cut {
    at: usize,
    /// How many values are still to come. A value that contains others adds their number.
    due: u64,
}

/// Bytes that are not a reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Garbled;

impl Cut {
    /// Starts at the beginning of a reply.
    pub fn new() -> Cut {
        Cut { at: 0, due: 1 }
    }

    /// Returns the length of the first reply in `bytes`, once it is complete.
    ///
    /// `bytes` must begin with the bytes of the last call, and may have more.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Garbled> {
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
                // An attribute: the value that it describes follows it, hence one more.
                b'|' => holds = 2 * count(word)?.unwrap_or(0) as u64 + 1,
                _ => return Err(Garbled),
            }
            // Incomplete: `at` stays before this value, and the next call starts here.
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

/// Returns whether a frame is a push message, which belongs to no command.
pub fn is_pushed(frame: &[u8]) -> bool {
    frame.first() == Some(&b'>')
}

/// Returns the first line without its end, if the line is complete.
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

/// Parses the length of a text or a list; `None` for a null.
fn count(word: &[u8]) -> Result<Option<usize>, Garbled> {
    match number(word).ok_or(Garbled)? {
        -1 => Ok(None),
        count => match usize::try_from(count) {
            Ok(count) if count <= COUNT_MAX => Ok(Some(count)),
            _ => Err(Garbled),
        },
    }
}

/// Parses a list of integers only.
fn integers(frame: &[u8]) -> Option<Vec<i64>> {
    let (head, mut rest) = split_line(frame)?;
    let length = number(head.strip_prefix(b"*")?)?;
    // The length may be wrong. An integer takes at least four bytes, so the frame bounds the allocation.
    let mut integers = Vec::with_capacity(usize::try_from(length).ok()?.min(frame.len() / 4));
    while !rest.is_empty() {
        let (line, others) = split_line(rest)?;
        integers.push(number(line.strip_prefix(b":")?)?);
        rest = others;
    }
    Some(integers)
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    Some((&bytes[..end], bytes.get(end + 2..)?))
}

/// Parses an integer as servers write it.
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
        // Nineteen digits fit a `u64`.
        number = number * 10 + u64::from(digit);
    }
    match is_negative {
        false => i64::try_from(number).ok(),
        true => 0_i64.checked_sub_unsigned(number),
    }
}

/// The longest part of an unusable reply in an error.
const SHOWN_MAX: usize = 200;
/// The longest line. Errors are shorter, and long texts carry their length.
const LINE_MAX: usize = 64 * 1024;
/// The longest text of Redis itself.
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

    /// Splits the stream in two pieces at every position.
    #[test]
    fn cuts_replies_wherever_the_stream_is_split() {
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

    /// The library reads every reply in the same way.
    #[test]
    fn parses_replies_as_the_library_does() {
        for answer in ANSWERS {
            let known = parse_redis_value(answer.as_bytes()).unwrap();
            let read = WireReply::parse(answer.as_bytes()).unwrap();
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
    fn rejects_bytes_that_are_no_reply() {
        for garbled in ["x\r\n", "*x\r\n", "$-2\r\n", "$999999999999\r\n", "\r\n"] {
            assert_eq!(Cut::new().end(garbled.as_bytes()), Err(Garbled), "{garbled:?}");
        }
        let endless = vec![b'+'; LINE_MAX + 1];
        assert_eq!(Cut::new().end(&endless), Err(Garbled));
    }
}
