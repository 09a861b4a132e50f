//! Reads lines of a file or a pipe, plain or packed by gzip. It never holds a line longer than a bound.

use std::fs::File;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use memchr::memchr;

/// Reads a source line by line, into one buffer.
pub(super) struct Lines {
    input: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where the last line begins.
    last: usize,
    /// The number of the last line.
    pub(super) number: u64,
    /// How many lines were joined to the last one.
    joined: u64,
    is_over: bool,
}

/// A line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'l> {
    Whole(&'l [u8]),
    /// A line of more than [`LINE_MAX`] bytes.
    TooLong,
}

impl Lines {
    /// Opens a file, or the standard input by the name `-`.
    pub(super) fn open(name: &str) -> io::Result<Lines> {
        Lines::new(match name {
            "-" => Box::new(io::stdin()),
            file => Box::new(File::open(file)?),
        })
    }

    pub(super) fn new(mut input: Box<dyn Read + Send>) -> io::Result<Lines> {
        let mut first = [0; 6];
        let mut length = 0;
        while length < first.len() {
            match input.read(&mut first[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let first = &first[..length];
        if let Some((_, remedy)) = PACKED.iter().find(|(magic, _)| first.starts_with(magic)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, *remedy));
        }
        let whole = io::Cursor::new(first.to_vec()).chain(input);
        let input: Box<dyn Read + Send> = match first {
            [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(whole)),
            _ => Box::new(whole),
        };
        let (buffer, number) = (vec![0; BUFFER], 0);
        Ok(Lines { input, buffer, start: 0, end: 0, last: 0, number, joined: 0, is_over: false })
    }

    /// Returns the next line, or `None` after the last.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut too_long = false;
        let mut looked = 0;
        loop {
            let found = memchr(b'\n', &self.buffer[self.start + looked..self.end]);
            if let Some(length) = found {
                let start = self.start;
                self.start += looked + length + 1;
                return Ok(self.line(start, start + looked + length, too_long));
            }
            looked = self.end - self.start;
            if looked > LINE_MAX {
                // Drop the line so far; only its end is still of use.
                (too_long, self.start, self.end, looked) = (true, 0, 0, 0);
            }
            if !self.is_over {
                self.fill()?;
                continue;
            }
            let (start, end) = (self.start, self.end);
            (self.start, self.end) = (0, 0);
            return Ok((start < end || too_long)
                .then(|| self.line(start, end, too_long))
                .flatten());
        }
    }

    /// Joins further lines to the last one until `is_whole` returns true, and returns them with their breaks. Returns
    /// `None` if `is_whole` returns `None`, or if the lines are too many or too long; the next line is then read as
    /// if none had been joined.
    pub(super) fn join(
        &mut self,
        mut is_whole: impl FnMut(&[u8]) -> Option<bool>,
    ) -> io::Result<Option<&[u8]>> {
        // At the end of the source there is no next line.
        let Some(length) = self.start.checked_sub(self.last) else { return Ok(None) };
        self.start = self.last;
        while self.end - self.start <= LINE_MAX && !self.is_over {
            self.fill()?;
        }
        let start = self.start;
        self.start += length;
        let ahead = &self.buffer[start..self.end.min(start + LINE_MAX)];
        let is_last = start + ahead.len() == self.end && self.is_over;
        let mut at = length;
        for joined in 1..=JOINED_MAX {
            let (end, next) = match memchr(b'\n', &ahead[at..]) {
                Some(length) => (at + length, at + length + 1),
                None if is_last && at < ahead.len() => (ahead.len(), ahead.len()),
                None => return Ok(None),
            };
            match is_whole(without_return(&ahead[..end])) {
                None => return Ok(None),
                Some(true) => {
                    (self.start, self.joined) = (start + next, joined);
                    return Ok(Some(without_return(&self.buffer[start..start + end])));
                }
                Some(false) => at = next,
            }
        }
        Ok(None)
    }

