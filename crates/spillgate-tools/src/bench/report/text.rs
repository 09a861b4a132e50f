//! The report as text in columns, for a terminal.

use std::fmt;

use super::{Ratio, Report, TargetReport, UNKNOWN_SOURCE, time};
use crate::output::{grouped, table};
use crate::{counted, printable};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { scenario, rate, callers, checks, .. } = self;
        let subjects = match self.subjects {
            1 => "1 subject".to_owned(),
            subjects => format!("{} subjects", grouped(subjects)),
        };
        let callers = counted(*callers, "caller");
        write!(f, "{scenario}: {subjects}, {checks}, {rate} for ")?;
        write!(f, "{}, {callers} at most", time(self.duration_ms * 1_000_000))?;
        f.write_str(match self.kind {
            "open" => "\n  open loop: calls are made on time even while answers are late, and times count from then",
            _ => "\n  closed loop: each caller calls again when it is answered, so a slow target gets fewer calls, \
                  and its times look better than users would see them",
        })?;
        if self.stopped {
            f.write_str("\n  stopped before its end: these are the answers so far")?;
        }
        for event in &self.events {
            write!(f, "\n  at {} {}", time(event.at_ms * 1_000_000), event.event)?;
        }
        f.write_str("\n")?;
        write_table(f, &self.targets)?;
        f.write_str("\n")?;
        for target in &self.targets {
            write_details(f, target)?;
        }
        self.ratios.iter().try_for_each(|ratio| write!(f, "\n{ratio}"))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {}, median (range) of {}:", self.to, counted(self.rounds, "pair"))?;
        let each = [("rate", self.rate), ("p50", self.p50), ("p99", self.p99)];
        for (name, ratio) in each {
            match ratio {
                Some(ratio) => write!(f, "  {name} {ratio}")?,
                None => write!(f, "  {name} -")?,
            }
        }
        Ok(())
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, targets: &[TargetReport]) -> fmt::Result {
    let heads =
        ["", "sent", "allowed", "denied", "errors", "rate", "p50", "p90", "p99", "p99.9", "max"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(targets.iter().map(|it| {
        let latency = &it.latency;
        [
            it.name.to_owned(),
            grouped(it.sent),
            grouped(it.allowed),
            grouped(it.denied),
            grouped(it.errors),
            format!("{}/s", grouped(it.per_second)),
            time(latency.p50_ns),
            time(latency.p90_ns),
            time(latency.p99_ns),
            time(latency.p999_ns),
            time(latency.max_ns),
        ]
    }));
    f.write_str(&table(&rows, 1))
}

fn write_details(f: &mut fmt::Formatter<'_>, target: &TargetReport) -> fmt::Result {
    write!(f, "\n{}: {}", target.name, target.place)?;
    let sources: Vec<String> = target
        .by_source
        .all()
        .map(|(source, count)| format!("{source} {}", grouped(count)))
        .collect();
    let decisions = grouped(target.allowed + target.denied);
    if !sources.is_empty() && sources != [format!("{UNKNOWN_SOURCE} {decisions}")] {
        write!(f, "\n  decided by: {}", sources.join(", "))?;
    }
    let late = &target.sent_late;
    if late.max_ns > 0 {
        write!(
            f,
            "\n  sent late by: p50 {}, p99 {}, at most {} (within the times above)",
            time(late.p50_ns),
            time(late.p99_ns),
            time(late.max_ns)
        )?;
    }
    if target.unsent > 0 {
        write!(
            f,
            "\n  never sent: {}, since all callers waited for answers; counted as waiting until the end. \
             Lower --rate, or raise --callers",
            grouped(target.unsent)
        )?;
    }
    if target.timed_out > 0 {
        write!(f, "\n  no answer in time: {}", grouped(target.timed_out))?;
    }
    for (why, count) in &target.failed {
        // Without control characters, so that a reply cannot steer a terminal.
        write!(f, "\n  failed: {} by {}", grouped(*count), printable(why))?;
    }
    Ok(())
}
