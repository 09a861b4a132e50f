//! Real proxies in front of the real server, configured by deploy/proxies/.

mod caddy;
mod envoy;
mod nginx;
mod traefik;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use spillgate_testkit::{Folder, Process, eventually, free_port};

use crate::client::{Client, Reply};
use crate::server::{Server, TempFile};

const MORE_RULES: &str = r#"
[[rule]]
name = "unavailable"
match = { path = "/unavailable" }
key = []
limits = ["block"]
denial = { status = 503 }

[[rule]]
name = "key"
match = { path = "/key" }
key = ["x-api-key"]
limits = ["1/hour"]
"#;

/// A proxy in front of an application, limited by Spillgate and configured as the document shows.
struct Rig {
    spillgate: Server,
    application: u16,
    /// The port on which the proxy listens.
    port: u16,
    /// The port on which the proxy listens for its own calls to Spillgate.
    inner_port: u16,
    folder: Folder,
}

impl Rig {
    fn new(original: &str) -> Rig {
        let settings =
            documented_settings().replace("\"x-original\"  ", &format!("\"{original}\"  "));
        let file = TempFile::new("auth.toml", &format!("{settings}\n{MORE_RULES}"));
        Rig {
            spillgate: Server::start(&["--config", file.path()]),
            application: application(),
            port: free_port(),
            inner_port: free_port(),
            folder: Folder::create(),
        }
    }

    /// Returns a file of deploy/proxies/ with this test's addresses.
    fn recipe(&self, name: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/proxies");
        self.exchange(&fs::read_to_string(folder.join(name)).unwrap())
    }

    fn exchange(&self, text: &str) -> String {
        text.replace("127.0.0.1:8000", &format!("127.0.0.1:{}", self.port))
            .replace("http://:8000", &format!("http://:{}", self.port))
            .replace("127.0.0.1:8001", &format!("127.0.0.1:{}", self.inner_port))
            .replace("http://:8001", &format!("http://:{}", self.inner_port))
            .replace("127.0.0.1:3000", &format!("127.0.0.1:{}", self.application))
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.spillgate.port))
            .replace("port_value: 8000", &format!("port_value: {}", self.port))
            .replace("port_value: 3000", &format!("port_value: {}", self.application))
            .replace("port_value: 8080", &format!("port_value: {}", self.spillgate.port))
    }

    /// Writes a file of the proxy, and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        self.folder.write(name, text).to_str().unwrap().to_owned()
    }

    fn start(&self, program: &Path, arguments: &[&str]) -> Process {
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let proxy = Process::start(
            Command::new(program)
                .args(arguments)
                .current_dir(self.folder.path())
                .env("HOME", self.folder.path())
                .stdout(Stdio::null())
                .stderr(log),
        );
        let up = || {
            Client::connect(self.port).is_ok_and(|mut client| get(&mut client, "/up", &[]).is_ok())
        };
        eventually(up);
        proxy
    }

    /// Runs the checks that every proxy must pass.
    fn check_limits(&self) {
        let ask = |path: &str, headers: &[(&str, &str)]| {
            get(&mut Client::connect(self.port).unwrap(), path, headers).unwrap()
        };
        for _ in 0..2 {
            let reply = ask("/login?x=1", &[]);
            assert_eq!((reply.status, reply.body.as_str()), (200, "the application"), "{reply:?}");
        }
        for path in ["/login", "/login?y=2", "/%6cogin"] {
            let reply = ask(path, &[]);
            assert_eq!(reply.status, 429, "{path}: {reply:?}");
            let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=1_800).contains(&wait), "{reply:?}");
            assert!(reply.header("ratelimit").unwrap().starts_with("\"login\";r=0"), "{reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
            assert!(reply.body.contains("quota-exceeded"), "{reply:?}");
        }
        for forged in [
            ("X-Forwarded-Uri", "/other"),
            ("X-Forwarded-Method", "POST"),
            ("X-Original-URI", "/other"),
            ("X-Original-Method", "POST"),
            ("Forwarded", "for=6.6.6.6"),
            ("X-Real-Ip", "6.6.6.6"),
        ] {
            assert_eq!(ask("/login", &[forged]).status, 429, "{forged:?}");
        }
        assert_eq!(ask("/login?deny_status=404", &[]).status, 429);
        // A proxy that takes it for a failure would let it pass.
        let unavailable = ask("/unavailable", &[]);
        assert!([429, 503].contains(&unavailable.status), "{unavailable:?}");
        let key = |key| ("X-Api-Key", key);
        let requests = [&[key("a")][..], &[key("a"), key("b")], &[key("a"), key("c")], &[key("a")]];
        assert_eq!(requests.map(|keys| ask("/key", keys).status), [200, 200, 429, 429]);
        assert_eq!(ask("/other", &[]).status, 200);
        assert_eq!(ask("/Login", &[]).status, 200);
    }

    /// Runs the checks for a proxy that replaces the client's own claim of its address. A proxy that appends to it
    /// would take this test's client, which has the address of a trusted proxy, for another proxy.
    fn check_addresses(&self) {
        let mut client = Client::connect(self.port).unwrap();
        let forged = [("X-Forwarded-For", "6.6.6.6")];
        assert_eq!(get(&mut client, "/login", &forged).unwrap().status, 429);
    }
}

fn get(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> std::io::Result<Reply> {
    client.send_with("GET", path, &[&[("Host", "app.example")], headers].concat(), b"")
}

/// Starts an application that answers 200 to every request; it ends with the test.
fn application() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut head = [0; 16 * 1024];
                // A client that disconnects concerns no test.
                let _ = stream.read(&mut head);
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\nthe application",
                );
            });
        }
    });
    port
}

/// Returns the block with the settings of forward auth from its reference.
fn documented_settings() -> &'static str {
    let document = include_str!("../../../../../docs/reference/forward-auth.md");
    let blocks = document.split("```toml\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains("[server.auth]")).expect("the reference has this table")
}

/// Returns the program that the variable names, or the one on the path.
#[track_caller]
fn program(variable: &str, name: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file());
    named.or(found).unwrap_or_else(|| {
        panic!("there is no {name}: run ./check --full or ./evidence apis, which install it")
    })
}
