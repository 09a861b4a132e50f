//! The documents: their commands are typed in order and print the promised output, their snippets run, and the
//! reference has every setting.

mod openapi;
pub(crate) mod page;
mod settings;
mod typed;

use std::process::Command;

use page::{Page, read, spans};
use typed::Ports;

use crate::server::{Server, TempFile};

#[test]
fn the_commands_of_choosing_print_the_promised_output() {
    typed::check("how-to/choose-a-limit");
}

#[test]
fn the_commands_of_the_first_limit_print_the_promised_output() {
    typed::check("learn/first-limit");
}

#[test]
fn the_commands_about_denials_print_the_promised_output() {
    typed::check("how-to/denials");
}

#[test]
fn the_checklist_for_production_prints_the_promised_output() {
    typed::check("how-to/production");
}

#[test]
fn the_commands_about_redis_print_the_promised_output() {
    typed::check("how-to/redis");
}

#[test]
fn the_commands_of_migration_print_the_promised_output() {
    typed::check("how-to/migrate");
}

#[test]
fn the_commands_about_keys_and_addresses_print_the_promised_output() {
    typed::check("how-to/api-keys-and-addresses");
}

#[test]
fn the_commands_of_changing_a_limit_print_the_promised_output() {
    typed::check("how-to/change-a-limit");
}

#[test]
fn the_commands_about_security_print_the_promised_output() {
    typed::check("explain/security");
}

#[test]
fn the_rust_of_choosing_is_an_example_that_runs() {
    let example = read("crates/spillgate/src/limiter/acquiring.rs");
    let lines: Vec<&str> = example
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("///"))
        .map(str::trim)
        .collect();
    let page = Page::of("how-to/choose-a-limit");
    let rust = page.blocks("rust").next().unwrap();
    for line in rust.lines() {
        assert!(lines.contains(&line.trim()), "no example in acquiring.rs has the line {line}");
    }
}

#[test]
fn the_rust_of_the_service_is_an_example_that_is_run() {
    let example = read("crates/spillgate/examples/quick_start.rs");
    let lines: Vec<&str> = example.lines().map(str::trim).collect();
    let page = Page::of("learn/rust-service");
    for line in page.blocks("rust").flat_map(str::lines) {
        assert!(lines.contains(&line.trim()), "the example has no line {line}");
    }
}

#[test]
fn the_rust_of_other_frameworks_is_in_the_programs_that_are_run() {
    let page = Page::of("how-to/rust-frameworks");
    let mut program = String::new();
    for part in page.text.split("\n```") {
        if let Some(block) = part.strip_prefix("rust\n") {
            assert!(program.contains(block), "no program of its section has:\n{block}");
        }
        // A text names the file of the block after it.
        let is_source = |span: &&str| span.starts_with("examples/") && span.ends_with(".rs");
        if let Some(path) = spans(part).filter(is_source).last() {
            program = read(path);
        }
    }
    assert!(page.blocks("rust").count() > 2);
}

#[test]
fn the_snippets_over_http_run_unchanged() {
    let printed = run_snippet("sh", "sh", &["-e", "-c"]);
    assert!(
        printed.starts_with("{\"allowed\":true") && printed.contains("{\"results\":["),
        "{printed}"
    );
    let printed = run_snippet("python", "python3", &["-c"]);
    assert!(printed.starts_with("come back in 35"), "{printed}");
}

#[test]
#[ignore = "needs node"]
fn the_snippet_over_http_for_node_runs_unchanged() {
    let printed = run_snippet("js", "node", &["--input-type=module", "-e"]);
    assert!(printed.starts_with("come back in 35"), "{printed}");
}

/// Runs the snippet in a language against a server whose limit is used up, and returns its output.
fn run_snippet(language: &str, program: &str, arguments: &[&str]) -> String {
    let rules = "[[rule]]\nname = \"login\"\nmatch = { route = \"/login\" }\nkey = [\"ip\"]\n\
                 limits = [\"1/hour\"]\n";
    let file = TempFile::new("http.toml", rules);
    let server = Server::start(&["--config", file.path()]);
    server.check(r#"{"attributes": {"ip": "203.0.113.7", "route": "/login"}}"#);
    let page = Page::of("learn/other-languages").section("Over HTTP");
    let text = Ports::of(&server).exchanged(page.blocks(language).next().unwrap());
    // A machine busy with something else is no outage.
    let text = text.replace("timeout=1)", "timeout=60)").replace("(1000)", "(60000)");
    let mut command = Command::new(program);
    let output = command.args(arguments).arg(&text).env("no_proxy", "*").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{language}: {printed}{complained}");
    printed
}

/// There is no cluster to apply them to; a real Envoy runs the filter in them.
#[test]
fn the_snippets_for_meshes_are_yaml_with_the_filter_that_envoy_runs() {
    let recipe = read("deploy/proxies/envoy/rate-limit.yaml");
    let name = "- name: envoy.filters.http.ratelimit";
    let filter = recipe.lines().map(str::trim).skip_while(|line| *line != name).skip(1);
    let filter: Vec<&str> = filter.take_while(|line| !line.contains("envoy_grpc")).collect();
    assert!(filter.len() > 6, "{filter:?}");
    let mut holding = 0;
    let meshes = ["istio", "contour", "envoy-gateway", "agentgateway"]
        .map(|name| Page::of(&format!("how-to/{name}")));
    for block in meshes.iter().flat_map(|page| page.blocks("yaml")) {
        for event in saphyr_parser::Parser::new_from_str(block) {
            assert!(event.is_ok(), "{event:?} in:\n{block}");
        }
        let lines: Vec<&str> = block.lines().map(str::trim).collect();
        holding += usize::from(lines.windows(filter.len()).any(|window| window == filter));
    }
    assert_eq!(holding, 2, "Istio's and Envoy Gateway's");
}
