//! A foreign gRPC client, in Python: calls, health and reflection.

use std::path::Path;
use std::process::Command;

use crate::server::{Server, TempFile};

const RULES: &str =
    "[[rule]]\nname = \"api\"\ndomain = \"web\"\nkey = [\"user\"]\nlimits = [\"3/day\"]\n";

/// `./check --full` installs grpcio and sets the variable to a Python that has it.
#[test]
#[ignore = "needs grpcio"]
fn grpcio_passes_its_script() {
    let python =
        std::env::var("SPILLGATE_GRPCIO").expect("the variable names a Python with grpcio");
    let rules = TempFile::new("grpcio.toml", RULES);
    let server = Server::start(&["--config", rules.path()]);
    let story = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/grpcio.py");
    let port = server.grpc_port.unwrap().to_string();
    let output = Command::new(&python).arg(story).arg(port).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
