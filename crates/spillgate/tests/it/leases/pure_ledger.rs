//! The record of the leases on one counter as `lease.lua` keeps it in Redis, with the same names: the model of
//! every history uses it, and other tests compare the two.

use spillgate_core::algorithm::{Charge, Intent, LimitParams, Refund, State, View};
use spillgate_redis::lease::{Exchange, Granted};

/// The leases of all instances on one counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ledger {
    rows: Vec<Row>,
}

/// One lease. A closed lease is kept with 0 tokens while its call may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    node: u64,
    seq: u32,
    granted: u64,
    /// The end by the store's clock. It is later than the end for the holder.
    ends_us: u64,
    lasts_us: u64,
    incarnation: u64,
    at_us: u64,
    mark: u64,
}

impl Ledger {
    /// Returns the tokens held by instances, as far as the ledger knows.
    pub(super) fn outstanding(&self) -> u64 {
        self.rows.iter().map(|row| row.granted).sum()
    }

    /// Closes leases and grants a new one if tokens can be spared. `state` is the counter's.
    pub(super) fn exchange(
        &mut self,
        state: &mut Option<State>,
        asked: &Exchange,
        now_us: u64,
        nonce: u64,
    ) -> Granted {
        // After a clock step back no row lasts longer than it could have from now.
        self.rows.iter_mut().for_each(|row| row.ends_us = row.ends_us.min(now_us + KEPT_MAX_US));
        self.rows.retain(|row| row.ends_us > now_us);
        self.close(state, asked, now_us);
        let own = || self.rows.iter().filter(|row| row.node == asked.node);
        // A repeat of a known call gets the same grant. A call older than the last one gets
        // nothing: its row may have been closed and dropped.
        let last = own().map(|row| row.seq).max().unwrap_or(0);
        let (mut amount, mut lasts_us) = (0, 0);
        if let Some(known) = own().find(|row| row.seq == asked.seq) {
            (amount, lasts_us) = (known.granted, known.lasts_us);
        } else if asked.seq > last {
            (amount, lasts_us) = self.grant(state, asked, now_us, nonce);
        }
        let last = last.max(if amount > 0 { asked.seq } else { 0 });
        // Of the closed rows of an instance only the last is kept, so that its call cannot be
        // granted again.
        self.rows.retain(|row| row.granted > 0 || row.node != asked.node || row.seq == last);
        let view = View::new(state.as_ref(), asked.counter.params(), now_us);
        let reading = view.reading(state.as_ref(), 1);
        Granted { amount, lasts_us, reading }
    }

    fn close(&mut self, state: &mut Option<State>, asked: &Exchange, now_us: u64) {
        for close in &asked.closes {
            let is_it = |row: &&mut Row| row.node == asked.node && row.seq == close.seq;
            let Some(row) = self.rows.iter_mut().find(is_it) else { continue };
            let unused = close.unused.min(row.granted);
            if unused > 0 {
                let Row { incarnation, at_us, granted, mark, .. } = *row;
                // The whole grant is the charge, as for a reservation. So a return mints nothing
                // either.
                let charge = Charge { incarnation, at_us, amount: granted, mark };
                let mut view = View::new(state.as_ref(), asked.counter.params(), now_us);
                view.refund(state, Refund::Unused { charge, unused }, now_us);
            }
            row.granted = 0;
        }
    }

    /// Grants at most half of the share that is left, so that all instances get some. The share is
    /// taken of the unspent tokens. So it shrinks as the counter empties, and the last tokens go to
    /// instances that ask the store.
    fn grant(
        &mut self,
        state: &mut Option<State>,
        asked: &Exchange,
        now_us: u64,
        nonce: u64,
    ) -> (u64, u64) {
        let params = asked.counter.params();
        let mut view = View::new(state.as_ref(), params, now_us);
        let room = view.reading(state.as_ref(), 1).remaining;
        let outstanding = self.outstanding();
        let unspent = u128::from(room + outstanding);
        let share = unspent * u128::from(asked.share) / u128::from(params.capacity());
        let left = (share as u64).min(asked.share).saturating_sub(outstanding);
        let amount = asked.wanted.min(left.div_ceil(2)).min(room);
        if amount == 0 || self.rows.len() >= ROWS_MAX {
            return (0, 0);
        }
        let lasts_us = match params {
            // A lease ends with the window, so that no interval admits more than the limit.
            LimitParams::FixedWindow(params) => {
                asked.ttl_us.min(params.window.at(now_us).end - now_us)
            }
            _ => asked.ttl_us,
        };
        if lasts_us < LASTS_MIN_US {
            return (0, 0);
        }
        let charge = view.charge(state, amount, Intent::Reserve { nonce }, now_us);
        let Some(charge) = charge else { return (0, 0) };
        self.rows.push(Row {
            node: asked.node,
            seq: asked.seq,
            granted: amount,
            // The holder counts from before its call was sent, and may report late. One more `ttl`
            // leaves time for that.
            ends_us: now_us + lasts_us + asked.ttl_us,
            lasts_us,
            incarnation: charge.incarnation,
            at_us: now_us,
            mark: charge.mark,
        });
        (amount, lasts_us)
    }
}

/// Rows of one counter: two for each instance that uses it much, and one that was closed.
const ROWS_MAX: usize = 1_024;
/// Twice the longest lease.
const KEPT_MAX_US: u64 = 120_000_000;
/// A shorter lease is not worth a call.
const LASTS_MIN_US: u64 = 1_000;
