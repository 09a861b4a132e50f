//! Decodes requests in the protocol of Redis: an array of strings each. It returns slices of the bytes, and allocates
//! nothing for a declared length.

use std::fmt;

use smallvec::SmallVec;

/// The request at the front of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole request, and the number of its bytes. Without arguments it is no command.
    Whole { arguments: Arguments<'a>, length: usize },
    /// The beginning of a request that is incomplete until there are `wanted` bytes.
    Partial { wanted: usize },
}

/// The name of a command and its arguments; most commands have at most eight words.
pub type Arguments<'a> = SmallVec<[&'a [u8]; 8]>;

/// Bytes that are no request and cannot become one. The bytes after them have no meaning either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Decodes the request at the front of the bytes.
pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let read = match bytes.first() {
        None => Err(Stop::Partial { wanted: 1 }),
        Some(b'*') => reader.array(),
        Some(_) => Err(Stop::Malformed(NO_ARRAY)),
    };
    match read {
        Ok(arguments) => Ok(Frame::Whole { arguments, length: reader.at }),
        Err(Stop::Partial { wanted }) => Ok(Frame::Partial { wanted }),
        Err(Stop::Malformed(why)) => Err(Malformed(why)),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The reason for which decoding stops without a request.
enum Stop {
    Partial { wanted: usize },
    Malformed(&'static str),
}

impl<'a> Reader<'a> {
    /// Reads an array such as `*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n`.
    fn array(&mut self) -> Result<Arguments<'a>, Stop> {
        let count = self.length(0)?.unwrap_or(0);
        if count > ARGUMENTS_MAX {
            return Err(Stop::Malformed(TOO_MANY));
        }
        let mut arguments = Arguments::new();
        for left in (0..count).rev() {
            arguments.push(self.string(left * SHORTEST_STRING)?);
        }
        Ok(arguments)
    }

    /// Reads a string such as `$2\r\nhi\r\n`, after which at least `rest` bytes must follow.
    fn string(&mut self, rest: usize) -> Result<&'a [u8], Stop> {
        match self.bytes.get(self.at) {
            None => return Err(self.partial(rest)),
            Some(b'$') => {}
            Some(_) => return Err(Stop::Malformed(NO_STRING)),
        }
        let length = match self.length(rest)? {
            Some(length) if length <= STRING_MAX => length,
            _ => return Err(Stop::Malformed(STRING_TOO_LONG)),
        };
        let (start, end) = (self.at, self.at + length);
        let after = end + LINE_END.len();
        if after + rest > REQUEST_MAX {
            return Err(Stop::Malformed(TOO_LONG));
        }
        let Some(ending) = self.bytes.get(end..after) else {
            return Err(Stop::Partial { wanted: after + rest });
        };
        if ending != LINE_END {
            return Err(Stop::Malformed(LONGER_THAN_DECLARED));
        }
        self.at = after;
        Ok(&self.bytes[start..end])
    }

    /// Reads the number on a line after its mark; `None` if it is -1.
    fn length(&mut self, rest: usize) -> Result<Option<usize>, Stop> {
        let line = &self.bytes[self.at + 1..];
        let mut length = 0;
        let mut digits = 0;
        while let Some(digit) = line.get(digits).filter(|byte| byte.is_ascii_digit()) {
            if digits == DIGITS_MAX || (digits > 0 && length == 0) {
                return Err(Stop::Malformed(NO_LENGTH));
            }
            length = length * 10 + usize::from(digit - b'0');
            digits += 1;
        }
        let (length, end) = match (&line[digits..], digits) {
            ([b'\r', b'\n', ..], 1..) => (Some(length), digits),
            ([b'-', b'1', b'\r', b'\n', ..], 0) => (None, 2),
            (b"" | b"\r", 1..) | (b"" | b"-" | b"-1" | b"-1\r", 0) => {
                return Err(self.partial(rest));
            }
            _ => return Err(Stop::Malformed(NO_LENGTH)),
        };
        self.at += 1 + end + LINE_END.len();
        Ok(length)
    }

    /// Stops because the current item is incomplete. At least `rest` bytes must follow it.
    ///
    /// The number of wanted bytes is a lower bound: a connection never waits for bytes that do not come, and decodes a
    /// slow request only a few times.
    fn partial(&self, rest: usize) -> Stop {
        let wanted = (self.bytes.len() + 1).max(self.at + SHORTEST_STRING);
        // Nothing needs to follow the head of an array, which may be empty.
        Stop::Partial { wanted: if self.at == 0 { self.bytes.len() + 1 } else { wanted + rest } }
    }
}

const LINE_END: &[u8] = b"\r\n";

/// The bytes of the shortest string, `$0\r\n\r\n`.
const SHORTEST_STRING: usize = 6;

/// The most words of a request. The longest command, `SG.RESERVE` with 32 attributes, has 69.
const ARGUMENTS_MAX: usize = 1_024;

/// The most bytes of a string: sixteen times the longest key.
const STRING_MAX: usize = 64 * 1024;

/// The most bytes of one request, and so the most that are kept of an incomplete one.
pub const REQUEST_MAX: usize = 128 * 1024;

