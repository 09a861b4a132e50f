//! Checks any line of any log, for fuzzing.
//!
//! An input is one byte that chooses the format, then the first line, then the others.

use super::{Format, Reader, Wanted, clf, mapping};
use crate::simulate::event::{Event, Vocabulary};
use crate::simulate::log::csv::Csv;
use crate::simulate::log::instant::instant_us;
use crate::simulate::log::json::Json;

/// Panics if two reads of a line differ, if an instant is too late for limits, or if an address, path or method is
/// not normalised.
pub fn holds(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    instants_hold(rest);
    if let Ok(text) = std::str::from_utf8(rest) {
        drop(mapping(text));
        drop(super::super::condition::condition(text));
    }
    let mut words = Vocabulary::default();
    ["ip", "method", "path", "user", "tenant", "host"].iter().for_each(|name| {
        words.learn(name);
    });
    let maps = ["tenant=a.b", "tenant=query:t", "user=#2"].map(|text| mapping(text).expect("ours"));
    let maps = &maps[..usize::from(choice >> 4) % (maps.len() + 1)];
    let cost = (choice & 8 > 0).then_some("bytes");
    let wanted = Wanted::new(&words, maps, cost);
    let mut lines = rest.split(|byte| *byte == b'\n');
    let reader = match FORMATS[usize::from(choice % 4)] {
        Format::Common | Format::Combined => Reader::Clf,
        Format::Json => Reader::Json(Json::new(&wanted)),
        Format::Csv => match Csv::from_header(lines.next().unwrap_or_default(), &wanted) {
            Ok(csv) => Reader::Csv(csv),
            Err(problem) => return assert!(!problem.is_empty()),
        },
    };
    for line in lines.take(100) {
        line_holds(&reader, line, &wanted, &words);
    }
}

/// The formats by the number that an input chooses; inputs of the corpus rely on it.
const FORMATS: [Format; 4] = [Format::Common, Format::Combined, Format::Json, Format::Csv];

fn line_holds(reader: &Reader, line: &[u8], wanted: &Wanted, words: &Vocabulary) {
    let (mut event, mut again) = (Event::default(), Event::default());
    let read = reader.read(line, wanted, &mut event);
    assert_eq!(read, reader.read(line, wanted, &mut again));
    if let Err(problem) = read {
        return assert!(!problem.is_empty());
    }
    assert!(event.at_us < 1 << 53);
    assert!(event.values().eq(again.values()));
    for (attribute, value) in event.values() {
        // A parameter may be empty, and a host may be only a port.
        let may_be_empty = ["tenant", "host"].contains(&words.name(attribute));
        assert!(!value.is_empty() || may_be_empty);
        match words.name(attribute) {
            "method" => assert!(!value.iter().any(u8::is_ascii_lowercase)),
            "path" => assert_eq!(spillgate::http::normalised_path(value).as_bytes(), value),
            "host" => assert!(!value.iter().any(u8::is_ascii_uppercase)),
            _ => {}
        }
    }
    if matches!(reader, Reader::Clf) {
        assert!(clf::recognise(line).is_some());
    }
}

/// Checks every instant that jiff reads as RFC 3339: both readers must agree.
fn instants_hold(text: &[u8]) {
    let ours = instant_us(text);
    let text = std::str::from_utf8(text).unwrap_or_default();
    let plain = text.len() < 40 && text.is_ascii() && text.contains('T') && !text.contains('[');
    if let (true, Some(ours), Ok(theirs)) = (plain, ours, text.parse::<jiff::Timestamp>()) {
        assert_eq!(i64::try_from(ours), Ok(theirs.as_microsecond()), "{text}");
    }
}
