//! Access by password.

use std::io::{Read, Write};

use super::{exchange, raw};
use crate::server::{Server, TempFile, spillgate};

const PASSWORD: &str = "0123456789abcdef0123456789abcdef";

fn guarded(variable: &str) -> (Server, TempFile) {
    let file = TempFile::new("password", &format!("{PASSWORD}\n"));
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    (Server::start_command(command.env(variable, file.path())), file)
}

#[test]
fn commands_need_the_password_first() {
    for variable in ["SPILLGATE_SERVER__RESP__PASSWORD_FILE", "SPILLGATE_SERVER__DATA_TOKEN_FILE"] {
        let (server, _file) = guarded(variable);
        let answers = exchange(
            &server,
            &format!(
                "PING\nCL.THROTTLE a 1 1 60\nSG.CHECK d 1\nINFO\nSELECT 0\nGET a\n\
                 AUTH wrong\nAUTH other {PASSWORD}\nCL.THROTTLE a 1 1 60\n\
                 AUTH {PASSWORD}\nCL.THROTTLE a 1 1 60\n\
                 HELLO 3 AUTH default wrong\nHELLO 2 AUTH default {PASSWORD}\nCL.THROTTLE a 1 1 60"
            ),
        );
        let no_auth = "-NOAUTH Authentication required: send AUTH with the password first\r\n";
        let wrong = "-WRONGPASS invalid username-password pair: the user is default, the password is the one in password_file or data_token_file\r\n";
        let before = format!(
            "+PONG\r\n{}{wrong}{wrong}{no_auth}+OK\r\n*5\r\n:0\r\n:2\r\n:1\r\n",
            no_auth.repeat(5)
        );
        assert!(answers.starts_with(&before), "{answers}");
        assert!(answers.contains(&format!("{wrong}*14\r\n")), "{answers}");
        let last = answers.rsplit_once("*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:").unwrap().1;
        let reset_s: u64 = last.trim_end().parse().unwrap();
        assert!((90..=120).contains(&reset_s), "{answers}");
    }
}

#[test]
fn an_empty_password_file_prevents_the_start() {
    let file = TempFile::new("password", "short");
    let output = spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
        .env("SPILLGATE_SERVER__RESP__PASSWORD_FILE", file.path())
        .output()
        .unwrap();
    let answers = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{answers}");
    assert!(answers.contains("field `server.resp.password_file`"), "{answers}");
}

#[test]
fn a_public_resp_address_needs_a_password() {
    let serve = |with: Option<&TempFile>| {
        let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--resp", "0.0.0.0:0"]);
        with.map(|file| command.env("SPILLGATE_SERVER__RESP__PASSWORD_FILE", file.path()));
        command
    };
    let output = serve(None).output().unwrap();
    let answers = String::from_utf8(output.stderr).unwrap();
    assert!(
        answers.contains("field `server.resp.address`: 0.0.0.0:0 is open to other machines"),
        "{answers}"
    );
    let file = TempFile::new("password", PASSWORD);
    Server::start_command(&mut serve(Some(&file)));
}

#[test]
fn http_bytes_never_count_as_commands() {
    let server = Server::start(&[]);
    for start in ["POST / HTTP/1.1", "GET / HTTP/1.1\r\nHost: 127.0.0.1", "host: x"] {
        let mut stream = raw(&server);
        let request = format!("{start}\r\nCL.THROTTLE smuggled 0 1 86400\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        assert!(
            answers.ends_with("send HTTP requests to the HTTP listener\r\n"),
            "{start}: {answers}"
        );
    }
    let answers = exchange(&server, "CL.THROTTLE smuggled 0 1 86400");
    assert!(answers.starts_with("*5\r\n:0\r\n"), "{answers}");
}
