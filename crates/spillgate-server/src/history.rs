//! The history of this instance: a point each second for 15 minutes, a point each minute for 48 hours, and events.
//!
//! A task samples the limiter's counters once a second, off the threads that decide. Memory is bounded by construction:
//! a ring of fixed size for each of the busiest rules, one ring for all other rules together, and a bounded list of
//! events. Changes by operators come from the limiter's audit.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use spillgate::metrics::{Counts, Decisions, Durations};
use spillgate::store::ShardStatus;
use spillgate::{Limiter, Stats};
use tokio::time::{Instant, MissedTickBehavior, interval};

mod changes;
mod event;
pub(crate) mod fleet;
mod rules;
mod watch;
mod window;

use event::Events;
pub(crate) use event::{Event, EventKind};
pub(crate) use rules::Rate;
use rules::Rules;
pub(crate) use watch::Switched;
use watch::Watch;
use window::Window;
pub(crate) use window::{Column, SOURCES};

/// The history of an instance.
pub(crate) struct History(Mutex<State>);

/// A point: a window, and a position in it.
type Place<'w> = (&'w Window, usize);

/// The samples and events of an instance.
struct State {
    seconds: Window,
    minutes: Window,
    rules: Rules,
    events: Events,
    watch: Watch,
    /// The totals at the last sample, and at the first of the present minute.
    before: Totals,
    minute_began: Totals,
    /// By rule and by shard, the growth between the last two samples.
    rates: Vec<Rate>,
    shards: Vec<ShardRate>,
}

/// The counts of the whole instance at a sample.
#[derive(Clone, Default)]
struct Totals {
    allowed: u64,
    denied: u64,
    unmatched: u64,
    decisions: Durations,
    shards: Vec<spillgate::metrics::ShardCounts>,
}

/// The instant of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// By the wall clock, in milliseconds since 1970-01-01 00:00 UTC.
    pub(crate) wall_ms: u64,
    /// The time since the sample before, by a clock that never steps.
    pub(crate) lasted: Duration,
}

/// The calls to one shard between two samples.
#[derive(Clone, Debug)]
pub(crate) struct ShardRate {
    pub(crate) shard: String,
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) unsent: u64,
    pub(crate) p99: Option<Duration>,
}

/// The time that an answer covers, and the number of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) name: &'static str,
    pub(crate) points: usize,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Second,
    Minute,
}

/// The points and events of a range, the oldest first.
pub(crate) struct Extract {
    pub(crate) columns: Vec<Column>,
    /// By point: of the rule that was asked for, or of all rules.
    pub(crate) decisions: Vec<Decisions>,
    pub(crate) series: Series,
    /// The sums over all points by rule, those with most denials first. None if one rule was asked for.
    pub(crate) rules: Vec<RuleSum>,
    pub(crate) events: Vec<Event>,
}

/// The decisions of a rule over all points of a range.
pub(crate) struct RuleSum {
    /// `None` for all rules without a series of their own.
    pub(crate) rule: Option<Arc<str>>,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
}

/// The series that the points of an answer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Series {
    /// The sums over all rules.
    Sums,
    /// The rule's own series. Earlier decisions are only in the sums; `None` if it has all of them.
    Own { since_ms: Option<u64> },
    /// None: the rule is not among the busiest, and its decisions are only in the sums.
    Absent,
}

/// The latest sample.
pub(crate) struct Latest {
    pub(crate) column: Column,
    pub(crate) decisions: Decisions,
    pub(crate) rates: Vec<Rate>,
    pub(crate) shards: Vec<ShardRate>,
}

/// The conditions that the history watches, with their beginnings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    /// The rules that are not enforced.
    pub(crate) switched: Vec<Switched>,
    /// The shards that decisions are made without, and since when.
    pub(crate) degraded: Vec<(String, u64)>,
    /// The last time that a shard lost its data.
    pub(crate) lost_at_ms: Option<u64>,
    /// The decisions of the last minute by a local share, and by an outage policy.
    pub(crate) by_fallback: u64,
    pub(crate) by_outage_policy: u64,
    /// All decisions of the last minute.
    pub(crate) decisions: u64,
}

impl Range {
    const ALL: [Range; 5] = [
        Range { name: "3m", points: 180, step: Step::Second },
        Range { name: "15m", points: SECONDS, step: Step::Second },
        Range { name: "1h", points: 60, step: Step::Minute },
        Range { name: "24h", points: 1_440, step: Step::Minute },
        Range { name: "48h", points: MINUTES, step: Step::Minute },
    ];

    /// Returns the range with this name.
    pub(crate) fn named(name: &str) -> Option<Range> {
        Range::ALL.into_iter().find(|range| range.name == name)
    }

    /// Returns the time between two points.
    pub(crate) fn step_ms(self) -> u64 {
        match self.step {
            Step::Second => 1_000,
            Step::Minute => 60_000,
        }
    }

    fn span_ms(self) -> u64 {
        self.step_ms() * self.points as u64
    }
}

