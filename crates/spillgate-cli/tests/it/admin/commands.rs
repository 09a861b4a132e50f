//! `spillgate admin`, as operators run it.

use std::process::Output;

use serde_json::{Value, json};
use spillgate_testkit::{Certificates, RedisServer, eventually, free_port};

use super::outage::start_on;
use super::{api_rule, decision, expect_ok};
use crate::server::{Server, TempFile, on_both_engines, run, spillgate};

pub(super) fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.admin_port.unwrap())
}

/// Runs a command, and returns its exit code with both outputs.
#[track_caller]
pub(super) fn admin(words: &[&str]) -> (i32, String, String) {
    ended(&run(&[&["admin"], words].concat()))
}

pub(super) fn ended(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Runs a command that must be done everywhere, and returns its output.
#[track_caller]
pub(super) fn done(words: &[&str]) -> String {
    let (code, output, errors) = admin(words);
    assert_eq!((code, errors.as_str()), (0, ""), "{words:?}: {output}");
    output
}

#[test]
fn a_higher_rate_without_a_burst_lowers_no_capacity() {
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"tenant\"]\nlimits = [{ quota = \"5/second\", burst = 100 }]\n";
    let file = TempFile::new("limits.toml", rule);
    let server = Server::start(&["--config", file.path()]);
    let state = || {
        let path = "/admin/v1/state?rule=api&attr.tenant=acme";
        let state = expect_ok(&server, "GET", path, &Value::Null);
        (state["capacity"].clone(), state["limits"][0]["quota"].clone())
    };
    assert_eq!(state(), (json!(100), json!("5/second burst 100")));
    done(&["override", "api", "tenant=acme", "--quota", "10/second", "--url", &url(&server)]);
    assert_eq!(state(), (json!(200), json!("10/second burst 200")));
}

#[test]
fn an_operator_blocks_raises_refunds_resets_and_reads_the_audit() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let url = url(server);
        let act = |words: &[&str]| done(&[words, &["--url", &url]].concat());
        let says = |what: &str| format!("{url}: done: {what}\n");
        let acme = "tenant=acme";

        let blocked = act(&["block", "api", acme, "--for", "30m", "--reason", "scraper"]);
        assert!(blocked.starts_with(says("api tenant=acme block until 2").trim_end()), "{blocked}");
        assert!(blocked.ends_with("Z  (scraper)\n"), "{blocked}");
        assert_eq!(decision(server), "blocked");
        let removed = says("the override of api tenant=acme is removed");
        assert_eq!(act(&["unblock", "api", acme]), removed);
        while decision(server) == "allowed" {}
        assert_eq!(act(&["mode", "api", "off"]), says("api off"));
        assert_eq!(decision(server), "allowed");
        assert_eq!(act(&["mode", "api", "file"]), says("api has the mode of the policy file"));
        assert_eq!(decision(server), "limit-exceeded");
        let raised = act(&["override", "api", acme, "--quota", "0=9/hour", "--burst", "20"]);
        assert_eq!(raised, says("api tenant=acme 0=9/hour burst 20"));
        assert_eq!(decision(server), "allowed");
        act(&["unblock", "api", acme]);
        assert_eq!(decision(server), "limit-exceeded");
        let reset = act(&["reset", "api", acme, "user=ann"]);
        assert_eq!(reset, says("api tenant=acme user=ann starts afresh"));
        while decision(server) == "allowed" {}
        let refunded = act(&["refund", "api", acme, "user=ann"]);
        let left = "  api/0: 1 of 2 requests left\n";
        assert_eq!(refunded, says("returned to api tenant=acme user=ann 1 requests") + left);
        assert_eq!(decision(server), "allowed");
        let reset = act(&["reset", "api", "--all", "--reason", "fresh start"]);
        assert_eq!(reset, says("api starts afresh for every subject"));
        assert_eq!(decision(server), "allowed");

        let audit = act(&["audit", "-n", "12"]);
        let lines: Vec<&str> = audit.lines().collect();
        let entries: Vec<&str> = lines.iter().map(|line| &line[22..]).collect();
        assert_eq!(entries[0], "local  reset-rule api  (fresh start)");
        assert_eq!(entries[1], "local  refund api tenant=acme user=ann 1 requests");
        assert_eq!(entries[4], "local  set-override api tenant=acme 0=9/hour burst 20");
        assert_eq!(entries[5], "local  clear-mode api");
        assert_eq!(entries[6], "local  set-mode api off");
        let block = entries[8];
        assert!(block.starts_with("local  set-override api tenant=acme block until 2"), "{block}");
        assert!(block.ends_with("Z  (scraper)"), "{block}");
        assert_eq!(act(&["audit", "--rule", "other"]), "no changes\n");
    });
}

