//! The answers to each command, in both versions of the protocol.

use spillgate_testkit::Reply;

use super::{assert_answer, exchange, numbers};
use crate::server::{Server, TempFile, on_both_engines};

#[test]
fn cl_throttle_allows_its_burst_and_one_more_then_answers_with_its_wait() {
    on_both_engines(&[], |server| {
        let mut client = server.resp();
        let mut ask = || numbers(client.command(&["CL.THROTTLE", "u1", "2", "1", "60"]).unwrap());
        assert_answer(&ask(), [0, 3, 2, -1, 60]);
        assert_answer(&ask(), [0, 3, 1, -1, 120]);
        assert_answer(&ask(), [0, 3, 0, -1, 180]);
        assert_answer(&ask(), [1, 3, 0, 60, 180]);
    });
}

#[test]
fn cl_throttle_of_0_is_never_limited_and_above_capacity_never_allowed() {
    let server = Server::start(&[]);
    let mut client = server.resp();
    let mut ask = |quantity: &str| {
        numbers(client.command(&["cl.throttle", "u1", "2", "1", "60", quantity]).unwrap())
    };
    assert_answer(&ask("0"), [0, 3, 3, -1, 0]);
    assert_answer(&ask("4"), [1, 3, 3, -1, 0]);
    assert_answer(&ask("18446744073709551615"), [1, 3, 3, -1, 0]);
    assert_answer(&ask("3"), [0, 3, 0, -1, 180]);
    assert_answer(&ask("0"), [0, 3, 0, -1, 180]);
}

