//! Reads values between commas, tabs, semicolons or bars, with a first line that names the columns.
//!
//! A record is one line, or several if a quoted value holds line breaks. A quote that is never closed makes its own
//! line unreadable, and not the rest of the file.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::fields::{Field, Wanted, amount, shown};
use super::instant::instant_us;
use super::value::{names_of, parameter, request_line};
use crate::simulate::event::Event;

/// The wanted columns.
#[derive(Debug)]
pub(super) struct Csv {
    delimiter: u8,
    time: usize,
    /// The column of each wanted field, if there is one.
    columns: Vec<Option<usize>>,
    cost: Option<usize>,
    request: Option<usize>,
    target: Option<usize>,
}

impl Csv {
    /// Finds the wanted columns in the line that names them.
    pub(super) fn from_header(header: &[u8], wanted: &Wanted) -> Result<Csv, String> {
        let delimiter = delimiter(header);
        let names: Vec<String> = split(header, delimiter)
            .0
            .iter()
            .map(|name| String::from_utf8_lossy(name.trim_ascii()).into_owned())
            .collect();
        let column = |wanted: &str| {
            let by_number =
                wanted.strip_prefix('#').and_then(|number| number.parse::<usize>().ok());
            match by_number {
                Some(number) => number.checked_sub(1),
                None => names.iter().position(|name| name.eq_ignore_ascii_case(wanted)),
            }
        };
        let missing = |problem: &str| {
            format!("{problem}; the columns are {}", shown(names.join(", ").as_bytes()))
        };
        let time = wanted.times.iter().find_map(|name| column(name));
        let time =
            time.ok_or_else(|| missing("no column holds the time; name it: --map time=COLUMN"))?;
        for field in wanted.fields.iter().filter(|field| field.is_mapped) {
            if column(&field.name).is_none() {
                return Err(missing(&format!("there is no column {:?}", field.name)));
            }
        }
        let cost = match &wanted.cost {
            Some(name) => {
                Some(column(name).ok_or_else(|| missing(&format!("there is no column {name:?}")))?)
            }
            None => None,
        };
        Ok(Csv {
            delimiter,
            time,
            columns: wanted.fields.iter().map(|field| column(&field.name)).collect(),
            cost,
            request: column("request"),
            target: names_of("path").find_map(column),
        })
    }

    /// Returns how the quotes of a record end.
    pub(super) fn quotes(&self, record: &[u8]) -> Quotes {
        split(record, self.delimiter).1
    }

    /// Reads a record into an event, or returns the record's problem.
    pub(super) fn read(
        &self,
        line: &[u8],
        wanted: &Wanted,
        event: &mut Event,
    ) -> Result<(), Cow<'static, str>> {
        let (values, _) = split(line, self.delimiter);
        let value = |column: Option<usize>| {
            column.and_then(|column| values.get(column)).map(|value| &**value)
        };
        let time = value(Some(self.time)).ok_or("the line ends before the column of the time")?;
        event.at_us = instant_us(time).ok_or_else(|| {
            format!("{:?} is no time; write RFC 3339 or seconds since 1970", shown(time))
        })?;
        let (method, target) = value(self.request).and_then(request_line).unwrap_or_default();
        for (Field { name, spelling, attribute, .. }, column) in
            wanted.fields.iter().zip(&self.columns)
        {
            match (value(*column), name.as_str()) {
                (Some(value), _) => spelling.add(value, *attribute, event),
                (None, "method") => spelling.add(method, *attribute, event),
                (None, "path") => spelling.add(target, *attribute, event),
                (None, _) => {}
            }
        }
        for Field { name, attribute, .. } in &wanted.parameters {
            if let Some(value) = parameter(value(self.target).unwrap_or(target), name) {
                event.add(*attribute, value.as_bytes());
            }
        }
        if let Some(column) = self.cost {
            event.cost = Some(match value(Some(column)).unwrap_or_default() {
                b"" | b"-" => 0,
                digits => amount(digits)?,
            });
        }
        Ok(())
    }
}

/// Returns whether a line names columns, that of the time among them.
pub(super) fn is_header(line: &[u8], wanted: &Wanted) -> bool {
    let (names, _) = split(line, delimiter(line));
    let holds_time = |name: &Cow<'_, [u8]>| {
        let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
        wanted.times.iter().any(|time| time.eq_ignore_ascii_case(&name))
    };
    names.len() > 1 && names.iter().any(holds_time)
}

/// Returns the delimiter that is most frequent in the header.
fn delimiter(header: &[u8]) -> u8 {
    let count = |delimiter: &u8| header.iter().filter(|byte| *byte == delimiter).count();
    let most = [b'|', b';', b'\t', b','].into_iter().max_by_key(count);
    most.unwrap_or(b',')
}

type Values<'l> = SmallVec<[Cow<'l, [u8]>; 16]>;

/// How the quotes of a record end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotes {
    /// All are closed, and each is followed by a delimiter or the end of the record.
    Closed,
    /// The last one is open: the value may go on in the next line.
    Open,
    /// Text follows a closing quote.
    Broken,
}

