//! The requests that came together: the questions among them are asked together.

use std::fmt::Display;

use spillgate::Question;

use super::answer::Answer;
use super::command::{Command, Control};
use super::frame::{Frame, Malformed, decode};
use super::reservation::Reservation;

/// Requests in their order, up to one that may change how those after it are taken.
pub(super) struct Batch<'a> {
    pub(super) questions: Vec<Question<'a>>,
    pub(super) entries: Vec<Entry<'a>>,
    /// The bytes that they took.
    pub(super) length: usize,
    pub(super) end: End,
}

pub(super) enum Entry<'a> {
    /// To the next question.
    Answer(Answer),
    Control(Control<'a>),
    /// The last of its batch: it is done when all before it is answered.
    Reservation(Reservation<'a>),
    /// Asked before the password was shown.
    Barred,
}

/// Why a batch goes no further.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is as long as it may be, or what follows depends on it.
    Cut,
    /// The next request is not whole before there are so many bytes behind this batch.
    Partial {
        wanted: usize,
    },
    Malformed(Malformed),
}

/// Whether the client may ask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    Open,
    Barred,
}

impl<'a> Batch<'a> {
    /// At most `most` requests.
    pub(super) fn of(bytes: &'a [u8], asking: Asking, most: usize) -> Batch<'a> {
        let mut batch =
            Batch { questions: Vec::new(), entries: Vec::new(), length: 0, end: End::Cut };
        while batch.entries.len() < most {
            match decode(&bytes[batch.length..]) {
                Ok(Frame::Whole { arguments, length }) => {
                    batch.length += length;
                    if !arguments.is_empty() && batch.takes_no_more_after(&arguments, asking) {
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

    /// Answers those questions with an error that there is one for.
    pub(super) fn refuse<E: Display>(&mut self, why: impl Fn(&Question<'_>) -> Option<E>) {
        let mut refusals = self.questions.iter().map(why);
        let mut kept = Vec::with_capacity(self.questions.len());
        for entry in &mut self.entries {
            let Entry::Answer(_) = entry else { continue };
            let refusal = refusals.next().flatten();
            kept.push(refusal.is_none());
            if let Some(why) = refusal {
                *entry = Entry::Control(Control::Refused(format!("ERR domain: {why}")));
            }
        }
        drop(refusals);
        let mut kept = kept.into_iter();
        self.questions.retain(|_| kept.next().unwrap_or(true));
    }

    fn takes_no_more_after(&mut self, request: &[&'a [u8]], asking: Asking) -> bool {
        let (entry, is_last) = match Command::of(request) {
            Command::Control(control) if asking == Asking::Open || control.is_for_all() => {
                let is_last = control.ends_batch();
                (Entry::Control(control), is_last)
            }
            Command::Ask(question, answer) if asking == Asking::Open => {
                self.questions.push(question);
                (Entry::Answer(answer), false)
            }
            Command::Reservation(reservation) if asking == Asking::Open => {
                (Entry::Reservation(reservation), true)
            }
            _ => (Entry::Barred, false),
        };
        self.entries.push(entry);
        is_last
    }
}
