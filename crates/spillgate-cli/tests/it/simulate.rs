//! `spillgate simulate`: logs in every format, decisions, and conditions.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::server::{TempFile, run, spillgate};

const RULES: &str = r#"
[[rule]]
name = "login"
match = { path = "/login" }
key = ["ip"]
limits = ["2/minute"]

[[rule]]
name = "all"
key = []
limits = [{ quota = "4/minute", algorithm = "sliding-log" }]
"#;

/// Five requests of one address within a second, three of them to /login, each in another spelling.
const COMBINED: &str = r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "POST /login HTTP/1.1" 200 7 "-" "curl/8"
203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "POST //login HTTP/1.1" 200 7 "-" "curl/8"
this is not a line of a log
203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "POST /%6Cogin?x HTTP/1.1" 200 7 "-" "curl/8"
203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 7 "-" "curl/8"
198.51.100.9 - - [10/Oct/2000:13:55:35 -0700] "GET /b HTTP/1.1" 200 7 "-" "curl/8"
"#;

const JSON: &str = r#"{"time":"2000-10-10T13:55:36-07:00","remote_addr":"203.0.113.7","request":"POST /login HTTP/1.1"}
{"time":"2000-10-10T13:55:36-07:00","remote_addr":"203.0.113.7","uri":"//login"}
{"time":"soon"}
{"time":971211336,"client":{"ip":"::ffff:203.0.113.7"},"request":{"uri":"/%6Cogin?x"}}
{"time":971211336000,"remote_addr":"203.0.113.7","path":"/a"}
{"time":"2000-10-10 20:55:35.000","remote_addr":"198.51.100.9","path":"/b"}
"#;

const CSV: &str = "Time,Remote_Addr,url
2000-10-10T13:55:36-07:00,203.0.113.7,/login
971211336,203.0.113.7,//login
,,
971211336,\"203.0.113.7\",\"/%6Cogin?x\"
971211336,203.0.113.7,https://example.org/a
971211335,198.51.100.9,/b
";

#[test]
fn every_format_is_detected_and_gets_the_same_decisions() {
    let rules = TempFile::new("limits.toml", RULES);
    for (text, format) in
        [(COMBINED, "common or combined log format"), (JSON, "JSON lines"), (CSV, "CSV")]
    {
        let log = TempFile::new("access.log", text);
        let (code, report) = simulate_json(&["--config", rules.path(), log.path()]);
        assert_eq!(code, Some(0));
        let input = &report["input"];
        assert_eq!(
            (&input["formats"][0], &input["lines"]),
            (&format.into(), &6.into()),
            "{report}"
        );
        assert_eq!(
            (&input["malformed"], &input["out_of_order"]),
            (&1.into(), &1.into()),
            "{report}"
        );
        let place = format!("{}:{}: ", log.path(), if format == "CSV" { 4 } else { 3 });
        assert!(input["malformed_examples"][0].as_str().unwrap().starts_with(&place), "{report}");
        let policy = &report["policies"][0];
        assert_eq!((&policy["requests"], &policy["denied"]), (&5.into(), &1.into()), "{report}");
        let login = &policy["rules"][0];
        assert_eq!((&login["matched"], &login["denied"]), (&3.into(), &1.into()), "{report}");
        assert_eq!(policy["denied_most"][0]["subject"], "ip=203.0.113.7");
        assert_eq!(
            (&input["from"], &input["to"]),
            (&"2000-10-10T20:55:35Z".into(), &"2000-10-10T20:55:36Z".into())
        );
    }
}

#[test]
fn standard_input_and_packed_logs_are_read_too() {
    let rules = TempFile::new("limits.toml", RULES);
    let plain =
        simulate_json(&["--config", rules.path(), TempFile::new("a.log", COMBINED).path()]).1;
    let mut packed = spillgate(&["simulate", "--json", "--config", rules.path(), "-"]);
    let mut process = packed.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(&gzip_stored(COMBINED.as_bytes())).unwrap();
    let output = process.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["policies"], plain["policies"]);
    assert_eq!(report["input"]["source"], "standard input");
}

