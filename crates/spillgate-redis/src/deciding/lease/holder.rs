//! The leases of one instance on one counter. The caller passes in the time and the results of
//! calls.

use smallvec::SmallVec;

use super::{ALL, Close};

/// The leases of one instance on one counter, those it has closed, and the call under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The leases, oldest first. The oldest is spent first.
    grants: SmallVec<[Grant; GRANTS_MAX]>,
    /// Closed leases that the ledger may not know of yet.
    closes: SmallVec<[Close; 4]>,
    /// The number of the last call.
    seq: u32,
    under_way: Option<UnderWay>,
}

/// The unspent tokens of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    seq: u32,
    left: u64,
    ends_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UnderWay {
    sent_us: u64,
    /// The number of entries of `closes` that the call carries, from the front.
    carried: usize,
    /// Whether its grant is to be returned at once, because it is no longer needed.
    is_unwanted: bool,
    /// Whether its grant is void, because the ledger was lost.
    is_void: bool,
}

/// Spent tokens, which can be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Taken {
    seq: u32,
    cost: u64,
}

impl Holder {
    /// Spends tokens of one lease that has enough and has not ended.
    pub fn take(&mut self, cost: u64, now_us: u64) -> Option<Taken> {
        let fits = |grant: &&mut Grant| grant.left >= cost && now_us < grant.ends_us;
        let grant = self.grants.iter_mut().find(fits)?;
        grant.left -= cost;
        Some(Taken { seq: grant.seq, cost })
    }

    /// Returns whether [`Holder::take`] would succeed.
    pub fn would_take(&self, cost: u64, now_us: u64) -> bool {
        self.grants.iter().any(|grant| grant.left >= cost && now_us < grant.ends_us)
    }

    /// Puts spent tokens back. If their lease is closed they are lost, since the rest of it may
    /// have been returned.
    pub fn put_back(&mut self, taken: Taken) {
        if let Some(grant) = self.grants.iter_mut().find(|grant| grant.seq == taken.seq) {
            grant.left += taken.cost;
        }
    }

    /// Returns the tokens that can be spent now.
    pub fn left(&self, now_us: u64) -> u64 {
        let live = self.grants.iter().filter(|grant| now_us < grant.ends_us);
        live.map(|grant| grant.left).sum()
    }

    /// Closes the leases that have ended or are spent.
    pub fn settle(&mut self, now_us: u64) {
        let is_over = |grant: &Grant| grant.left == 0 || now_us >= grant.ends_us;
        let over: SmallVec<[Grant; GRANTS_MAX]> =
            self.grants.iter().copied().filter(is_over).collect();
        self.grants.retain(|grant| !is_over(grant));
        over.iter().for_each(|grant| self.close(grant.seq, grant.left));
    }

    /// Closes all leases, including one that a call under way may bring.
    pub fn end(&mut self) {
        for grant in std::mem::take(&mut self.grants) {
            self.close(grant.seq, grant.left);
        }
        if let Some(under_way) = &mut self.under_way {
            under_way.is_unwanted = true;
        }
    }

    /// Drops all leases because the ledger was lost. Nothing is left to spend or return.
    pub fn void(&mut self) {
        self.grants.clear();
        if let Some(under_way) = &mut self.under_way {
            under_way.is_void = true;
            under_way.carried = 0;
        }
        self.closes.clear();
    }

    /// Returns whether there are tokens to return.
    pub fn has_to_return(&self) -> bool {
        self.closes.iter().any(|close| close.unused > 0)
    }

    /// Returns whether a closed lease has not been reported to the ledger, spent ones included.
    pub fn has_unreported(&self) -> bool {
        !self.closes.is_empty()
    }

    /// Returns whether another lease can be held.
    pub fn has_place(&self, now_us: u64) -> bool {
        let live = self.grants.iter().filter(|grant| grant.left > 0 && now_us < grant.ends_us);
        live.count() < GRANTS_MAX
    }

