//! Settings: three sources with one meaning, and every mistake reported with its place and remedy.

use std::io::Read;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use spillgate_testkit::{Process, free_port};

use crate::server::{Server, TempFile, spillgate};

#[test]
fn the_defaults_listen_on_loopback_and_keep_state_in_memory() {
    let server = Server::start(&[]);
    assert_eq!(
        server.ready,
        format!(
            "spillgate: HTTP on http://127.0.0.1:{}, gRPC on 127.0.0.1:{}, RESP on 127.0.0.1:{}, \
             admin on http://127.0.0.1:{}, store: memory\n",
            server.port,
            server.grpc_port.unwrap(),
            server.resp_port.unwrap(),
            server.admin_port.unwrap()
        )
    );
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let file = TempFile::new(
        "settings.toml",
        "[server]\nhttp = \"127.0.0.1:1\"\n[store]\nurl = \"redis://in-file:1\"\n",
    );
    let serve = |environment: &[(&str, &str)], flags: &[&str]| {
        let mut command = spillgate(&[&["serve", "--config", file.path()], flags].concat());
        Server::start_command(command.envs(environment.iter().copied())).ready
    };
    let http = ("SPILLGATE_SERVER__HTTP", "127.0.0.1:0");
    let store = ("SPILLGATE_STORE__URL", "redis://in-environment:1");
    assert!(serve(&[http], &[]).ends_with("store: redis://in-file:1\n"));
    assert!(serve(&[http, store], &[]).ends_with("store: redis://in-environment:1\n"));
    assert!(
        serve(&[http, store], &["--redis", "redis://in-flag:1"])
            .ends_with("store: redis://in-flag:1\n")
    );
    assert!(
        serve(&[("SPILLGATE_SERVER__HTTP", "127.0.0.1:2")], &["--http", "127.0.0.1:0"])
            .contains("http://127.0.0.1:")
    );
    assert!(
        serve(&[http, ("SPILLGATE_STORE__URL", "")], &[]).ends_with("store: redis://in-file:1\n")
    );
}

