//! Certificates, tokens and passwords that change while the service runs, and clients that guess them.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use spillgate_testkit::{
    Certificates, ClientCertificate, Connection, RedisServer, Reply, TlsServer, eventually,
};

use crate::client::Client;
use crate::clock::monotonic_us;
use crate::envoy::client::{Caller, descriptor};
use crate::server::{Server, TempFile, run, spillgate};

const OLD: &str = "0123456789abcdef0123456789abcdef";
const NEW: &str = "fedcba9876543210fedcba9876543210";
const QUESTION: &str = r#"{"key":"u","limit":{"quota":"1000000/minute"}}"#;

/// Starts openssl's own client, which accepts the server only if this authority has signed its certificate. It presents
/// a certificate of its own if it has one.
fn dial(port: u16, authority: &Path, client: Option<&Certificates>) -> Child {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-verify_return_error", "-connect"]);
    command.arg(format!("127.0.0.1:{port}")).arg("-CAfile").arg(authority);
    if let Some(client) = client {
        command.arg("-cert").arg(client.client()).arg("-key").arg(client.client_key());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Returns the answer to a request over TLS; it is empty if client or server refused the other.
pub(crate) fn ask_over_tls(
    port: u16,
    authority: &Path,
    client: Option<&Certificates>,
    request: &str,
) -> String {
    let mut client = dial(port, authority, client);
    // A client that was refused in the handshake accepts no more bytes.
    let _ = client.stdin.as_mut().unwrap().write_all(request.as_bytes());
    let mut answer = String::new();
    let _ = client.stdout.take().unwrap().read_to_string(&mut answer);
    client.wait().unwrap();
    answer
}

fn takes(port: u16, authority: &Path) -> bool {
    let request = "GET /v1/openapi.json HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    ask_over_tls(port, authority, None, request).starts_with("HTTP/1.1 200 ")
}

#[test]
fn new_handshakes_use_a_new_certificate_and_open_connections_stay() {
    let (old, new) = (Certificates::make(), Certificates::make());
    let (cert, key) = (TempFile::new("cert.pem", ""), TempFile::new("key.pem", ""));
    let put = |certificates: &Certificates| {
        fs::copy(certificates.server(), cert.path()).unwrap();
        fs::copy(certificates.server_key(), key.path()).unwrap();
    };
    put(&old);
    let files = format!("[server.tls]\ncert = \"{}\"\nkey = \"{}\"\n", cert.path(), key.path());
    let file = TempFile::new("tls.toml", &files);
    let mut server = Server::start(&["--config", file.path()]);
    assert!(takes(server.port, &old.authority()));

    let mut open = dial(server.port, &old.authority(), None);
    let mut answers = BufReader::new(open.stdout.take().unwrap());
    let mut ask = || {
        let request = "GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n";
        open.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        // A body does not end with a line feed.
        while !line.contains("HTTP/1.1 404 ") {
            line.clear();
            assert_ne!(answers.read_line(&mut line).unwrap(), 0, "it was cut");
        }
    };
    ask();

    fs::write(cert.path(), "no certificate").unwrap();
    let log = server.log_until("server.tls: the version in force stays");
    assert!(log.contains("error: field `server.tls.cert`: "), "{log}");
    assert!(takes(server.port, &old.authority()));

    put(&new);
    server.log_until("server.tls: read again");
    assert!(takes(server.port, &new.authority()) && !takes(server.port, &old.authority()));
    ask();
    open.kill().unwrap();
    open.wait().unwrap();
    let log = server.rest_of_log();
    assert!(!log.contains("the version in force stays"), "reported more than once: {log}");
}

#[test]
fn new_tokens_and_passwords_take_effect_and_bad_files_change_nothing() {
    let [data, resp] = ["data", "resp"].map(|name| TempFile::new(name, OLD));
    let admin = TempFile::new("admin", &format!("ann:operator:{OLD}"));
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    command.args(["--admin", "127.0.0.1:0"]);
    command.env("SPILLGATE_SERVER__DATA_TOKEN_FILE", data.path());
    command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", admin.path());
    let mut server =
        Server::start_command(command.env("SPILLGATE_SERVER__RESP__PASSWORD_FILE", resp.path()));
    let status = |mut client: Client, method: &str, path: &str, token: &str, body: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Host", "localhost"), ("Authorization", &*authorization)];
        client.send_with(method, path, &headers, body.as_bytes()).unwrap().status
    };
    let takes = |server: &Server, token: &str| {
        let mut connection = server.resp();
        let password = connection.command(&["AUTH", token]).unwrap();
        [
            status(server.client(), "POST", "/v1/check", token, QUESTION) == 200,
            status(server.operator(), "GET", "/admin/v1/rules", token, "") == 200,
            password == Reply::Status("OK".into()),
        ]
    };
    let mut open = server.resp();
    open.command(&["AUTH", OLD]).unwrap();
    assert_eq!((takes(&server, OLD), takes(&server, NEW)), ([true; 3], [false; 3]));

    fs::write(data.path(), "short").unwrap();
    let log = server.log_until("server.data_token_file: the version in force stays");
    assert!(log.contains("error: field `server.data_token_file`: "), "{log}");
    assert_eq!(takes(&server, OLD), [true; 3]);

    for file in [&data, &resp] {
        fs::write(file.path(), NEW).unwrap();
    }
    fs::write(admin.path(), format!("ann:operator:{NEW}")).unwrap();
    server.hang_up();
    eventually(|| takes(&server, NEW) == [true; 3]);
    assert_eq!(takes(&server, OLD), [false; 3]);
    let reply = open.command(&["CL.THROTTLE", "u", "5", "1", "60"]).unwrap();
    assert!(matches!(reply, Reply::Array(_)), "an open connection was shut out: {reply:?}");
    let log = server.rest_of_log();
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
}

#[test]
fn a_data_token_is_rotated_without_a_gap() {
    let file = TempFile::new("data", OLD);
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    command.args(["--admin", "off"]);
    let server =
        Server::start_command(command.env("SPILLGATE_SERVER__DATA_TOKEN_FILE", file.path()));
    let takes = |token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Host", "localhost"), ("Authorization", &*authorization)];
        let mut client = server.client();
        let reply = client.send_with("POST", "/v1/check", &headers, QUESTION.as_bytes());
        let password = server.resp().command(&["AUTH", token]).unwrap();
        [reply.unwrap().status == 200, password == Reply::Status("OK".into())]
    };
    assert_eq!((takes(OLD), takes(NEW)), ([true; 2], [false; 2]));
    fs::write(file.path(), format!("{NEW}\n{OLD}\n")).unwrap();
    server.hang_up();
    eventually(|| takes(NEW) == [true; 2]);
    assert_eq!(takes(OLD), [true; 2]);
    fs::write(file.path(), format!("{NEW}\n")).unwrap();
    server.hang_up();
    eventually(|| takes(OLD) == [false; 2]);
    assert_eq!(takes(NEW), [true; 2]);
}

