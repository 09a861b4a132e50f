//! Encodes replies in the protocol of Redis, in the version that the client chose.

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// The version of the protocol, from the next reply on.
    pub version: Version,
}

/// The version of the protocol. Version 3 has maps, and a null of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    #[default]
    Two,
    Three,
}

impl Replies {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes the replies after they are sent, and keeps the memory for the next.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Frees the memory of a client that is silent for a while.
    pub fn free_memory(&mut self) {
        self.bytes = Vec::new();
    }

    /// Writes a status such as `OK` or `PONG`.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error, which begins with its code, such as `ERR …`. Control characters become spaces, so that a text
    /// of the client cannot end the line.
    pub fn error(&mut self, text: &str) {
        let start = self.bytes.len() + 1;
        self.line(b'-', text.as_bytes());
        let end = self.bytes.len() - LINE_END.len();
        self.bytes[start..end]
            .iter_mut()
            .filter(|byte| byte.is_ascii_control())
            .for_each(|byte| *byte = b' ');
    }

    /// Writes a number. Integers of the protocol have a sign, so a larger one becomes the largest.
    pub fn number(&mut self, number: u64) {
        self.header(b':', number.min(i64::MAX as u64));
    }

    /// Writes a number, or -1 if it is unknown.
    pub fn number_or_unknown(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.line(b':', b"-1"),
        }
    }

    pub fn string(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(LINE_END);
    }

    pub fn nothing(&mut self) {
        match self.version {
            Version::Two => self.line(b'$', b"-1"),
            Version::Three => self.line(b'_', b""),
        }
    }

    /// Begins an array. The next `items` replies are its items.
    pub fn array(&mut self, items: usize) {
        self.header(b'*', items);
    }

    /// Begins a map. The next `pairs` pairs of replies are its entries.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.array(pairs * 2),
            Version::Three => self.header(b'%', pairs),
        }
    }

    fn line(&mut self, mark: u8, text: &[u8]) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(LINE_END);
    }

    fn header(&mut self, mark: u8, number: impl itoa::Integer) {
        self.line(mark, itoa::Buffer::new().format(number).as_bytes());
    }
}

const LINE_END: &[u8] = b"\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies { version, ..Replies::default() };
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
    fn an_error_with_a_quoted_line_end_stays_on_one_line() {
        assert_eq!(
            written(Version::Two, |replies| replies.error("ERR a\r\n+OK")),
            "-ERR a  +OK\r\n"
        );
    }
}
