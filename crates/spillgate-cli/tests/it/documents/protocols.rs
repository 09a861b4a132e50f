//! The pages on gRPC and RESP have the services, fields, commands and errors of the program, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use spillgate_testkit::Reply;

use super::page::{Page, assert_same, read, root, spans};
use crate::envoy::client::{Caller, descriptor};
use crate::envoy::connections::services;
use crate::server::{Server, TempFile};

#[test]
fn the_page_on_grpc_has_the_services_that_reflection_lists() {
    let text = Page::of("reference/grpc").text;
    let page = Page { text: text.split("\n## ").next().unwrap().to_owned() };
    let listed = page.rows().into_iter().flat_map(|row| spans(row[0]));
    let server = Server::start(&[]);
    assert_same("services", listed, services(&Caller::of(&server)));
}

#[test]
fn the_page_on_grpc_has_the_fields_of_the_protocol() {
    let page = Page::of("reference/grpc");
    let folder = "crates/spillgate-server/proto/envoy";
    let service = fields(&read(&format!("{folder}/service/ratelimit/v3/rls.proto")));
    let descriptor =
        fields(&read(&format!("{folder}/extensions/common/ratelimit/v3/ratelimit.proto")));
    for (title, messages, message) in [
        ("The request", &service, "RateLimitRequest"),
        ("A descriptor", &descriptor, "RateLimitDescriptor"),
        ("The answer", &service, "RateLimitResponse"),
        ("A status", &service, "DescriptorStatus"),
    ] {
        let section = page.section(title);
        let listed = section.rows().into_iter().flat_map(|row| spans(row[0]));
        assert_same(message, listed, &messages[message]);
    }
}

#[test]
fn the_page_on_grpc_has_the_codes_of_the_source() {
    let section = Page::of("reference/grpc").section("Errors");
    let listed = section.rows().into_iter().flat_map(|row| spans(row[0]));
    let mut known = BTreeSet::new();
    for source in sources("envoy") {
        for (at, _) in source.match_indices("Status::") {
            let is_part_of_a_name = source[..at].ends_with(char::is_alphanumeric);
            let name = source[at + "Status::".len()..].split('(').next().unwrap();
            // An error of HTTP/2, which carries its own code.
            let is_code = name.chars().all(|letter| letter.is_lowercase() || letter == '_');
            if is_code && !is_part_of_a_name && name != "from_error" {
                known.insert(name.to_uppercase());
            }
        }
    }
    assert_same("codes", listed, known);
}

#[test]
fn the_page_on_grpc_has_the_keys_of_the_metadata() {
    let section = Page::of("reference/grpc").section("Dynamic metadata");
    let listed = section.rows().into_iter().flat_map(|row| spans(row[0]));
    let rules = r#"
        [server.grpc]
        dynamic_metadata = true
        [[rule]]
        name = "watched"
        mode = "shadow"
        key = ["user"]
        limits = ["block"]
        [[rule]]
        name = "enforced"
        key = ["user"]
        limits = ["1/day"]
    "#;
    let file = TempFile::new("metadata-keys.toml", rules);
    let server = Server::start(&["--config", file.path()]);
    let caller = Caller::of(&server);
    let ask = || caller.ask(&[descriptor(&[("user", "ada")])]).dynamic_metadata.unwrap();
    ask();
    assert_same("keys", listed, ask().fields.into_keys());
}

