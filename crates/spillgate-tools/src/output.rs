//! Types and functions that several commands share.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// The reason why a command failed; its text is for people.
pub type Failure = Box<dyn Error>;

/// Writes a line of the result to the standard output. A reader that has left, such as `head`, is no error: it has read
/// all that it wants, and the command still ends with its own exit code.
///
/// # Errors
///
/// If the output is full or cannot be written for another reason.
pub fn say(line: &impl fmt::Display) -> io::Result<()> {
    write(&format_args!("{line}\n"))
}

/// Writes a text to the standard output as it is. See [`say`].
///
/// # Errors
///
/// If the output is full or cannot be written for another reason.
pub fn write(text: &impl fmt::Display) -> io::Result<()> {
    write_to(&mut io::stdout().lock(), format_args!("{text}"))
}

fn write_to(output: &mut impl Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    match output.write_fmt(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Returns a number and its noun, in the plural unless it is one: `1 rule`, `2 rules`.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is_one() {
        let write = |kind| write_to(&mut Failing(kind), format_args!("a line\n"));
        assert!(write(io::ErrorKind::BrokenPipe).is_ok());
        assert!(write(io::ErrorKind::StorageFull).is_err());
    }
}