/// A file, and the beginning of the complaint behind the file's name.
const BAD_FILES: &[(&str, &str)] = &[
    (
        "[server]\nhttp = \"8080\"\n",
        ":2: field `server.http`: \"8080\" is not an address to listen on; write an IP address and a port",
    ),
    ("[server]\nhttp = 8080\n", ":2: field `server.http`: \"8080\" is not an address"),
    (
        "[server]\n\nhttpp = \"127.0.0.1:0\"\n",
        ":3: field `server.httpp`: no such setting; did you mean `server.http`?",
    ),
    ("[server]\nhttp = { a = 1 }\n", ":2: field `server.http.a`: no such setting"),
    (
        "[server]\ninsecure = \"yes\"\n",
        ":2: field `server.insecure`: \"yes\" is neither true nor false",
    ),
    (
        "server = 5\n",
        ":1: field `server`: no such setting; `spillgate validate --schema` lists all settings",
    ),
    (
        "[store]\ntimeout = \"25\"\n",
        ":2: field `store.timeout`: \"25\" is not a time from 1ms to 60s; write for example \"25ms\"",
    ),
    ("[store]\ntimeout = 25\n", ":2: field `store.timeout`: \"25\" is not a time"),
    ("[store]\nmax_keys = 0\n", ":2: field `store.max_keys`: \"0\" is not a count"),
    (
        "[store]\nurl = [1]\n",
        ":2: field `store.url`: takes a string, a whole number, true or false",
    ),
    (
        "[store]\nredis = \"redis://r\"\n",
        ":2: field `store.redis`: no such setting; write its address as store.url",
    ),
    (
        "[server]\ngrpc = \"127.0.0.1:8081\"\n",
        ":2: field `server.grpc`: no such setting; write its address as server.grpc.address",
    ),
    (
        "[server.grpc]\naddress = \"8081\"\n",
        ":2: field `server.grpc.address`: \"8081\" is not an address",
    ),
    (
        "[telemetry]\notlp.collector = \"x\"\n",
        ":2: field `telemetry.otlp.collector`: \"x\" is not the address of a collector; write its address for OTLP over gRPC",
    ),
    (
        "[telemetry.otlp]\nmetrics_every = \"15s\"\n",
        ":2: field `telemetry.otlp.metrics_every`: no such setting; let the collector scrape /metrics",
    ),
    (
        "[telemetry]\nmetrics = false\n",
        ":2: field `telemetry.metrics`: no such setting; decisions are always counted",
    ),
    (
        "[telemetry.otlp]\nsample = \"101%\"\n",
        ":2: field `telemetry.otlp.sample`: \"101%\" is not a share of requests; write a percentage",
    ),
    (
        "[server.resp]\naddress = \"6380\"\n",
        ":2: field `server.resp.address`: \"6380\" is not an address",
    ),
    ("[server.resp]\npassword = \"x\"\n", ":2: field `server.resp.password`: no such setting"),
    ("[server]\nadmin = \"8082\"\n", ":2: field `server.admin`: \"8082\" is not an address"),
    (
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"10.0.0\"]\n",
        ":2: field `server.trusted_proxies`: \"10.0.0\" is not a network; write one such as 10.0.0.0/8",
    ),
    (
        "[server.auth]\noriginal = \"forwarded\"\n",
        ":2: field `server.auth.original`: \"forwarded\" is not a place of the original request; write \"x-forwarded\"",
    ),
    (
        "[server.auth]\nheaders = [\"x api key\"]\n",
        ":2: field `server.auth.headers`: \"x api key\" is not the name of a header",
    ),
    (
        "[server.auth]\ndeny_status = 200\n",
        ":2: field `server.auth.deny_status`: \"200\" is not the status of a denial",
    ),
    (
        "[telemetry]\nlog.level = \"loud\"\n",
        ":2: field `telemetry.log.level`: \"loud\" is none of \"off\"",
    ),
    (
        "[telemetry]\nlog = { format = \"xml\" }\n",
        ":2: field `telemetry.log.format`: \"xml\" is none of \"text\", \"json\"",
    ),
    (
        "[store]\nurl = \"http://a\"\n",
        ":2: field `store.url`: no address of a store; write redis://",
    ),
    (
        "[store]\nurl = \"redis://a\"\ncluster = [\"redis://b\"]\n",
        ":3: field `store.cluster`: url is set too, and state lives in one store; leave one",
    ),
    (
        "[store]\ncluster = [\"redis://b\"]\nsentinel = { master = \"a\" }\n",
        ":3: field `store.sentinel.master`: cluster is set too",
    ),
    ("[store]\ncluster = []\n", ":2: field `store.cluster`: name the address of one server"),
    (
        "[store]\nclock = \"client\"\nurl = \"redis://b\"\n",
        ":2: field `store.clock`: no such setting; the store's clock always decides",
    ),
    (
        "[store]\nurl = \"redis://b\"\nsecret_previous_file = \"old\"\n",
        ":3: field `store.secret_previous_file`: no such setting; restart all instances with the new",
    ),
    (
        "[store]\n\nsentinel = { master = \"a\" }\n",
        ":3: field `store.sentinel.urls`: urls is missing; write the addresses of sentinels",
    ),
    (
        "[store]\nsentinel = { urls = [\"redis://a\"] }\n",
        ":2: field `store.sentinel.urls`: master is missing; write the name",
    ),
    (
        "[store.ring]\nnodes = [\n{ name = \"a\", url = \"redis://a\" },\n]\n",
        ":2: field `store.ring.nodes`: write each node as a string, such as nodes = [\"a=redis://",
    ),
    (
        "[store.ring]\nnodes = [\"a=redis://a\", \"a=redis://b\"]\n",
        ":2: field `store.ring`: two nodes of the ring are named \"a\"; rename one of them",
    ),
    (
        "[store.ring]\nnodes = [\"a\"]\n",
        ":2: field `store.ring.nodes`: a node is written name=redis://host:port, or name*weight",
    ),
    (
        "[store.ring]\nnodes = [\"a=redis://a\"]\nnumber = 2\n",
        ":3: field `store.ring.number`: no such setting; a ring is known by its nodes and their",
    ),
    (
        "[store.ring]\nnodes = [\"a=redis://a\"]\nprevious = [{ name = \"b\" }]\n",
        ":3: field `store.ring.previous`: no such setting; restart all instances with the new",
    ),
    (
        "[store]\non_state_loss = \"exhausted\"\ncluster = [\"redis://a\"]\n",
        ":2: field `store.on_state_loss`: \"exhausted\" cannot hold on a Cluster",
    ),
    (
        "[store]\nconnections = 17\n",
        ":2: field `store.connections`: \"17\" is not a number of conn",
    ),
    (
        "[store]\nconnections = 4\n",
        ":2: field `store.connections`: no store is named, so state would be in memory; name one",
    ),
    (
        "[store]\nurl = \"redis://a\"\n[store.tls]\nca = \"ca.pem\"\n",
        ":4: field `store.tls.ca`: no address of the store begins with rediss://",
    ),
    (
        "[store]\nurl = \"rediss://a\"\n[store.tls]\ncert = \"c.pem\"\n",
        ":4: field `store.tls.cert`: key is missing: name the file",
    ),
    (
        "[store]\nurl = \"redis://a\"\nnamespace = \"Bad Name\"\n",
        ":3: field `store.namespace`: a namespace has 1 to 32 of the characters a-z 0-9 _ -",
    ),
    ("[server]\nhttp = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n", ":3: "),
    ("[server\n", ":1: "),
    ("[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"5/fortnight\"]\n", ":4: "),
];

