//! Builds the value of a header field, on the stack, since every answer has some. By hand, since the two fields of an
//! answer take 80 ns more with a `SmallVec`.

use http::header::HeaderValue;

use super::PolicyName;

pub struct Text {
    inline: [u8; INLINE_MAX],
    /// The length of the text in `inline`.
    length: usize,
    /// The whole text, once it is longer than `inline`.
    spilled: Vec<u8>,
}

impl Text {
    pub fn new() -> Text {
        Text { inline: [0; INLINE_MAX], length: 0, spilled: Vec::new() }
    }

    pub fn text(&mut self, text: &str) -> &mut Text {
        self.bytes(text.as_bytes())
    }

    /// Starts the next member of a list.
    pub fn member(&mut self) -> &mut Text {
        if self.as_bytes().is_empty() { self } else { self.text(", ") }
    }

    /// Writes a name as a structured string. Names have no characters that need escaping.
    pub fn name(&mut self, name: PolicyName<'_>) -> &mut Text {
        self.text("\"");
        name.parts().for_each(|part| {
            self.text(part);
        });
        self.text("\"")
    }

    pub fn number(&mut self, before: &str, number: u64) -> &mut Text {
        self.text(before).digits(number)
    }

    fn digits(&mut self, number: u64) -> &mut Text {
        let count = number.checked_ilog10().unwrap_or(0) as usize + 1;
        let end = self.length + count;
        match self.inline.get_mut(self.length..end) {
            Some(room) if self.spilled.is_empty() => {
                write_digits(room, number);
                self.length = end;
            }
            _ => {
                let mut digits = [0; DIGITS_MAX];
                write_digits(&mut digits[..count], number);
                self.spill(&digits[..count]);
            }
        }
        self
    }

    pub fn known(&mut self, before: &str, number: Option<u64>) -> &mut Text {
        match number {
            Some(number) => self.number(before, number),
            None => self,
        }
    }

    pub fn value(&self) -> HeaderValue {
        HeaderValue::from_bytes(self.as_bytes()).expect("names, digits and punctuation of ours")
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Text {
        let end = self.length + bytes.len();
        match self.inline.get_mut(self.length..end) {
            Some(room) if self.spilled.is_empty() => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            _ => self.spill(bytes),
        }
        self
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.spilled.is_empty() {
            self.spilled.extend_from_slice(&self.inline[..self.length]);
        }
        self.spilled.extend_from_slice(bytes);
    }

    pub fn as_bytes(&self) -> &[u8] {
        if self.spilled.is_empty() { &self.inline[..self.length] } else { &self.spilled }
    }
}

/// Writes the last digits of a number, as many as fit into `room`.
fn write_digits(room: &mut [u8], number: u64) {
    let mut rest = number;
    for digit in room.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Fits three limits with names of usual lengths.
const INLINE_MAX: usize = 128;
/// The digits of the largest number.
const DIGITS_MAX: usize = 20;
