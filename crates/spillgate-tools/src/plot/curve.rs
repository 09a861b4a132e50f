//! Values at a few points, such as one for each size: lines from point to point.

use std::fmt;

use super::scale::{Scale, grouped, number_ticks};
use super::{ABOVE_AREA, BELOW, CHART, Ink, LEFT, RIGHT, Shape, Tenths, Text, text};

/// Lines over the same points, which are drawn at equal distances.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) title: String,
    /// The unit of the values.
    pub(crate) counts: String,
    /// The labels of the points.
    pub(crate) points: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// One line of a curve: a value for each point.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) ink: Ink,
    pub(crate) values: Vec<u64>,
}

impl Curve {
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, top: u64) -> fmt::Result {
        let ground = top + CHART - BELOW;
        text(f, (LEFT, top + 18), "name", &self.title)?;
        text(f, (LEFT, top + 36), "quiet", &self.counts)?;
        let most = self.lines.iter().flat_map(|line| &line.values).max().copied().unwrap_or(0);
        let ticks = number_ticks(most);
        let up =
            Scale::new((0, *ticks.last().unwrap_or(&1)), (ground * 10, (top + ABOVE_AREA) * 10));
        for tick in &ticks {
            let (y, below) = (Tenths(up.place(*tick)), up.place(*tick) / 10 + 4);
            writeln!(f, "<path class=\"grid\" d=\"M{LEFT},{y}H{RIGHT}\"/>")?;
            let (x, number) = (LEFT - 8, grouped(*tick));
            writeln!(f, "<text class=\"quiet end\" x=\"{x}\" y=\"{below}\">{number}</text>")?;
        }
        for (number, point) in (0..).zip(&self.points) {
            let (x, y) = (Tenths(self.along(number)), ground + 19);
            writeln!(f, "<path class=\"grid\" d=\"M{x},{ground}v5\"/>")?;
            writeln!(f, "<text class=\"quiet middle\" x=\"{x}\" y=\"{y}\">{}</text>", Text(point))?;
        }
        for line in &self.lines {
            let places: Vec<(Tenths, Tenths)> = (0..)
                .zip(&line.values)
                .map(|(number, value)| (Tenths(self.along(number)), Tenths(up.place(*value))))
                .collect();
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x},{y}")).collect();
            let (class, dot) = (line.ink.class(Shape::Line), line.ink.class(Shape::Area));
            writeln!(f, "<path class=\"{class}\" d=\"M{}\"/>", path.join("L"))?;
            for (x, y) in &places {
                writeln!(f, "<circle class=\"{dot}\" cx=\"{x}\" cy=\"{y}\" r=\"3.5\"/>")?;
            }
        }
        writeln!(f, "<path class=\"axis\" d=\"M{LEFT},{ground}H{RIGHT}\"/>")
    }

    /// Returns the position of a point in tenths of a pixel: the first and the last are half a step from the edges.
    fn along(&self, number: u64) -> u64 {
        let steps = 2 * (self.points.len() as u64).max(1);
        LEFT * 10 + (RIGHT - LEFT) * 10 * (2 * number + 1) / steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Chart, Figure};

    #[test]
    fn a_curve_has_a_dot_for_each_value_and_its_points_in_order() {
        let line = |label: &str, ink, values: &[u64]| Line {
            label: label.into(),
            ink,
            values: values.into(),
        };
        let curve = Curve {
            title: "keys".into(),
            counts: "a second".into(),
            points: ["10", "<100>", "1,000"].map(str::to_owned).into(),
            lines: vec![
                line("ours", Ink::Allowed, &[5, 7, 6]),
                line("theirs", Ink::Asked, &[1, 2]),
            ],
        };
        let charts = vec![Chart::Curve(curve)];
        let svg = Figure { title: "t".into(), subtitle: "s".into(), charts }.to_string();
        assert_eq!(svg.matches("<circle class=\"allowed\"").count(), 3);
        assert_eq!(svg.matches("<circle class=\"asked\"").count(), 2);
        let places: Vec<usize> =
            [">10<", "&lt;100&gt;", ">1,000<"].map(|point| svg.find(point).unwrap()).into();
        assert!(places.is_sorted(), "{svg}");
        assert!(svg.contains(">ours<") && svg.contains(">theirs<"), "the legend names the lines");
        assert!(
            Curve {
                points: Vec::new(),
                lines: Vec::new(),
                title: String::new(),
                counts: String::new()
            }
            .along(0)
                > 0
        );
    }
}
