//! The store's script, printed and loaded.

use spillgate_testkit::{RedisServer, free_port};

use crate::server::run;

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_printed_script_has_the_printed_sha1_and_loading_it_is_seen_by_the_server() {
    let server = RedisServer::start();
    let load = || run(&["scripts", "load", "--redis", &server.url()]);
    let loaded = load();
    let sha = text(loaded.stdout).trim().rsplit(' ').next().unwrap().to_owned();
    assert_eq!((loaded.status.code(), sha.len()), (Some(0), 40));
    assert_eq!(format!("{:?}", server.command(&["SCRIPT", "EXISTS", &sha])), "Array([Integer(1)])");

    let printed = run(&["scripts", "print"]);
    assert!(text(printed.stderr).contains(&sha), "the marked script is the one loaded");
    let script = text(printed.stdout);
    let again = server.command(&["SCRIPT", "LOAD", script.as_str()]);
    assert_eq!(format!("{again:?}"), format!("Bulk({:?})", sha.as_bytes()), "byte for byte");
    assert!(script.starts_with("#!lua\n"));
    assert!(!text(run(&["scripts", "print", "--plain"]).stdout).starts_with('#'));
}

#[test]
fn a_server_that_is_not_there_is_told_and_the_others_have_it() {
    let server = RedisServer::start();
    let absent = format!("redis://127.0.0.1:{}", free_port());
    let output = run(&["scripts", "load", "--redis", &absent, "--redis", &server.url()]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(output.stdout).contains(&server.port().to_string()));
    let said = text(output.stderr);
    assert!(said.contains("1 of 2 servers do not have the script"), "{said}");
}
