//! `spillgate completions`: the scripts, and the one for bash as bash runs it.

use std::process::Command;

use crate::server::{TempFile, run};

#[test]
fn every_shell_gets_a_script_with_commands_and_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = String::from_utf8(output.stdout).unwrap();
        for part in ["serve", "simulate", "token-file"] {
            assert!(script.contains(part), "{shell}: no {part}");
        }
    }
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn bash_completes_commands_and_flags() {
    let script = TempFile::new("completions", &complete("bash"));
    let after = |words: &[&str]| {
        let line = words.join(" ");
        let typed = format!(
            "source {}; COMP_WORDS=({line}); COMP_CWORD={}; \
             _spillgate spillgate {} {}; echo \"${{COMPREPLY[*]}}\"",
            script.path(),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["--norc", "-c", &typed]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(after(&["spillgate", "se"]).trim(), "serve");
    assert_eq!(after(&["spillgate", "doctor", "--ac"]).trim(), "--acl");
}

fn complete(shell: &str) -> String {
    String::from_utf8(run(&["completions", shell]).stdout).unwrap()
}