#[test]
fn the_password_of_the_store_comes_from_a_file_and_changes_with_it() {
    let redis = RedisServer::start();
    redis.command(&["ACL", "SETUSER", "me", "on", ">hunter/old@1", "~*", "&*", "+@all"]);
    let password = TempFile::new("password", "hunter/old@1\n");
    let settings = format!(
        "[store]\nurl = \"redis://me@127.0.0.1:{}\"\ntimeout = \"10s\"\npassword_file = \"{}\"\n",
        redis.port(),
        password.path()
    );
    let file = TempFile::new("settings.toml", &settings);
    let mut server = Server::start(&["--config", file.path()]);
    let source = |server: &Server| server.check(QUESTION)["source"].clone();
    assert_eq!(source(&server), "store");
    redis.command(&["ACL", "SETUSER", "me", "<hunter/old@1", ">hunter/new"]);
    redis.command(&["CLIENT", "KILL", "USER", "me"]);
    fs::write(password.path(), "hunter/new\n").unwrap();
    let mut log = server.log_until("credentials of the store: read again");
    eventually(|| source(&server) == "store");
    let doctor = run(&["doctor", "--config", file.path()]);
    assert_eq!(doctor.status.code(), Some(0), "{}", String::from_utf8_lossy(&doctor.stderr));
    log += &server.rest_of_log();
    assert!(!log.contains("hunter"), "{log}");
}