impl RuleSum {
    /// Returns the rules that have decided, those with most denials first and all rules without a series last.
    fn ranked(mut sums: Vec<RuleSum>) -> Vec<RuleSum> {
        sums.retain(|sum| sum.allowed + sum.denied + sum.would_deny > 0);
        sums.sort_by(|a, b| {
            let order = |sum: &RuleSum| (sum.rule.is_none(), Reverse(sum.denied));
            order(a).cmp(&order(b)).then_with(|| a.rule.cmp(&b.rule))
        });
        sums
    }
}

impl Default for Range {
    fn default() -> Range {
        Range::ALL[1]
    }
}

impl Default for History {
    fn default() -> History {
        History(Mutex::new(State {
            seconds: Window::new(SECONDS),
            minutes: Window::new(MINUTES),
            rules: Rules::default(),
            events: Events::default(),
            watch: Watch::default(),
            before: Totals::default(),
            minute_began: Totals::default(),
            rates: Vec::new(),
            shards: Vec::new(),
        }))
    }
}

impl History {
    /// Adds a point to each series, and the events since the last sample.
    pub(crate) fn sample(&self, limiter: &Limiter, at: At) {
        let (counts, stats, shards) = (limiter.counts(), limiter.stats(), limiter.shards());
        let mut state = self.lock();
        let State { watch, events, .. } = &mut *state;
        watch.look(limiter, &stats, &shards, at.wall_ms, events);
        for event in events.take_unreported() {
            limiter.note_event(event.kind.name(), &event.text);
        }
        state.add(counts, &stats, &shards, at);
    }

    /// Adds an event of now.
    pub(crate) fn note(&self, kind: EventKind, text: &str) {
        self.lock().events.add(Event::new(now_ms(), kind, None, text));
    }

    /// Returns the points and events of a range that ends at `until_ms`, or now: of one rule, or of all.
    pub(crate) fn extract(
        &self,
        limiter: &Limiter,
        range: Range,
        until_ms: Option<u64>,
        rule: Option<&str>,
    ) -> Extract {
        let changes = changes::of_audit(&limiter.audit(), now_ms());
        let state = self.lock();
        let points = state.points(range, until_ms);
        let own = rule.and_then(|rule| state.rules.series_of(rule));
        let series = match (rule, own) {
            (None, _) => Series::Sums,
            (Some(_), Some(own)) => Series::Own { since_ms: own.since_ms },
            (Some(_), None) => Series::Absent,
        };
        let columns: Vec<Column> = points.iter().map(|(window, at)| window.column(*at)).collect();
        let decisions = points.iter().map(|(window, at)| match (series, own) {
            (Series::Sums, _) => window.sum(*at),
            (_, Some(own)) => window.decisions(own.slot, *at),
            (_, None) => Decisions::default(),
        });
        let rules = match series {
            Series::Sums => state.rules.sums(&points),
            Series::Own { .. } | Series::Absent => Vec::new(),
        };
        let last_ms = columns.last().map_or(0, |last| last.at_ms);
        let began_ms = until_ms.unwrap_or(last_ms).saturating_sub(range.span_ms());
        let shown = began_ms..=until_ms.unwrap_or(u64::MAX);
        let is_shown = |event: &Event| shown.contains(&event.at_ms) && event.concerns(rule);
        let mut events: Vec<Event> =
            state.events.all().cloned().chain(changes).filter(is_shown).collect();
        events.sort_by_key(|event| event.at_ms);
        Extract { decisions: decisions.collect(), series, rules, events, columns }
    }

    /// Returns the latest point with the growth of each count; `None` before the first sample.
    pub(crate) fn latest(&self) -> Option<Latest> {
        let state = self.lock();
        let at = state.seconds.last(1).next()?;
        Some(Latest {
            column: state.seconds.column(at),
            decisions: state.seconds.sum(at),
            rates: state.rates.clone(),
            shards: state.shards.clone(),
        })
    }

