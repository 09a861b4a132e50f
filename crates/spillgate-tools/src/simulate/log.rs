//! Reads access logs: each line, in one of three formats, becomes the instant and the request of an [`Event`].

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use serde_json::Value;
use spillgate::Request;

use crate::printable;

mod clf;
mod fields;
mod instant;

use clf::Clf;
pub(crate) use fields::{Mapping, Wanted};
use fields::{QUERY, TIME};

/// A request and when it was made, or the place and the problem of a line that cannot be read.
pub type Event<'w> = Result<(u64, Request<'w>), String>;

/// The format of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The Common and the Combined Log Format of Apache and nginx.
    #[value(alias = "combined")]
    Common,
    Json,
    Csv,
}

impl Format {
    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Format::Common => "common or combined log format",
            Format::Json => "JSON lines",
            Format::Csv => "CSV",
        }
    }
}

/// Passes every line of a log to `each`, and returns the log's format, or `None` if it has no lines. The name `-` is the
/// standard input.
pub fn read<'w>(
    file: &str,
    format: Option<Format>,
    wanted: &Wanted<'w>,
    each: impl FnMut(Event<'w>),
) -> Result<Option<Format>, String> {
    let name = name_of(file);
    let unreadable = |error: io::Error| format!("cannot read {name}: {error}");
    let mut input = open(file).map_err(unreadable)?;
    // The format shows in the first line that is not empty.
    let mut head = Vec::new();
    while head.trim_ascii().is_empty() && head.len() < LINE_MAX {
        match line_into(&mut input, &mut head).map_err(unreadable)? {
            0 => break,
            _ => head.drain(..if head.starts_with(BYTE_ORDER_MARK) { 3 } else { 0 }),
        };
    }
    let first = head.trim_ascii().to_vec();
    if first.is_empty() {
        return Ok(None);
    }
    let input = Cursor::new(head).chain(input);
    let format = format.unwrap_or_else(|| recognise(&first));
    match format {
        Format::Csv => read_csv(input, name, wanted, each)?,
        Format::Common | Format::Json => {
            if format == Format::Common {
                wanted.check(&clf::FIELDS).map_err(|problem| format!("{name}: {problem}"))?;
            }
            read_lines(input, name, format, wanted, each).map_err(unreadable)?;
        }
    }
    Ok(Some(format))
}

/// Returns the name of a log in messages.
pub fn name_of(file: &str) -> &str {
    if file == "-" { "standard input" } else { file }
}

/// Opens a log, plain or packed by gzip.
fn open(file: &str) -> io::Result<Box<dyn BufRead>> {
    let source: Box<dyn Read> = match file {
        "-" => Box::new(io::stdin()),
        file => Box::new(File::open(file)?),
    };
    let mut source = BufReader::new(source);
    // No line of text begins with this byte.
    let is_packed = source.fill_buf()?.first() == Some(&0x1f);
    Ok(match is_packed {
        true => Box::new(BufReader::new(MultiGzDecoder::new(source))),
        false => Box::new(source),
    })
}

/// Detects the format from the first line.
fn recognise(first: &[u8]) -> Format {
    match first {
        [b'{', ..] => Format::Json,
        _ if Clf::parse(first).is_ok() => Format::Common,
        _ => Format::Csv,
    }
}

fn read_lines<'w>(
    mut input: impl BufRead,
    name: &str,
    format: Format,
    wanted: &Wanted<'w>,
    mut each: impl FnMut(Event<'w>),
) -> io::Result<()> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        if line_into(&mut input, &mut line)? == 0 {
            break;
        }
        let is_too_long = line.len() > LINE_MAX;
        if is_too_long && line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let read = match format {
            _ if is_too_long => Err(format!("longer than {LINE_MAX} bytes")),
            Format::Json => from_json(text, wanted),
            Format::Common | Format::Csv => Clf::parse(text)
                .map_err(str::to_owned)
                .and_then(|line| wanted.event(|name| line.field(name))),
        };
        each(read.map_err(|problem| format!("{name}:{number}: {problem}: {}", shown(text))));
    }
    Ok(())
}

/// Appends the next line, or the part of it up to [`LINE_MAX`], and returns the number of bytes.
fn line_into(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    input.take(LINE_MAX as u64 + 1).read_until(b'\n', line)
}

fn from_json<'w>(line: &[u8], wanted: &Wanted<'w>) -> Event<'w> {
    let object: Value = serde_json::from_slice(line).map_err(|error| {
        // The line in the error is always the first; only the column helps.
        let problem = error.to_string();
        let problem = problem.split(" at line ").next().unwrap_or_default();
        format!("not a JSON object: {problem} at column {}", error.column())
    })?;
    if !object.is_object() {
        return Err("not a JSON object".to_owned());
    }
    wanted.event(|name| json_field(&object, name))
}

/// Returns a field. A name with points is a path; it may also be one key as a whole.
fn json_field<'v>(object: &'v Value, name: &str) -> Option<Cow<'v, [u8]>> {
    let value_of = |value: &'v Value| match value {
        Value::String(text) => Some(Cow::Borrowed(text.as_bytes())),
        Value::Number(_) | Value::Bool(_) => Some(Cow::Owned(value.to_string().into_bytes())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    let path = || name.split('.').try_fold(object, |value, key| value.get(key));
    object.get(name).and_then(value_of).or_else(|| path().and_then(value_of))
}

fn read_csv<'w>(
    input: impl Read,
    name: &str,
    wanted: &Wanted<'w>,
    mut each: impl FnMut(Event<'w>),
) -> Result<(), String> {
    let unreadable = |error: csv::Error| format!("cannot read {name}: {error}");
    // A quote that is never closed would take the rest of the log into one value, so a record has a bound too.
    let bounded = input.take(RECORD_MAX);
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bounded);
    let columns = reader.byte_headers().map_err(unreadable)?.clone();
    let columns: Vec<_> = columns
        .iter()
        .map(|column| String::from_utf8_lossy(column.trim_ascii()).into_owned())
        .collect();
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    wanted.check(&names).map_err(|problem| {
        format!("{name}: read as CSV with commas, {problem}; --format names another format")
    })?;
    let mut record = csv::ByteRecord::new();
    loop {
        let is_there = reader.read_byte_record(&mut record).map_err(unreadable)?;
        let line = record.position().map_or(0, csv::Position::line);
        if reader.get_ref().limit() == 0 {
            return Err(format!("{name}:{line}: this record does not end; close its last quote"));
        }
        if !is_there {
            return Ok(());
        }
        reader.get_mut().set_limit(RECORD_MAX);
        let value = |name: &str| {
            let column = names.iter().position(|column| column.eq_ignore_ascii_case(name))?;
            record.get(column).map(Cow::Borrowed)
        };
        let read = match record.len() == names.len() {
            true => wanted.event(value),
            false => Err(format!("{} values for {} columns", record.len(), names.len())),
        };
        each(
            read.map_err(|problem| {
                format!("{name}:{line}: {problem}: {}", shown(record.as_slice()))
            }),
        );
    }
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

/// Returns the beginning of a foreign text, without control characters, for a message.
fn shown(text: &[u8]) -> String {
    printable(&String::from_utf8_lossy(&text[..text.len().min(60)]))
}

/// More than any server accepts as the head of a request.
const LINE_MAX: usize = 64 * 1024;
/// The most that is read for one record of CSV: a line, and the reader's buffer.
const RECORD_MAX: u64 = 2 * LINE_MAX as u64;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
