//! Reads access logs: lines in one of several formats become events in the order of their instants.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::event::{Event, Vocabulary};
use super::order::{Order, Spread};
use crate::Failure;

mod clf;
mod csv;
mod fields;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod instant;
mod json;
mod lines;
mod value;

use self::csv::{Csv, Quotes};
pub(crate) use fields::{Mapping, TIME};
use fields::{QUERY, Wanted, shown};
use json::Json;
use lines::{LINE_MAX, Line, Lines};

/// The format of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Common or Combined, the formats of Apache and nginx.
    Clf,
    Json,
    Csv,
}

impl Format {
    /// The formats by their names on the command line.
    pub(crate) const NAMES: [(&str, Format); 4] = [
        ("common", Format::Clf),
        ("combined", Format::Clf),
        ("json", Format::Json),
        ("csv", Format::Csv),
    ];
}

/// The logs to read, and how to read them.
pub(super) struct Logs {
    /// Files in the order in which they are read; `-` is the standard input.
    pub(super) files: Vec<String>,
    /// The format, if a flag names it; else it is detected.
    pub(super) format: Option<Format>,
    pub(super) mappings: Vec<Mapping>,
    pub(super) cost_field: Option<String>,
    pub(super) delay_us: u64,
    pub(super) spread: Spread,
    pub(super) unreadable: Unreadable,
    /// The bytes read so far, before unpacking.
    pub(super) bytes_read: Arc<AtomicU64>,
}

/// How to treat a line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Count,
    /// `--strict`
    Refuse,
}

/// Facts about the logs besides their events.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The formats of the files, each once: `combined log`.
    pub(super) formats: Vec<&'static str>,
    pub(super) lines: u64,
    /// Lines that could not be read: their number, and the first few.
    pub(super) malformed: u64,
    pub(super) examples: Vec<Malformed>,
    pub(super) sorted: u64,
    pub(super) late: u64,
    /// Whether all instants are whole seconds.
    pub(super) whole_seconds: bool,
}

/// A line that could not be read.
#[derive(Clone, Debug)]
pub(super) struct Malformed {
    pub(super) file: String,
    pub(super) line: u64,
    pub(super) problem: Cow<'static, str>,
    pub(super) text: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Malformed { file, line, problem, text } = self;
        let file = if file == "-" { "standard input" } else { file };
        write!(f, "{file}:{line}: {problem}: {text}")
    }
}

impl Logs {
    /// Passes every event of the logs to `emit`, in order. `emit` may swap an event for one that is no longer needed.
    pub(super) fn read(
        &self,
        words: &Vocabulary,
        emit: &mut dyn FnMut(&mut Event),
    ) -> Result<Found, Failure> {
        let mut wanted = Wanted::new(words, &self.mappings, self.cost_field.as_deref());
        let mut order = Order::new(self.delay_us, self.spread);
        let mut found = Found { whole_seconds: true, ..Found::default() };
        for file in &self.files {
            self.read_file(file, &mut wanted, &mut order, &mut found, emit)?;
        }
        order.finish(emit);
        (found.sorted, found.late) = (order.sorted, order.late);
        Ok(found)
    }

    fn read_file(
        &self,
        file: &str,
        wanted: &mut Wanted,
        order: &mut Order,
        found: &mut Found,
        emit: &mut dyn FnMut(&mut Event),
    ) -> Result<(), Failure> {
        let name = if file == "-" { "the standard input" } else { file };
        let unreadable = |error: std::io::Error| format!("cannot read {name}: {error}");
        let mut lines = Lines::open(file, Arc::clone(&self.bytes_read)).map_err(unreadable)?;
        let first = lines.peek().map_err(unreadable)?;
        if first.iter().all(|line| line.trim_ascii().is_empty()) {
            return Ok(());
        }
        let format = self
            .format
            .or_else(|| recognise(&first, wanted))
            .ok_or_else(|| unknown(name, &first))?;
        let reader = Reader::new(format, &mut lines, wanted, name)?;
        let kind = reader.name(&first);
        if !found.formats.contains(&kind) {
            found.formats.push(kind);
        }
        let mut event = Event::default();
        loop {
            event.clear();
            let (read, text) = match lines.next().map_err(unreadable)? {
                None => break,
                Some(Line::Whole(line)) if line.trim_ascii().is_empty() => continue,
                Some(Line::Whole(line)) => {
                    let first;
                    let record = if reader.is_open(line) {
                        first = line.to_vec();
                        let joined = lines.join(|record| reader.is_whole(record));
                        joined.map_err(unreadable)?.unwrap_or(&first)
                    } else {
                        line
                    };
                    let read = reader.read(record, wanted, &mut event);
                    let text = if read.is_err() { shown(record) } else { String::new() };
                    (read, text)
                }
                Some(Line::TooLong) => {
                    (Err(format!("longer than {LINE_MAX} bytes").into()), String::new())
                }
            };
            found.lines += 1;
            let Err(problem) = read else {
                found.whole_seconds &= event.at_us.is_multiple_of(1_000_000);
                order.take(&mut event, &mut *emit);
                continue;
            };
            let malformed = Malformed { file: file.to_owned(), line: lines.number, problem, text };
            if self.unreadable == Unreadable::Refuse {
                return Err(format!("{malformed}; leave out --strict to skip such lines").into());
            }
            found.malformed += 1;
            if found.examples.len() < EXAMPLES_MAX {
                found.examples.push(malformed);
            }
        }
        Ok(())
    }
}

