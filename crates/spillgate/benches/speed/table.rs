//! Tables printed as Markdown that is readable as plain text.

use std::fmt;

use crate::rounds::{Rounds, Spread};

/// A title and its rows.
pub struct Table {
    pub title: String,
    pub rows: Vec<Row>,
}

/// One measure against its baseline.
pub struct Row {
    pub measure: String,
    pub ours: String,
    pub baseline: String,
    pub ratio: Option<Spread>,
    pub floor: Floor,
}

/// The worst ratio that holds.
#[derive(Clone, Copy)]
pub enum Floor {
    AtLeast(f64),
    AtMost(f64),
    Nothing,
}

impl Floor {
    fn result(self, ratio: Option<Spread>) -> &'static str {
        let holds = match (self, ratio) {
            (Floor::AtLeast(bound), Some(ratio)) => ratio.median >= bound,
            (Floor::AtMost(bound), Some(ratio)) => ratio.median <= bound,
            _ => return "reported",
        };
        if holds { "holds" } else { "falls short" }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |bound: &f64| (bound * 100.0).round() / 100.0;
        match self {
            Floor::AtLeast(bound) => write!(f, "≥ {}", digits(bound)),
            Floor::AtMost(bound) => write!(f, "≤ {}", digits(bound)),
            Floor::Nothing => Ok(()),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads =
            ["measure", "ours", "baseline", "ratio", "min-max", "floor", ""].map(str::to_owned);
        let mut lines = vec![heads];
        lines.extend(self.rows.iter().map(Row::cells));
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        let rule = widths.map(|width| "-".repeat(width));
        lines.insert(1, rule);
        writeln!(f, "### {}\n", self.title)?;
        for line in &lines {
            let cells = line.iter().zip(widths).map(|(cell, width)| format!(" {cell:width$} |"));
            writeln!(f, "|{}", cells.collect::<String>())?;
        }
        Ok(())
    }
}

impl Rounds {
    /// Compares the decisions a second of two contenders.
    pub fn rate_row(
        &self,
        measure: impl Into<String>,
        ours: usize,
        to: usize,
        floor: Floor,
    ) -> Row {
        let [ours_shown, baseline] = [ours, to].map(|contender| rate(self.figure(contender)));
        let ratio = Some(self.figure_ratio(ours, to));
        Row { measure: measure.into(), ours: ours_shown, baseline, ratio, floor }
    }

    /// Compares the store's CPU time per decision of two contenders.
    pub fn cpu_row(&self, measure: impl Into<String>, ours: usize, to: usize, floor: Floor) -> Row {
        let [ours_shown, baseline] = [ours, to].map(|contender| micros(self.store_us(contender)));
        let ratio = Some(self.store_us_ratio(ours, to));
        Row { measure: measure.into(), ours: ours_shown, baseline, ratio, floor }
    }
}

impl Row {
    fn cells(&self) -> [String; COLUMNS] {
        let ratio = self.ratio.map_or(String::new(), |ratio| format!("{:.2}", ratio.median));
        let spread =
            self.ratio.map_or(String::new(), |ratio| format!("{:.2}-{:.2}", ratio.min, ratio.max));
        [
            self.measure.clone(),
            self.ours.clone(),
            self.baseline.clone(),
            ratio,
            spread,
            self.floor.to_string(),
            self.floor.result(self.ratio).to_owned(),
        ]
    }
}

/// Formats as `1 234 567/s`, rounded to three digits.
pub fn rate(per_second: f64) -> String {
    let unit = 10f64.powf(per_second.max(1.0).log10().floor() - 2.0).max(1.0);
    let digits = format!("{:.0}", (per_second / unit).round() * unit);
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    format!("{}/s", groups.join(","))
}

/// Formats a time of a few µs.
pub fn micros(us: f64) -> String {
    format!("{us:.2} µs")
}

const COLUMNS: usize = 7;
