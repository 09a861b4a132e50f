//! The results: lines of a file, so that an interrupted run continues where it stopped, and tables to read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

/// One limit in one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Version, topology and fault, separated by tabs.
    pub(super) cell: String,
    /// The algorithm, and how soon used quota comes back.
    pub(super) limit: String,
    pub(super) admitted: u64,
    /// Of `admitted`, the calls that local shares admitted.
    pub(super) local: u64,
    /// The whole quota, or the quota of one period.
    pub(super) allowed: u64,
    /// The bound of the fault: the most by which any interval may exceed the limit.
    pub(super) most_over: u64,
    pub(super) over: u64,
    pub(super) locked_out_us: Option<u64>,
    pub(super) locked_out_most_us: Option<u64>,
    /// Whether quota was left unused although nothing went wrong.
    pub(super) unused: bool,
}

pub(super) struct Report {
    file: Option<File>,
    rows: Vec<Row>,
}

impl Report {
    #[track_caller]
    pub(super) fn read(path: Option<&Path>) -> Report {
        let Some(path) = path else { return Report { file: None, rows: Vec::new() } };
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Report { file: Some(file), rows: text.lines().filter_map(Row::of_line).collect() }
    }

    pub(super) fn has(&self, cell: &str) -> bool {
        self.rows.iter().any(|row| row.cell == cell)
    }

    /// Adds all rows of a cell at once, so that the file never holds half a cell.
    #[track_caller]
    pub(super) fn add(&mut self, rows: &[Row]) {
        let lines: String = rows.iter().map(Row::line).collect();
        if let Some(file) = &mut self.file {
            file.write_all(lines.as_bytes()).expect("the file can be written");
        }
        self.rows.extend_from_slice(rows);
    }

    fn of<'r>(&'r self, cells: &'r [String]) -> impl Iterator<Item = &'r Row> {
        self.rows.iter().filter(|row| cells.contains(&row.cell))
    }

    pub(super) fn violations(&self, cells: &[String]) -> Vec<String> {
        self.of(cells).filter_map(Row::fault).collect()
    }

    /// The worst of all versions, by topology and fault.
    pub(super) fn tables(&self, cells: &[String]) -> String {
        let versions: BTreeSet<&str> = self.of(cells).map(Row::version).collect();
        let names: Vec<&str> = versions.into_iter().collect();
        let mut text = format!("\nOn {}.\n", names.join(", "));
        for lasts in ["ages", "moment"] {
            let mut worst: BTreeMap<usize, (&str, Vec<&Row>)> = BTreeMap::new();
            for row in self.of(cells).filter(|row| row.limit.ends_with(lasts)) {
                // In the order in which they ran first.
                let name = row.without_version();
                let known = worst.iter().find(|(_, (other, _))| *other == name);
                let place = known.map_or(worst.len(), |(place, _)| *place);
                worst.entry(place).or_insert_with(|| (name, Vec::new())).1.push(row);
            }
            let algorithms =
                ["token-bucket", "fixed-window", "sliding-log", "sliding-window", "concurrency"];
            let _ = write!(text, "\n| {} | {} |", title(lasts), algorithms.join(" | "));
            text.push_str(if lasts == "moment" {
                " longest lock-out, ms | stated |\n"
            } else {
                "\n"
            });
            let columns = if lasts == "moment" { 8 } else { 6 };
            let _ = writeln!(text, "{}|", "|---".repeat(columns));
            for (name, rows) in worst.values() {
                let _ = write!(text, "| {} |", name.replace('\t', ", "));
                for algorithm in algorithms {
                    let of = || rows.iter().filter(|row| row.limit.starts_with(algorithm));
                    let over = of().map(|row| row.over).max().unwrap_or(0);
                    let most = of().map(|row| row.most_over).max().unwrap_or(0);
                    let admitted = of().map(|row| row.admitted).max().unwrap_or(0);
                    let _ = match lasts {
                        "ages" => write!(text, " {admitted}: {over} / {most} |"),
                        _ => write!(text, " {over} / {most} |"),
                    };
                }
                if lasts == "moment" {
                    let locked_out = rows.iter().filter_map(|row| row.locked_out_us).max();
                    let most = rows.iter().filter_map(|row| row.locked_out_most_us).min();
                    let ms = |us: Option<u64>| us.unwrap_or(0) / 1_000;
                    let _ = write!(text, " {} | {} |", ms(locked_out), ms(most));
                }
                text.push('\n');
            }
        }
        text
    }
}

