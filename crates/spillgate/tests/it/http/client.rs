//! A kept-alive HTTP/1.1 connection, and services to talk to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::Router;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use tokio::runtime::Runtime;

/// One response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(port: u16) -> Client {
        Client::try_connect(port).unwrap()
    }

    pub fn try_connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client(BufReader::new(stream)))
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[])
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "content-length: 0\r\n\r\n";
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        let status = self.line().split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = HeaderMap::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value.trim()).unwrap());
        }
        let body = match headers.get("content-length") {
            Some(length) => self.bytes(length.to_str().unwrap().parse().unwrap()),
            None if headers.contains_key("transfer-encoding") => self.chunks(),
            None => Vec::new(),
        };
        Answer { status, headers, body: String::from_utf8(body).unwrap() }
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line(), 16).unwrap();
            body.extend(self.bytes(length));
            assert_eq!(self.line(), "", "a chunk ends its line");
            if length == 0 {
                return body;
            }
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// A service on a port of its own, until dropped.
pub struct Served {
    pub port: u16,
    _runtime: Runtime,
}

/// A runtime for services, whose threads run while the test waits for a response.
pub fn threads() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub fn serve(runtime: Runtime, app: Router) -> Served {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    runtime.spawn(async move { axum::serve(listener, app).await });
    Served { port, _runtime: runtime }
}

/// Responses come in microseconds; this is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
