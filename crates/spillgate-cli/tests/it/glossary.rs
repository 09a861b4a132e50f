//! No surface of the program has a word that docs/explain/glossary.md replaced: the OpenAPI file, the schema of the policy,
//! `--json` of each command, answers over RESP, metrics, and the names of the library.

pub(crate) mod api;
mod surfaces;

use std::collections::BTreeSet;

/// A text that users see, and its place.
#[derive(Clone)]
struct Seen {
    place: String,
    text: String,
}

/// Words and phrases that are old in every text, and their replacements. A phrase is found in names too: `let in` in
/// `let_in` and in `LetIn`.
const OLD: [(&str, &str); 48] = [
    ("ad hoc", "inline limit"),
    ("combined", "atomic"),
    ("crowd", "coalesced batch"),
    ("crowds", "coalesced batches"),
    ("debt", "deferred charge"),
    ("debts", "deferred charges"),
    ("door", "API or listener"),
    ("doors", "APIs or listeners"),
    ("dues", "deferred charges"),
    ("epoch change", "state loss"),
    ("epoch changes", "state losses"),
    ("everybody", "the clients, callers or instances"),
    ("excess", "overshoot"),
    ("expected nodes", "expected_instances"),
    ("fallback share", "local_share"),
    ("give back", "refund"),
    ("given back", "refunded"),
    ("gives back", "refunds"),
    ("heard", "received"),
    ("keys max", "max_keys"),
    ("ladder", "degraded mode"),
    ("let in", "admitted"),
    ("live nodes", "live_instances"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mends", "fixes"),
    ("missed", "pending"),
    ("nobody", "the client, caller, operator or instance"),
    ("of late", "recently"),
    ("owed", "deferred"),
    ("rung", "the step of degraded mode"),
    ("said", "returned or reported"),
    ("slots", "permits"),
    ("so long", "the time"),
    ("so many", "the number"),
    ("somebody", "the client, caller, operator or instance"),
    ("stand in", "local fallback"),
    ("tells", "reports or returns"),
    ("tier", "limit or counter"),
    ("tiers", "limits or counters"),
    ("told", "reported or returned"),
    ("unmet", "not matched"),
    ("untouched", "full"),
    ("verdict", "decision"),
    ("verdicts", "decisions"),
    ("whoever", "the client, caller, operator or instance"),
    ("why not", "the reason"),
    ("yardstick", "baseline"),
];

/// Words that are old as a whole name or value; sentences and longer names may have them.
const OLD_ALONE: [(&str, &str); 5] = [
    ("hold", "max_hold"),
    ("never", "reason cost-exceeds-limit"),
    ("price", "overshoot"),
    ("question", "request"),
    ("slot", "permit"),
];

#[test]
fn no_surface_has_a_word_that_the_glossary_replaced() {
    let seen = [
        surfaces::openapi(),
        surfaces::schema(),
        surfaces::json_of_commands(),
        surfaces::resp(),
        surfaces::metrics(),
        api::names(),
    ];
    for surface in &seen {
        assert!(surface.len() > 20, "{}: only {} texts", surface[0].place, surface.len());
    }
    let findings: BTreeSet<String> = seen.iter().flatten().filter_map(finding).collect();
    let findings: Vec<String> = findings.into_iter().collect();
    assert!(findings.is_empty(), "{} old words:\n{}", findings.len(), findings.join("\n"));
}

fn finding(Seen { place, text }: &Seen) -> Option<String> {
    let (old, instead) = old_word(text)?;
    Some(format!("{place}: {text:?} has {old:?}: write {instead}"))
}

/// Returns the first old word of a text, and its replacement.
fn old_word(text: &str) -> Option<(&'static str, &'static str)> {
    let words = words(text).join(" ");
    let has = |old: &str| format!(" {words} ").contains(&format!(" {old} "));
    let alone = OLD_ALONE.iter().find(|(old, _)| words == *old);
    OLD.iter().find(|(old, _)| has(old)).or(alone).copied()
}

/// The words of a sentence or a name in lower case: `retry_after`, `retry-after` and `RetryAfter` are two words each.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for character in text.chars() {
        if !character.is_alphanumeric() || character.is_uppercase() && before.is_lowercase() {
            words.push(String::new());
        }
        if character.is_alphanumeric() {
            words.last_mut().unwrap().extend(character.to_lowercase());
        }
        before = character;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn old_words_are_found_in_sentences_and_in_names() {
    let old = |text| old_word(text).map(|(old, _)| old);
    assert_eq!(old("Decided by each tier."), Some("tier"));
    assert_eq!(old("worst_tier"), Some("tier"));
    assert_eq!(old("TierDecision"), Some("tier"));
    assert_eq!(old("fallback-share"), Some("fallback share"));
    assert_eq!(old("given_back"), Some("given back"));
    assert_eq!(old("never"), Some("never"));
    for new in ["it never ends", "never_ends", "max_hold", "frontier", "limits hold", "retry_after"]
    {
        assert_eq!(old(new), None, "{new}");
    }
}
