//! An HTTP/1.1 client whose bytes a test controls: one connection, one request at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The header fields as received, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Client {
    pub(crate) fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    pub(crate) fn post(&mut self, path: &str, body: &[u8]) -> io::Result<Reply> {
        self.send("POST", path, body)
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Reply> {
        self.send_with(method, path, &[("Host", "localhost")], body)
    }

    /// Sends a request with these header lines, and no others except the length.
    pub(crate) fn send_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n");
        self.write(&[head.as_bytes(), body].concat())?;
        self.read()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub(crate) fn read(&mut self) -> io::Result<Reply> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status =
            status.ok_or_else(|| io::Error::other(format!("no status: {status_line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut reply = Reply { status, headers, body: String::new() };
        let mut body =
            vec![0; reply.header("content-length").map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body)?;
        reply.body = String::from_utf8(body).unwrap();
        Ok(reply)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Far longer than any answer takes, and short enough to see which test hangs.
const PATIENCE: Duration = Duration::from_secs(20);