#[test]
fn commands_reach_a_server_with_tls_by_the_authority_of_a_file() {
    let (keys, other) = (Certificates::make(), Certificates::make());
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/minute\"]\n";
    let (cert, key) = (keys.server(), keys.server_key());
    let tls = format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n{rule}");
    let file = TempFile::new("limits.toml", &tls);
    let server = Server::start(&["--config", file.path()]);
    let url = |port: u16| format!("https://localhost:{port}");
    let (http, admin_api) = (url(server.port), url(server.admin_port.unwrap()));
    let ask = |words: &[&str]| ended(&run(words));
    let authority = |keys: &Certificates| keys.authority().to_str().unwrap().to_owned();
    let ca = authority(&keys);
    for words in [
        &["admin", "mode", "api", "shadow", "--url", &admin_api][..],
        &["explain", "user=ann", "--url", &admin_api],
        &["top", "--once", "--url", &admin_api],
        &["check", "user=ann", "--url", &http],
    ] {
        let (code, output, errors) = ask(&[words, &["--ca", &ca]].concat());
        assert_eq!((code, &*errors), (0, ""), "{words:?}: {output}");
        for (added, why) in [
            (&[][..], "UnknownIssuer"),
            (&[], "with --ca"),
            (&["--ca", &authority(&other)], "TLS: invalid peer certificate"),
            (&["--ca", file.path()], "holds no certificate; name a file in PEM"),
            (&["--ca", "/nowhere"], "--ca: /nowhere: "),
        ] {
            let (code, output, errors) = ask(&[words, added].concat());
            assert_eq!((code, &*output), (2, ""), "{words:?} {added:?}: {errors}");
            assert!(errors.contains(why), "{words:?} {added:?}: {errors}");
        }
        let plain: Vec<String> =
            words.iter().map(|word| word.replace("https://", "http://")).collect();
        let plain: Vec<&str> = plain.iter().map(String::as_str).chain(["--ca", &ca]).collect();
        let (code, _, errors) = ask(&plain);
        assert_eq!(code, 2, "{plain:?}: {errors}");
        assert!(errors.contains("--ca is for a URL that begins with https://"), "{errors}");
    }
    let audit = done(&["audit", "--url", &admin_api, "--ca", &ca]);
    assert!(audit.contains("local  set-mode api shadow"), "{audit}");
}

#[test]
fn https_to_a_server_without_tls_asks_about_the_server() {
    let server = Server::start(&[]);
    let url = format!("https://localhost:{}", server.admin_port.unwrap());
    let (code, output, errors) = ended(&run(&["admin", "audit", "--url", &url]));
    assert_eq!((code, &*output), (2, ""), "{errors}");
    assert!(errors.contains("does the server speak https? if not, write http://"), "{errors}");
    assert!(!errors.contains("--ca"), "{errors}");
}

#[test]
fn blocking_one_address_of_ipv6_names_the_network_that_is_blocked() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n",
    );
    on_both_engines(&["--config", file.path()], |server| {
        let url = url(server);
        let blocked = done(&["block", "login", "ip=2001:db8::7", "--url", &url]);
        let says = "done: login ip=2001:db8::7 block\n  it applies to ip=2001:db8::/64";
        assert_eq!(blocked, format!("{url}: {says}\n"));
        let listed = |ip: &str| done(&["overrides", ip, "--url", &url]);
        assert!(listed("ip=2001:db8::9").contains("2001:db8::/64"), "an address finds its network");
        assert_eq!(listed("ip=2001:db9::9"), "no overrides\n");
        let unblocked = done(&["unblock", "login", "ip=2001:db8::9", "--url", &url]);
        let says = "done: the override of login ip=2001:db8::9 is removed";
        assert_eq!(unblocked, format!("{url}: {says}\n"));
    });
}

#[test]
fn a_reset_or_a_refund_of_a_network_or_of_no_address_is_refused() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n",
    );
    on_both_engines(&["--config", file.path()], |server| {
        let url = url(server);
        for (command, value, part) in [
            (
                "reset",
                "ip=203.0.113.0/24",
                "\"ip\": \"203.0.113.0/24\" is a network; write one address",
            ),
            ("reset", "ip=bad", "\"ip\": \"bad\" is not an IP address; write one such as"),
            ("reset", "ip=", "\"ip\": \"\" is not an IP address; write one such as"),
            ("refund", "ip=bad", "\"ip\": \"bad\" is not an IP address; write one such as"),
        ] {
            let (code, output, errors) = admin(&[command, "login", value, "--url", &url]);
            assert_eq!((code, &*output), (2, ""), "{command} {value}: {errors}");
            assert!(errors.contains(part), "{command} {value}: {errors}");
        }
        assert_eq!(done(&["audit", "--url", &url]), "no changes\n");
    });
}

