//! `spillgate admin import`: overrides in files of JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use serde_json::{Value, json};
use spillgate_testkit::{FaultProxy, RedisServer, eventually};

use super::commands::{admin, done, ended, url};
use super::outage::start_on;
use super::{api_rule, decision};
use crate::server::{Server, TempFile, on_both_engines, spillgate};

/// Returns the line of an override for one tenant.
fn tenant(name: &str, limit: &str) -> String {
    json!({"rule": "api", "subject": {"tenant": name}, "limits": [limit]}).to_string()
}

fn file(lines: &[String]) -> TempFile {
    TempFile::new("overrides.jsonl", &(lines.join("\n") + "\n"))
}

fn exported(server: &Server) -> String {
    done(&["overrides", "--export", "--url", &url(server)])
}

#[test]
fn exported_overrides_come_back_equal_and_a_second_import_changes_nothing() {
    let rules = api_rule();
    on_both_engines(&["--config", rules.path()], |server| {
        let url = url(server);
        let act = |words: &[&str]| done(&[words, &["--url", &url]].concat());
        act(&["block", "api", "tenant=acme", "user=ann", "--for", "2h", "--reason", "a \"b\" é"]);
        act(&["override", "api", "tenant=acme", "--quota", "0=9/hour", "--burst", "20"]);
        act(&["override", "api", "tenant=globex", "--quota", "7/hour"]);
        let lines = exported(server);
        assert_eq!(lines.lines().count(), 3, "{lines}");
        let saved = TempFile::new("overrides.jsonl", &lines);
        act(&["unblock", "api", "tenant=acme", "user=ann"]);
        act(&["unblock", "api", "tenant=acme"]);
        act(&["override", "api", "tenant=globex", "--quota", "8/hour"]);
        assert_eq!(decision(server), "allowed");
        let before = exported(server);

        let planned = act(&["import", saved.path(), "--dry-run"]);
        let planned: Vec<&str> = planned.lines().collect();
        assert!(planned[0].starts_with("would set api tenant=acme user=ann block until 2"));
        assert_eq!(planned[1], "would set api tenant=acme 0=9/hour burst 20");
        assert_eq!(planned[2], "would replace api tenant=globex 7/hour");
        let none = "0 unchanged, 0 expired and skipped";
        assert_eq!(planned[3], format!("{url}: 3 would be set, {none}"));
        assert_eq!(exported(server), before, "a dry run changes nothing");

        let report = act(&["import", saved.path()]);
        assert_eq!(report, format!("{url}: 3 set, 0 failed, {none}\n"));
        assert_eq!(exported(server), lines);
        assert_eq!(decision(server), "blocked");

        let audit = act(&["audit", "--json"]);
        let report = act(&["import", saved.path(), "--json"]);
        let expected = json!({
            "set": 0, "pending": 0, "unchanged": 3, "expired": 0, "failed": 0, "failures": [],
        });
        assert_eq!(serde_json::from_str::<Value>(&report).unwrap(), expected);
        assert_eq!(act(&["audit", "--json"]), audit, "no change was made");
    });
}

#[test]
fn bad_lines_are_refused_by_number_with_the_fix_and_no_line_is_set() {
    let rules = api_rule();
    on_both_engines(&["--config", rules.path()], |server| {
        let url = url(server);
        let good = tenant("acme", "9/hour");
        let refused = |lines: &[&str], problems: &[&str]| {
            let lines: Vec<String> =
                [&*good].iter().chain(lines).map(|line| (*line).to_owned()).collect();
            let file = file(&lines);
            for added in [&[][..], &["--dry-run"]] {
                let import = ["import", file.path(), "--url", &url];
                let (code, output, errors) = admin(&[&import, added].concat());
                assert_eq!((code, &*output), (2, ""), "{errors}");
                let mut shown = errors.lines();
                let head = format!(
                    "spillgate: {}: nothing was changed; correct {} line{}",
                    file.path(),
                    problems.len(),
                    if problems.len() == 1 { "" } else { "s" }
                );
                assert_eq!(shown.next(), Some(&*head), "{errors}");
                for (line, problem) in shown.by_ref().zip(problems) {
                    assert!(line.starts_with(problem), "{line:?} is not {problem:?}");
                }
                assert_eq!(shown.next(), None, "{errors}");
            }
        };
        let of = |field: &str, value: Value| {
            let mut line: Value = serde_json::from_str(&tenant(field, "9/hour")).unwrap();
            line[field] = value;
            line.to_string()
        };
        let write = "write a line such as {\"rule\": \"api\"";
        refused(
            &["{\"rule\": api}", "", "[]", &good],
            &[
                &format!(
                    "  line 2: expected one override in JSON, but column 10 breaks it; {write}"
                ),
                &format!("  line 4: expected one override in JSON; {write}"),
                "  line 5: the subject of line 1 again; remove one of them",
            ],
        );
        refused(
            &[
                &of("rule", json!("apy")),
                "",
                &of("subject", json!({"plan": "free"})),
                &of("limits", json!(["9/fortnight"])),
                &of("expires_at", json!("soon")),
                &of("colour", json!("red")),
            ],
            &[
                "  line 2: rule: there is no rule \"apy\"; did you mean \"api\"?",
                "  line 4: subject: \"plan\" is not in the rule's key; name one or more of",
                "  line 5: limits: limit \"0\": quota: \"9/fortnight\" is not",
                "  line 6: expires_at: \"soon\" is not a valid instant",
                "  line 7: colour: unknown field `colour`",
            ],
        );
        assert_eq!(exported(server), "");
        assert_eq!(done(&["audit", "--url", &url]), "no changes\n");
    });
}