#[test]
fn a_bad_file_prevents_the_start_with_file_line_field_and_remedy() {
    for (text, complaint) in BAD_FILES {
        let file = TempFile::new("settings.toml", text);
        let errors = refusal(&["serve", "--config", file.path(), "--http", "127.0.0.1:0"], &[]);
        assert!(
            errors.starts_with(&format!("spillgate: {}{complaint}", file.path())),
            "{text:?}: {errors}"
        );
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let file = TempFile::new("settings.toml", "[server]\nhttp = \"a\"\n[store]\ntimeout = \"b\"\n");
    assert_eq!(refusal(&["serve", "--config", file.path()], &[]).lines().count(), 2);
}

#[test]
fn a_bad_variable_is_reported_with_the_closest_name_and_kubernetes_variables_are_ignored() {
    let complain =
        |name: &str, value: &str| refusal(&["serve", "--http", "127.0.0.1:0"], &[(name, value)]);
    assert!(complain("SPILLGATE_STORE__TIMEOUT", "soon").starts_with(
        "spillgate: environment, SPILLGATE_STORE__TIMEOUT: field `store.timeout`: \"soon\" is not a time"
    ));
    assert!(
        complain("SPILLGATE_SERVER__GRPC", "off")
            .contains("write its address as server.grpc.address")
    );
    assert!(complain("SPILLGATE_STORE__ULR", "x").contains("field `store.ulr`: no such setting"));
    assert!(
        complain("SPILLGATE_TELEMETRY__OTLP__COLLECTOR", "x")
            .contains("is not the address of a collector; write")
    );
    let errors = complain("SPILLGATE_STORE_URL", "redis://user:hunter2@127.0.0.1");
    let expected = "spillgate: environment, SPILLGATE_STORE_URL: field `store_url`: no such setting; did \
                    you mean SPILLGATE_STORE__URL?";
    assert!(errors.starts_with(expected), "{errors}");
    assert!(!errors.contains("hunter2"), "{errors}");
    assert!(
        complain("SPILLGATE_FOO__BAR", "x").contains("field `foo.bar`: no such setting; unset")
    );
    assert!(
        complain("SPILLGATE_CONFIG", "x")
            .contains("no such setting; name the file with the flag --config")
    );
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0"]);
    command.env("SPILLGATE_SERVICE_HOST", "10.0.0.1").env("SPILLGATE_PORT", "tcp://10.0.0.1:8080");
    Server::start_command(command.env("SPILLGATE_PORT_8080_TCP_PROTO", "tcp"));
}

#[test]
fn a_missing_file_is_named() {
    for file in [&["--config", "/nowhere/limits.toml"][..], &["/nowhere/limits.toml"]] {
        let errors = refusal(&[&["serve"], file].concat(), &[]);
        assert!(errors.starts_with("spillgate: cannot read /nowhere/limits.toml: "), "{errors}");
    }
}

#[test]
fn a_public_address_is_refused_unless_insecure_is_set() {
    let errors = refusal(&["serve", "--http", "0.0.0.0:0"], &[]);
    assert!(
        errors.contains("field `server.http`: 0.0.0.0:0 is open to other machines"),
        "{errors}"
    );
    for remedy in ["--expose", "data_token_file", "client_ca", "insecure = true under [server]"] {
        assert!(errors.contains(remedy), "{errors}");
    }
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0"]);
    Server::start_command(command.env("SPILLGATE_SERVER__INSECURE", "true"));
    assert!(refusal(&["serve", "--http", "[::]:0"], &[]).contains("open to other machines"));
    assert!(
        refusal(&["serve", "--http", "[::ffff:0.0.0.0]:0"], &[]).contains("open to other machines")
    );
}

#[test]
fn exposed_listeners_require_the_generated_tokens_that_are_printed() {
    let mut command =
        spillgate(&["serve", "--expose", "--http", "0.0.0.0:0", "--resp", "0.0.0.0:0"]);
    command
        .env("SPILLGATE_SERVER__ADMIN", "0.0.0.0:0")
        .env("SPILLGATE_SERVER__GRPC__ADDRESS", "off");
    let server = Server::start_command(&mut command);
    let data = server.generated_token("server.data_token_file");
    let admin = server.generated_token("server.admin_token_file");
    assert!(data.len() == 64 && admin.len() == 64 && data != admin, "{}", server.before_ready);

    let body = br#"{"key":"u1","limit":{"quota":"5/minute"}}"#;
    let check = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Host", "localhost"), ("Authorization", &bearer)];
        server.client().send_with("POST", "/v1/check", &headers, body).unwrap().status
    };
    assert_eq!((check(&data), check(&admin)), (200, 401));
    assert_eq!(server.post("/v1/check", body).status, 401);
    let rules = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Host", "localhost"), ("Authorization", &bearer)];
        server.operator().send_with("GET", "/admin/v1/rules", &headers, b"").unwrap().status
    };
    assert_eq!((rules(&admin), rules(&data)), (200, 401));
}

