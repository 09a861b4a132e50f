//! Types a page's commands into one shell, with ports of its own, and compares the output with the blocks of text
//! behind them, in which `…` stands for any text.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use spillgate_testkit::{Folder, free_port};

use super::page::Page;
use crate::server::{Server, without_settings};

/// The ports of this test for those of the documents.
pub(super) struct Ports([(u16, u16); 5]);

impl Ports {
    /// Returns free ports for all.
    fn free() -> Ports {
        Ports([8080, 8081, 6380, 8082, 6379].map(|usual| (usual, free_port())))
    }

    pub(super) fn of(server: &Server) -> Ports {
        let or_none = |port: Option<u16>| port.unwrap_or_default();
        let resp = or_none(server.resp_port);
        let (grpc, admin) = (or_none(server.grpc_port), or_none(server.admin_port));
        Ports([(8080, server.port), (8081, grpc), (6380, resp), (8082, admin), (6379, 0)])
    }

    fn port(&self, usual: u16) -> u16 {
        self.0.iter().find(|(of, _)| *of == usual).unwrap().1
    }

    /// Returns the text with the test's ports instead of the usual ones.
    pub(super) fn exchanged(&self, text: &str) -> String {
        let mut exchanged = String::new();
        let mut digits = String::new();
        for character in text.chars().chain(['\0']) {
            if character.is_ascii_digit() {
                digits.push(character);
                continue;
            }
            match self.0.iter().find(|(usual, _)| usual.to_string() == digits) {
                Some((_, ours)) => exchanged.push_str(&ours.to_string()),
                None => exchanged.push_str(&digits),
            }
            digits.clear();
            exchanged.push(character);
        }
        exchanged.pop();
        exchanged
    }
}

/// A command, and the output that the page promises.
struct Step {
    command: String,
    promised: Vec<String>,
}

#[track_caller]
pub(super) fn check(name: &str) {
    let ports = Ports::free();
    let steps = steps(&Page::of(name), &ports);
    assert!(steps.len() >= 3, "{name}: {} commands", steps.len());
    let folder = Folder::create();
    let mut script = prelude(&ports);
    for step in &steps {
        script.push_str(&format!("{}\necho; echo '{MARK}'\n", step.command));
    }
    let output = type_in(folder.path(), &script);
    let parts: Vec<&str> = output.split(MARK).collect();
    assert_eq!(parts.len(), steps.len() + 1, "{name}: it stopped on the way:\n{output}");
    for (step, part) in steps.iter().zip(parts) {
        let mut lines = part.lines();
        for promised in &step.promised {
            let found = lines.any(|line| holds(line, promised));
            assert!(
                found,
                "docs/{name}.md promises {promised:?}, and the output is:\n{part}\nto\n{}",
                step.command
            );
        }
    }
}

fn steps(page: &Page, ports: &Ports) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (language, block) in page.all_blocks() {
        match (language, steps.last_mut()) {
            ("sh", _) => steps.push(Step { command: ports.exchanged(block), promised: Vec::new() }),
            ("text", Some(step)) => {
                let lines = block.lines().filter(|line| !line.is_empty());
                step.promised.extend(lines.map(|line| ports.exchanged(line)));
            }
            _ => {}
        }
    }
    steps
}

/// Returns whether a line equals a promise, in which `…` stands for any text.
fn holds(line: &str, promised: &str) -> bool {
    let mut rest = line;
    promised.split('…').all(|part| {
        let found = rest.split_once(part);
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

/// Defines the programs of the page for this test. A program in the background replaces its shell, so that ending the
/// job ends the server.
fn prelude(ports: &Ports) -> String {
    let [http, grpc, resp, admin] = [8080, 8081, 6380, 8082].map(|usual| ports.port(usual));
    format!(
        r#"set -euo pipefail
trap 'set +e; kill $(jobs -p) 2> /dev/null; wait' EXIT
export SPILLGATE_SERVER__HTTP=127.0.0.1:{http} SPILLGATE_SERVER__GRPC__ADDRESS=127.0.0.1:{grpc}
export SPILLGATE_SERVER__RESP__ADDRESS=127.0.0.1:{resp} SPILLGATE_SERVER__ADMIN=127.0.0.1:{admin}
# A machine busy with something else is no outage.
export SPILLGATE_STORE__TIMEOUT=5s
curl() {{ command curl --noproxy '*' --max-time 30 "$@"; }}
redis-server() {{ exec redis-server "$@" --bind 127.0.0.1; }}
spillgate() {{
  local url=()
  case "$*" in
    serve*) [ $BASHPID = $$ ] || exec "$SPILLGATE" "$@" ;;
    *--redis*) ;;
    check*) url=(--url http://127.0.0.1:{http}) ;;
    admin* | top* | explain* | status* | fleet*) url=(--url http://127.0.0.1:{admin}) ;;
  esac
  "$SPILLGATE" "$@" ${{url[@]+"${{url[@]}}"}}
}}
"#
    )
}

/// Returns the output and the errors of the script. A command that waits for ever is ended.
#[track_caller]
fn type_in(folder: &Path, script: &str) -> String {
    fs::write(folder.join("typed.sh"), script).unwrap();
    let output = fs::File::create(folder.join("output")).unwrap();
    let errors = output.try_clone().unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", SECONDS_MAX, "bash", "-m", "typed.sh"]).current_dir(folder);
    without_settings(&mut command);
    command.env("SPILLGATE", env!("CARGO_BIN_EXE_spillgate")).stdin(Stdio::null());
    let status = command.stdout(output).stderr(errors).status().unwrap();
    let output =
        String::from_utf8_lossy(&fs::read(folder.join("output")).unwrap()).replace('\r', "");
    assert!(status.success(), "it ended with {status}:\n{output}");
    output
}

#[test]
fn a_promise_is_a_line_with_gaps() {
    assert!(holds("{\"a\":1,\"b\":2}", "{\"a\":…\"b\":"));
    assert!(!holds("{\"b\":2,\"a\":1}", "{\"a\":…\"b\":"));
    let ports = Ports([(8080, 1), (8081, 2), (6380, 3), (8082, 4), (6379, 5)]);
    assert_eq!(ports.exchanged("a:6379 16379 8080"), "a:5 16379 1");
}

/// A text that no command prints.
const MARK: &str = "=== typed ===";
const SECONDS_MAX: &str = "120";
