//! Tables with any number of columns, printed as Markdown that is readable as plain text.

use std::fmt;

/// A title, the names of the columns, and the rows.
pub struct Grid {
    pub title: String,
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = self.heads.iter().map(|head| (*head).to_owned()).collect::<Vec<_>>();
        let lines: Vec<&Vec<String>> = [&heads].into_iter().chain(&self.rows).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|it| it.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.heads.len()).map(|column| width(column).unwrap_or(0)).collect();
        writeln!(f, "### {}\n", self.title)?;
        for (number, line) in lines.iter().enumerate() {
            for (cell, width) in line.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
            if number == 0 {
                widths.iter().try_for_each(|width| write!(f, "| {} ", "-".repeat(*width)))?;
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Formats as `1,234,567`, rounded to three digits.
pub fn rounded(number: f64) -> String {
    let unit = 10f64.powf(number.max(1.0).log10().floor() - 2.0).max(1.0);
    crate::output::grouped(((number / unit).round() * unit) as u64)
}

pub fn micros(us: f64) -> String {
    format!("{us:.1} µs")
}

pub fn percent(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole.max(1.0))
}
