//! The packages: image, compose file, chart, Debian package and release name existing things, and agree with one another.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use spillgate_testkit::RedisServer;

use crate::alerts::named;
use crate::deploy::{folder_with_deploy, read, root};
use crate::server::{Server, TempFile, run, spillgate};
use crate::validate::schema_knows;

#[test]
fn the_image_builds_from_existing_files_and_runs_without_root() {
    let dockerfile = read("deploy/Dockerfile");
    let ignored = read("deploy/Dockerfile.dockerignore");
    for line in
        dockerfile.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from"))
    {
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        words.pop();
        // The binaries of a release are put there by its workflow.
        for source in words.into_iter().filter(|source| !source.starts_with("target/image/")) {
            assert!(root().join(source).exists(), "{line}: there is no {source}");
            assert!(
                ignored.contains(&format!("!{source}\n")),
                "{source} is not part of the build context"
            );
        }
    }
    assert!(dockerfile.contains("org.opencontainers.image.source="));
    // No manifest names a file outside its crate: neither the image nor a published crate would have it.
    for name in
        ["spillgate", "spillgate-core", "spillgate-server", "spillgate-tools", "spillgate-cli"]
    {
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        assert!(manifest.contains("\nreadme = \"README.md\"\n"), "{name}");
        assert!(read(&format!("crates/{name}/README.md")).starts_with(&format!("# {name}\n")));
    }
    let oldest = read("Cargo.toml");
    let oldest = oldest.lines().find_map(|line| line.strip_prefix("rust-version = \"")).unwrap();
    let oldest = oldest.trim_end_matches('"');
    assert!(
        dockerfile.contains(&format!("FROM rust:{oldest}-alpine AS compiled\n")),
        "not {oldest}"
    );
    assert!(dockerfile.contains("\nFROM scratch\n") && dockerfile.contains("\nUSER 65532:65532\n"));
    let exposed = dockerfile.lines().find_map(|line| line.strip_prefix("EXPOSE ")).unwrap();
    assert_eq!(exposed, "8080 8081 6380 8082");
}

/// As `docker run` starts it, but on free ports.
#[test]
fn the_command_of_the_image_requires_its_tokens_and_denies_the_sixth_call() {
    let dockerfile = read("deploy/Dockerfile");
    assert!(dockerfile.contains("\nCOPY deploy/spillgate.toml /etc/spillgate/spillgate.toml\n"));
    let command = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let words: Vec<String> = serde_json::from_str(command).unwrap();
    let file = root().join("deploy/spillgate.toml").display().to_string();
    let words = words.join(" ").replace("/etc/spillgate/spillgate.toml", &file);
    let mut command = spillgate(&words.split(' ').collect::<Vec<_>>());
    for listener in ["HTTP", "GRPC__ADDRESS", "RESP__ADDRESS", "ADMIN"] {
        command.env(format!("SPILLGATE_SERVER__{listener}"), "0.0.0.0:0");
    }
    let server = Server::start_command(&mut command);
    let data = server.generated_token("server.data_token_file");
    let body = br#"{"key":"u1","limit":{"quota":"5/minute"}}"#;
    let ask = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Host", "localhost"), ("Authorization", &*bearer)];
        server.client().send_with("POST", "/v1/check", &headers, body).unwrap()
    };
    for call in 0..6 {
        assert_eq!(ask(&data).json()["allowed"], call < 5, "call {call}");
    }
    let dashboard = server.operator().send("GET", "/", b"").unwrap();
    assert!(dashboard.status == 200 && dashboard.body.contains("Spillgate"), "{}", dashboard.body);
    let admin = server.generated_token("server.admin_token_file");
    assert_eq!((ask(&admin).status, ask("wrong").status), (401, 401));
}

