//! The files of `deploy/` and the pages about deployment: templates start on real servers, snippets run.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use spillgate_testkit::{Cluster, Folder, RedisServer, Sentinels, eventually};

use crate::alerts::{families, named};
use crate::server::{LISTENING, Server, TempFile, run, spillgate, without_settings};

#[test]
fn the_template_of_one_server_starts_on_one() {
    let redis = RedisServer::start();
    starts("single", &[("redis://10.0.0.1:6379", redis.url())]);
}

#[test]
fn the_template_of_sentinels_starts_on_sentinels() {
    let sentinels = Sentinels::start(1, 3);
    let urls = sentinels.urls();
    let addresses: Vec<(&str, String)> =
        ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"]
            .into_iter()
            .zip(urls)
            .collect();
    let addresses = [addresses, vec![("mymaster", Sentinels::NAME.to_owned())]].concat();
    starts("sentinel", &addresses);
}

#[test]
fn the_template_of_a_cluster_starts_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let urls = cluster.urls();
    let addresses: Vec<(&str, String)> =
        ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"]
            .into_iter()
            .zip(urls)
            .collect();
    starts("cluster", &addresses);
}

#[test]
fn the_template_of_a_ring_starts_on_two_servers() {
    let [one, other] = [RedisServer::start(), RedisServer::start()];
    starts("ring", &[("redis://10.0.0.1:6379", one.url()), ("redis://10.0.0.2:6379", other.url())]);
}

