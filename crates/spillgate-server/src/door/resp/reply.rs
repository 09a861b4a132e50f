//! Replies in the protocol of Redis, in the version that the client asked for.

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    version: Version,
}

/// Of the protocol. The third has maps, and one kind of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    #[default]
    Two,
    Three,
}

impl Replies {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// For when they have been sent; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// For a client that says nothing for a while.
    pub(super) fn give_memory_back(&mut self) {
        self.bytes = Vec::new();
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// From the next reply on.
    pub(super) fn speak(&mut self, version: Version) {
        self.version = version;
    }

    /// `OK`, `PONG`: one line of ours.
    pub(super) fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Its code first: `ERR …`. What of it came from the client may hold no line's end.
    pub(super) fn error(&mut self, text: &str) {
        let start = self.bytes.len() + 1;
        self.line(b'-', text.as_bytes());
        let end = self.bytes.len() - LINE_END.len();
        self.bytes[start..end]
            .iter_mut()
            .filter(|byte| byte.is_ascii_control())
            .for_each(|byte| *byte = b' ');
    }

    /// Integers of the protocol have a sign: what is above is as good as without end.
    pub(super) fn number(&mut self, number: u64) {
        self.header(b':', number.min(i64::MAX as u64));
    }

    /// A number that is not known is -1.
    pub(super) fn number_or_unknown(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.line(b':', b"-1"),
        }
    }

    pub(super) fn signed(&mut self, number: i64) {
        self.line(b':', number.to_string().as_bytes());
    }

    pub(super) fn string(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(LINE_END);
    }

    pub(super) fn nothing(&mut self) {
        match self.version {
            Version::Two => self.line(b'$', b"-1"),
            Version::Three => self.line(b'_', b""),
        }
    }

    /// So many replies follow and are its items.
    pub(super) fn array(&mut self, items: usize) {
        self.header(b'*', items as u64);
    }

    /// So many pairs of replies follow.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(pairs * 2),
            Version::Three => self.header(b'%', pairs as u64),
        }
    }

    fn line(&mut self, mark: u8, text: &[u8]) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(LINE_END);
    }

    fn header(&mut self, mark: u8, mut number: u64) {
        let mut digits = [0; DIGITS_MAX];
        let mut first = DIGITS_MAX;
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.line(mark, &digits[first..]);
    }
}

const LINE_END: &[u8] = b"\r\n";

/// Those of the largest number.
const DIGITS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies::default();
        replies.speak(version);
        write(&mut replies);
        String::from_utf8(replies.bytes().to_vec()).unwrap()
    }

    #[test]
    fn each_kind_of_reply_is_written_as_the_protocol_has_it() {
        let write = |replies: &mut Replies| {
            replies.status("OK");
            replies.number(0);
            replies.number(1_234_567_890);
            replies.number(u64::MAX);
            replies.number_or_unknown(None);
            replies.string(b"a\r\n");
            replies.array(2);
        };
        let both =
            "+OK\r\n:0\r\n:1234567890\r\n:9223372036854775807\r\n:-1\r\n$3\r\na\r\n\r\n*2\r\n";
        assert_eq!(written(Version::Two, write), both);
        assert_eq!(written(Version::Three, write), both);
    }

    #[test]
    fn maps_and_nothing_differ_by_version() {
        let write = |replies: &mut Replies| {
            replies.map(3);
            replies.nothing();
        };
        assert_eq!(written(Version::Two, write), "*6\r\n$-1\r\n");
        assert_eq!(written(Version::Three, write), "%3\r\n_\r\n");
    }

    #[test]
    fn an_error_stays_on_one_line_whatever_it_quotes() {
        assert_eq!(
            written(Version::Two, |replies| replies.error("ERR a\r\n+OK")),
            "-ERR a  +OK\r\n"
        );
    }
}
