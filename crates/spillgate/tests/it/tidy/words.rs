//! The words of documents, comments and messages. Rates show whether a text names its actors, and some words
//! are banned from documents.

use std::fmt;

use super::source::without_trailing_tests;
use super::tree::{SourceFile, TREE};
use super::{assert_clean, files};

/// Groups of words, with their highest rate per 1,000 words in all documents together. The rates are only a
/// sign: a sentence that needs such a word keeps it.
const GROUPS: [Group; 3] = [
    Group {
        name: "who, nobody",
        words: &["who", "whoever", "whom", "whose", "nobody", "everybody", "somebody"],
        in_documents: Rate(100),
        in_comments: Rate(150),
        in_messages: Rate(100),
    },
    Group {
        name: "what",
        words: &["what", "whatever"],
        in_documents: Rate(200),
        in_comments: Rate(300),
        in_messages: Rate(200),
    },
    Group {
        name: "tell, say, hear",
        words: &[
            "tell", "tells", "told", "telling", "say", "says", "said", "saying", "hear", "hears",
            "heard", "hearing",
        ],
        in_documents: Rate(150),
        in_comments: Rate(150),
        in_messages: Rate(150),
    },
];

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

/// Per 1,000 words, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

struct Group {
    name: &'static str,
    words: &'static [&'static str],
    in_documents: Rate,
    in_comments: Rate,
    in_messages: Rate,
}

#[test]
fn documents_comments_and_messages_name_their_actors() {
    let documents: Vec<String> = documents().map(|file| prose(&file.text)).collect();
    let mut findings = Vec::new();
    let mut hold = |kind: &str, texts: &[String], most: fn(&Group) -> Rate| {
        for group in &GROUPS {
            let rate = rate(texts.iter(), group.words);
            println!("{kind}: {rate} of {} per 1,000 words, at most {}", group.name, most(group));
            if rate > most(group) {
                findings.push(format!(
                    "{kind}: {rate} of {} per 1,000 words, at most {}: name the actor, or begin with the result",
                    group.name,
                    most(group)
                ));
            }
        }
    };
    hold("documents", &documents, |group| group.in_documents);
    hold("comments", &comments(), |group| group.in_comments);
    hold("messages", &messages(), |group| group.in_messages);
    assert_clean(&findings);
}

#[test]
fn documents_use_the_words_of_the_glossary() {
    let mut findings = Vec::new();
    for file in documents() {
        let text = words(&prose(&file.text)).join(" ");
        for (banned, why) in BANNED {
            if format!(" {text} ").contains(&format!(" {banned} ")) {
                findings.push(format!("{}: \"{banned}\": {why}", file.path));
            }
        }
    }
    assert_clean(&findings);
}

fn documents() -> impl Iterator<Item = &'static SourceFile> {
    let ours = |file: &&SourceFile| {
        file.path.starts_with("docs/")
            || ["README.md", "CHANGELOG.md"].contains(&file.path.as_str())
    };
    files("md").filter(ours)
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

/// Returns how often one of the words occurs per 1,000.
fn rate(texts: impl Iterator<Item = impl AsRef<str>>, group: &[&str]) -> Rate {
    let (mut all, mut found) = (0, 0);
    for text in texts {
        for word in words(text.as_ref()) {
            all += 1;
            found += u64::from(group.contains(&word.as_str()));
        }
    }
    Rate(found * 100_000 / all.max(1))
}

/// Returns the text of lines of Rust and Lua that are only a comment.
fn comments() -> Vec<String> {
    let of = |file: &SourceFile, mark: &str| {
        let lines = file.text.lines().map(str::trim_start);
        let comments = lines.filter_map(|line| line.strip_prefix(mark)).map(str::to_owned);
        comments.collect::<Vec<String>>()
    };
    let rust = files("rs").flat_map(|file| of(file, "//"));
    rust.chain(files("lua").flat_map(|file| of(file, "--"))).collect()
}

/// Returns strings of four or more words in the product's Rust.
fn messages() -> Vec<String> {
    let mut messages = Vec::new();
    for file in
        TREE.files.iter().filter(|file| file.path.contains("/src/") && file.path.ends_with(".rs"))
    {
        let code = without_trailing_tests(&file.text);
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let strings = line.split('"').skip(1).step_by(2);
            messages.extend(strings.filter(|text| words(text).len() >= 4).map(str::to_owned));
        }
    }
    messages
}

#[test]
fn prose_is_text_without_code_tables_and_targets() {
    let markdown = "Who `what` asks\n\n```\nsays\n```\n| nobody |\n    told\n[here](who.md) ends\n";
    assert_eq!(words(&prose(markdown)), ["who", "asks", "here", "ends"]);
    assert_eq!(rate([prose(markdown)].iter(), GROUPS[0].words), Rate(25_000));
}