#[test]
fn exposed_listeners_that_are_guarded_get_no_token() {
    let token = TempFile::new("token", "0123456789abcdef0123456789abcdef");
    let mut command =
        spillgate(&["serve", "--expose", "--http", "0.0.0.0:0", "--resp", "0.0.0.0:0"]);
    command
        .env("SPILLGATE_SERVER__ADMIN", "127.0.0.1:0")
        .env("SPILLGATE_SERVER__GRPC__ADDRESS", "off");
    let server =
        Server::start_command(command.env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path()));
    assert!(!server.before_ready.contains("generated"), "{}", server.before_ready);
    assert_eq!(server.post("/v1/check", b"{}").status, 401);
}

#[test]
fn a_port_in_use_is_reported_with_a_remedy() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let errors = refusal(&["serve", "--http", &taken.to_string()], &[]);
    assert!(
        errors.contains(&format!("cannot listen on {taken}: another process uses it")),
        "{errors}"
    );
    assert!(errors.contains("choose a free port with --http"), "{errors}");
}

#[test]
fn two_listeners_at_one_address_are_both_named() {
    let address = format!("127.0.0.1:{}", free_port());
    let errors = refusal(&["serve", "--http", &address, "--resp", &address], &[]);
    let expected = format!("cannot listen on {address}: --http and --resp name the same port; ");
    assert!(errors.contains(&expected), "{errors}");
}

#[test]
fn a_service_without_listeners_does_not_start() {
    let errors = refusal(
        &["serve", "--http", "off", "--grpc", "off", "--resp", "off", "--admin", "off"],
        &[],
    );
    assert!(errors.contains("all listeners are off") && errors.contains("open one"), "{errors}");
}

#[test]
fn an_unreachable_store_does_not_prevent_serving() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let server = Server::start(&["--redis", &url]);
    let answer = server.check(r#"{"key":"u1","limit":{"quota":"16/second"}}"#);
    assert_eq!((&answer["degraded"], &answer["source"]), (&true.into(), &"fallback".into()));
}

