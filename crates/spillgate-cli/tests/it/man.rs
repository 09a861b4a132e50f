//! `spillgate man`: a page for every command.

use std::fs;

use spillgate_testkit::Folder;

use crate::server::run;

#[test]
fn every_command_has_a_page_with_its_flags_and_examples() {
    let folder = Folder::create();
    let inner = folder.path().join("man/man1");
    let output = run(&["man", inner.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let help = String::from_utf8(run(&["help"]).stdout).unwrap();
    let list = help.split_once("Commands:\n").unwrap().1.split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        let page = fs::read_to_string(inner.join(format!("spillgate-{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH spillgate-{name} 1 ")), "{name}: {page}");
    }
    let serve = fs::read_to_string(inner.join("spillgate-serve.1")).unwrap();
    assert!(serve.contains("\\-\\-redis") && serve.contains("Examples:"), "{serve}");
    assert!(inner.join("spillgate.1").exists());
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let output = run(&["man", "/dev/null/man1"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("spillgate: /dev/null/man1: cannot write manual pages: "), "{error}");
}