/// The most digits of a length: more than any valid length has.
const DIGITS_MAX: usize = 8;

const TOO_MANY: &str = "invalid multibulk length: a request has at most 1024 strings";
const STRING_TOO_LONG: &str =
    "invalid bulk length: a string has at most 65536 bytes; send a hash of a longer one";
const TOO_LONG: &str = "too big request: it has at most 131072 bytes; send several requests";
const NO_ARRAY: &str = "expected '*': a request is an array of strings such as *1 $4 PING; \
     send HTTP requests to the HTTP listener";
const NO_STRING: &str = "expected '$': a request is an array of strings such as $4 PING";
const NO_LENGTH: &str =
    "invalid length: write decimal digits without zeros before them, then CR LF";
const LONGER_THAN_DECLARED: &str =
    "expected CR LF after a string: its length counts bytes, not characters";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole<'a>(arguments: &[&'a [u8]], length: usize) -> Result<Frame<'a>, Malformed> {
        Ok(Frame::Whole { arguments: arguments.into(), length })
    }

    /// Encodes a request as a client does.
    fn encode(arguments: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend(argument);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn a_request_is_an_array_of_strings_of_any_bytes() {
        assert_eq!(decode(b"*1\r\n$4\r\nPING\r\n*1"), whole(&[b"PING"], 14));
        assert_eq!(
            decode(b"*3\r\n$1\r\na\r\n$0\r\n\r\n$4\r\n\r\n\0\xff\r\n"),
            whole(&[b"a", b"", b"\r\n\0\xff"], 27)
        );
        assert_eq!(decode(b"*0\r\n"), whole(&[], 4));
        assert_eq!(decode(b"*-1\r\n"), whole(&[], 5));
    }

    #[test]
    fn malformed_bytes_are_refused_as_early_as_possible() {
        for (bytes, why) in [
            (b"*1025\r\n".as_slice(), TOO_MANY),
            (b"*99999999\r\n", TOO_MANY),
            (b"*1\r\n$65537\r\n", STRING_TOO_LONG),
            (b"*1\r\n$-1\r\n", STRING_TOO_LONG),
            (b"*999999999", NO_LENGTH),
            (b"*01\r\n", NO_LENGTH),
            (b"*-2\r\n", NO_LENGTH),
            (b"*+1\r\n", NO_LENGTH),
            (b"*\r\n", NO_LENGTH),
            (b"* 1\r\n", NO_LENGTH),
            (b"*1\n", NO_LENGTH),
            (b"*1\r$", NO_LENGTH),
            (b"*1\r\n:1\r\n", NO_STRING),
            (b"*1\r\n*1\r\n", NO_STRING),
            (b"*1\r\n$1\r\nabc", LONGER_THAN_DECLARED),
            (b"PING\r\n", NO_ARRAY),
            (b"\r\n", NO_ARRAY),
        ] {
            assert_eq!(decode(bytes), Err(Malformed(why)), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_request_that_is_too_long_is_refused_by_its_first_headers() {
        let string = [b"$60000\r\n".as_slice(), &[b'a'; 60_000], b"\r\n"].concat();
        let two = [b"*3\r\n".as_slice(), &string, &string].concat();
        assert!(matches!(decode(&two), Ok(Frame::Partial { .. })));
        assert_eq!(decode(&[&two, b"$60000\r\n".as_slice()].concat()), Err(Malformed(TOO_LONG)));
        assert_eq!(decode(&[&two, &string[..]].concat()), Err(Malformed(TOO_LONG)));
    }

    #[test]
    fn a_length_of_zeros_without_end_is_refused() {
        assert_eq!(decode(&[b"*".as_slice(), &[b'0'; 100]].concat()), Err(Malformed(NO_LENGTH)));
    }

    proptest! {
        #[test]
        fn decoding_returns_the_encoded_request(
            arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
        ) {
            let bytes = encode(&arguments);
            let slices: Arguments<'_> = arguments.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(
                decode(&bytes),
                Ok(Frame::Whole { arguments: slices, length: bytes.len() })
            );
        }

        #[test]
        fn every_part_of_a_request_wants_more_and_no_more_than_the_rest(
            arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
        ) {
            let bytes = encode(&arguments);
            for cut in 0..bytes.len() {
                match decode(&bytes[..cut]) {
                    Ok(Frame::Partial { wanted }) => {
                        prop_assert!(cut < wanted && wanted <= bytes.len(), "{cut}: {wanted}");
                    }
                    other => prop_assert!(false, "{cut}: {other:?}"),
                }
            }
        }

        #[test]
        fn more_bytes_never_change_a_decoded_request_or_an_error(
            bytes in "[*$:0-9a\\- \r\n]{0,60}",
        ) {
            let bytes = bytes.as_bytes();
            let all = decode(bytes);
            for cut in 0..bytes.len() {
                match decode(&bytes[..cut]) {
                    Ok(Frame::Partial { wanted }) => prop_assert!(wanted > cut),
                    decided => prop_assert_eq!(&decided, &all, "cut at {}", cut),
                }
            }
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Frame::Whole { length, .. }) = decode(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