/// Reads lines of one format.
#[derive(Debug)]
enum Reader {
    Clf,
    Json(Json),
    Csv(Csv),
}

impl Reader {
    /// Returns a reader of the lines from here on. For CSV it reads the line with the columns now.
    fn new(
        format: Format,
        lines: &mut Lines,
        wanted: &Wanted,
        file: &str,
    ) -> Result<Reader, String> {
        match format {
            Format::Clf => {
                let unknown = wanted
                    .fields
                    .iter()
                    .find(|field| field.is_mapped && !clf::FIELDS.contains(&field.name.as_str()));
                match unknown {
                    None => Ok(Reader::Clf),
                    Some(field) => Err(format!(
                        "{file}: --map: this format has no field {:?}; it has {}, and {QUERY}NAME",
                        field.name,
                        clf::FIELDS.join(", ")
                    )),
                }
            }
            Format::Json => Ok(Reader::Json(Json::new(wanted))),
            Format::Csv => {
                let header = loop {
                    match lines.next().map_err(|error| format!("cannot read {file}: {error}"))? {
                        Some(Line::Whole(line)) if line.trim_ascii().is_empty() => {}
                        Some(Line::Whole(line)) => break line.to_vec(),
                        _ => {
                            return Err(format!(
                                "{file}: the first line, which names the columns, is longer than {LINE_MAX} bytes"
                            ));
                        }
                    }
                };
                let csv = Csv::from_header(&header, wanted);
                csv.map(Reader::Csv)
                    .map_err(|problem| format!("{file}:{}: {problem}", lines.number))
            }
        }
    }

    /// Returns whether a record goes on in the next line.
    #[inline]
    fn is_open(&self, line: &[u8]) -> bool {
        // Nearly every line has an even number of quotes. Counting them is much faster than splitting the line twice.
        let is_odd = || memchr::memchr_iter(b'"', line).count() % 2 == 1;
        matches!(self, Reader::Csv(csv) if is_odd() && csv.quotes(line) == Quotes::Open)
    }

    /// Returns whether lines that were joined are a whole record; `None` if no line can make them one.
    fn is_whole(&self, record: &[u8]) -> Option<bool> {
        match self {
            Reader::Clf | Reader::Json(_) => None,
            Reader::Csv(csv) => match csv.quotes(record) {
                Quotes::Closed => Some(true),
                Quotes::Open => Some(false),
                Quotes::Broken => None,
            },
        }
    }

    #[inline]
    fn read(
        &self,
        line: &[u8],
        wanted: &Wanted,
        event: &mut Event,
    ) -> Result<(), Cow<'static, str>> {
        match self {
            Reader::Clf => clf::read(line, wanted, event),
            Reader::Json(json) => json.read(line, wanted, event),
            Reader::Csv(csv) => csv.read(line, wanted, event),
        }
    }

    fn name(&self, first: &[Vec<u8>]) -> &'static str {
        match self {
            Reader::Clf => {
                first.iter().find_map(|line| clf::recognise(line)).unwrap_or("common log")
            }
            Reader::Json(_) => "JSON lines",
            Reader::Csv(_) => "CSV",
        }
    }
}

/// Detects the format from the first lines.
fn recognise(first: &[Vec<u8>], wanted: &Wanted) -> Option<Format> {
    let full = || first.iter().filter(|line| !line.trim_ascii().is_empty());
    if full().any(|line| clf::recognise(line).is_some()) {
        return Some(Format::Clf);
    }
    if full().any(|line| line.trim_ascii_start().starts_with(b"{")) {
        return Some(Format::Json);
    }
    full().next().is_some_and(|line| csv::is_header(line, wanted)).then_some(Format::Csv)
}

fn unknown(file: &str, first: &[Vec<u8>]) -> String {
    let line = first.iter().find(|line| !line.trim_ascii().is_empty());
    let line = shown(line.map(Vec::as_slice).unwrap_or_default());
    let remedy = match line.as_bytes() {
        [b'[', ..] => "if it is one JSON array, write one object a line: jq -c '.[]'",
        _ => {
            "name the format with --format common, combined, json or csv; a CSV file names its \
             columns on its first line, that of the time as time or by --map time=COLUMN"
        }
    };
    format!("{file} is in no known format, its first line is {line:?}; {remedy}")
}

/// Reads `--map`: an attribute, or `time`, and the field that holds it.
pub(crate) fn mapping(text: &str) -> Result<Mapping, String> {
    let parts = text
        .split_once('=')
        .filter(|(attribute, field)| !attribute.is_empty() && !field.is_empty());
    let Some((attribute, field)) = parts else {
        return Err(
            "write ATTRIBUTE=FIELD, for example user=account.id, user=query:user, or time=when"
                .to_owned(),
        );
    };
    if attribute == TIME && field.starts_with(QUERY) {
        return Err("the time cannot be a query parameter; name a field".to_owned());
    }
    Ok(Mapping { attribute: attribute.to_owned(), field: field.to_owned() })
}

/// A few examples show the problem.
const EXAMPLES_MAX: usize = 5;