#[test]
fn credentials_are_never_printed() {
    let url = format!("redis://user:hunter2@127.0.0.1:{}/0", free_port());
    let server = Server::start(&["--redis", &url]);
    assert!(server.ready.contains("store: redis://127.0.0.1:"), "{}", server.ready);
    server.check(r#"{"key":"u1","limit":{"quota":"5/minute"}}"#);
    let ready = server.ready.clone();
    let errors = ready + &server.rest_of_log();
    assert!(!errors.contains("hunter2") && !errors.contains("user"), "{errors}");

    let file =
        TempFile::new("settings.toml", "[store]\nurl = \"redis://user:hunter2@host\" nonsense\n");
    for errors in [
        refusal(&["serve", "--config", file.path()], &[]),
        refusal(&["serve", "--redis", "nonsense://user:hunter2@host"], &[]),
        refusal(&["serve", "--redis", "redis://user:hunter2@host:99999"], &[]),
        refusal(&["serve", "--redis", "user:hunter2@host"], &[]),
    ] {
        assert!(!errors.contains("hunter2"), "{errors}");
    }
}

/// A store from a later source replaces an earlier one: the operator need not unset that.
#[test]
fn another_kind_of_store_replaces_the_one_of_the_file() {
    let file = TempFile::new("settings.toml", "[store]\ncluster = [\"redis://in-file:1\"]\n");
    let serve = |name: &str, value: &str| {
        let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--config", file.path()]);
        Server::start_command(command.env(name, value)).ready
    };
    let shown = |ready: String| ready.rsplit_once("store: ").unwrap().1.trim_end().to_owned();
    assert_eq!(shown(serve("SPILLGATE_STORE__URL", "redis://there:1")), "redis://there:1");
    assert_eq!(
        shown(serve(
            "SPILLGATE_STORE__RING__NODES",
            "a=redis://:hunter2@there:1,b*2=redis://here:1"
        )),
        "ring of a=redis://there:1 b=redis://here:1"
    );
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0"]);
    command.env("SPILLGATE_STORE__URL", "redis://a").env("SPILLGATE_STORE__CLUSTER", "redis://b");
    let mut process = Process::start(command.stderr(Stdio::piped()));
    assert_eq!(process.wait(Duration::from_secs(60)).and_then(|status| status.code()), Some(2));
}

#[test]
fn a_secret_file_holds_32_hexadecimal_digits() {
    let name = "SPILLGATE_STORE__KEY_SECRET_FILE";
    let good = TempFile::new("secret", "000102030405060708090a0b0c0d0e0f\n");
    Server::start_command(spillgate(&["serve", "--http", "127.0.0.1:0"]).env(name, good.path()));
    let bad = TempFile::new("secret", "password");
    let errors = refusal(&["serve", "--http", "127.0.0.1:0"], &[(name, bad.path())]);
    assert!(
        errors.contains("field `store.key_secret_file`: ")
            && errors.contains("openssl rand -hex 16"),
        "{errors}"
    );
    assert!(!errors.contains("password"), "{errors}");
}

#[test]
fn a_missing_certificate_is_named() {
    let settings = "[store]\nurl = \"rediss://a\"\ntls = { ca = \"/nowhere/ca.pem\" }\n";
    let file = TempFile::new("settings.toml", settings);
    let errors = refusal(&["serve", "--config", file.path()], &[]);
    assert!(errors.contains("field `store.tls.ca`: cannot read /nowhere/ca.pem: "), "{errors}");
}

/// Returns the errors of a server that does not start.
#[track_caller]
fn refusal(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = spillgate(arguments);
    let mut process =
        Process::start(command.envs(environment.iter().copied()).stderr(Stdio::piped()));
    let status = process
        .wait(Duration::from_secs(10))
        .unwrap_or_else(|| panic!("{arguments:?} {environment:?} started"));
    let mut errors = String::new();
    process.stderr().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(status.code(), Some(2), "{errors}");
    errors
}

/// Every setting.
pub(crate) fn every_setting() -> Vec<String> {
    spillgate_server::config::setting_names().map(str::to_owned).collect()
}
