//! A small client for the Redis protocol (RESP2), so that tests see a server without the client under test.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::poll::PATIENCE;

/// One connection to a server on 127.0.0.1.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects; reading and writing then fail after ten seconds without progress.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn open(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        let connection = Self { stream: BufReader::new(stream) };
        connection.set_patience(PATIENCE)?;
        Ok(connection)
    }

    /// Sets how long a read or a write may make no progress before it fails.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.stream.get_ref().set_write_timeout(Some(patience))
    }

    /// Sends one command and reads its reply; an error reply is a [`Reply::Error`], not an `Err`.
    ///
    /// # Errors
    /// When the connection fails, or the server sends nothing for longer than the patience.
    pub fn command(&mut self, arguments: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.send(arguments)?;
        Reply::read(&mut self.stream)
    }

    /// Sends one command and leaves its reply unread: there may be none.
    pub(crate) fn send(&mut self, arguments: &[impl AsRef<[u8]>]) -> io::Result<()> {
        self.stream.get_mut().write_all(&encode(arguments))
    }

    /// Sends many commands in one write and reads their replies. The commands must be few enough that no buffer fills
    /// while the other side waits.
    ///
    /// # Errors
    /// As [`Connection::command`].
    pub fn pipeline(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<Reply>> {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        self.stream.get_mut().write_all(&bytes)?;
        commands.iter().map(|_| Reply::read(&mut self.stream)).collect()
    }
}

/// The reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string such as `OK`.
    Status(String),
    /// An error, its code first: `WRONGTYPE …`.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// Nothing: a missing value.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the number, also if it was sent as text.
    ///
    /// # Panics
    /// When the reply is no number.
    #[track_caller]
    #[must_use]
    pub fn integer(&self) -> i64 {
        let number = match self {
            Reply::Integer(number) => Some(*number),
            Reply::Bulk(bytes) => {
                std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok())
            }
            _ => None,
        };
        number.unwrap_or_else(|| panic!("expected an integer, the server answered {self:?}"))
    }

    /// Returns the text of a status or a string.
    ///
    /// # Panics
    /// When the reply is neither, or no UTF-8: match [`Reply::Bulk`] for bytes.
    #[track_caller]
    #[must_use]
    pub fn text(&self) -> &str {
        let text = match self {
            Reply::Status(text) => Some(text.as_str()),
            Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        };
        text.unwrap_or_else(|| panic!("expected text, the server answered {self:?}"))
    }

    fn read(source: &mut impl BufRead) -> io::Result<Self> {
        let line = read_line(source)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed("an empty line"))?;
        match kind {
            "+" => Ok(Reply::Status(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => rest.parse().map(Reply::Integer).map_err(|_| malformed(&line)),
            "$" => match length(rest)? {
                None => Ok(Reply::Nil),
                Some(length) => read_bulk(source, length).map(Reply::Bulk),
            },
            "*" => match length(rest)? {
                None => Ok(Reply::Nil),
                Some(length) => (0..length)
                    .map(|_| Self::read(source))
                    .collect::<io::Result<_>>()
                    .map(Reply::Array),
            },
            _ => Err(malformed(&line)),
        }
    }
}

fn encode(arguments: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments.iter().map(AsRef::as_ref) {
        frame.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        frame.extend_from_slice(argument);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

fn read_line(source: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    source.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
    }
}

fn read_bulk(source: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length + 2];
    source.read_exact(&mut bytes)?;
    if !bytes.ends_with(b"\r\n") {
        return Err(malformed("a string longer than its declared length"));
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Reads a length; `None` is the protocol's -1, a missing value.
fn length(text: &str) -> io::Result<Option<usize>> {
    if text == "-1" {
        return Ok(None);
    }
    let length: usize = text.parse().map_err(|_| malformed(text))?;
    if length > LENGTH_MAX {
        return Err(malformed(text));
    }
    Ok(Some(length))
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not RESP2: {text:?}"))
}

/// The bound of servers on the length of a string.
const LENGTH_MAX: usize = 512 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Reply> {
        Reply::read(&mut text.as_bytes())
    }

    #[test]
    fn reads_every_kind_of_reply() {
        assert_eq!(read("+OK\r\n").unwrap(), Reply::Status("OK".into()));
        assert_eq!(read("-ERR no\r\n").unwrap(), Reply::Error("ERR no".into()));
        assert_eq!(read(":-42\r\n").unwrap(), Reply::Integer(-42));
        assert_eq!(read("$4\r\na\r\nb\r\n").unwrap(), Reply::Bulk(b"a\r\nb".to_vec()));
        assert_eq!(read("$0\r\n\r\n").unwrap(), Reply::Bulk(Vec::new()));
        assert_eq!(read("$-1\r\n").unwrap(), Reply::Nil);
        assert_eq!(read("*-1\r\n").unwrap(), Reply::Nil);
        let nested = Reply::Array(vec![Reply::Integer(1), Reply::Array(vec![Reply::Nil])]);
        assert_eq!(read("*2\r\n:1\r\n*1\r\n$-1\r\n").unwrap(), nested);
    }

    #[test]
    fn a_truncated_or_foreign_answer_is_an_error() {
        for text in [
            "",
            "+OK",
            "$5\r\nab\r\n",
            "$2\r\nabcd\r\n",
            "*2\r\n:1\r\n",
            ":x\r\n",
            "$-2\r\n",
            "HTTP/1.1 200 OK\r\n",
            "\r\n",
        ] {
            assert!(read(text).is_err(), "{text:?} was read as a reply");
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_memory_is_allocated() {
        assert_eq!(read("$536870913\r\n").unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn sends_arguments_of_any_bytes() {
        assert_eq!(
            encode(&[b"SET".as_slice(), b"a\r\n\0", b""]),
            b"*3\r\n$3\r\nSET\r\n$4\r\na\r\n\0\r\n$0\r\n\r\n"
        );
    }

    #[test]
    fn numbers_and_text_are_read_from_either_form() {
        assert_eq!(Reply::Bulk(b"12".to_vec()).integer(), 12);
        assert_eq!(Reply::Status("OK".into()).text(), "OK");
    }
}