#[test]
fn an_expired_line_is_skipped_and_counted_and_the_standard_input_is_a_file_too() {
    let rules = api_rule();
    let server = Server::start(&["--config", rules.path()]);
    let url = url(&server);
    let end = |instant: &str, name: &str| {
        let mut line: Value = serde_json::from_str(&tenant(name, "block")).unwrap();
        line["expires_at"] = json!(instant);
        line.to_string()
    };
    let lines = [end("2020-01-01T00:00:00Z", "acme"), end("2199-01-01T00:00:00Z", "globex")];
    let file = file(&lines);
    let mut import = spillgate(&["admin", "import", "-", "--url", &url]);
    let output = import.stdin(File::open(file.path()).unwrap()).output().unwrap();
    let report = format!("{url}: 1 set, 0 failed, 0 unchanged, 1 expired and skipped\n");
    assert_eq!(ended(&output), (0, report, String::new()));
    assert_eq!(decision(&server), "allowed");
    let listed = exported(&server);
    assert!(listed.contains("globex") && listed.lines().count() == 1, "{listed}");
}

#[test]
fn an_import_that_loses_its_server_names_the_line_and_sets_only_the_rest_when_repeated() {
    let rules = api_rule();
    let server = Server::start(&["--config", rules.path()]);
    let lines: Vec<String> = (0..5).map(|n| tenant(&format!("t{n}"), "9/hour")).collect();
    let file = file(&lines);
    // The list, five checks, and two of the five changes.
    let proxy = leave_after(8, server.admin_port.unwrap());
    let import = |url: &str, added: &[&str]| {
        admin(&[&["import", file.path(), "--url", url], added].concat())
    };
    let (code, output, errors) = import(&proxy, &[]);
    let none = "0 unchanged, 0 expired and skipped";
    assert_eq!((code, output), (2, format!("{proxy}: 2 set, 3 failed, {none}\n")), "{errors}");
    assert!(errors.contains("3 overrides failed; run the command again to set them"), "{errors}");
    assert!(errors.contains(&format!("\n  line 3: {proxy}: ")), "{errors}");
    assert!(errors.contains("; the lines after it were not sent"), "{errors}");
    assert_eq!(exported(&server).lines().count(), 2);

    let (code, output, errors) = import(&url(&server), &["--json"]);
    let report: Value = serde_json::from_str(&output).unwrap();
    let counts = ["set", "unchanged", "failed"].map(|count| report[count].as_u64().unwrap());
    assert_eq!((code, counts), (0, [3, 2, 0]), "{errors}");
    assert_eq!(exported(&server).lines().count(), 5);
}

/// Starts a proxy that forwards this number of requests, then closes its connection and takes no other. Returns its
/// URL.
fn leave_after(requests: usize, server: u16) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).unwrap();
        let mut from_client = BufReader::new(client.try_clone().unwrap());
        let mut from_server = BufReader::new(server.try_clone().unwrap());
        for _ in 0..requests {
            server.write_all(&message(&mut from_client)).unwrap();
            client.write_all(&message(&mut from_server)).unwrap();
        }
    });
    url
}

/// Reads one request or answer, of which the body has the length that its header names.
fn message(from: &mut impl BufRead) -> Vec<u8> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(from.read_line(&mut head).unwrap(), 0, "it ended in {head:?}");
    }
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut message = head.into_bytes();
    let length = length.map_or(0, |length| length.parse().unwrap());
    from.take(length).read_to_end(&mut message).unwrap();
    message
}

#[test]
fn an_import_during_an_outage_is_in_force_where_asked_and_ends_with_code_1() {
    let rules = api_rule();
    let mut store = RedisServer::start();
    let [one, other] = [(), ()].map(|()| start_on(&store, rules.path()));
    store.kill();
    let file = file(&[tenant("acme", "block"), tenant("globex", "block")]);
    let (code, output, errors) = admin(&["import", file.path(), "--url", &url(&one)]);
    assert_eq!((code, &*errors), (1, ""), "{output}");
    assert!(output.contains(": 2 set, 0 failed"), "{output}");
    assert!(output.contains("\n  2 of them in force here; the store gets them once"), "{output}");
    assert_eq!(decision(&one), "blocked");
    store.restart();
    eventually(|| decision(&other) == "blocked");
}

/// A connection for each line would take 10,000 handshakes with TLS.
#[test]
fn a_thousand_lines_are_set_over_one_connection() {
    let rules = api_rule();
    on_both_engines(&["--config", rules.path()], |server| {
        let lines: Vec<String> = (0..1_000).map(|n| tenant(&format!("t{n}"), "9/hour")).collect();
        let file = file(&lines);
        let proxy = FaultProxy::before(server.admin_port.unwrap());
        let through = format!("http://127.0.0.1:{}", proxy.port());
        let report = done(&["import", file.path(), "--url", &through]);
        assert!(report.contains(": 1000 set, 0 failed"), "{report}");
        assert_eq!(proxy.connections(), 1);
        assert_eq!(exported(server).lines().count(), 1_000);
    });
}