#[test]
fn a_secret_that_every_user_of_the_machine_may_read_is_warned_about() {
    let redis = RedisServer::start();
    let secret = TempFile::new("secret", "000102030405060708090a0b0c0d0e0f");
    let settings =
        format!("[store]\nurl = \"{}\"\nkey_secret_file = \"{}\"\n", redis.url(), secret.path());
    let file = TempFile::new("settings.toml", &settings);
    let warned = || {
        let log = Server::start(&["--config", file.path()]).before_ready.clone();
        let doctor = run(&["doctor", "--config", file.path()]);
        let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
        [log, doctor].map(|text| {
            text.contains("every user of this machine may read")
                && text.contains(&format!("chmod o= {}", secret.path()))
        })
    };
    assert_eq!(warned(), [false; 2]);
    fs::set_permissions(secret.path(), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(warned(), [true; 2]);
}

#[test]
fn a_new_password_of_the_store_is_used_by_the_next_connection_and_a_wrong_one_is_an_error() {
    let redis = RedisServer::start();
    redis.command(&["ACL", "SETUSER", "me", "on", ">hunter-old", "~*", "&*", "+@all"]);
    let settings = |password: &str| {
        format!(
            "[store]\nurl = \"redis://me:{password}@127.0.0.1:{}\"\ntimeout = \"10s\"\n",
            redis.port()
        )
    };
    let file = TempFile::new("settings.toml", &settings("hunter-old"));
    let mut server = Server::start(&["--config", file.path()]);
    let source = |server: &Server| server.check(QUESTION)["source"].clone();
    assert_eq!(source(&server), "store");

    redis.command(&["ACL", "SETUSER", "me", "<hunter-old", ">hunter-new"]);
    assert_eq!(source(&server), "store", "open connections stay");
    redis.command(&["CLIENT", "KILL", "USER", "me"]);
    let mut log = server.log_until("error: the store rejects the credentials");
    fs::write(file.path(), settings("hunter-new")).unwrap();
    log += &server.log_until("credentials of the store: read again");
    eventually(|| source(&server) == "store");
    log += &server.rest_of_log();
    assert_eq!(log.matches("the store rejects the credentials").count(), 1, "{log}");
    assert!(!log.contains("hunter"), "{log}");
}

#[test]
fn new_certificates_for_the_store_are_used_by_the_next_connection() {
    let tls = TlsServer::start(ClientCertificate::Required);
    let other = Certificates::make();
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| TempFile::new(name, ""));
    let put = |client: &Certificates| {
        fs::copy(tls.certificates.authority(), ca.path()).unwrap();
        fs::copy(client.client(), cert.path()).unwrap();
        fs::copy(client.client_key(), key.path()).unwrap();
    };
    put(&other);
    let file = TempFile::new(
        "settings.toml",
        &format!(
            "[store]\nurl = \"{}\"\ntimeout = \"10s\"\ntls = {{ ca = \"{}\", cert = \"{}\", key = \"{}\" }}\n",
            tls.url(),
            ca.path(),
            cert.path(),
            key.path()
        ),
    );
    let server = Server::start(&["--config", file.path()]);
    assert_eq!(server.check(QUESTION)["source"], "fallback");
    put(&tls.certificates);
    eventually(|| server.check(QUESTION)["source"] == "store");
}

/// Starts a server that requires a password at every API.
fn guarded() -> (Server, [TempFile; 2]) {
    let token = TempFile::new("token", OLD);
    let tokens = TempFile::new("tokens", &format!("ann:operator:{OLD}"));
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    command.args(["--admin", "127.0.0.1:0"]);
    command.env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path());
    let server =
        Server::start_command(command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", tokens.path()));
    (server, [token, tokens])
}

#[test]
fn guesses_over_resp_are_refused_and_reported_once_a_second() {
    const GUESSES: usize = 100;
    let (server, _tokens) = guarded();
    let mut client = Connection::open(server.resp_port.unwrap()).unwrap();
    let began_us = monotonic_us();
    let guesses = vec![vec![b"AUTH".to_vec(), b"wrong".to_vec()]; GUESSES];
    for reply in client.pipeline(&guesses).unwrap() {
        assert!(matches!(&reply, Reply::Error(why) if why.starts_with("WRONGPASS")), "{reply:?}");
    }
    assert_eq!(client.command(&["AUTH", OLD]).unwrap(), Reply::Status("OK".into()));
    let log = server.rest_of_log();
    let seconds = (monotonic_us() - began_us).div_ceil(1_000_000);
    let lines = log.lines().filter(|line| line.contains("wrong credentials listener=\"RESP\""));
    assert!((1..=seconds + 1).contains(&(lines.count() as u64)), "{log}");
}

#[test]
fn guesses_over_http_are_refused_and_reported() {
    let (server, _tokens) = guarded();
    let wrong = [("Host", "localhost"), ("Authorization", "Bearer wrong")];
    for (mut client, method, path, status) in [
        (server.client(), "POST", "/v1/check", 401),
        (server.operator(), "GET", "/admin/v1/rules", 401),
        (server.operator(), "GET", "/readyz?verbose", 200),
    ] {
        for _ in 0..4 {
            let reply = client.send_with(method, path, &wrong, b"").unwrap();
            assert_eq!(reply.status, status, "{path}");
        }
    }
    let log = server.rest_of_log();
    for listener in ["HTTP", "admin"] {
        let line = format!("warning: wrong credentials listener=\"{listener}\" failures=");
        let lines = log.matches(&line).count();
        assert!((1..=10).contains(&lines), "{lines} of {listener}: {log}");
    }
}

#[test]
fn guesses_over_grpc_are_refused_and_reported() {
    let (server, _tokens) = guarded();
    let caller = Caller::of(&server);
    let ask = |token: &str| {
        let authorization = format!("Bearer {token}");
        caller.ask_as(&[("authorization", &authorization)], &[descriptor(&[("a", "b")])])
    };
    for _ in 0..4 {
        assert_eq!(ask("wrong").unwrap_err().code(), tonic::Code::Unauthenticated);
    }
    assert!(ask(OLD).is_ok());
    let log = server.rest_of_log();
    let lines = log.matches("warning: wrong credentials listener=\"gRPC\" failures=").count();
    assert!((1..=10).contains(&lines), "{log}");
}