/// Starts a template with its addresses replaced: the linter finds nothing, and its rules deny by the store.
#[track_caller]
fn starts(name: &str, addresses: &[(&str, String)]) {
    let path = format!("deploy/config/{name}.toml");
    let mut text = read(&path);
    let whole = root().join(&path);
    let output = run(&["validate", "--deny", "warnings", whole.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    for (template, ours) in addresses {
        assert!(text.contains(template), "{path} names no {template}");
        text = text.replace(template, ours);
    }
    let file = TempFile::new("template.toml", &text);
    let mut command = spillgate(&[&["serve", "--config", file.path()], &LISTENING[..]].concat());
    let server = Server::start_command(command.env("SPILLGATE_STORE__TIMEOUT", "10s"));
    // The first call waits until the Sentinels have named the primary.
    let other = r#"{"attributes":{"ip":"203.0.113.8"}}"#;
    eventually(|| server.check(other)["source"] == "store");
    // In one batch, so that hardly any quota returns meanwhile.
    let checks = vec![r#"{"attributes":{"ip":"203.0.113.7"}}"#; 200].join(",");
    let reply = server.post("/v1/check/batch", format!("[{checks}]").as_bytes()).json();
    let results = reply["results"].as_array().unwrap();
    let denied = results.iter().find(|result| result["allowed"] == false);
    let denied = denied.unwrap_or_else(|| panic!("{name}: no check is denied: {reply}"));
    assert_eq!(
        (&denied["rule"], &denied["degraded"]),
        (&"address".into(), &false.into()),
        "{denied}"
    );
    let ready = server.operator().send("GET", "/readyz?verbose", b"").unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
}

/// What `cargo deny check licenses` would say, without it.
#[test]
fn every_dependency_has_a_licence_that_deny_toml_allows() {
    let deny = read("deny.toml");
    let (_, allowed) = deny.split_once("allow = [").unwrap();
    let allowed: BTreeSet<&str> =
        allowed.split(']').next().unwrap().split('"').skip(1).step_by(2).collect();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"]);
    // Crates for other systems may never have been downloaded.
    cargo.args(["--filter-platform", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);
    for package in packages {
        let text = package["license"]
            .as_str()
            .unwrap_or("none")
            .replace(" / ", " OR ")
            .replace('/', " OR ");
        let all = text.split(" AND ").all(|part| {
            part.split(" OR ").any(|licence| allowed.contains(licence.trim_matches(['(', ')'])))
        });
        assert!(all, "{}: {text}: allow it in deny.toml, or remove the crate", package["name"]);
    }
}

#[test]
fn metrics_in_the_documents_are_exported() {
    let families = families();
    for file in ["docs/how-to/test-a-policy.md", "docs/learn/rust-service.md"] {
        let text = read(file);
        for metric in named(&text, "spillgate_").into_iter().filter(|name| *name != "spillgate_") {
            let family = metric.trim_end_matches("_bucket");
            assert!(families.contains(family), "{file}: nothing exports {metric}");
        }
    }
}

/// Files that the page writes and commands that it runs, each in a folder with the rest of the tree beside it.
#[test]
fn the_commands_of_the_page_work_as_described() {
    let page = read("docs/how-to/test-a-policy.md");
    let folder = folder_with_deploy();
    folder.write("in-force.toml", &read("deploy/config/single.toml"));
    let block =
        page.split("```sh\n").find(|block| block.starts_with("spillgate validate --deny")).unwrap();
    let block = block.split("```").next().unwrap();
    let script =
        format!("set -e\nspillgate() {{ '{}' \"$@\"; }}\n{block}", env!("CARGO_BIN_EXE_spillgate"));
    let mut command = Command::new("bash");
    without_settings(&mut command);
    let output = command.args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("All state stays in use, unchanged.") && text.contains("in Redis"),
        "{text}"
    );
    assert!(folder.path().join("spillgate.schema.json").exists());

    // The shadow rule beside the enforced one, as the page has them.
    let block = page.split("```toml\n").find(|block| block.contains("mode = \"shadow\"")).unwrap();
    let file = TempFile::new("shadow.toml", block.split("```").next().unwrap());
    let server = Server::start(&["--config", file.path()]);
    for _ in 0..6 {
        server.check(r#"{"attributes":{"ip":"203.0.113.7"}}"#);
    }
    let metrics = server.metrics();
    let counted = |rule: &str, decision: &str| {
        let is_it = |line: &&str| {
            line.contains(&format!("rule=\"{rule}\","))
                && line.contains(&format!("decision=\"{decision}\""))
        };
        let line = metrics.lines().find(is_it);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    assert_eq!((counted("address", "allowed"), counted("address", "denied")), (6, 0), "{metrics}");
    assert_eq!(
        (counted("address-next", "allowed"), counted("address-next", "denied")),
        (5, 1),
        "{metrics}"
    );

    // Lists the subjects that would be denied, and enforces the rule.
    let operator = format!("127.0.0.1:{}", server.admin_port.unwrap());
    let url = format!("http://{operator}");
    let top = run(&["top", "--once", "--rule", "address-next", "--url", &url]);
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("203.0.113.7"), "{top}");
    let admin = page.lines().find_map(|line| line.strip_prefix("    spillgate admin ")).unwrap();
    let words: Vec<&str> = ["admin"].into_iter().chain(admin.split(' ')).collect();
    let output = run(&[&words[..], &["--url", &url]].concat());
    assert!(output.status.success(), "{admin}: {}", String::from_utf8_lossy(&output.stderr));
    let refused = server.check(r#"{"attributes":{"ip":"203.0.113.7"}}"#);
    assert_eq!(
        (&refused["reason"], &refused["rule"]),
        (&"limit-exceeded".into(), &"address-next".into())
    );
}

#[test]
#[ignore = "needs promtool"]
fn promtool_accepts_every_query_of_the_page() {
    let page = read("docs/how-to/test-a-policy.md");
    let queries: Vec<&str> =
        page.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(queries.len() >= 3);
    let rules: String = queries
        .iter()
        .enumerate()
        .map(|(at, query)| {
            let query = query.replace('\n', "\n          ");
            format!("      - record: query_{at}\n        expr: |\n          {query}\n")
        })
        .collect();
    let file =
        TempFile::new("queries.yml", &format!("groups:\n  - name: page\n    rules:\n{rules}"));
    let output = Command::new("promtool").args(["check", "rules", file.path()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns a new folder with a copy of `deploy/`.
pub(crate) fn folder_with_deploy() -> Folder {
    let folder = Folder::create();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(root().join("deploy")).arg(folder.path());
    assert!(copy.status().unwrap().success());
    folder
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
