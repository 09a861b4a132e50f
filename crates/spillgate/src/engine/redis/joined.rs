//! A decision over one tier that leaves with others: nearly all there are on a busy store. It takes no
//! plan, and a small future.

use std::time::Duration;

use tracing::{Instrument, Span};

use super::batch::{Batches, Seat, ToldAlone};
use super::failure::Failure;
use super::{Redis, traced};
use crate::engine::{AskTier, StoreError, ToldTier};
use crate::time::Deadline;

/// It waits with others.
pub(crate) struct Joined {
    seat: Seat<ToldAlone>,
    deadline: Deadline,
    span: Span,
}

/// Why nothing was told.
pub(crate) enum Untold {
    /// Nothing ran, and another try may help, for which there is so much time.
    AskAgain(Duration),
    /// The store gives no answer.
    Never(StoreError),
}

impl Redis {
    /// Whether no tier is in two places at the moment.
    pub(crate) fn keeps_tiers_at_one_place(&self) -> bool {
        self.topology.keeps_still()
    }

    /// Joins those who wait for a call to the shard of `tier`, which no ring moves; nothing where nobody
    /// waits, and the decision goes out by itself.
    pub(crate) fn join(&self, tier: &AskTier<'_>) -> Option<Joined> {
        let route = self.topology.route(self.topology.place(tier.key.tag)).ok()?;
        let deadline = self.deadline();
        let seat = Batches::join(&route.shard, tier, &self.asked(&route, deadline))?;
        Some(Joined { seat, deadline, span: traced::call(route.shard.name(), 1) })
    }
}

impl Joined {
    /// What became of the tier, once.
    pub(crate) async fn told(&mut self) -> Result<ToldTier, Untold> {
        let Joined { seat, deadline, span } = self;
        match seat.heard(*deadline).instrument(span.clone()).await {
            Ok(told) => told.map_err(Untold::Never),
            Err(Failure::NotHere(..)) => Err(Untold::AskAgain(deadline.left())),
            Err(failure) => Err(Untold::Never(failure.into())),
        }
    }
}
