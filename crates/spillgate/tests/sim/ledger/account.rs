//! The decisions of one process for one subject, and the calls that its servers executed for them.

use std::collections::BTreeMap;

/// The decisions of one process for one subject.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// Costs of all decisions begun.
    pub(super) requested: u64,
    /// Of these, the costs that the store admitted, and the costs that it may have charged without a reply.
    /// Both since the last calm.
    pub(super) certain: u64,
    pub(super) doubtful: u64,
    /// The sum of both before the last calm.
    pub(super) accounted: u64,
    /// Local admissions of this process, and their times.
    pub(super) local: Vec<(u64, u64)>,
    pub(super) at: BTreeMap<String, AtServer>,
}

/// The part that one server executed.
#[derive(Clone, Debug, Default)]
pub(super) struct AtServer {
    pub(super) executed: u64,
    pub(super) charged: u64,
    pub(super) returned: u64,
    pub(super) forced: u64,
    pub(super) payments: u64,
    /// At the last calm: how much more had been requested than executed, and the amount charged.
    pub(super) unexecuted_then: u64,
    pub(super) net_then: i64,
    /// How many there have been.
    pub(super) calms: u32,
}

impl Account {
    /// Returns the violation, if any, while nothing is in flight: all charges were reported in replies or are
    /// in doubt.
    pub(super) fn fault(&self) -> Option<String> {
        let net_then: i64 = self.at.values().map(|at| at.net_then).sum();
        let net: i64 = self.at.values().map(AtServer::net).sum::<i64>() - net_then;
        let (least, most) = (self.certain, self.certain + self.doubtful);
        if !(least as i64..=most as i64).contains(&net) {
            return Some(format!("charged {net}, admitted between {least} and {most}"));
        }
        let most = self.accounted + self.certain + self.doubtful;
        self.at.iter().find_map(|(server, at)| {
            let all = at.net() + at.forced as i64;
            let message =
                || format!("{server} charged {all} with deferred charges, at most {most} allowed");
            (all > most as i64).then(message)
        })
    }

    /// Resets the counts of the current interval.
    pub(super) fn reset(&mut self) {
        self.accounted += self.certain + self.doubtful;
        (self.certain, self.doubtful) = (0, 0);
        for at in self.at.values_mut() {
            at.net_then = at.net();
            at.calms += 1;
            at.unexecuted_then = self.requested.saturating_sub(at.executed);
        }
    }
}

impl AtServer {
    pub(super) fn net(&self) -> i64 {
        self.charged as i64 - self.returned as i64
    }
}