#[test]
fn the_text_shows_denied_subjects_and_rules() {
    let (rules, log) = (TempFile::new("limits.toml", RULES), TempFile::new("access.log", COMBINED));
    let output = run(&["simulate", "--config", rules.path(), log.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "6 lines, common or combined log format",
        "left out: 1 line that could not be read, such as",
        "of 5 requests 4 (80.0 %) are allowed, 1 (20.0 %) denied",
        "login  2/minute token-bucket",
        "ip=203.0.113.7",
        "Most denials in one minute",
        "from 2000-10-10T20:55:00Z, of 5",
        "times are whole seconds",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_text_names_rules_that_never_deny() {
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"4/minute\"]\n{more}\n")
    };
    let rules = [rule("next", "mode = \"shadow\""), rule("used", "postpaid = true")].concat();
    let (rules, log) =
        (TempFile::new("limits.toml", &rules), TempFile::new("access.log", COMBINED));
    let output = run(&["simulate", "--config", rules.path(), log.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("5 (100 %) are allowed"), "{text}");
    for name in ["next", "used"] {
        let line =
            format!("{name} never denies (shadow or post-paid); it had no room for 1 request");
        assert!(text.lines().any(|printed| printed.trim() == line), "{text}");
    }
}

#[test]
fn a_condition_that_holds_fails_the_run() {
    let (rules, log) = (TempFile::new("limits.toml", RULES), TempFile::new("access.log", COMBINED));
    let code = |conditions: &[&str]| {
        let flags: Vec<&str> =
            conditions.iter().flat_map(|condition| ["--fail-if", condition]).collect();
        simulate(&[&["--config", rules.path(), log.path()], &flags[..]].concat()).status.code()
    };
    for (condition, expected) in [
        ("denied>19.9%", 1),
        ("denied>20%", 0),
        ("denied(login)>33%", 1),
        ("denied(all)>0", 0),
        ("subjects-denied>=1", 1),
        ("subjects-denied(login)>1", 0),
        ("malformed>0", 1),
        ("late>0", 0),
        ("unmatched=0", 1),
        ("cost-exceeds-limit>0", 0),
    ] {
        assert_eq!(code(&[condition]), Some(expected), "{condition}");
    }
    assert_eq!(code(&["denied>50%", "malformed>0"]), Some(1));
    let flags = ["--fail-if", "denied>50%", "--fail-if", "malformed>0"];
    let output = simulate(&[&["--config", rules.path(), log.path()], &flags[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let end = "\n--fail-if denied>50%: does not hold\n--fail-if malformed>0: holds\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn two_policies_get_the_same_traffic_and_their_differences_are_shown() {
    let looser = RULES.replace("2/minute", "3/minute");
    let (rules, looser) =
        (TempFile::new("limits.toml", RULES), TempFile::new("today.toml", &looser));
    let log = TempFile::new("access.log", COMBINED);
    let against = ["--config", rules.path(), "--against", looser.path(), log.path()];
    let (code, report) = simulate_json(&[&against[..], &["--fail-if", "newly-denied>0"]].concat());
    let difference = &report["policies"][1]["against_first"];
    assert_eq!((code, &difference["only_first_denies"]), (Some(1), &1.into()), "{report}");
    // The looser rule admits a request that uses quota which the last one would have had.
    assert_eq!(difference["only_this_denies"], 1);
    assert_eq!(difference["subjects"][0]["subject"], "ip=203.0.113.7");
    assert_eq!(
        simulate_json(&[&against[..], &["--fail-if", "newly-denied>1"]].concat()).0,
        Some(0)
    );
}

#[test]
fn every_error_has_its_place_and_a_remedy() {
    let rules = TempFile::new("limits.toml", RULES);
    let log = TempFile::new("access.log", COMBINED);
    let unknown = TempFile::new("strange.log", "Oct 10 host sshd: a line of syslog\n");
    let open = TempFile::new("open.csv", &format!("time,ip\n1,\"{}", "a\n".repeat(100_000)));
    let bad_rules =
        TempFile::new("bad.toml", "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"5/fortnight\"]\n");
    let no_rules = TempFile::new("none.toml", "");
    let with = ["--config", rules.path()];
    let cases: &[(&[&str], &[&str])] = &[
        (&["/nowhere.log"], &["cannot read /nowhere.log"]),
        (&[unknown.path()], &[unknown.path(), "CSV with commas", "--map time=FIELD", "--format"]),
        (&[open.path()], &["open.csv:2: ", "close its last quote"]),
        (
            &[log.path(), "--map", "user=account"],
            &["--map", "no rule uses attribute user", "path, ip"],
        ),
        (&[log.path(), "--map", "ip=account"], &["no field \"account\"", "user-agent"]),
        (&[log.path(), "--map", "ip"], &["ATTRIBUTE=FIELD"]),
        (&[log.path(), "--format", "syslog"], &["common, json, csv"]),
        (&[log.path(), "--fail-if", "denied(absent)>0"], &["no rule absent", "login, all"]),
        (&[log.path(), "--fail-if", "newly-denied>0"], &["--against FILE"]),
        (&[log.path(), "--fail-if", "denied"], &["denied>1%"]),
        (&[log.path(), "--against", bad_rules.path()], &["bad.toml:4"]),
        (&[log.path(), "--against", no_rules.path()], &["has no rules"]),
        (&["--pattern", "zipf"], &["--pattern is gone", "name a log"]),
        (&[log.path(), "--svg", "a.svg"], &["--svg is gone", "most denials"]),
    ];
    for (flags, parts) in cases {
        let output = simulate(&[&with[..], flags].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{flags:?}: {part:?} is not in: {text}");
        }
    }
    let output = simulate(&[log.path()]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("--config"));
}

#[test]
fn an_unmatched_rule_names_the_field_it_lacks() {
    let rules = "[[rule]]\nname = \"tenant\"\nkey = [\"tenant\"]\nlimits = [\"1/s\"]\n";
    let (rules, log) = (TempFile::new("limits.toml", rules), TempFile::new("access.log", COMBINED));
    let output = simulate(&["--config", rules.path(), log.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(
            "tenant never matched: no request has tenant; name the field: --map tenant=FIELD"
        ),
        "{text}"
    );
    assert!(text.contains("5 (100 %) matched no rule"), "{text}");
}

#[test]
fn costs_are_read_in_their_unit() {
    let rules = "[[rule]]\nname = \"tokens\"\nkey = [\"user\"]\nlimits = [{ quota = \"100/hour\", unit = \"tokens\" }]\n";
    let log = "time,user,usage\n1,ann,60\n2,ann,50\n3,ann,200\n4,ann,40\n5,bob,-\n";
    let (rules, log) = (TempFile::new("limits.toml", rules), TempFile::new("usage.csv", log));
    let with = ["--config", rules.path(), "--cost-from", "tokens=usage", log.path()];
    let policy = &simulate_json(&with).1["policies"][0];
    assert_eq!(
        (&policy["denied"], &policy["cost_exceeds_limit"]),
        (&2.into(), &1.into()),
        "{policy}"
    );
    assert_eq!(policy["rules"][0]["limits"][0]["charged"], 100, "{policy}");
}

#[test]
fn a_csv_value_may_hold_line_breaks() {
    let log = "time,user,agent\n\
        1,ann,\"a\nb \"\"c\"\"\r\nd\"\n\
        2,ann\n\
        3,ann,x\n\
        soon,bob,\"e\nf\"\n\
        4,ann,y\n\
        5,ann,z";
    let rules = "[[rule]]\nname = \"users\"\nkey = [\"user\"]\nlimits = [\"3/hour\"]\n";
    let (rules, log) = (TempFile::new("limits.toml", rules), TempFile::new("usage.csv", log));
    let report = simulate_json(&["--config", rules.path(), log.path()]).1;
    let (input, policy) = (&report["input"], &report["policies"][0]);
    assert_eq!((&input["lines"], &input["malformed"]), (&6.into(), &2.into()), "{report}");
    let problems = [
        format!("{}:5: 2 values for 3 columns", log.path()),
        // The record begins there, and ends one line later.
        format!("{}:7: \"soon\" is not a valid time", log.path()),
    ];
    for (number, problem) in problems.iter().enumerate() {
        let example = input["malformed_examples"][number].as_str().unwrap();
        assert!(example.starts_with(problem), "{report}");
    }
    assert_eq!((&policy["requests"], &policy["denied"]), (&4.into(), &1.into()), "{policy}");
}

#[test]
fn a_json_field_may_be_nested_and_a_query_parameter_may_name_the_subject() {
    let rules = "[[rule]]\nname = \"users\"\nkey = [\"tenant\", \"user\"]\nlimits = [\"1/hour\"]\n";
    let log = r#"{"at":971211336000,"a":{"b":{"c":"deep \u00e9"}},"uri":"/x?user=ann"}
{"at":971211336.5,"a.b.c":"deep é","request":"GET /y?user=%61nn HTTP/1.1"}
{"at":971211337,"a":{"b":"flat"},"uri":"/x?user=ann"}
"#;
    let (rules, log) = (TempFile::new("limits.toml", rules), TempFile::new("app.json", log));
    let maps = ["--map", "time=at", "--map", "tenant=a.b.c", "--map", "user=query:user"];
    let with = ["--config", rules.path(), log.path()];
    let policy = &simulate_json(&[&with[..], &maps].concat()).1["policies"][0];
    assert_eq!((&policy["denied"], &policy["unmatched"]), (&1.into(), &1.into()), "{policy}");
    assert_eq!(policy["denied_most"][0]["subject"], "tenant=deep é user=ann", "{policy}");
}

#[test]
fn seconds_are_spread_with_the_flag() {
    let line = COMBINED.lines().next().unwrap().replace(":36 -", ":00 -");
    let text: String = (0..60)
        .flat_map(|second| vec![line.replace(":00 -", &format!(":{second:02} -")) + "\n"; 10])
        .collect();
    let log = TempFile::new("access.log", &text);
    let rules =
        "[[rule]]\nname = \"a\"\nkey = [\"ip\"]\nlimits = [{ quota = \"10/second\", burst = 2 }]\n";
    let rules = TempFile::new("limits.toml", rules);
    let with = ["--config", rules.path(), log.path()];
    let denied = |more: &[&str]| {
        simulate_json(&[&with[..], more].concat()).1["policies"][0]["denied"].as_u64().unwrap()
    };
    assert_eq!((denied(&[]), denied(&["--spread"])), (480, 0));
}

/// Two bursts of the whole quota, right before and right after the end of a minute.
#[test]
fn the_documented_attack_on_four_algorithms_admits_what_the_page_says() {
    let page = fs::read_to_string(format!("{ROOT}/docs/explain/algorithms.md")).unwrap();
    let mut log = "time\n".to_owned();
    (57_000..63_000)
        .step_by(30)
        .for_each(|ms| log.push_str(&format!("{}\n", 971_136_000_000_u64 + ms)));
    let log = TempFile::new("attack.csv", &log);
    for algorithm in ["fixed-window", "sliding-window", "sliding-log", "token-bucket"] {
        let rules = format!(
            "[[rule]]\nname = \"a\"\nkey = []\nlimits = [{{ quota = \"100/minute\", algorithm = \"{algorithm}\" }}]\n"
        );
        let rules = TempFile::new("limits.toml", &rules);
        let policy = &simulate_json(&["--config", rules.path(), log.path()]).1["policies"][0];
        assert_eq!(policy["requests"], 200);
        let row = format!("| `{algorithm}` | {} |", policy["allowed"]);
        assert!(page.contains(&row), "docs/explain/algorithms.md does not say: {row}");
    }
}

fn simulate(flags: &[&str]) -> Output {
    run(&[&["simulate"], flags].concat())
}

#[track_caller]
fn simulate_json(flags: &[&str]) -> (Option<i32>, Value) {
    let output = simulate(&[&["--json"], flags].concat());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// Returns a gzip file that stores bytes uncompressed, made without the library under test.
fn gzip_stored(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 > 0 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    packed.extend(length.to_le_bytes());
    packed.extend((!length).to_le_bytes());
    packed.extend(bytes);
    packed.extend((!crc).to_le_bytes());
    packed.extend(u32::from(length).to_le_bytes());
    packed
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