#[test]
fn the_file_of_a_new_installation_loads_as_it_is_and_with_its_examples() {
    let text = read("deploy/spillgate.toml");
    let examples: Vec<&str> = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => setting,
            _ => line,
        })
        .collect();
    for (text, rules) in [(text.clone(), "0 rules"), (examples.join("\n"), "1 rule")] {
        let file = TempFile::new("spillgate.toml", &text);
        let output = run(&["validate", file.path()]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && printed.contains(&format!(": ok, {rules}")),
            "{printed}"
        );
    }
}

#[test]
#[ignore = "needs docker-compose"]
fn docker_compose_accepts_the_compose_file() {
    let folder = folder_with_deploy();
    folder.write("deploy/compose/admin-token", "secret");
    folder.write("deploy/compose/redis-password", "secret");
    let mut docker = Command::new("docker");
    docker.args(["compose", "-f", "deploy/compose/compose.yaml", "config", "--quiet"]);
    let output = docker.current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_compose_file_mounts_existing_files_and_its_health_check_passes() {
    let compose = read("deploy/compose/compose.yaml");
    for line in compose.lines().map(|line| line.trim().trim_start_matches("- ")) {
        let Some((source, _)) = line.split_once(":/").filter(|(source, _)| source.starts_with('.'))
        else {
            continue;
        };
        assert!(
            root().join("deploy/compose").join(source).exists(),
            "{line}: there is no {source}"
        );
    }
    let settings = read("deploy/compose/spillgate.toml");
    let token = TempFile::new("token", "ann:operator:0123456789abcdef0123456789abcdef\n");
    let settings =
        settings.replace("0.0.0.0:8080", "127.0.0.1:0").replace("0.0.0.0:8082", "127.0.0.1:0");
    let file =
        TempFile::new("compose.toml", &settings.replace("/run/secrets/admin-token", token.path()));
    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let words = compose
        .lines()
        .find_map(|line| line.trim().strip_prefix("test: [\"CMD\", \"/spillgate\", "));
    let words: Vec<&str> = words.unwrap().trim_end_matches(']').split(", ").collect();
    let words: Vec<&str> = words.into_iter().map(|word| word.trim_matches('"')).collect();
    let output = run(&[&words[..], &["--url", &server.url()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Grafana shows the dashboard by the data of the Prometheus that scrapes the service.
#[test]
fn the_compose_file_gives_grafana_its_dashboard_and_its_data() {
    let compose = read("deploy/compose/compose.yaml");
    let mounted_at = |source: &str| {
        let start = format!("- {source}:");
        let line = compose.lines().find_map(|line| line.trim().strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{source} is not mounted")).trim_end_matches(":ro")
    };
    let provisioning = "/etc/grafana/provisioning";
    let datasources = mounted_at("./grafana/datasources.yml");
    assert_eq!(datasources, format!("{provisioning}/datasources/spillgate.yml"));
    let dashboards = mounted_at("./grafana/dashboards.yml");
    assert_eq!(dashboards, format!("{provisioning}/dashboards/spillgate.yml"));
    let (folder, _) = mounted_at("../grafana/spillgate.json").rsplit_once('/').unwrap();
    let provider = read("deploy/compose/grafana/dashboards.yml");
    assert!(provider.contains(&format!("path: {folder}\n")), "{provider}");

    let datasource = read("deploy/compose/grafana/datasources.yml");
    let url = datasource.lines().find_map(|line| line.trim().strip_prefix("url: http://")).unwrap();
    let (service, port) = url.split_once(':').unwrap();
    assert!(compose.contains(&format!("\n  {service}:\n")) && port == "9090", "{url}");
    assert!(datasource.contains("\n    type: prometheus\n"));
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/spillgate.json")).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(
        variables.iter().any(|one| one["type"] == "datasource" && one["query"] == "prometheus")
    );
    let prometheus = read("deploy/compose/prometheus.yml");
    assert!(
        prometheus.contains("targets: [\"spillgate:8082\"]")
            && compose.contains("\n  spillgate:\n")
    );
    for text in [&compose, &provider, &datasource, &prometheus] {
        is_yaml(text);
    }
}

#[test]
fn the_default_rules_of_the_chart_pass_the_linter() {
    let values = read("deploy/helm/spillgate/values.yaml");
    let (_, block) = values.split_once("\nconfig: |\n").unwrap();
    let lines = block.lines().take_while(|line| line.is_empty() || line.starts_with("  "));
    let config: Vec<&str> = lines.map(|line| line.trim_start_matches("  ")).collect();
    let file = TempFile::new("chart.toml", &config.join("\n"));
    let output = run(&["validate", "--deny", "warnings", file.path()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains(": ok, 2 rules"), "{said}");
}

#[test]
fn the_chart_sets_existing_settings() {
    let deployment = read("deploy/helm/spillgate/templates/deployment.yaml");
    let variables = named(&deployment, "SPILLGATE_");
    assert!(variables.len() >= 8, "{variables:?}");
    for variable in variables {
        let setting = variable.trim_start_matches("SPILLGATE_").replace("__", ".").to_lowercase();
        assert!(schema_knows(&setting), "{variable}: there is no setting {setting}");
    }
    let values = read("deploy/helm/spillgate/values.yaml");
    for (reference, _) in deployment.match_indices(".Values.") {
        let name =
            deployment[reference + 8..].split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap();
        assert!(values.contains(&format!("\n{name}:")), "values.yaml has no {name}");
    }
}

#[test]
fn versions_agree_and_a_mismatch_stops_a_release() {
    let output = deployed("deploy/versions", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let version = env!("CARGO_PKG_VERSION");
    let complaints = |version: &str| {
        let output = deployed("deploy/versions", &[version]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = complaints("9.9.9");
    assert!(said.contains(&format!("Cargo.toml, version, says {version}")), "{said}");
    assert_eq!(said.matches("run deploy/versions --set 9.9.9").count(), 10, "{said}");
    assert!(said.contains("CHANGELOG.md has nothing under [9.9.9]"), "{said}");
    assert!(!complaints(version).contains("run deploy/versions"), "{}", complaints(version));

    // The notes of this version have its head only once it is released.
    let notes = |version: &str| deployed("deploy/versions", &["--notes", version]).stdout;
    let notes = [notes("Unreleased"), notes(version)].concat();
    let notes = String::from_utf8_lossy(&notes);
    assert!(notes.trim_start().starts_with("### "), "{notes}");
}

#[test]
fn workflows_run_existing_programs() {
    for file in ["check", "release"] {
        let text = read(&format!(".github/workflows/{file}.yml"));
        is_yaml(&text);
        // By commit: a tag may be moved to other code.
        for action in text.lines().filter_map(|line| line.split_once("uses: ")).map(|line| line.1) {
            let (action, version) = action.split_once(" # v").unwrap_or((action, ""));
            let commit = action.split_once('@').map_or("", |(_, commit)| commit);
            let is_commit =
                commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(
                is_commit && version.split('.').count() == 3,
                "{file}.yml: {action} is not pinned"
            );
        }
        assert!(text.contains("timeout-minutes:") && text.contains("permissions:"), "{file}");
        let programs = text.split_whitespace().map(|word| word.trim_start_matches("<("));
        let ours = |word: &&str| {
            ["deploy/", "tests/", ".ci/", "crates/"].iter().any(|at| word.starts_with(at))
        };
        let mut seen = 0;
        for path in programs.filter(ours) {
            let made = path == "crates/spillgate-cli/spillgate.json";
            assert!(made || root().join(path).exists(), "{file}.yml: there is no {path}");
            seen += 1;
        }
        assert!(seen > 0, "{file}");
    }
}

#[test]
fn the_release_builds_what_the_packages_name() {
    let release = read(".github/workflows/release.yml");
    let dockerfile = read("deploy/Dockerfile");
    let manifest = read("crates/spillgate-cli/Cargo.toml");
    for text in [&release, &dockerfile] {
        assert!(text.contains("--package spillgate-cli --features otlp"));
    }
    assert!(manifest.contains("\notlp = ["));
    // The image holds the binaries of the release, one for each processor.
    assert!(release.contains("build-args: BINARY=released\n"));
    assert!(dockerfile.contains("\nCOPY target/image/${TARGETARCH}/spillgate /spillgate\n"));
    for (image, target) in [("amd64", "x86_64"), ("arm64", "aarch64")] {
        assert!(release.contains(&format!("linux/{image}")), "{image}");
        assert!(release.contains(&format!("{image}:{target}")), "{image}");
        assert!(release.contains(&format!("target: {target}-unknown-linux-musl}}")), "{target}");
    }
    // The chart's default image is the one that is pushed.
    let repository = read("Cargo.toml");
    let repository = repository.lines().find_map(|line| line.strip_prefix("repository = "));
    let repository =
        repository.unwrap().trim_matches('"').trim_start_matches("https://github.com/");
    assert!(release.contains("ghcr.io/$GITHUB_REPOSITORY:"));
    assert!(release.contains("tags: ${{ env.tags }}\n"));
    let values = read("deploy/helm/spillgate/values.yaml");
    assert!(values.contains(&format!("\n  repository: ghcr.io/{repository}\n")), "{repository}");
    // Checksums come after all that they are of, and are attested.
    let position = |text: &str| release.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(position("helm package") < position("sha256sum"));
    assert!(position("spillgate.cdx.json") < position("sha256sum"));
    assert!(position("sha256sum") < position("subject-checksums: release/SHA256SUMS"));
    let ship = read("tests/outside/ship.sh");
    let cargo_deb = ship.lines().find_map(|line| line.strip_prefix("cargo_deb=")).unwrap();
    assert!(release.contains(&format!("cargo install --locked {cargo_deb}\n")), "{cargo_deb}");
    // The tools that build the clients are those that their tests ran with.
    let clients = read("tests/outside/clients.sh");
    for tool in ["build==", "setuptools=="] {
        let version = clients.split(tool).nth(1).and_then(|rest| rest.split([' ', ')']).next());
        assert!(release.contains(&format!(" {tool}{} ", version.unwrap())), "{tool}{version:?}");
    }
}

#[test]
fn the_debian_package_holds_existing_files_and_starts_its_unit() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "spillgate-cli").unwrap();
    let deb = &package["metadata"]["deb"];
    let mut installed = BTreeSet::new();
    for asset in deb["assets"].as_array().unwrap() {
        let [source, target] = [&asset[0], &asset[1]].map(|path| path.as_str().unwrap());
        let path = match source {
            "target/release/spillgate" => PathBuf::from(env!("CARGO_BIN_EXE_spillgate")),
            source => root().join("crates/spillgate-cli").join(source),
        };
        let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
        let sources: Vec<String> = match name.strip_prefix('*') {
            Some(ending) => {
                names_in(folder).into_iter().filter(|one| one.ends_with(ending)).collect()
            }
            None => vec![name.to_owned()],
        };
        assert!(!sources.is_empty(), "there is no {source}");
        for name in sources {
            assert!(folder.join(&name).exists(), "there is no {source}");
            // A target that does not end with a slash is a file.
            let name = if target.ends_with('/') { name } else { String::new() };
            installed.insert(format!("/{target}{name}"));
        }
    }
    let units =
        root().join("crates/spillgate-cli").join(deb["maintainer-scripts"].as_str().unwrap());
    let unit = fs::read_to_string(units.join("spillgate.service")).unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    for path in command.split(' ').filter(|word| word.starts_with('/')) {
        assert!(installed.contains(path), "{path} is not among {installed:?}");
    }
    for file in deb["conf-files"].as_array().unwrap() {
        assert!(installed.contains(file.as_str().unwrap()), "{file}");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn deployed(program: &str, arguments: &[&str]) -> Output {
    Command::new(root().join(program)).args(arguments).output().unwrap()
}

#[track_caller]
fn is_yaml(text: &str) {
    for event in saphyr_parser::Parser::new_from_str(text) {
        assert!(event.is_ok(), "{event:?} in:\n{text}");
    }
}
