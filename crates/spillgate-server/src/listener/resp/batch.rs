//! The commands that arrived together. Their checks are decided in one batch.

use std::fmt::Display;

use spillgate::Request;

use super::answer::Answer;
use super::command::{Command, Control};
use super::frame::{Frame, Malformed, decode};
use super::reservation::Reservation;

/// Commands in their order, up to one that may change the meaning of those after it.
pub(super) struct Batch<'a> {
    pub(super) requests: Vec<Request<'a>>,
    pub(super) entries: Vec<Entry<'a>>,
    /// The bytes of all commands.
    pub(super) length: usize,
    pub(super) end: End,
}

pub(super) enum Entry<'a> {
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
pub(super) enum End {
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
pub(super) enum Access {
    Open,
    /// The client must send the password first.
    Barred,
}

impl<'a> Batch<'a> {
    /// Decodes at most `most` commands.
    pub(super) fn of(bytes: &'a [u8], access: Access, most: usize) -> Batch<'a> {
        let mut batch =
            Batch { requests: Vec::new(), entries: Vec::new(), length: 0, end: End::Cut };
        while batch.entries.len() < most {
            match decode(&bytes[batch.length..]) {
                Ok(Frame::Whole { arguments, length }) => {
                    batch.length += length;
                    if !arguments.is_empty() && batch.add(&arguments, access) == Place::Last {
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

    /// Replaces the answer of each check by the error that `error_of` returns for it.
    pub(super) fn refuse<E: Display>(&mut self, error_of: impl Fn(&Request<'_>) -> Option<E>) {
        let mut refusals = self.requests.iter().map(error_of);
        let mut kept = Vec::with_capacity(self.requests.len());
        for entry in &mut self.entries {
            let Entry::Answer(_) = entry else { continue };
            let refusal = refusals.next().flatten();
            kept.push(refusal.is_none());
            if let Some(error) = refusal {
                *entry = Entry::Control(Control::Refused(format!("ERR domain: {error}")));
            }
        }
        drop(refusals);
        let mut kept = kept.into_iter();
        self.requests.retain(|_| kept.next().unwrap_or(true));
    }

    fn add(&mut self, request: &[&'a [u8]], access: Access) -> Place {
        let (entry, place) = match Command::of(request) {
            Command::Control(control) if access == Access::Open || control.is_for_all() => {
                let place = if control.ends_batch() { Place::Last } else { Place::Within };
                (Entry::Control(control), place)
            }
            Command::Check(request, answer) if access == Access::Open => {
                self.requests.push(request);
                (Entry::Answer(answer), Place::Within)
            }
            Command::Reservation(reservation) if access == Access::Open => {
                (Entry::Reservation(reservation), Place::Last)
            }
            _ => (Entry::Barred, Place::Within),
        };
        self.entries.push(entry);
        place
    }
}

/// The place of a command in its batch.
#[derive(PartialEq, Eq)]
enum Place {
    Within,
    Last,
}