fn title(lasts: &str) -> &'static str {
    match lasts {
        "ages" => "nothing refills: admitted, overshoot / at most",
        _ => "quota comes back quickly: overshoot in the worst interval / at most",
    }
}

impl Row {
    fn version(&self) -> &str {
        self.cell.split('\t').next().unwrap_or_default()
    }

    fn without_version(&self) -> &str {
        self.cell.split_once('\t').map_or("", |(_, rest)| rest)
    }

    /// Returns the bound that this row violates, if any.
    fn fault(&self) -> Option<String> {
        let row = format!("{}, {}", self.cell, self.limit).replace('\t', ", ");
        if self.over > self.most_over {
            let Row { over, most_over, admitted, local, .. } = self;
            return Some(format!(
                "{row}: {over} over, at most {most_over} allowed; {admitted} admitted, {local} by local shares"
            ));
        }
        if self.unused {
            return Some(format!("{row}: only {} admitted", self.admitted));
        }
        let (locked_out_us, most_us) = self.locked_out_us.zip(self.locked_out_most_us)?;
        let message =
            || format!("{row}: locked out for {locked_out_us} us, at most {most_us} allowed");
        (locked_out_us > most_us).then(message)
    }

    fn line(&self) -> String {
        let or_dash = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
        let Row { cell, limit, admitted, local, allowed, most_over, over, unused, .. } = self;
        let (locked_out, most) = (or_dash(self.locked_out_us), or_dash(self.locked_out_most_us));
        format!(
            "{cell}\t{limit}\t{admitted}\t{local}\t{allowed}\t{most_over}\t{over}\t{locked_out}\t{most}\t{unused}\n"
        )
    }

    /// Returns `None` for a line that was cut.
    fn of_line(line: &str) -> Option<Row> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [version, shape, fault, algorithm, lasts, params @ ..] = &fields[..] else {
            return None;
        };
        let [admitted, local, allowed, most_over, over, locked_out, most, unused] = params else {
            return None;
        };
        Some(Row {
            cell: [*version, *shape, *fault].join("\t"),
            limit: [*algorithm, *lasts].join("\t"),
            admitted: admitted.parse().ok()?,
            local: local.parse().ok()?,
            allowed: allowed.parse().ok()?,
            most_over: most_over.parse().ok()?,
            over: over.parse().ok()?,
            locked_out_us: locked_out.parse().ok(),
            locked_out_most_us: most.parse().ok(),
            unused: unused.parse().ok()?,
        })
    }
}

#[test]
fn a_row_survives_the_file_and_reports_its_violation() {
    let row = Row {
        cell: "a server\tring\tkilled".into(),
        limit: "token-bucket\tmoment".into(),
        admitted: 700,
        local: 90,
        allowed: 600,
        most_over: 100,
        over: 100,
        locked_out_us: Some(9),
        locked_out_most_us: Some(9),
        unused: false,
    };
    assert_eq!(Row::of_line(row.line().trim_end()), Some(row.clone()));
    assert_eq!(Row::of_line("a server\tring\tkil"), None);
    assert_eq!(row.fault(), None);
    assert!(Row { over: 101, ..row.clone() }.fault().is_some_and(|it| it.contains("101 over")));
    assert!(Row { locked_out_us: Some(10), ..row.clone() }.fault().is_some());
    assert!(Row { unused: true, ..row }.fault().is_some());
}
