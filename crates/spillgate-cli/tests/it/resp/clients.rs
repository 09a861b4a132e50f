//! Foreign clients of Redis's protocol.

use std::path::Path;
use std::process::Command;

use super::assert_answer;
use crate::server::{Server, TempFile, spillgate};

const INTEGRATIONS: &str = include_str!("../../../../../docs/learn/other-languages.md");

const PASSWORD: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn redis_cli_works_in_both_versions() {
    let server = Server::start(&[]);
    let ask = ["CL.THROTTLE", "u1", "2", "1", "60"];
    assert_answer(&integers(&redis_cli(&server, &ask)), [0, 3, 2, -1, 60]);
    let in_three = redis_cli(&server, &[&["-3"], &ask[..]].concat());
    assert_answer(&integers(&in_three), [0, 3, 1, -1, 120]);
    assert!(redis_cli(&server, &["GET", "a"]).contains("unknown command 'GET'"));
}

#[test]
fn redis_benchmark_runs_unpipelined_and_pipelined() {
    let server = Server::start(&[]);
    for pipelined in ["1", "64"] {
        let output = Command::new("redis-benchmark")
            .args([
                "-p",
                &server.resp_port.unwrap().to_string(),
                "-n",
                "2000",
                "-c",
                "20",
                "-r",
                "100",
            ])
            .args(["-P", pipelined, "--csv", "CL.THROTTLE", "key:__rand_int__", "9", "1", "60"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("CL.THROTTLE"), "{text}");
        assert!(!text.contains("Error"), "{text}");
    }
    // 4,000 calls on 100 keys of ten each use up every key.
    let used_up = redis_cli(&server, &["CL.THROTTLE", "key:000000000007", "9", "1", "60"]);
    assert_eq!(integers(&used_up)[0], 1);
}

#[test]
fn the_shell_snippet_of_the_documents_runs_unchanged() {
    let server = Server::start(&[]);
    let output = Command::new("sh").args(["-e", "-c", &snippet("sh", &server)]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "0\n16\n15\n-1\n2\n1\n-1\n0\n-1\n\n\n");
}

/// `./check --full` installs redis-py and sets the variable to a Python that has it.
#[test]
#[ignore = "needs redis-py"]
fn redis_py_passes_its_script() {
    let python =
        std::env::var("SPILLGATE_PYTHON").expect("the variable names a Python with redis-py");
    let file = TempFile::new("password", PASSWORD);
    let open = Server::start(&[]);
    let guarded = Server::start_command(
        spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__RESP__PASSWORD_FILE", file.path()),
    );
    let story = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/redis_py.py");
    let ports = [&open, &guarded].map(|server| server.resp_port.unwrap().to_string());
    let output = Command::new(&python).arg(story).args(ports).arg(PASSWORD).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&python).args(["-c", &snippet("python", &open)]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the block of a language under RESP in `docs/learn/other-languages.md`, with the server's own port.
fn snippet(language: &str, server: &Server) -> String {
    let section = INTEGRATIONS.split_once("## Over RESP").unwrap().1;
    let block = section.split_once(&format!("```{language}\n")).unwrap().1;
    let block = block.split_once("```").unwrap().0;
    assert!(block.contains("6380"), "{block}");
    block.replace("6380", &server.resp_port.unwrap().to_string())
}

fn redis_cli(server: &Server, arguments: &[&str]) -> String {
    let port = server.resp_port.unwrap().to_string();
    let output =
        Command::new("redis-cli").args(["--no-raw", "-p", &port]).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Reads the integers of `1) (integer) 0`, line by line.
fn integers(text: &str) -> Vec<i64> {
    text.lines()
        .map(|line| line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap())
        .collect()
}
