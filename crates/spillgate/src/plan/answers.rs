//! The replies of a store, on their way into the outcomes of a plan's counters.

use crate::counter::{ChargeReply, PlannedCharge};
use crate::decision::{CounterOutcomes, Source};

/// Receives the replies of a store to a plan, one for each charge, in order.
pub(crate) struct Answers<'a, L> {
    pub(super) counters: &'a mut CounterOutcomes,
    pub(super) asked: &'a [PlannedCharge<L>],
    /// Earlier replies, if each counter has a charge under both secrets. The tighter of the two replies counts.
    pub(super) twins: Option<Vec<ChargeReply>>,
    pub(super) number: usize,
}

impl<L> Answers<'_, L> {
    /// Copies the next reply to its counter.
    #[inline]
    pub(crate) fn take(&mut self, reply: ChargeReply) {
        // Replies come in the order of the charges, so a twin's reply came before.
        let mut tightest = reply;
        if let Some(twins) = &mut self.twins {
            let twin = twin_of(self.asked, self.number).map(|before| twins[before]);
            tightest = twin.filter(|twin| twin.tightness() > reply.tightness()).unwrap_or(reply);
            twins.push(reply);
        }
        let index = usize::from(self.asked[self.number].index);
        self.counters[index].take(&tightest, Source::Store);
        self.number += 1;
    }
}

/// Returns the earlier charge that has the same counter as charge `number`, under the other secret.
pub(super) fn twin_of<L>(asked: &[PlannedCharge<L>], number: usize) -> Option<usize> {
    let index = asked[number].index;
    asked[..number].iter().position(|known| known.index == index)
}
