//! The commands that arrived together. Their checks are decided in one batch.

use spillgate::Request;

use super::answer::Answer;
use super::command::{Command, Control};
use super::frame::{Frame, Malformed, decode};
use super::reservation::Reservation;

/// Commands in their order, up to one that may change the meaning of those after it.
pub struct Batch<'a> {
    pub(crate) requests: Vec<Request<'a>>,
    pub(crate) entries: Vec<Entry<'a>>,
    /// The bytes of all commands.
    pub(crate) length: usize,
    pub(crate) end: End,
}

pub enum Entry<'a> {
    /// The answer to the next of the batch's checks.
    Answer(Answer),
    Control(Control<'a>),
    /// The last command of its batch, which runs when all before it are answered.
    Reservation(Reservation<'a>),
    /// A command that needs the password, sent before it.
    Barred,
}

/// The reason for which a batch ends.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It is as long as it may be, or the meaning of the next command depends on it.
    Cut,
    /// The next command is incomplete until `wanted` bytes follow this batch.
    Partial {
        wanted: usize,
    },
    Malformed(Malformed),
}

/// Whether the client may send checks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Open,
    /// The client must send the password first.
    Barred,
}

impl<'a> Batch<'a> {
    /// Decodes at most `most` commands. `refusal` returns the error reply to a check that must not be made.
    pub fn decode(
        bytes: &'a [u8],
        access: Access,
        most: usize,
        refusal: impl Fn(&Request<'_>) -> Option<String>,
    ) -> Batch<'a> {
        let mut batch =
            Batch { requests: Vec::new(), entries: Vec::new(), length: 0, end: End::Cut };
        while batch.entries.len() < most {
            match decode(&bytes[batch.length..]) {
                Ok(Frame::Whole { arguments, length }) => {
                    batch.length += length;
                    if arguments.is_empty() {
                        continue;
                    }
                    if batch.add(&arguments, access, &refusal) == Position::Last {
                        break;
                    }
                }
                Ok(Frame::Partial { wanted }) => {
                    batch.end = End::Partial { wanted };
                    break;
                }
                Err(malformed) => {
                    batch.end = End::Malformed(malformed);
                    break;
                }
            }
        }
        batch
    }

    fn add(
        &mut self,
        request: &[&'a [u8]],
        access: Access,
        refusal: impl Fn(&Request<'_>) -> Option<String>,
    ) -> Position {
        let (entry, position) = match Command::parse(request) {
            Command::Control(control) if access == Access::Open || control.is_for_all() => {
                let position = if control.ends_batch() { Position::Last } else { Position::Within };
                (Entry::Control(control), position)
            }
            Command::Check(request, answer) if access == Access::Open => {
                let entry = match refusal(&request) {
                    None => {
                        self.requests.push(request);
                        Entry::Answer(answer)
                    }
                    Some(why) => Entry::Control(Control::Refused(why)),
                };
                (entry, Position::Within)
            }
            Command::Reservation(reservation) if access == Access::Open => {
                (Entry::Reservation(reservation), Position::Last)
            }
            _ => (Entry::Barred, Position::Within),
        };
        self.entries.push(entry);
        position
    }
}

/// The position of a command in its batch.
#[derive(PartialEq, Eq)]
enum Position {
    Within,
    Last,
}
