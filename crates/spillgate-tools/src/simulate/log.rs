//! Reads access logs: lines in one of several formats become events in the order of their instants.

use std::borrow::Cow;
use std::io;

use clap::ValueEnum;

use super::event::{Event, Vocabulary};
use super::order::{Order, Spread};
use super::report::Input;
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

/// The format of a log's lines. Common and Combined, the formats of Apache and nginx, have one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Common,
    Combined,
    Json,
    Csv,
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
}

/// How to treat a line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Count,
    /// `--strict`
    Refuse,
}

impl Logs {
    /// Passes every event of the logs to `emit`, in order, and returns the facts about the logs. `emit` may swap an
    /// event for one that is no longer needed.
    pub(super) fn read(
        &self,
        words: &Vocabulary,
        emit: &mut dyn FnMut(&mut Event),
    ) -> Result<Input, Failure> {
        let wanted = Wanted::new(words, &self.mappings, self.cost_field.as_deref());
        let mut order = Order::new(self.delay_us, self.spread);
        let names: Vec<&str> = self.files.iter().map(|file| name_of(file)).collect();
        let mut input = Input { source: names.join(", "), whole_seconds: true, ..Input::default() };
        for file in &self.files {
            self.read_file(file, &wanted, &mut order, &mut input, emit)?;
        }
        order.finish(emit);
        (input.out_of_order, input.late) = (order.sorted, order.late);
        input.whole_seconds &= input.lines > 0;
        Ok(input)
    }

    fn read_file(
        &self,
        file: &str,
        wanted: &Wanted,
        order: &mut Order,
        input: &mut Input,
        emit: &mut dyn FnMut(&mut Event),
    ) -> Result<(), Failure> {
        let name = name_of(file);
        let unreadable = |error: io::Error| format!("cannot read {name}: {error}");
        let mut lines = Lines::open(file).map_err(unreadable)?;
        let first = lines.peek().map_err(unreadable)?;
        if first.is_empty() {
            return Ok(());
        }
        let format = self
            .format
            .or_else(|| recognise(&first, wanted))
            .ok_or_else(|| unknown(name, &first))?;
        let reader = Reader::new(format, &mut lines, wanted, name)?;
        let kind = reader.name(&first);
        if !input.formats.contains(&kind) {
            input.formats.push(kind);
        }
        let mut event = Event::default();
        while let Some(read) =
            next_record(&mut lines, &reader, wanted, &mut event).map_err(unreadable)?
        {
            input.lines += 1;
            let Err((problem, text)) = read else {
                input.whole_seconds &= event.at_us.is_multiple_of(1_000_000);
                order.take(&mut event, &mut *emit);
                continue;
            };
            let malformed = format!("{name}:{}: {problem}: {text}", lines.number);
            if self.unreadable == Unreadable::Refuse {
                return Err(format!("{malformed}; leave out --strict to skip such lines").into());
            }
            input.malformed += 1;
            if input.malformed_examples.len() < EXAMPLES_MAX {
                input.malformed_examples.push(malformed);
            }
        }
        Ok(())
    }
}

/// The problem of a record that cannot be read, and the beginning of its text.
type Problem = (Cow<'static, str>, String);

/// Reads the next record that is not empty into an event. Returns `None` after the last.
fn next_record(
    lines: &mut Lines,
    reader: &Reader,
    wanted: &Wanted,
    event: &mut Event,
) -> io::Result<Option<Result<(), Problem>>> {
    event.clear();
    loop {
        match lines.next()? {
            None => return Ok(None),
            Some(Line::Whole(line)) if line.trim_ascii().is_empty() => {}
            Some(Line::Whole(line)) => {
                let first;
                let record = if reader.is_open(line) {
                    first = line.to_vec();
                    lines.join(|record| reader.is_whole(record))?.unwrap_or(&first)
                } else {
                    line
                };
                let read = reader.read(record, wanted, event);
                return Ok(Some(read.map_err(|problem| (problem, shown(record)))));
            }
            Some(Line::TooLong) => {
                let problem = format!("longer than {LINE_MAX} bytes").into();
                return Ok(Some(Err((problem, String::new()))));
            }
        }
    }
}

/// Returns the name of a log in messages.
fn name_of(file: &str) -> &str {
    if file == "-" { "standard input" } else { file }
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
            Format::Common | Format::Combined => {
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
    if first.iter().any(|line| clf::recognise(line).is_some()) {
        return Some(Format::Common);
    }
    if first.iter().any(|line| line.trim_ascii_start().starts_with(b"{")) {
        return Some(Format::Json);
    }
    first.first().is_some_and(|line| csv::is_header(line, wanted)).then_some(Format::Csv)
}

fn unknown(file: &str, first: &[Vec<u8>]) -> String {
    let line = shown(first.first().map(Vec::as_slice).unwrap_or_default());
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
