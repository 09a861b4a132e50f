//! The scripts of the store, printed and loaded.

use std::process::Stdio;

use spillgate_testkit::{RedisServer, free_port};

use crate::server::{run, spillgate};

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_printed_scripts_have_the_printed_sha1s_and_load() {
    let server = RedisServer::start();
    let loaded = run(&["scripts", "load", "--redis", &server.url()]);
    let printed_text = text(loaded.stdout);
    let shas: Vec<&str> = printed_text.trim().rsplit(' ').take(2).collect();
    assert_eq!(
        (loaded.status.code(), shas[0].len(), shas[1].len()),
        (Some(0), 40, 40),
        "{printed_text}"
    );
    assert_ne!(shas[0], shas[1]);
    for (sha, which) in [(shas[1], &[][..]), (shas[0], &["--leases"])] {
        let there = server.command(&["SCRIPT", "EXISTS", sha]);
        assert_eq!(format!("{there:?}"), "Array([Integer(1)])", "{which:?}");
        let printed = run(&[&["scripts", "print"], which].concat());
        assert!(text(printed.stderr).contains(sha), "the marked script is the one that loads");
        let script = text(printed.stdout);
        let again = server.command(&["SCRIPT", "LOAD", script.as_str()]);
        assert_eq!(format!("{again:?}"), format!("Bulk({:?})", sha.as_bytes()), "byte for byte");
        assert!(script.starts_with("#!lua\n"));
        let plain = run(&[&["scripts", "print", "--plain"], which].concat());
        assert!(!text(plain.stdout).starts_with('#'));
    }
}

/// The script has more bytes than a pipe holds, so the program meets the closed end while it writes.
#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut command = spillgate(&["scripts", "print"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    let output = process.wait_with_output().unwrap();
    let errors = text(output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.starts_with("spillgate: its SHA1 is "), "{errors}");
}

#[test]
fn an_unreachable_server_is_reported_and_the_others_have_the_scripts() {
    let server = RedisServer::start();
    let absent = format!("redis://127.0.0.1:{}", free_port());
    let output = run(&["scripts", "load", "--redis", &absent, "--redis", &server.url()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(output.stdout).contains(&server.port().to_string()));
    let errors = text(output.stderr);
    assert!(errors.contains("1 of 2 servers do not have the scripts"), "{errors}");
}
