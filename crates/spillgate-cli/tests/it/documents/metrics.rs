//! The page on metrics lists what a program exports that has met everything it counts; everything that names a metric
//! names a family of the page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillgate_testkit::{RedisServer, poll};

use super::page::{Page, read, root};
use crate::alerts::named;
use crate::envoy::client::{Caller, descriptor};
use crate::server::{Server, TempFile};

#[derive(Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
    /// Whether a sample was exported: without one its labels are unknown.
    has_samples: bool,
}

type Families = BTreeMap<String, Family>;

#[test]
fn the_page_on_metrics_lists_each_family_with_its_type_and_labels() {
    let mut exported = exported_in_memory();
    exported.extend(exported_on_a_store());
    let listed = listed();
    let mut findings = Vec::new();
    for name in listed.keys().chain(exported.keys()).collect::<BTreeSet<_>>() {
        match (listed.get(name), exported.get(name)) {
            (Some(_), None) => findings.push(format!("{name}: on the page, but not exported")),
            (None, _) => findings.push(format!("{name}: exported, but not on the page")),
            (Some(_), Some(found)) if !found.has_samples => {
                findings.push(format!("{name}: this test must cause a sample"));
            }
            (Some(row), Some(found)) if row != found => {
                findings.push(format!("{name}: the page has {row:?}, the program {found:?}"));
            }
            (Some(_), Some(_)) => {}
        }
    }
    assert!(findings.is_empty(), "docs/reference/metrics.md:\n{}", findings.join("\n"));
}

#[test]
fn documents_alerts_and_dashboards_name_only_metrics_of_the_page() {
    let listed = listed();
    let mut findings = Vec::new();
    let mut check = |file: &str, name: &str| {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let is_listed = |name: &str| listed.contains_key(&format!("spillgate_{name}"));
        if !is_listed(name) && !family.is_some_and(is_listed) {
            findings.push(format!("{file}: no family spillgate_{name}"));
        }
    };
    let mut files = vec![
        root().join("README.md"),
        root().join("deploy/prometheus/alerts.yml"),
        root().join("deploy/prometheus/alerts_test.yml"),
        root().join("deploy/grafana/spillgate.json"),
        root().join("tests/outside/prometheus.sh"),
    ];
    gather(&root().join("docs"), &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        // Variables and locations of nginx have such names too, and so has the Debian package.
        let others = ["$spillgate_", "@spillgate_", "debian/spillgate_"];
        let text = others.iter().fold(text, |text, other| text.replace(other, ""));
        for name in named(&text, "spillgate_") {
            check(&file.display().to_string(), name.trim_start_matches("spillgate_"));
        }
    }
    let script = "crates/spillgate-server/dashboard/dashboard.js";
    let text = read(script);
    let calls = ["sum('", "all('", "histogram('", "grown('", "add('"];
    for call in calls.iter().flat_map(|call| text.split(call).skip(1)) {
        check(script, call.split('\'').next().unwrap());
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Adds each page in a folder and below it.
fn gather(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            gather(&entry, pages);
        } else if entry.extension().is_some_and(|end| end == "md") {
            pages.push(entry);
        }
    }
}

/// The families of the page.
fn listed() -> Families {
    let page = Page::of("reference/metrics").section("Families");
    let rows = page.rows().into_iter().map(|row| {
        let labels = row[2].split(", ").filter(|label| *label != "none").map(str::to_owned);
        let kind = row[1].to_owned();
        let family = Family { kind, labels: labels.collect(), has_samples: true };
        (row[0].trim_matches('`').to_owned(), family)
    });
    rows.collect()
}

/// The families with the memory store, after a check that a rule matches.
fn exported_in_memory() -> Families {
    let file = TempFile::new("limits.toml", RULES);
    let server = Server::start(&["--config", file.path()]);
    until_exported(&server, &["spillgate_decision_rate"], || check(&server, "ann"))
}

/// The families on a store that is set up unsafely, then stops for longer than Envoy waits, then dies.
fn exported_on_a_store() -> Families {
    let mut redis = RedisServer::start();
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let file = TempFile::new("limits.toml", RULES);
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let unsafe_store = ["spillgate_store_unsafe", "spillgate_near_limit_total"];
    until_exported(&server, &unsafe_store, || check(&server, "ann"));

    redis.pause();
    let envoy = Caller::of(&server);
    until_exported(&server, &["spillgate_overloaded_decisions_total"], || {
        envoy.ask(&[descriptor(&[("user", "ann")])]);
    });
    redis.kill();
    let outage = [
        "spillgate_fallback_decisions_total",
        "spillgate_store_errors_total",
        "spillgate_overshoot_observed",
        "spillgate_decision_rate",
        "spillgate_lease_outstanding",
    ];
    // The limits of the first subject are used up by now.
    until_exported(&server, &outage, || check(&server, "bob"))
}

fn check(server: &Server, user: &str) {
    server.check(&format!("{{\"attributes\":{{\"user\":\"{user}\"}}}}"));
}

/// Acts until each of the families has a sample.
#[track_caller]
fn until_exported(server: &Server, awaited: &[&str], mut act: impl FnMut()) -> Families {
    let mut families = Families::new();
    let all = poll(PATIENCE, || {
        act();
        families = parsed(&server.metrics());
        awaited.iter().all(|name| families[*name].has_samples).then_some(())
    });
    assert!(all.is_some(), "not all of {awaited:?} have samples: {families:#?}");
    families
}

/// Parses the text format, without the labels that belong to the buckets of a histogram.
fn parsed(text: &str) -> Families {
    let mut families = Families::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').unwrap();
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} comes twice");
        } else if !line.starts_with('#') {
            let (name, labels) = line.split_once('{').unwrap_or((line, ""));
            let name = name.split(' ').next().unwrap();
            let ends = ["_bucket", "_sum", "_count"].iter();
            let base = ends.filter_map(|end| name.strip_suffix(end));
            let base = base.into_iter().find(|base| families.contains_key(*base));
            let family = families.get_mut(base.unwrap_or(name)).unwrap();
            let labels = labels.split("\",").filter_map(|label| label.split_once("=\""));
            let labels: BTreeSet<String> =
                labels.map(|(label, _)| label.to_owned()).filter(|label| label != "le").collect();
            assert!(!family.has_samples || family.labels == labels, "{line}: other labels");
            (family.labels, family.has_samples) = (labels, true);
        }
    }
    families
}

/// For a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two rules match each request. The counter of the first is leased, that of the second is soon near its limit.
const RULES: &str = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"1000000/day\"]\n\
    lease = { share = 0.05, ttl = \"60s\" }\n\
    [[rule]]\nname = \"near\"\nkey = [\"user\"]\nlimits = [\"5/day\"]\n";
