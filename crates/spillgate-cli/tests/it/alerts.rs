//! The alerts, Grafana's dashboard and the runbook name only existing metrics. promtool, where it is installed, fires
//! each alert.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use spillgate_testkit::RedisServer;

use crate::server::Server;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the names in `text` with this prefix.
pub(crate) fn named<'t>(text: &'t str, start: &str) -> BTreeSet<&'t str> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let found = text.match_indices(start).map(|(at, _)| &text[at..]);
    found.map(|rest| rest.split(ends).next().unwrap()).collect()
}

/// Returns the exported metric families, in memory and on a store.
pub(crate) fn families() -> BTreeSet<String> {
    let redis = RedisServer::start();
    let exported =
        [Server::start(&[]), Server::start_on(&redis, &[])].map(|server| server.metrics()).concat();
    let family = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    exported.lines().filter_map(family).collect()
}

#[test]
fn every_watched_metric_is_exported() {
    let families = families();
    for file in ["deploy/prometheus/alerts.yml", "deploy/grafana/spillgate.json"] {
        let text = read(file);
        let metrics = named(&text, "spillgate_");
        assert!(metrics.len() > 9, "{file}: {metrics:?}");
        for metric in metrics {
            let family = metric.trim_end_matches("_bucket");
            assert!(families.contains(family), "{file}: nothing exports {metric}");
        }
    }
}

#[test]
fn every_alert_has_an_entry_in_the_runbook_and_a_test() {
    let (alerts, runbook) = (read("deploy/prometheus/alerts.yml"), read("docs/how-to/alerts.md"));
    let tests = read("deploy/prometheus/alerts_test.yml");
    let names: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 10);
    for name in &names {
        assert!(runbook.contains(&format!("\n## {name}\n")), "no entry of {name}");
        let page = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/how-to/alerts.md");
        let link = format!("runbook_url: {page}#{}\n", name.to_lowercase());
        assert_eq!(alerts.matches(&link).count(), 1, "{link}");
        assert!(
            tests.contains(&format!("alertname: {name}\n        exp_alerts:")),
            "{name} never fires"
        );
    }
    for entry in runbook.lines().filter_map(|line| line.strip_prefix("## Spillgate")) {
        assert!(names.iter().any(|name| name.ends_with(entry)), "no alert of {entry}");
    }
}

#[test]
fn every_panel_of_the_dashboard_has_a_description() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana/spillgate.json")).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let described = panel["description"].as_str().is_some_and(|text| text.len() > 20);
        assert!(described || panel["type"] == "row", "no description: {}", panel["title"]);
    }
}

#[test]
#[ignore = "needs promtool"]
fn promtool_checks_the_alerts_and_fires_each() {
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let mut promtool = Command::new("promtool");
        promtool.args(arguments).current_dir(root().join("deploy/prometheus"));
        let output = promtool.output().unwrap();
        let output_text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output_text));
    }
}
