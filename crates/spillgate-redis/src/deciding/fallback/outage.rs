//! Decides the counters of shards that give no answer, each by its rule's `on_outage`.

use smallvec::SmallVec;

use super::Fallback;
use super::deferred_charges::DeferredCharge;
use crate::algorithm::{Intent, LimitParams};
use crate::counter::PlannedCharge;
use crate::error::StoreError;
use crate::plan::{
    Cause, ChargeOutcome, ChargeOutcomes, RecordAction, Transaction, TransactionReply,
};
use crate::policy::{OnOutage, Rule};

/// Decides for those counters of one plan whose shards give no answer.
pub struct Outage<'p> {
    pub(crate) fallback: &'p Fallback,
    /// The rule of each charge; `None` for an inline limit.
    pub(crate) rules: SmallVec<[Option<&'p Rule>; 4]>,
    /// The deferred charges that this plan's calls carry, with the index of their charge.
    pub(crate) deferred: Vec<(usize, DeferredCharge)>,
    /// Local shares that admitted a charge which the store surely does not have, with the index of
    /// the charge. They become deferred charges once the whole decision stands. Until then another
    /// call could take them along.
    pub(crate) incurred: Vec<(usize, LimitParams)>,
    /// The indices of the charges that the store surely does not have, those of cost 0 included.
    pub(crate) uncharged: SmallVec<[usize; 4]>,
    /// Whether there was no room for the record of a local charge.
    pub(crate) is_full: bool,
}