/// The program returns the usage of a command that has too many arguments.
#[test]
fn the_page_on_resp_has_every_command_with_its_arguments() {
    let page = Page::of("reference/resp");
    let sections = [page.section("Commands"), page.section("Connecting")];
    let listed = sections.iter().flat_map(Page::rows);
    let listed = listed.filter_map(|row| Some(spans(row[0]).next()?.replace("\\|", "|")));

    let server = Server::start(&[]);
    let mut client = server.resp();
    let source = read("crates/spillgate-server/src/listener/resp/command.rs");
    let commands = source.split(" name: \"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut known = Vec::new();
    for command in commands {
        let mut words = vec![command];
        words.extend(["x"; 100]);
        let Reply::Error(error) = client.command(&words).unwrap() else { panic!("no error") };
        let usage = error.split_once("; write ").unwrap().1;
        // A remark follows the arguments.
        known.push(usage.split(", of ").next().unwrap().trim_end().to_owned());
    }
    assert_same("commands", listed, known);
}

#[test]
fn the_page_on_resp_has_the_error_codes_of_the_source() {
    let section = Page::of("reference/resp").section("Errors");
    let listed = section.rows().into_iter().flat_map(|row| spans(row[0]));
    let known = sources("resp").iter().flat_map(|source| codes(source)).collect::<BTreeSet<_>>();
    assert_same("error codes", listed, known);
}

/// Returns the codes at the start of texts: words in capitals before a space, or alone after the arrow of a match.
fn codes(source: &str) -> Vec<String> {
    let mut codes = Vec::new();
    for (at, _) in source.match_indices('"') {
        let rest = &source[at + 1..];
        let end = rest.find(|letter: char| !letter.is_ascii_uppercase()).unwrap_or(rest.len());
        let is_usage = source[..at].ends_with("usage: ");
        let is_word = end >= 3 && !is_usage && !source[..at].ends_with(char::is_alphanumeric);
        let is_code = rest[end..].starts_with(' ')
            || rest[end..].starts_with('"') && source[..at].ends_with("=> ");
        if is_word && is_code {
            codes.push(rest[..end].to_owned());
        }
    }
    codes
}

/// The sources of an API without their tests, comments and imports.
fn sources(api: &str) -> Vec<String> {
    let listener = root().join("crates/spillgate-server/src/listener");
    let mut files = vec![listener.join(format!("{api}.rs"))];
    let inner = fs::read_dir(listener.join(api)).unwrap().map(|entry| entry.unwrap().path());
    files.extend(inner.filter(|file| file.extension().is_some_and(|end| end == "rs")));
    let code = files.iter().map(|file| {
        let text = fs::read_to_string(file).unwrap();
        let product = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
        let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    });
    code.collect()
}

/// Returns the fields of each message of a file in proto3, without those of its inner messages.
fn fields(proto: &str) -> BTreeMap<String, Vec<String>> {
    let mut messages: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // The blocks that are open, by the message that their fields belong to, if they have fields.
    let mut open: Vec<Option<String>> = Vec::new();
    for line in proto.lines().map(str::trim) {
        let words: Vec<&str> = line.split([' ', ';']).collect();
        match words[..] {
            ["message", name, "{"] => open.push(Some(name.to_owned())),
            ["oneof", _, "{"] => open.push(open.last().cloned().flatten()),
            [.., "{"] => open.push(None),
            ["}", ..] => drop(open.pop()),
            [.., name, "=", _, ""] => {
                if let Some(Some(message)) = open.last() {
                    messages.entry(message.clone()).or_default().push(name.to_owned());
                }
            }
            _ => {}
        }
    }
    messages
}

#[test]
fn fields_belong_to_the_innermost_message() {
    let proto = "syntax = \"proto3\";\nmessage A {\n  enum E {\n    ZERO = 0;\n  }\n  message B {\n    \
                 string inner = 1;\n  }\n  E one = 1;\n  oneof kind {\n    B two = 2;\n  }\n}\n";
    let found = fields(proto);
    assert_eq!(found["A"], ["one", "two"]);
    assert_eq!(found["B"], ["inner"]);
}

#[test]
fn codes_are_words_in_capitals_before_a_space() {
    let source = "error(\"NOPERM no\"); b\"AUTH x\"; => \"CONFLICT\", \"POST\"; \"PING\"; \"OK\"";
    assert_eq!(codes(source), ["NOPERM", "CONFLICT"]);
}