    /// Returns the conditions as of the last sample.
    pub(crate) fn watched(&self) -> Watched {
        let state = self.lock();
        let sum = |source: usize| {
            let last = state.seconds.last(60).map(|at| state.seconds.column(at).sources[source]);
            last.map(u64::from).sum()
        };
        Watched {
            switched: state.watch.switched.values().cloned().collect(),
            degraded: state.watch.degraded.clone().into_iter().collect(),
            lost_at_ms: state.watch.lost_at_ms,
            by_fallback: sum(window::FALLBACK),
            by_outage_policy: sum(window::OUTAGE_POLICY),
            decisions: (0..SOURCES.len()).map(sum).sum(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Returns the places of the points of a range, the oldest first.
    fn points(&self, range: Range, until_ms: Option<u64>) -> Vec<Place<'_>> {
        fn all(window: &Window) -> impl Iterator<Item = Place<'_>> {
            window.last(MINUTES).map(move |at| (window, at))
        }
        let (window, others) = match range.step {
            Step::Second => (&self.seconds, &self.minutes),
            Step::Minute => (&self.minutes, &self.minutes),
        };
        let Some(until_ms) = until_ms else {
            return window.last(range.points).map(|at| (window, at)).collect();
        };
        let column = |(window, at): &Place<'_>| window.column(*at);
        let began_ms = |column: Column| column.at_ms.saturating_sub(u64::from(column.lasted_ms));
        let from_ms = until_ms.saturating_sub(range.span_ms());
        // Points of a second are kept for the shortest time. Earlier ones are replaced by those of their minutes.
        let oldest_ms = all(window).next().map_or(0, |place| began_ms(column(&place)));
        let earlier = all(others)
            .take_while(|place| from_ms < oldest_ms && began_ms(column(place)) < oldest_ms);
        let mut points: Vec<Place<'_>> = earlier.collect();
        let joint_ms = points.last().map_or(0, |place| column(place).at_ms);
        points.extend(all(window).filter(|place| column(place).at_ms > joint_ms));
        points.retain(|place| (from_ms + 1..=until_ms).contains(&column(place).at_ms));
        points
    }

    fn add(&mut self, counts: Counts, stats: &Stats, shards: &[ShardStatus], at: At) {
        let degraded = shards.iter().filter(|shard| shard.degraded).count();
        let now = Totals {
            allowed: stats.allowed,
            denied: stats.denied,
            unmatched: stats.unmatched,
            decisions: counts.decisions,
            shards: counts.shards,
        };
        let begins_a_minute = self.minutes.is_over(at.wall_ms);
        self.seconds.turn();
        if begins_a_minute {
            self.minutes.turn();
            self.minute_began = self.before.clone();
        }
        let growth = self.rules.note(&counts.rules, &mut self.seconds, &mut self.minutes);
        if begins_a_minute {
            self.rules.choose_busiest(&mut self.seconds, &mut self.minutes, at.wall_ms);
        }
        let mut second = now.since(&self.before);
        (second.at_ms, second.sources) = (at.wall_ms, growth.sources);
        second.lasted_ms = u32::try_from(at.lasted.as_millis()).unwrap_or(u32::MAX).max(1);
        second.degraded = u32::try_from(degraded).unwrap_or(u32::MAX);
        let minute = now.since(&self.minute_began);
        self.seconds.present().add(&second);
        self.minutes.present().add(&second);
        // Percentiles of a minute are not sums of those of its seconds.
        self.seconds.present().times = second.times;
        self.minutes.present().times = minute.times;
        self.rates = growth.rates;
        self.shards = now.shards_since(&self.before);
        self.before = now;
    }
}

impl Totals {
    /// Returns the growth since `before`.
    fn since(&self, before: &Totals) -> Column {
        let grown = |now: u64, before: u64| window::small(now.saturating_sub(before));
        let shards = self.shards_since(before);
        let times = self.decisions.since(&before.decisions);
        let of_calls = shards_times(self).since(&shards_times(before));
        Column {
            allowed: grown(self.allowed, before.allowed),
            denied: grown(self.denied, before.denied),
            unmatched: grown(self.unmatched, before.unmatched),
            calls: window::small(shards.iter().map(|shard| shard.calls).sum()),
            failed: window::small(shards.iter().map(|shard| shard.failed).sum()),
            unsent: window::small(shards.iter().map(|shard| shard.unsent).sum()),
            times: window::Times {
                p50: times.percentile(50),
                p99: times.percentile(99),
                store_p99: of_calls.percentile(99),
            },
            ..Column::default()
        }
    }

    /// Returns the growth of each shard's counts. Shards can join and leave a Cluster.
    fn shards_since(&self, before: &Totals) -> Vec<ShardRate> {
        let rate = |now: &spillgate::metrics::ShardCounts| {
            let known = before.shards.iter().find(|before| before.shard == now.shard);
            let calls = known.map_or(now.calls, |before| now.calls.since(&before.calls));
            let grown = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
            ShardRate {
                shard: now.shard.clone(),
                calls: calls.count(),
                failed: grown(now.failed, known.map(|known| known.failed)),
                unsent: grown(now.unsent, known.map(|known| known.unsent)),
                p99: calls.percentile(99),
            }
        };
        self.shards.iter().map(rate).collect()
    }
}

fn shards_times(totals: &Totals) -> Durations {
    totals.shards.iter().fold(Durations::default(), |all, shard| all.and(&shard.calls))
}

/// Samples a limiter once a second, for as long as the service runs.
pub(crate) async fn keep(history: Arc<History>, limiter: Limiter) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = Instant::now();
    loop {
        let now = ticks.tick().await;
        let lasted = now.saturating_duration_since(before);
        before = now;
        history.sample(&limiter, At { wall_ms: now_ms(), lasted });
    }
}

/// Returns the wall clock's time in milliseconds since 1970-01-01 00:00 UTC.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

const EVERY: Duration = Duration::from_secs(1);
/// The points of a second each.
const SECONDS: usize = 900;
/// The points of a minute each.
const MINUTES: usize = 2_880;

#[cfg(test)]
mod tests;