    /// Returns whether a call is under way.
    pub fn is_asking(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether nothing is held, unreported or under way.
    pub fn is_idle(&self) -> bool {
        self.grants.is_empty() && !self.has_unreported() && self.under_way.is_none()
    }

    /// Starts a call. Returns its number and the leases that it closes. Only one call is under way
    /// at a time.
    pub fn call(&mut self, now_us: u64) -> (u32, SmallVec<[Close; 4]>) {
        self.settle(now_us);
        self.seq += 1;
        let carried = self.closes.len();
        self.under_way =
            Some(UnderWay { sent_us: now_us, carried, is_unwanted: false, is_void: false });
        (self.seq, self.closes.clone())
    }

    /// Takes the reply to a call. A lease lasts from when the call was sent, not from when the
    /// reply came.
    pub fn answered(&mut self, seq: u32, amount: u64, lasts_us: u64) {
        let Some(under_way) = self.under_way.filter(|_| seq == self.seq) else { return };
        self.under_way = None;
        self.closes.drain(..under_way.carried.min(self.closes.len()));
        if under_way.is_void || amount == 0 {
            return;
        }
        if under_way.is_unwanted {
            return self.close(seq, amount);
        }
        let ends_us = under_way.sent_us.saturating_add(lasts_us);
        self.grants.push(Grant { seq, left: amount, ends_us });
    }

    /// Notes that a call got no reply. If it may have been executed, its grant is returned with the
    /// next call.
    pub fn unanswered(&mut self, seq: u32, may_be_executed: bool) {
        let Some(under_way) = self.under_way.filter(|_| seq == self.seq) else { return };
        self.under_way = None;
        if may_be_executed && !under_way.is_void {
            self.close(seq, ALL);
        }
    }

    fn close(&mut self, seq: u32, unused: u64) {
        if self.closes.len() >= CLOSES_MAX {
            // By now the oldest lease has ended in the ledger as well, so it need not be reported.
            let oldest = 0;
            self.closes.remove(oldest);
            if let Some(under_way) = &mut self.under_way {
                under_way.carried = under_way.carried.saturating_sub(1);
            }
        }
        self.closes.push(Close { seq, unused });
    }
}

/// One that is being spent, and the next.
const GRANTS_MAX: usize = 2;
/// As many as one call carries.
pub const CLOSES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a holder with a lease of `amount` that was requested at 1,000 and lasts 100.
    fn holding(amount: u64) -> Holder {
        let mut holder = Holder::default();
        let (seq, _) = holder.call(1_000);
        holder.answered(seq, amount, 100);
        holder
    }

    #[test]
    fn a_lease_is_spent_to_the_last_token_and_no_further() {
        let mut holder = holding(3);
        assert!(holder.take(2, 1_001).is_some());
        assert_eq!(holder.take(2, 1_001), None);
        assert!(holder.take(1, 1_001).is_some());
        assert_eq!((holder.take(1, 1_001), holder.left(1_001)), (None, 0));
    }

    #[test]
    fn a_lease_lasts_from_when_the_call_was_sent() {
        let mut holder = holding(3);
        assert!(holder.take(1, 1_099).is_some());
        assert_eq!(holder.take(1, 1_100), None);
        let (_, closes) = holder.call(1_100);
        assert_eq!(closes[..], [Close { seq: 1, unused: 2 }]);
    }

    #[test]
    fn a_grant_that_comes_too_late_is_returned_unspent() {
        let mut holder = Holder::default();
        let (seq, _) = holder.call(1_000);
        holder.answered(seq, 3, 100);
        assert_eq!(holder.take(1, 5_000), None);
        assert_eq!(holder.call(5_000).1[..], [Close { seq: 1, unused: 3 }]);
    }

    #[test]
    fn tokens_put_back_can_be_spent_again_until_their_lease_is_closed() {
        let mut holder = holding(1);
        let taken = holder.take(1, 1_001).unwrap();
        holder.put_back(taken);
        let taken = holder.take(1, 1_001).unwrap();
        let (seq, closes) = holder.call(1_002);
        assert_eq!(closes[..], [Close { seq: 1, unused: 0 }]);
        holder.put_back(taken);
        holder.answered(seq, 0, 0);
        assert_eq!(holder.left(1_002), 0, "the ledger knows that it was spent");
    }

    #[test]
    fn a_return_is_repeated_until_it_is_confirmed() {
        let mut holder = holding(3);
        holder.end();
        let (seq, closes) = holder.call(1_010);
        assert_eq!(closes[..], [Close { seq: 1, unused: 3 }]);
        holder.unanswered(seq, false);
        let (seq, closes) = holder.call(1_020);
        assert_eq!(closes[..], [Close { seq: 1, unused: 3 }]);
        holder.answered(seq, 0, 0);
        assert!(holder.is_idle());
        assert!(holder.call(1_030).1.is_empty());
    }

    #[test]
    fn a_possible_grant_of_an_unanswered_call_is_returned() {
        let mut holder = Holder::default();
        let (seq, _) = holder.call(1_000);
        holder.unanswered(seq, true);
        holder.answered(seq, 3, 100);
        assert_eq!(holder.left(1_001), 0, "the call was given up");
        assert_eq!(holder.call(1_002).1[..], [Close { seq: 1, unused: ALL }]);
    }

    #[test]
    fn a_grant_of_a_lost_ledger_is_neither_spent_nor_returned() {
        let mut holder = holding(3);
        let (seq, _) = holder.call(1_010);
        holder.void();
        holder.answered(seq, 3, 100);
        assert_eq!(holder.left(1_011), 0);
        assert!(holder.call(1_012).1.is_empty());
    }

    #[test]
    fn drops_the_oldest_of_too_many_returns() {
        let mut holder = Holder::default();
        for now_us in 0..50 {
            let (seq, closes) = holder.call(now_us);
            assert!(closes.len() <= CLOSES_MAX);
            holder.unanswered(seq, true);
        }
        assert_eq!(holder.call(50).1[0], Close { seq: 43, unused: ALL });
    }
}
