//! The note that goes with a change: its actor, its reason, and the version that it may replace.

use std::time::SystemTime;

/// The note that goes with the changes of an operator: the actor, and the reason if one was given.
///
/// `Limiter::with_note` takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeNote {
    /// Never empty.
    actor: Option<Box<str>>,
    /// Never empty.
    reason: Option<Box<str>>,
    /// Not kept with the change.
    replaces: Option<SystemTime>,
}

impl ChangeNote {
    /// Makes the note of an actor, such as the name of an operator's token. Characters beyond the
    /// 64th are cut.
    pub fn by(actor: impl AsRef<str>) -> ChangeNote {
        ChangeNote { actor: some(cut(actor.as_ref(), ACTOR_MAX)), reason: None, replaces: None }
    }

    /// Adds the reason. Characters beyond the 500th are cut.
    pub fn because(self, reason: impl AsRef<str>) -> ChangeNote {
        ChangeNote { reason: some(cut(reason.as_ref(), REASON_MAX)), ..self }
    }

    /// Lets the change of a mode or an override replace one version only: that which was
    /// [written at](super::WriteReport::written_at) this time. If another change came first, the
    /// call fails with [`ControlError::Changed`](super::ControlError::Changed).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::control::{ChangeNote, ControlError};
    /// use spillgate::{Limiter, Mode, Policy};
    ///
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"10/second\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// let first = limiter.set_mode("api", Mode::Off, None).await?;
    /// limiter.set_mode("api", Mode::Shadow, None).await?;
    ///
    /// let undo = limiter.with_note(ChangeNote::default().replacing(first.written_at()));
    /// let refused = undo.clear_mode("api").await.unwrap_err();
    /// assert!(matches!(refused, ControlError::Changed { .. }), "{refused}");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn replacing(self, written_at: SystemTime) -> ChangeNote {
        ChangeNote { replaces: Some(written_at), ..self }
    }

    /// Returns the time of the only version that the change may replace.
    pub(crate) fn replaces(&self) -> Option<SystemTime> {
        self.replaces
    }

    /// Returns the parts that are kept with the change.
    pub(crate) fn kept(&self) -> ChangeNote {
        ChangeNote { replaces: None, ..self.clone() }
    }

    /// Returns the actor.
    pub fn actor(&self) -> Option<&str> {
        self.actor.as_deref()
    }

    /// Returns the reason.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Returns actor and reason as texts. An empty one stands for `None`.
    pub(crate) fn texts(&self) -> [&str; 2] {
        [self.actor(), self.reason()].map(Option::unwrap_or_default)
    }

    /// Makes a note of such texts.
    pub(crate) fn of_texts([actor, reason]: [Box<str>; 2]) -> ChangeNote {
        ChangeNote { actor: some(&actor), reason: some(&reason), replaces: None }
    }
}

fn some(text: &str) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into())
}

fn cut(text: &str, characters: usize) -> &str {
    let end = text.char_indices().nth(characters).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

const ACTOR_MAX: usize = 64;
const REASON_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters_and_an_empty_part_is_none() {
        let note = ChangeNote::by("é".repeat(70)).because("é".repeat(600));
        assert_eq!(note.actor(), Some(&*"é".repeat(64)));
        assert_eq!(note.reason(), Some(&*"é".repeat(500)));
        assert_eq!(ChangeNote::by("").because(""), ChangeNote::default());
    }
}