    /// Returns the first lines that are not empty, without consuming them, to detect the format.
    pub(super) fn peek(&mut self) -> io::Result<Vec<Vec<u8>>> {
        while self.end < PEEKED && !self.is_over {
            self.fill()?;
        }
        let known = &self.buffer[self.start..self.end];
        let lines = known.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        Ok(lines.take(PEEKED_LINES).map(|line| without_return(line).to_vec()).collect())
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.input.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.is_over = true,
            Ok(more) => self.end += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn line(&mut self, start: usize, end: usize, too_long: bool) -> Option<Line<'_>> {
        self.number += 1 + std::mem::take(&mut self.joined);
        self.last = start;
        let line = without_return(&self.buffer[start..end]);
        let line = match self.number {
            1 => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
            _ => line,
        };
        Some(if too_long || line.len() > LINE_MAX { Line::TooLong } else { Line::Whole(line) })
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// More than any server accepts as the head of a request.
pub(super) const LINE_MAX: usize = 64 * 1024;
/// More lines than a quoted value of a log holds.
const JOINED_MAX: u64 = 100;
const BUFFER: usize = 4 * LINE_MAX;
const PEEKED: usize = LINE_MAX;
const PEEKED_LINES: usize = 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of files of other packers, and the remedy.
const PACKED: [(&[u8], &str); 4] = [
    (
        b"\x28\xb5\x2f\xfd",
        "it is packed by zstd; unpack it: zstd -dc FILE | spillgate simulate … -",
    ),
    (b"\xfd7zXZ\0", "it is packed by xz; unpack it: xz -dc FILE | spillgate simulate … -"),
    (b"BZh", "it is packed by bzip2; unpack it: bzip2 -dc FILE | spillgate simulate … -"),
    (b"PK\x03\x04", "it is a zip archive; unpack it: unzip -p FILE | spillgate simulate … -"),
];

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn lines(bytes: Vec<u8>) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::new(Box::new(io::Cursor::new(bytes))).unwrap();
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                Line::Whole(line) => Some(line.to_vec()),
                Line::TooLong => None,
            });
        }
        assert_eq!(lines.number, all.len() as u64);
        all
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn packed_and_plain_files_have_the_same_lines() {
        let text = b"one\n\ntwo\r\n\nthree".to_vec();
        let expected = ["one", "", "two", "", "three"].map(|line| Some(line.as_bytes().to_vec()));
        assert_eq!(lines(text.clone()), expected);
        assert_eq!(lines(packed(&text)), expected);
        // Two packed files one behind the other are one file.
        let two = [packed(b"one\n\ntwo\r\n"), packed(b"\nthree")].concat();
        assert_eq!(lines(two), expected);
        assert_eq!(lines(b"\xef\xbb\xbfone\n".to_vec()), [Some(b"one".to_vec())]);
        assert_eq!(lines(Vec::new()), []);
    }

    #[test]
    fn an_overlong_line_counts_as_one_and_leaves_its_neighbours_whole() {
        for excess in [1, LINE_MAX, 3 * LINE_MAX, 9 * LINE_MAX + 7] {
            let long = vec![b'x'; LINE_MAX + excess];
            let text = [b"before\n".as_slice(), &long, b"\nafter\n", &long].concat();
            let (before, after) = (Some(b"before".to_vec()), Some(b"after".to_vec()));
            assert_eq!(lines(text), [before, None, after, None], "{excess}");
        }
        assert_eq!(lines(vec![b'x'; LINE_MAX]), [Some(vec![b'x'; LINE_MAX])]);
    }

    #[test]
    fn lines_are_joined_until_whole_and_read_again_if_they_never_are() {
        let text = |end: &str| [b"a(\n\nb\r\n".repeat(2), end.as_bytes().to_vec()].concat();
        let joined_to = |lines: &mut Lines, end: u8| {
            let is_whole = |record: &[u8]| match record.last() {
                Some(b'!') => None,
                last => Some(last == Some(&end)),
            };
            lines.join(is_whole).unwrap().map(<[u8]>::to_vec)
        };
        let next = |lines: &mut Lines| {
            let line = match lines.next().unwrap() {
                Some(Line::Whole(line)) => line.to_vec(),
                other => panic!("{other:?}"),
            };
            (lines.number, line)
        };
        let of = |text: Vec<u8>| Lines::new(Box::new(io::Cursor::new(text))).unwrap();
        for (end, whole) in [(")\nlast", true), (")", true), ("!\nlast", false), ("", false)] {
            let mut lines = of(text(end));
            assert_eq!(next(&mut lines), (1, b"a(".to_vec()));
            let all = [b"a(\n\nb\r\n".repeat(2), b")".to_vec()].concat();
            assert_eq!(joined_to(&mut lines, b')'), whole.then_some(all), "{end:?}");
            match (whole, end) {
                (true, ")") => assert_eq!(lines.next().unwrap(), None),
                (true, _) => assert_eq!(next(&mut lines), (8, b"last".to_vec())),
                (false, _) => assert_eq!(next(&mut lines), (2, Vec::new()), "{end:?}"),
            }
        }
        for long in [b"x\n".repeat(JOINED_MAX as usize + 1), vec![b'x'; 2 * LINE_MAX]] {
            let mut lines = of([b"a(\n", &long[..], b")\n"].concat());
            next(&mut lines);
            assert_eq!(joined_to(&mut lines, b')'), None);
            lines.next().unwrap();
            assert_eq!(lines.number, 2);
        }
    }

    #[test]
    fn peeked_lines_are_the_first_that_are_not_empty() {
        let text = ["\r\n \n".repeat(PEEKED_LINES), "first\r\n\nsecond\n".to_owned()].concat();
        let mut lines = Lines::new(Box::new(io::Cursor::new(text.into_bytes()))).unwrap();
        assert_eq!(lines.peek().unwrap(), [b"first".to_vec(), b"second".to_vec()]);
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"")));
    }

    #[test]
    fn files_of_other_packers_are_refused_with_a_remedy() {
        let refused = Lines::new(Box::new(io::Cursor::new(b"\x28\xb5\x2f\xfd....".to_vec())));
        assert!(refused.err().unwrap().to_string().contains("zstd -dc"));
    }

    #[test]
    fn a_truncated_packed_file_is_an_error() {
        let whole = packed(&b"a line\n".repeat(1_000));
        let mut lines =
            Lines::new(Box::new(io::Cursor::new(whole[..whole.len() - 9].to_vec()))).unwrap();
        let end = loop {
            match lines.next() {
                Ok(Some(_)) => {}
                end => break end.is_err(),
            }
        };
        assert!(end);
    }
}
