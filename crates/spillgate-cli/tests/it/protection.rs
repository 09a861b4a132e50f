//! Access to the APIs: tokens, TLS and certificates.

use std::io::{Read, Write};

use spillgate_testkit::Certificates;

use crate::credentials::ask_over_tls;
use crate::envoy::client::{Caller, descriptor};
use crate::server::{Server, TempFile, run, serve, spillgate};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn an_api_with_a_token_answers_only_callers_that_send_it() {
    let token = TempFile::new("token", &format!("{TOKEN}\n"));
    let server = Server::start_command(
        spillgate(&["serve", "--http", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path()),
    );
    let ask = |authorization: &str| {
        let mut client = server.client();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nHost: h\r\n{authorization}Content-Length: 2\r\n\r\n{{}}"
        );
        client.write(head.as_bytes()).unwrap();
        client.read().unwrap()
    };
    assert_eq!(ask(&format!("Authorization: Bearer {TOKEN}\r\n")).status, 200);
    for wrong in [
        String::new(),
        "Authorization: Bearer wrong\r\n".to_owned(),
        format!("Authorization: Basic {TOKEN}\r\n"),
        format!("Authorization: Bearer {TOKEN}0\r\n"),
    ] {
        let reply = ask(&wrong);
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
        assert!(reply.body.contains("Authorization: Bearer TOKEN"), "{}", reply.body);
    }
}

#[test]
fn an_empty_token_file_prevents_the_start() {
    for text in ["", "short", "0123456789 abcdef0123456789"] {
        let token = TempFile::new("token", text);
        let output = spillgate(&["serve", "--http", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("field `server.data_token_file`"), "{errors}");
        assert!(errors.contains("openssl rand -hex 32"), "{errors}");
    }
}

#[test]
fn an_api_with_tls_may_require_a_certificate() {
    let certificates = Certificates::make();
    let authority = certificates.authority();
    let settings = |client_ca: &str| {
        let (cert, key) = (certificates.server(), certificates.server_key());
        TempFile::new(
            "tls.toml",
            &format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n{client_ca}"),
        )
    };
    let ask = |server: &Server, client: Option<&Certificates>| {
        let request = "POST /v1/check HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
        ask_over_tls(server.port, &authority, client, request)
    };
    let plain = settings("");
    let server = serve(&plain);
    assert!(ask(&server, None).contains("\"allowed\":true"));
    drop(server);

    let mutual = settings(&format!("client_ca = {authority:?}\n"));
    let server = serve(&mutual);
    assert!(ask(&server, Some(&certificates)).contains("\"allowed\":true"));
    assert!(!ask(&server, None).contains("allowed"));
}

#[test]
fn a_certificate_without_its_key_is_refused() {
    for (text, complaint) in [
        ("[server.tls]\ncert = \"a\"\n", "key is missing"),
        ("[server.tls]\nkey = \"a\"\n", "cert is missing"),
        ("[server.tls]\nclient_ca = \"a\"\n", "name both"),
        ("[server.tls]\ncert = \"/nowhere\"\nkey = \"/nowhere\"\n", "/nowhere"),
    ] {
        let file = TempFile::new("tls.toml", text);
        let output = run(&["serve", "--http", "127.0.0.1:0", "--config", file.path()]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("field `server.tls"), "{errors}");
        assert!(errors.contains(complaint), "{errors}");
    }
}

/// As browsers send it for a foreign page: a form, a fetch without CORS, a host name that resolves to this server.
#[test]
fn a_foreign_page_cannot_spend_a_limit_without_a_token() {
    let server = Server::start(&[]);
    let port = server.port;
    let here = format!("127.0.0.1:{port}");
    let rebound = format!("evil.example:{port}");
    let own = format!("http://{rebound}");
    let once = br#"{"key":"victim","limit":{"quota":"1/day"}}"#;
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        server.client().send_with(method, path, headers, once).unwrap()
    };
    for (name, headers) in [
        ("Sec-Fetch-Site", &[("Host", &*here), ("Sec-Fetch-Site", "cross-site")][..]),
        ("Sec-Fetch-Site", &[("Host", &here), ("Sec-Fetch-Site", "same-site")]),
        ("Origin", &[("Host", &here), ("Origin", "http://evil.example")]),
        ("Origin", &[("Host", &here), ("Origin", "null")]),
        ("Host", &[("Host", &rebound), ("Origin", &own)]),
        ("Host", &[("Host", &rebound), ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)")]),
    ] {
        for (method, path) in [("POST", "/v1/check"), ("POST", "/v1/reserve"), ("GET", "/v1/auth")]
        {
            let reply = ask(method, path, headers);
            assert_eq!(reply.status, 403, "{path} {headers:?}: {reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
            assert!(reply.body.contains(name), "{path} {headers:?}: {}", reply.body);
            assert!(reply.body.contains("data_token_file"), "{}", reply.body);
        }
    }
    let own = format!("http://{here}");
    let page = [("Host", &*here), ("Origin", &own), ("Sec-Fetch-Site", "same-origin")];
    assert!(ask("POST", "/v1/check", &page).body.contains("\"allowed\":true"), "nothing was spent");
    for headers in [&[("Host", "spillgate:8080")][..], &[("Host", "h"), ("User-Agent", "curl/8")]] {
        assert_eq!(ask("POST", "/v1/check", headers).status, 200, "{headers:?}");
    }
    let proxied = [
        ("Host", "shop.example"),
        ("Origin", "https://shop.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("X-Forwarded-Uri", "/login"),
    ];
    assert_eq!(
        ask("GET", "/v1/auth", &proxied).status,
        200,
        "a proxy describes a browser's request"
    );
}

#[test]
fn with_a_token_a_browser_is_a_caller_like_any_other() {
    let token = TempFile::new("token", &format!("{TOKEN}\n"));
    let server = Server::start_command(
        spillgate(&["serve", "--http", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path()),
    );
    let bearer = format!("Bearer {TOKEN}");
    let headers =
        [("Host", "shop.example"), ("Origin", "https://shop.example"), ("Authorization", &*bearer)];
    let reply = server.client().send_with("POST", "/v1/check", &headers, b"{}").unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Over HTTP/1, which a browser uses on a plain port, and over HTTP/2.
#[test]
fn a_foreign_page_cannot_call_over_grpc() {
    let server = Server::start(&[]);
    let mut stream =
        std::net::TcpStream::connect(("127.0.0.1", server.grpc_port.unwrap())).unwrap();
    stream
        .write_all(
            b"POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\n\r\n",
        )
        .unwrap();
    let mut answer = Vec::new();
    // The server closes, and may do so before it has read everything.
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", answer.escape_ascii());
    let caller = Caller::of(&server);
    let ip = [descriptor(&[("remote_address", "::1")])];
    let refused = caller.ask_as(&[("origin", "https://evil.example")], &ip).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("Origin"), "{refused:?}");
    assert!(caller.ask_as(&[], &ip).is_ok());
}
