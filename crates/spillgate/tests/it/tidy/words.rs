//! Words that the glossary replaced, in documents and in the description of the HTTP API.

use super::tree::SourceFile;
use super::{assert_clean, files};

/// Words that documents do not use, and their replacements.
const BANNED: [(&str, &str); 25] = [
    ("whoever", "name the client, caller, operator or instance"),
    ("everybody", "name the clients, callers or subjects"),
    ("yardstick", "write baseline"),
    ("stand-in", "write local fallback"),
    ("ladder", "write degraded mode, or name its step"),
    ("mend", "write fix"),
    ("mends", "write fixes"),
    ("mended", "write fixed"),
    ("of late", "write recently, or name the time"),
    ("so many", "name the number"),
    ("ad hoc", "write inline limit"),
    ("give back", "write refund"),
    ("gives back", "write refunds"),
    ("given back", "write refunded"),
    ("untouched again", "write full again"),
    ("let in", "write admitted"),
    ("door", "write API, or listener"),
    ("doors", "write APIs, or listeners"),
    ("tier", "write counter, or limit"),
    ("tiers", "write counters, or limits"),
    ("verdict", "write decision"),
    ("verdicts", "write decisions"),
    ("debt", "write deferred charge"),
    ("debts", "write deferred charges"),
    ("owed", "write deferred"),
];

#[test]
fn documents_use_the_words_of_the_glossary() {
    let mut findings = Vec::new();
    for (path, text) in texts() {
        let text = format!(" {} ", words(&text).join(" "));
        for (banned, why) in BANNED {
            if text.contains(&format!(" {banned} ")) {
                findings.push(format!("{path}: \"{banned}\": {why}"));
            }
        }
    }
    assert_clean(&findings);
}

/// Returns the documents and the description of the HTTP API, with their paths.
fn texts() -> impl Iterator<Item = (&'static str, String)> {
    let is_ours = |file: &&SourceFile| {
        file.path.starts_with("docs/")
            || ["README.md", "CHANGELOG.md"].contains(&file.path.as_str())
    };
    let is_api = |file: &&SourceFile| file.path.ends_with("/listener/http/openapi.json");
    let documents = files("md").filter(is_ours).map(|file| (&*file.path, prose(&file.text)));
    documents.chain(files("json").filter(is_api).map(|file| (&*file.path, file.text.clone())))
}

/// Returns the text without fenced and indented code, tables, code spans and targets of links.
fn prose(markdown: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in markdown.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let is_code = fenced || line.trim_start().starts_with("```") || line.starts_with("    ");
        if is_code || line.starts_with('|') {
            continue;
        }
        kept.extend(line.split('`').step_by(2));
        kept.push('\n');
    }
    let mut parts = kept.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    text
}

/// In lower case. A hyphen joins words, other marks separate them.
fn words(text: &str) -> Vec<String> {
    text.split(|character: char| !character.is_alphanumeric() && !"-'’".contains(character))
        .filter(|word| word.starts_with(char::is_alphabetic))
        .map(str::to_lowercase)
        .collect()
}

#[test]
fn prose_is_text_without_code_tables_and_targets() {
    let markdown = "Who `what` asks\n\n```\nsays\n```\n| nobody |\n    told\n[here](who.md) ends\n";
    assert_eq!(words(&prose(markdown)), ["who", "asks", "here", "ends"]);
}