/// Splits a record into its values. Text behind a closing quote is left out.
fn split(record: &[u8], delimiter: u8) -> (Values<'_>, Quotes) {
    let mut values = Values::new();
    let mut quotes = Quotes::Closed;
    let mut rest = Some(record);
    while let Some(text) = rest {
        let value;
        (value, rest) = match text {
            [b'"', inside @ ..] => {
                let (value, behind) = quoted(inside);
                let next = behind.and_then(|behind| memchr::memchr(delimiter, behind));
                quotes = match (behind, next) {
                    _ if quotes == Quotes::Broken => Quotes::Broken,
                    (None, _) => Quotes::Open,
                    (Some([]), _) | (_, Some(0)) => Quotes::Closed,
                    _ => Quotes::Broken,
                };
                (value, behind.zip(next).map(|(behind, next)| &behind[next + 1..]))
            }
            _ => match memchr::memchr(delimiter, text) {
                Some(end) => (Cow::Borrowed(&text[..end]), Some(&text[end + 1..])),
                None => (Cow::Borrowed(text), None),
            },
        };
        values.push(value);
        if values.len() == COLUMNS_MAX {
            break;
        }
    }
    (values, quotes)
}

/// Returns the value up to the closing quote, and the text behind that quote; `None` if there is no closing quote.
fn quoted(inside: &[u8]) -> (Cow<'_, [u8]>, Option<&[u8]>) {
    let mut value: Cow<'_, [u8]> = Cow::Borrowed(b"");
    let mut rest = inside;
    loop {
        let Some(end) = memchr::memchr(b'"', rest) else {
            value.to_mut().extend_from_slice(rest);
            return (value, None);
        };
        match value.is_empty() {
            true => value = Cow::Borrowed(&rest[..end]),
            false => value.to_mut().extend_from_slice(&rest[..end]),
        }
        rest = &rest[end + 1..];
        let [b'"', after @ ..] = rest else { return (value, Some(rest)) };
        value.to_mut().push(b'"');
        rest = after;
    }
}

/// A table with more columns is not a log.
const COLUMNS_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::log::fields::wanted;

    #[test]
    fn a_line_is_split_at_delimiters_outside_quotes() {
        let cut = |line: &str| -> Vec<String> {
            let (values, _) = split(line.as_bytes(), b',');
            values.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect()
        };
        assert_eq!(cut("a,b,,c"), ["a", "b", "", "c"]);
        assert_eq!(cut(r#""a,b","c ""d""",e"#), ["a,b", r#"c "d""#, "e"]);
        assert_eq!(cut(r#""","x"#), ["", "x"]);
        assert_eq!(cut(r#""""""#), [r#"""#]);
        assert_eq!(cut(r#""open,b"#), ["open,b"]);
        assert_eq!(cut(""), [""]);
        assert_eq!(cut(","), ["", ""]);
    }

    #[test]
    fn quotes_are_closed_open_or_broken() {
        for (record, quotes) in [
            ("a,b", Quotes::Closed),
            (r#"a,"b ""c""",d"#, Quotes::Closed),
            (r#"a,b"c"#, Quotes::Closed),
            ("a,\"b\nc\"", Quotes::Closed),
            (r#"a,"b"#, Quotes::Open),
            (r#"a,"b"""#, Quotes::Open),
            (r#""a"b,c"#, Quotes::Broken),
            (r#""a"b,"c"#, Quotes::Broken),
        ] {
            assert_eq!(split(record.as_bytes(), b',').1, quotes, "{record:?}");
        }
    }

    fn some(maps: &[(&str, &str)]) -> Wanted {
        wanted(&["ip", "tenant"], maps, Some("tokens"))
    }

    #[test]
    fn columns_go_by_name_or_number() {
        for (header, maps, line) in [
            (
                "time,IP,account,tokens",
                vec![("tenant", "account")],
                "971211336,203.0.113.7,acme,7.9",
            ),
            (
                "Timestamp;ip;x;tokens",
                vec![("tenant", "#3")],
                "2000-10-10 20:55:36;203.0.113.7;acme;7",
            ),
            (
                "a\tclient_ip\ttenant\ttokens",
                vec![("time", "a")],
                "971211336000\t203.0.113.7\tacme\t7",
            ),
        ] {
            let wanted = some(&maps);
            let mut event = Event::default();
            let csv = Csv::from_header(header.as_bytes(), &wanted).unwrap();
            csv.read(line.as_bytes(), &wanted, &mut event).unwrap();
            assert_eq!((event.at_us, event.cost), (971_211_336_000_000, Some(7)), "{header}");
            let values = (event.value(0), event.value(1));
            assert_eq!(values, (Some(&b"203.0.113.7"[..]), Some(&b"acme"[..])), "{header}");
        }
    }

    #[test]
    fn a_missing_column_is_reported_with_the_columns_there_are() {
        let problem = |header: &[u8], maps| Csv::from_header(header, &some(maps)).unwrap_err();
        let found = problem(b"when,ip,tokens", &[]);
        assert!(
            found.contains("--map time=COLUMN") && found.contains("when, ip, tokens"),
            "{found}"
        );
        let found = problem(b"time,ip,tokens", &[("tenant", "acct")]);
        assert!(found.contains("no column \"acct\""), "{found}");
        let found = problem(b"time,ip", &[]);
        assert!(found.contains("no column \"tokens\""), "{found}");
    }
}
