//! The messages to a service manager over `NOTIFY_SOCKET`, and systemd's check of the unit.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use spillgate_testkit::Folder;

use crate::clock::monotonic_us;
use crate::server::{LISTENING, Server, TempFile, spillgate, without_settings};

const GOOD: &str = "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"5/minute\"]\n";

/// The manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    fn at(address: &SocketAddr) -> Manager {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Manager(socket)
    }

    /// Returns the fields of the next message.
    #[track_caller]
    fn message(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned).collect()
    }
}

fn start(name: &str, arguments: &[&str]) -> Server {
    let mut command = spillgate(&[&["serve"], &LISTENING[..], arguments].concat());
    Server::start_command(command.env("NOTIFY_SOCKET", name))
}

#[test]
fn the_manager_gets_the_start_each_reload_and_the_end() {
    let folder = TempFile::new("notify", "");
    fs::remove_file(folder.path()).unwrap();
    let manager = Manager::at(&SocketAddr::from_pathname(folder.path()).unwrap());
    let file = TempFile::new("limits.toml", GOOD);
    let server = start(folder.path(), &["--config", file.path()]);
    let ready = manager.message();
    assert_eq!(ready[0], "READY=1");
    assert!(ready[1].starts_with("STATUS=HTTP on http://127.0.0.1:"), "{ready:?}");

    let before = monotonic_us();
    server.hang_up();
    let reloading = manager.message();
    assert_eq!(reloading[0], "RELOADING=1");
    let at: u64 = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
    assert!((before..=monotonic_us()).contains(&at), "{at} is not between {before} and now");
    let again = manager.message();
    assert_eq!(again[0], "READY=1");
    assert!(again[1].ends_with(": 1 rule in force"), "{again:?}");

    fs::write(file.path(), "[[rule]]\n").unwrap();
    server.hang_up();
    // The changed file may have been found before the signal came.
    let refused =
        std::iter::repeat_with(|| manager.message()).find(|message| message[0] == "READY=1");
    let refused = refused.unwrap();
    assert!(refused[1].starts_with("STATUS=the policy in force stays: "), "{refused:?}");
    assert_eq!(refused.len(), 2, "{refused:?}");

    assert_eq!(server.stop().code(), Some(0));
    let mut last = manager.message();
    while last != ["STOPPING=1"] {
        last = manager.message();
    }
}

#[test]
fn an_abstract_socket_works_too_and_a_reload_without_a_file_ends() {
    let name = format!("spillgate-test-{}", std::process::id());
    let manager = Manager::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let server = start(&format!("@{name}"), &[]);
    assert_eq!(manager.message()[0], "READY=1");
    server.hang_up();
    assert_eq!(manager.message()[0], "RELOADING=1");
    assert_eq!(manager.message()[0], "READY=1");
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(manager.message(), ["STOPPING=1"]);
}

#[test]
fn a_missing_manager_does_not_prevent_the_start() {
    let server = start("/nowhere/notify", &[]);
    assert_eq!(server.check("{}")["allowed"], true);
    assert_eq!(server.stop().code(), Some(0));
}

/// Returns a command that gets a listening socket as systemd passes it: as file 3, with variables that name it.
fn with_socket(socket: OwnedFd, arguments: &[&str]) -> Command {
    let program = spillgate(arguments);
    let mut command = Command::new("sh");
    without_settings(&mut command);
    command
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 0</dev/null"])
        .arg(program.get_program())
        .args(program.get_args())
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(socket);
    command
}

#[test]
fn instances_share_a_passed_socket_and_clients_wait_while_none_accepts() {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let http = address.to_string();
    let arguments = [&["serve"], &LISTENING[2..], &["--http", &http, "--grpc", "off"]].concat();
    let start =
        || Server::start_command(&mut with_socket(socket.try_clone().unwrap().into(), &arguments));
    let ask = || {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client
            .write_all(b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        client
    };
    let answered = |mut client: TcpStream| {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    };
    let first = start();
    answered(ask());
    let second = start();
    assert_eq!(first.stop().code(), Some(0));
    answered(ask());
    assert_eq!(second.stop().code(), Some(0));
    let waiting = ask();
    let third = start();
    answered(waiting);
    assert_eq!(third.stop().code(), Some(0));
}

#[test]
fn a_passed_socket_that_no_listener_can_use_is_refused_with_the_remedy() {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let refused = |socket: OwnedFd, http: &str, parts: [&str; 2]| {
        let arguments = [&["serve", "--http", http], &LISTENING[2..], &["--grpc", "off"]].concat();
        let mut command = with_socket(socket, &arguments);
        let output = command.env("SPILLGATE_SERVER__INSECURE", "true").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{errors}");
    };
    let listening = || OwnedFd::from(socket.try_clone().unwrap());
    let on = format!("a socket that listens on {address}");
    refused(listening(), "127.0.0.1:0", [&on, "correct ListenStream"]);
    // As with ListenStream=8080, which is one for every address.
    let every = format!("0.0.0.0:{}", address.port());
    refused(
        listening(),
        &every,
        [&format!("passed a socket for {address}"), "write ListenStream=0.0.0.0:"],
    );
    let client = TcpStream::connect(address).unwrap();
    refused(client.into(), "127.0.0.1:0", ["does not listen", "leave out Accept=yes"]);
    let (file, _) = UnixDatagram::pair().unwrap();
    refused(file.into(), "127.0.0.1:0", ["cannot be used: fd 3", "ListenStream=ADDRESS:PORT"]);
}

#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_accepts_the_units() {
    let socket = fs::read_to_string(unit().with_file_name("sockets/spillgate.socket")).unwrap();
    let unit = fs::read_to_string(unit()).unwrap();
    // The program of the unit need not be installed on this machine.
    let unit = unit.replace("/usr/bin/spillgate", env!("CARGO_BIN_EXE_spillgate"));
    let folder = Folder::create();
    let file = folder.write("spillgate.service", &unit);
    let socket = folder.write("spillgate.socket", &socket);
    let output =
        Command::new("systemd-analyze").arg("verify").args([&file, &socket]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let exposure = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=15", "--no-pager"])
        .arg(&file)
        .output()
        .unwrap();
    let of_unit: Vec<&str> = errors.lines().filter(|line| line.contains("spillgate")).collect();
    assert!(output.status.success() && of_unit.is_empty(), "{errors}");
    let table = String::from_utf8_lossy(&exposure.stdout).into_owned();
    println!("{}", table.lines().last().unwrap_or_default());
    assert!(exposure.status.success(), "exposed more than 1.5 of 10: {table}");
}

#[test]
fn the_unit_starts_the_server_with_valid_flags() {
    let unit = fs::read_to_string(unit()).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split_whitespace().collect();
    assert_eq!(words[..2], ["/usr/bin/spillgate", "serve"]);
    // With --help it does not start, but every flag is parsed before.
    let output = spillgate(&[&words[1..], &["--help"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn unit() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd/spillgate.service"))
}
