//! The faults of each topology, and the overshoot bound of each.

use std::time::Duration;

use spillgate::Algorithm;

use super::bounds::{Lasts, Limits};

/// How the servers are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Single,
    /// A primary, a replica and three sentinels.
    Sentinels,
    /// Three primaries and their replicas.
    Cluster,
    /// Three nodes.
    Ring,
}

/// A fault of the store, or of the processes that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// One process after the other; each starts again.
    ProcessesKilled,
    ScriptsFlushed,
    Flushed,
    /// Starts again later, empty.
    Killed,
    RestartedEmpty,
    /// By SIGSTOP.
    Paused,
    BlackHoled,
    /// One reply every 50 ms, with its connection.
    RepliesLost,
    /// By more than the timeout.
    Slow,
    Reset,
    OutOfMemory,
    ReadOnly,
    CannotSave,
    Loading,
    Busy,
    ClockBack,
    ClockAhead,
    /// A replica takes over on request.
    HandedOver,
    /// The slots of the keys in use move to another node and back.
    SlotsMove,
    /// By a fourth node, one process after the other: subjects that move have a counter on each ring.
    Grows,
}

impl Shape {
    pub(super) const ALL: [Shape; 4] =
        [Shape::Single, Shape::Sentinels, Shape::Cluster, Shape::Ring];

    pub(super) fn name(self) -> &'static str {
        match self {
            Shape::Single => "one server",
            Shape::Sentinels => "Sentinels",
            Shape::Cluster => "Cluster",
            Shape::Ring => "ring",
        }
    }

    pub(super) fn faults(self) -> &'static [Fault] {
        match self {
            Shape::Single => &[
                Fault::None,
                Fault::ProcessesKilled,
                Fault::ScriptsFlushed,
                Fault::Flushed,
                Fault::Killed,
                Fault::RestartedEmpty,
                Fault::Paused,
                Fault::BlackHoled,
                Fault::RepliesLost,
                Fault::Slow,
                Fault::Reset,
                Fault::OutOfMemory,
                Fault::ReadOnly,
                Fault::CannotSave,
                Fault::Loading,
                Fault::Busy,
                Fault::ClockBack,
                Fault::ClockAhead,
            ],
            Shape::Sentinels => &[
                Fault::None,
                Fault::ProcessesKilled,
                Fault::HandedOver,
                Fault::Killed,
                Fault::Paused,
            ],
            Shape::Cluster => &[
                Fault::None,
                Fault::ProcessesKilled,
                Fault::HandedOver,
                Fault::SlotsMove,
                Fault::Killed,
            ],
            Shape::Ring => &[
                Fault::None,
                Fault::ProcessesKilled,
                Fault::Killed,
                Fault::Paused,
                Fault::BlackHoled,
                Fault::Flushed,
                Fault::Grows,
            ],
        }
    }
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::None => "no fault",
            Fault::ProcessesKilled => "processes killed",
            Fault::ScriptsFlushed => "scripts flushed",
            Fault::Flushed => "flushed",
            Fault::Killed => "killed",
            Fault::RestartedEmpty => "restarted empty",
            Fault::Paused => "paused",
            Fault::BlackHoled => "black-holed",
            Fault::RepliesLost => "replies lost",
            Fault::Slow => "slow line",
            Fault::Reset => "connections reset",
            Fault::OutOfMemory => "OOM",
            Fault::ReadOnly => "READONLY",
            Fault::CannotSave => "MISCONF",
            Fault::Loading => "LOADING",
            Fault::Busy => "BUSY",
            Fault::ClockBack => "clock 30 s back",
            Fault::ClockAhead => "clock 30 s ahead",
            Fault::HandedOver => "handed over",
            Fault::SlotsMove => "slots move",
            Fault::Grows => "a node joins",
        }
    }

    pub(super) fn is_of_clocks(self) -> bool {
        matches!(self, Fault::ClockBack | Fault::ClockAhead)
    }

    /// Returns how far a limit may be exceeded. An outage admits all local shares together, and again in each
    /// period in which the store decides only some calls. A store that lost its data admits the quota once
    /// more. Two primaries, or two rings, admit the limit's quota for the time that both count.
    pub(super) fn overshoot_bound(
        self,
        shape: Shape,
        limits: &Limits,
        mixed: u64,
        two_us: u64,
    ) -> u64 {
        let (outages, losses) = match self {
            Fault::None | Fault::ProcessesKilled | Fault::ScriptsFlushed | Fault::Grows => (0, 0),
            Fault::Flushed => (0, 1),
            Fault::Paused
            | Fault::BlackHoled
            | Fault::RepliesLost
            | Fault::Slow
            | Fault::Reset
            | Fault::OutOfMemory
            | Fault::ReadOnly
            | Fault::CannotSave
            | Fault::Busy
            | Fault::SlotsMove => (1, 0),
            Fault::Killed | Fault::RestartedEmpty | Fault::Loading | Fault::HandedOver => (1, 1),
            // Quota that refills within years does not refill within half a minute.
            Fault::ClockBack | Fault::ClockAhead if limits.lasts == Lasts::Ages => (0, 0),
            Fault::ClockAhead => (0, 1),
            // Used quota stays used, except that the clock is in another window now.
            Fault::ClockBack if limits.algorithm == Algorithm::FixedWindow => (0, 1),
            Fault::ClockBack => (0, 0),
        };
        let second = match (self, shape) {
            (Fault::HandedOver, Shape::Sentinels) | (Fault::Grows, _) => limits.most_within(two_us),
            _ => 0,
        };
        (outages * mixed.max(1) + losses) * limits.allowed() + second
    }

    /// If the bound is zero, a busy machine must not look like an outage.
    pub(super) fn timeout(self) -> Duration {
        let free = Limits::all()
            .iter()
            .all(|limits| self.overshoot_bound(Shape::Single, limits, 0, 0) == 0);
        let is_of_store =
            free || self.is_of_clocks() || matches!(self, Fault::Flushed | Fault::Grows);
        if is_of_store { Duration::from_secs(2) } else { Duration::from_millis(150) }
    }
}

pub(super) const BEFORE: Duration = Duration::from_millis(800);
pub(super) const LASTS: Duration = Duration::from_secs(2);
/// Longer than the longest lock-out.
pub(super) const AFTER: Duration = Duration::from_millis(6_000);