#[test]
fn a_key_is_the_same_counter_at_every_api() {
    on_both_engines(&[], |server| {
        let mut client = server.resp();
        client.command(&["CL.THROTTLE", "u1", "4", "5", "60", "2"]).unwrap();
        let answer = server.check(r#"{"key":"u1","limit":{"quota":"5/minute"}}"#);
        assert_eq!(answer["remaining"], 2);
        let reply = client.command(&["CL.THROTTLE", "u1", "4", "5", "60"]).unwrap();
        assert_eq!(numbers(reply)[..3], [0, 5, 1]);
    });
}

const POLICY: &str = r#"
[[rule]]
name = "login"
domain = "web"
match = { route = "/login" }
key = ["ip"]
limits = ["2/hour", { quota = "1000/day", unit = "tokens" }]

[[rule]]
name = "free"
domain = "open"
key = []
limits = ["unlimited"]
"#;

#[test]
fn sg_check_uses_the_rules_of_the_policy() {
    let policy = TempFile::new("resp.toml", POLICY);
    on_both_engines(&["--config", policy.path()], |server| {
        let mut client = server.resp();
        let mut ask = |line: &str| {
            let Ok(Reply::Array(mut items)) = client.command(&line.split(' ').collect::<Vec<_>>())
            else {
                panic!("{line}: no array");
            };
            let (reason, rule) = (items.pop().unwrap(), items.pop().unwrap());
            (items.iter().map(Reply::integer).collect::<Vec<_>>(), rule, reason)
        };
        let word = |word: &str| Reply::Bulk(word.as_bytes().to_vec());
        let login = word("login");
        let ip = "ip 203.0.113.7 route /login";
        let first = ask(&format!("SG.CHECK web requests=1,tokens=900 {ip}"));
        assert_eq!(first.0[..3], [1, 100, 0]);
        assert_eq!((&first.1, &first.2), (&login, &Reply::Nil));
        let denied = ask(&format!("SG.CHECK web tokens=200 {ip}"));
        assert_eq!((denied.0[0], denied.0[1], &denied.2), (0, 100, &word("limit-exceeded")));
        assert!((1..=8_640_000).contains(&denied.0[2]), "{denied:?}");
        let costly = ask(&format!("SG.CHECK web 3 {ip}"));
        assert_eq!((&costly.0[..3], &costly.1), (&[0, 1, -1][..], &login));
        assert_eq!(costly.2, word("cost-exceeds-limit"));
        assert!((1..=1_800_000).contains(&costly.0[3]), "{costly:?}");
        assert_eq!(
            ask("SG.CHECK web 1 ip 203.0.113.7"),
            (vec![1, -1, 0, -1], Reply::Nil, Reply::Nil)
        );
        assert_eq!(ask("SG.CHECK open 1").0, [1, -1, 0, -1]);
    });
}

#[test]
fn a_pipeline_of_any_commands_is_answered_in_order() {
    on_both_engines(&[], |server| {
        let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let mut commands: Vec<Vec<Vec<u8>>> = Vec::new();
        for call in 0..3_000 {
            commands.push(words("CL.THROTTLE hot 2499 1 86400"));
            if call % 1_000 == 10 {
                commands.extend(["PING x", "CL.THROTTLE hot x 1 1", "SELECT 0"].map(words));
            }
        }
        let replies = server.resp().pipeline(&commands).unwrap();
        let mut remaining = 2_500;
        for (command, reply) in commands.iter().zip(replies) {
            match (command[0].as_slice(), reply) {
                (b"PING", reply) => assert_eq!(reply.text(), "x"),
                (b"SELECT", reply) => assert_eq!(reply.text(), "OK"),
                (_, Reply::Error(why)) => {
                    assert!(why.starts_with("ERR CL.THROTTLE max_burst: 'x'"))
                }
                (_, reply) => {
                    let limited = i64::from(remaining == 0);
                    remaining = (remaining - 1).max(0);
                    assert_eq!(numbers(reply)[..3], [limited, 2_500, remaining]);
                }
            }
        }
        assert_eq!(remaining, 0);
    });
}

#[test]
fn hello_chooses_the_version() {
    let server = Server::start(&[]);
    let answers = exchange(&server, "HELLO 3 SETNAME worker\nSG.CHECK d 1\nHELLO 2\nHELLO 4");
    assert!(answers.starts_with("%7\r\n$6\r\nserver\r\n$9\r\nspillgate\r\n"), "{answers}");
    assert!(answers.contains("$5\r\nproto\r\n:3\r\n"), "{answers}");
    assert!(answers.contains("*6\r\n:1\r\n:-1\r\n:0\r\n:-1\r\n_\r\n_\r\n*14\r\n"), "{answers}");
    assert!(answers.contains("$5\r\nproto\r\n:2\r\n"), "{answers}");
    assert!(answers.ends_with("-NOPROTO unsupported protocol version '4'; there are 2 and 3\r\n"));
}

#[test]
fn connection_commands_are_answered_as_by_redis() {
    let server = Server::start(&[]);
    for (line, answers) in [
        ("ping", "+PONG\r\n"),
        ("PING a", "$1\r\na\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR SELECT index: there is one database, 0; "),
        ("CLIENT SETNAME a", "+OK\r\n"),
        ("CLIENT SETINFO lib-name x", "+OK\r\n"),
        ("CLIENT KILL x", "-ERR CLIENT 'KILL': there are SETNAME name and SETINFO attribute value"),
        ("COMMAND", "*0\r\n"),
        ("COMMAND DOCS", "*0\r\n"),
        ("INFO", "$"),
        ("QUIT", "+OK\r\n"),
        ("AUTH x", "-ERR AUTH without a password set: "),
        (
            "GET a",
            "-ERR unknown command 'GET'; there are CL.THROTTLE, SG.CHECK, SG.RESERVE, SG.SETTLE, \
             SG.CANCEL, SG.RELEASE, SG.RENEW, and commands about the connection such as PING\r\n",
        ),
        (
            "SG.RESERVE web 1",
            "-ERR wrong number of arguments for SG.RESERVE; write SG.RESERVE domain ",
        ),
        (
            "SG.CANCEL AQAB",
            "-ERR SG.CANCEL receipt: this is not a receipt; send one exactly as it was returned",
        ),
        (
            "CL.THROTTLE a 1 1",
            "-ERR wrong number of arguments for CL.THROTTLE; write CL.THROTTLE key ",
        ),
        (
            "HELLO 2 SETNAME",
            "-ERR HELLO option 'SETNAME': write AUTH user password or SETNAME name",
        ),
    ] {
        let answer = exchange(&server, line);
        assert!(answer.starts_with(answers), "{line}: {answer}");
    }
}