#[test]
fn during_an_outage_each_server_asked_takes_the_change_and_the_exit_code_says_pending() {
    let file = api_rule();
    let mut store = RedisServer::start();
    let servers = [start_on(&store, file.path()), start_on(&store, file.path())];
    store.kill();
    let [one, other] = servers.each_ref().map(url);
    let later = "in force here, and saved when the store is back: ";
    for server in &servers {
        let url = url(server);
        let (code, output, errors) = admin(&["block", "api", "tenant=acme", "--url", &url]);
        assert!(code == 1 && output.starts_with(&format!("{url}: {later}")), "{output} {errors}");
        assert_eq!(decision(server), "blocked");
    }
    store.restart();
    let unblock = ["unblock", "api", "tenant=acme", "--url", &one];
    eventually(|| admin(&["mode", "api", "enforce", "--url", &other]).0 == 0);
    eventually(|| admin(&["mode", "api", "enforce", "--url", &one]).0 == 0);
    let removed = "done: the override of api tenant=acme is removed";
    assert_eq!(done(&unblock), format!("{one}: {removed}\n"));
    eventually(|| servers.iter().all(|server| decision(server) != "blocked"));

    // Each knows the changes of the other.
    let listed = || {
        let audit = done(&["audit", "--json", "--url", &other]);
        let audit: Value = serde_json::from_str(&audit).unwrap();
        let changes = audit["changes"].as_array().unwrap().clone();
        let removed = changes.iter().filter(|it| it["action"] == "remove-override");
        removed.count()
    };
    eventually(|| listed() == 1);
}

#[test]
fn a_server_that_fails_is_named_and_a_mistake_is_explained() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let (here, gone) = (url(&server), format!("http://127.0.0.1:{}", free_port()));
    let (code, output, errors) = admin(&["mode", "api", "off", "--url", &gone]);
    assert_eq!((code, output.as_str()), (2, ""), "{errors}");
    assert!(errors.starts_with(&format!("spillgate: {gone}: ")), "{errors}");
    assert!(errors.contains("or name another with --url"), "{errors}");
    let (code, output, _) = admin(&["mode", "api", "off", "--json", "--url", &here]);
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, &report["result"]), (0, &Value::from("done")));

    let (code, _, errors) = admin(&["mode", "apy", "off", "--url", &here]);
    assert!(code == 2 && errors.contains("did you mean \"api\"?"), "{errors}");
    let (code, _, errors) = admin(&["mode", "a b", "off", "--url", &here]);
    assert!(code == 2 && errors.contains("there is no rule"), "{errors}");
    let (code, _, errors) = admin(&["block", "api", "tenant=a", "--for", "soon", "--url", &here]);
    assert!(code == 2 && errors.contains("30m, 2h or 7d"), "{errors}");
}

#[test]
fn the_token_comes_from_a_file_or_the_environment_and_a_viewer_reads_only() {
    let [ann, eve] = ["0123456789abcdef", "fedcba9876543210"];
    let tokens = TempFile::new("tokens", &format!("ann:operator:{ann}\neve:viewer:{eve}\n"));
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/minute\"]\n";
    let file = format!("[server]\nadmin_token_file = \"{}\"\n{rule}", tokens.path());
    let file = TempFile::new("limits.toml", &file);
    let server = Server::start(&["--config", file.path()]);
    let url = url(&server);
    let off = ["admin", "mode", "api", "off", "--url", &url];

    let (code, _, errors) = ended(&run(&off));
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("--token-file") && errors.contains("SPILLGATE_ADMIN_TOKEN"),
        "{errors}"
    );
    let with = |token: &str, words: &[&str]| {
        ended(&spillgate(words).env("SPILLGATE_ADMIN_TOKEN", token).output().unwrap())
    };
    assert_eq!(with(ann, &off), (0, format!("{url}: done: api off\n"), String::new()));
    let (code, _, errors) = with(eve, &off);
    assert!(code == 2 && errors.contains("the token eve is a viewer's"), "{errors}");
    let line = TempFile::new("line", &format!("eve:viewer:{eve}\n"));
    let audit = ["admin", "audit", "--url", &url, "--token-file", line.path()];
    let (code, output, errors) = with("another", &audit);
    assert_eq!(code, 0, "the file wins: {errors}");
    assert!(output.ends_with("Z  ann  set-mode api off\n"), "{output}");
}