impl Outage<'_> {
    /// Decides all or none over all charges of the failed leg, each by its rule's `on_outage`.
    ///
    /// `indices` are the positions of these charges in the whole transaction.
    pub(crate) fn decide_without_store(
        &mut self,
        transaction: &Transaction,
        indices: &[usize],
        error: StoreError,
    ) -> ChargeOutcomes {
        self.fallback.count_error(&error);
        self.note_unpaid(indices, &error);
        // The store still counts, so local shares must not admit on top of it. The exception is a
        // caller with a short deadline that admits by itself afterwards, as Envoy does.
        if let StoreError::Overloaded { admits_itself: false, .. } = error {
            return indices.iter().map(|index| self.overloaded(*index)).collect();
        }
        if error.is_uncharged() {
            self.uncharged.extend_from_slice(indices);
        }
        let cause = if error.is_overload() { Cause::Overload } else { Cause::Outage };
        let counters = || transaction.charges.iter().zip(indices);
        let shares: Vec<LimitParams> = counters()
            .map(|(counter, index)| self.fallback.share_of(self.rules[*index], counter.params()))
            .collect();
        let (mut local, local_indices) = self.local_part(transaction, indices, &shares);
        // A local charge without a record could not be refunded when its reservation ends, so it is not made.
        let is_full = local.intent != Intent::Peek && !self.fallback.has_room(transaction);
        if is_full {
            local.intent = Intent::Peek;
        }
        let reply = self.fallback.memory.decide(&local);
        // A denial by a local share takes precedence over one for lack of room.
        let is_refused = is_full && reply.allowed;
        self.is_full |= is_refused;
        if reply.allowed && local.intent != Intent::Peek {
            self.note_admitted(&local, &local_indices, &reply, &error);
        }
        let mut reply = reply.replies.into_iter();
        let outcomes =
            counters().zip(&shares).map(|((counter, index), share)| match self.on_outage(*index) {
                OnOutage::Deny => ChargeOutcome::OutagePolicy { passes: false, cause },
                OnOutage::Allow => ChargeOutcome::OutagePolicy { passes: true, cause },
                OnOutage::Local if is_refused => {
                    ChargeOutcome::OutagePolicy { passes: false, cause }
                }
                OnOutage::Local => {
                    let mut reply = reply.next().expect("each local charge has a reply");
                    if counter.cost > share.capacity() {
                        // The whole limit may have room for it once the store is back, so the wait
                        // is unknown.
                        reply.fits = false;
                        reply.reading.retry_after_us = None;
                    }
                    ChargeOutcome::Fallback(reply, cause)
                }
            });
        outcomes.collect()
    }

    /// Returns the local share of a charge, whose position in the whole transaction is `index`.
    pub(crate) fn share_of(&self, index: usize, counter: &PlannedCharge) -> LimitParams {
        self.fallback.share_of(self.rules[index], counter.params())
    }

    /// Lets a charge of a local share that is refunded become no deferred charge.
    pub(crate) fn forget(&mut self, index: usize) {
        self.incurred.retain(|(incurred, _)| *incurred != index);
    }

    /// Returns the transaction that this instance decides by its local shares, with the index of
    /// each of its charges in the whole transaction.
    ///
    /// It holds the charges of rules with `on_outage = "local"`. If one charge is denied for
    /// certain, it only peeks, so that no share is charged for nothing.
    fn local_part(
        &self,
        transaction: &Transaction,
        indices: &[usize],
        shares: &[LimitParams],
    ) -> (Transaction, SmallVec<[usize; 4]>) {
        let intent = transaction.intent;
        let mut local: Transaction =
            Transaction { intent, record: RecordAction::None, charges: SmallVec::new() };
        let mut local_indices = SmallVec::new();
        for ((counter, index), share) in transaction.charges.iter().zip(indices).zip(shares) {
            let on_outage = self.on_outage(*index);
            let fits = counter.cost <= share.capacity();
            if on_outage == OnOutage::Local {
                let limit = counter.limit.with_params(*share);
                // A cost above the share is only peeked at, to get the numbers for the answer.
                let cost = if fits { counter.cost } else { 0 };
                let share = PlannedCharge { cost, deferred: 0, ..counter.under(limit) };
                self.fallback.start_from_known(counter, &share);
                local.charges.push(share);
                local_indices.push(*index);
            }
            let is_denied = on_outage == OnOutage::Deny || on_outage == OnOutage::Local && !fits;
            if counter.group == 0 && is_denied {
                local.intent = Intent::Peek;
            }
        }
        (local, local_indices)
    }

    /// Notes what the local shares admitted: as deferred charges, and as use of the shares.
    fn note_admitted(
        &mut self,
        local: &Transaction,
        local_indices: &[usize],
        reply: &TransactionReply,
        error: &StoreError,
    ) {
        // A charge that the store may have executed must not become a deferred charge.
        let is_deferred = error.is_uncharged();
        for ((counter, reply), index) in local.charges.iter().zip(&reply.replies).zip(local_indices)
        {
            if counter.cost == 0 || !reply.fits {
                continue;
            }
            if is_deferred {
                self.incurred.push((*index, *counter.params()));
            }
            if let Some(rule) = self.rules[*index] {
                self.fallback.note_share_used(rule, counter.params(), reply);
            }
        }
    }

    /// Answers by the rule for a store that works but did not answer in time. Its limits are not
    /// this instance's to enforce.
    fn overloaded(&self, index: usize) -> ChargeOutcome {
        let passes = self.on_outage(index) == OnOutage::Allow;
        ChargeOutcome::OutagePolicy { passes, cause: Cause::Overload }
    }

    /// Returns the rule's `on_outage`. Inline limits are enforced locally.
    fn on_outage(&self, index: usize) -> OnOutage {
        self.rules[index].map_or(OnOutage::Local, Rule::on_outage)
    }

    /// Puts back the deferred charges of a leg that was surely not executed. After an unknown
    /// result they count as charged.
    fn note_unpaid(&mut self, indices: &[usize], error: &StoreError) {
        for (_, deferred) in self.deferred.extract_if(.., |(index, _)| indices.contains(index)) {
            if error.is_uncharged() {
                self.fallback.deferred_charges.put_back(deferred);
            }
        }
    }
}
