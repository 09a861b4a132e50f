//! Charts as SVG: steps over time with a bound across them, and rankings. A figure is complete by itself, in
//! light and dark.
//!
//! It knows nothing of limits, logs or benches. All arithmetic is on whole numbers, so that the same figure is the
//! same bytes on every machine.

use std::fmt::{self, Write};

mod scale;

use crate::output::grouped;
use scale::{Scale, instant_ticks, number_ticks};

/// Charts below each other under one title.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) charts: Vec<Chart>,
}

/// One chart of a figure.
#[derive(Clone, Debug)]
pub(crate) enum Chart {
    OverTime(OverTime),
    Ranking(Ranking),
}

/// Values that change at instants.
#[derive(Clone, Debug)]
pub(crate) struct OverTime {
    pub(crate) title: String,
    /// The unit of the values.
    pub(crate) counts: String,
    pub(crate) span: Span,
    /// Drawn in this order, each over the one before.
    pub(crate) series: Vec<Series>,
    pub(crate) bound: Option<Bound>,
}

/// The range of time in microseconds, and how instants are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) written: TimeLabels,
}

/// How instants are written at the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeLabels {
    /// The time since the beginning.
    SinceStart,
    /// The time of day, UTC.
    ByClock,
}

/// One series of values.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) ink: Ink,
    pub(crate) shape: Drawn,
    /// Instants and values in order; each value holds until the next instant.
    pub(crate) steps: Vec<(u64, u64)>,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drawn {
    Line,
    /// Filled from the ground up; the part above the bound has another colour.
    Area,
}

/// The meaning of a colour. Each has a value for light and one for dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Allowed,
    Refused,
    Asked,
}

/// A line that values should stay below.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) label: String,
    pub(crate) value: u64,
}

/// Names with a bar each, the longest first.
#[derive(Clone, Debug)]
pub(crate) struct Ranking {
    pub(crate) title: String,
    pub(crate) rows: Vec<(String, u64)>,
    pub(crate) ink: Ink,
}

impl fmt::Display for Figure {
    /// Writes the whole SVG document.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let legend = self.legend();
        let head = HEAD + if legend.is_empty() { 0 } else { LEGEND };
        let height = head + self.charts.iter().map(Chart::height).sum::<u64>();
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\" class=\"plot\">"
        )?;
        writeln!(f, "<title>{}</title>\n<desc>{}</desc>", Text(&self.title), Text(&self.subtitle))?;
        writeln!(f, "<style>{STYLE}</style>")?;
        writeln!(f, "<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>")?;
        text(f, (LEFT_EDGE, 30), "title", &self.title)?;
        text(f, (LEFT_EDGE, 50), "quiet", &self.subtitle)?;
        write_legend(f, &legend)?;
        let mut top = head;
        for chart in &self.charts {
            match chart {
                Chart::OverTime(chart) => chart.write(f, top)?,
                Chart::Ranking(chart) => chart.write(f, top)?,
            }
            top += chart.height();
        }
        f.write_str("</svg>\n")
    }
}

impl Figure {
    /// Returns each label once, with its class.
    fn legend(&self) -> Vec<(&str, &'static str)> {
        let mut legend: Vec<(&str, &'static str)> = Vec::new();
        let mut add = |label, class| {
            if !legend.contains(&(label, class)) {
                legend.push((label, class));
            }
        };
        let over_time = || {
            self.charts.iter().filter_map(|chart| match chart {
                Chart::OverTime(chart) => Some(chart),
                Chart::Ranking(_) => None,
            })
        };
        for series in over_time().flat_map(|chart| &chart.series) {
            add(&series.label, series.ink.class(series.shape));
        }
        if over_time().any(OverTime::is_exceeded) {
            add(ABOVE, "over");
        }
        if let Some(bound) = over_time().find_map(|chart| chart.bound.as_ref()) {
            add(bound.label.split(' ').next().unwrap_or_default(), "bound");
        }
        legend
    }
}

impl Chart {
    fn height(&self) -> u64 {
        match self {
            Chart::OverTime(_) => CHART,
            Chart::Ranking(ranking) => RANKING + ROW * ranking.rows.len() as u64,
        }
    }
}

impl OverTime {
    fn write(&self, f: &mut fmt::Formatter<'_>, top: u64) -> fmt::Result {
        let ground = top + CHART - BELOW;
        text(f, (LEFT, top + 18), "name", &self.title)?;
        text(f, (LEFT, top + 36), "quiet", &self.counts)?;
        let ticks = number_ticks(self.most());
        let up =
            Scale::new((0, *ticks.last().unwrap_or(&1)), (ground * 10, (top + ABOVE_AREA) * 10));
        for tick in &ticks {
            let y = Tenths(up.place(*tick));
            writeln!(f, "<path class=\"grid\" d=\"M{LEFT},{y}H{RIGHT}\"/>")?;
            let below = up.place(*tick) / 10 + 4;
            writeln!(
                f,
                "<text class=\"quiet end\" x=\"{}\" y=\"{below}\">{}</text>",
                LEFT - 8,
                grouped(*tick)
            )?;
        }
        let along = Scale::new((self.span.from_us, self.span.to_us), (LEFT * 10, RIGHT * 10));
        for (tick_us, label) in instant_ticks(self.span) {
            let x = Tenths(along.place(tick_us));
            writeln!(f, "<path class=\"grid\" d=\"M{x},{ground}v5\"/>")?;
            writeln!(
                f,
                "<text class=\"quiet middle\" x=\"{x}\" y=\"{}\">{}</text>",
                ground + 19,
                Text(&label)
            )?;
        }
        for series in &self.series {
            self.write_series(f, series, along, up)?;
        }
        if let Some(bound) = &self.bound {
            let y = up.place(bound.value);
            writeln!(f, "<path class=\"bound\" d=\"M{LEFT},{}H{RIGHT}\"/>", Tenths(y))?;
            let above = y / 10 - 5;
            writeln!(
                f,
                "<text class=\"limit end\" x=\"{}\" y=\"{above}\">{}</text>",
                RIGHT - 4,
                Text(&bound.label)
            )?;
        }
        writeln!(f, "<path class=\"axis\" d=\"M{LEFT},{ground}H{RIGHT}\"/>")
    }

    fn write_series(
        &self,
        f: &mut fmt::Formatter<'_>,
        series: &Series,
        along: Scale,
        up: Scale,
    ) -> fmt::Result {
        let steps = thinned(&series.steps, along);
        let class = series.ink.class(series.shape);
        if series.shape == Drawn::Line {
            return writeln!(f, "<path class=\"{class}\" d=\"{}\"/>", path(&steps, up, None));
        }
        let bound = self.bound.as_ref().map_or(u64::MAX, |bound| bound.value);
        let below: Vec<_> = steps.iter().map(|(x, value)| (*x, (*value).min(bound))).collect();
        writeln!(f, "<path class=\"{class}\" d=\"{}\"/>", path(&below, up, Some(0)))?;
        // One path for each stretch above the bound.
        for stretch in steps.chunk_by(|one, next| (one.1 > bound) == (next.1 > bound)) {
            if stretch[0].1 <= bound {
                continue;
            }
            let end = steps.iter().find(|(x, _)| *x > stretch[stretch.len() - 1].0);
            let end = end.map_or(RIGHT * 10, |(x, _)| *x);
            let closed: Vec<_> = stretch.iter().copied().chain([(end, bound)]).collect();
            writeln!(f, "<path class=\"over\" d=\"{}\"/>", path(&closed, up, Some(bound)))?;
        }
        Ok(())
    }

    fn most(&self) -> u64 {
        let values = self.series.iter().flat_map(|series| &series.steps).map(|(_, value)| *value);
        values.chain(self.bound.as_ref().map(|bound| bound.value)).max().unwrap_or(0)
    }

    fn is_exceeded(&self) -> bool {
        let Some(bound) = &self.bound else { return false };
        let areas = self.series.iter().filter(|series| series.shape == Drawn::Area);
        areas.flat_map(|series| &series.steps).any(|(_, value)| *value > bound.value)
    }
}

impl Ranking {
    fn write(&self, f: &mut fmt::Formatter<'_>, top: u64) -> fmt::Result {
        text(f, (LEFT_EDGE, top + 18), "name", &self.title)?;
        let most = self.rows.iter().map(|(_, count)| *count).max().unwrap_or(1);
        let along = Scale::new((0, most), (0, (RIGHT - BARS_LEFT - 90) * 10));
        let class = self.ink.class(Drawn::Area);
        for ((name, count), row) in self.rows.iter().zip(0_u64..) {
            let (y, width) = (top + 32 + row * ROW, along.place(*count));
            let name: String = match name.chars().count() {
                0..=NAME_MAX => name.clone(),
                _ => name.chars().take(NAME_MAX - 1).chain(['…']).collect(),
            };
            writeln!(
                f,
                "<text class=\"end\" x=\"{}\" y=\"{}\">{}</text>",
                BARS_LEFT - 10,
                y + 13,
                Text(&name)
            )?;
            writeln!(
                f,
                "<rect class=\"{class}\" x=\"{BARS_LEFT}\" y=\"{y}\" width=\"{}\" height=\"17\"/>",
                Tenths(width.max(10))
            )?;
            let beside = BARS_LEFT + width / 10 + 8;
            writeln!(
                f,
                "<text class=\"quiet\" x=\"{beside}\" y=\"{}\">{}</text>",
                y + 13,
                grouped(*count)
            )?;
        }
        Ok(())
    }
}

impl Ink {
    fn class(self, shape: Drawn) -> &'static str {
        match (self, shape) {
            (Ink::Allowed, Drawn::Area) => "allowed",
            (Ink::Refused, Drawn::Area) => "refused",
            (Ink::Asked, Drawn::Area) => "asked",
            (Ink::Allowed, Drawn::Line) => "allowed line",
            (Ink::Refused, Drawn::Line) => "refused line",
            (Ink::Asked, Drawn::Line) => "asked line",
        }
    }
}

/// Returns the largest value of each pixel column, so that no peak is lost, and joins equal neighbours.
fn thinned(steps: &[(u64, u64)], along: Scale) -> Vec<(u64, u64)> {
    let mut thinned: Vec<(u64, u64)> = Vec::new();
    for (at, value) in steps {
        let x = along.place(*at) / 10 * 10;
        match thinned.last_mut() {
            Some((last, most)) if *last == x => *most = (*most).max(*value),
            _ => thinned.push((x, *value)),
        }
    }
    thinned.dedup_by(|next, one| next.1 == one.1);
    thinned
}

/// Returns a path along steps, up to the right edge; closed at the height of `ground` if there is one.
fn path(steps: &[(u64, u64)], up: Scale, ground: Option<u64>) -> String {
    let mut path = String::new();
    let Some((first, value)) = steps.first() else { return path };
    let ground = ground.map(|ground| Tenths(up.place(ground)));
    let start = Tenths(up.place(*value));
    path.push_str(&match &ground {
        Some(ground) => format!("M{},{ground}V{start}", Tenths(*first)),
        None => format!("M{},{start}", Tenths(*first)),
    });
    for (x, value) in &steps[1..] {
        path.push_str(&format!("H{}V{}", Tenths(*x), Tenths(up.place(*value))));
    }
    let ends_itself = steps.len() > 1
        && ground.as_ref().is_some_and(|ground| {
            steps.last().is_some_and(|(_, value)| up.place(*value) == ground.0)
        });
    match ground {
        Some(_) if ends_itself => path.push('Z'),
        Some(ground) => path.push_str(&format!("H{RIGHT}V{ground}Z")),
        None => path.push_str(&format!("H{RIGHT}")),
    }
    path
}

fn write_legend(f: &mut fmt::Formatter<'_>, legend: &[(&str, &'static str)]) -> fmt::Result {
    let mut x = LEFT_EDGE;
    for (label, class) in legend {
        match class.ends_with("line") || *class == "bound" {
            true => writeln!(f, "<path class=\"{class}\" d=\"M{x},{}h18\"/>", HEAD + 6)?,
            false => writeln!(
                f,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{HEAD}\" width=\"18\" height=\"12\"/>"
            )?,
        }
        text(f, (x + 24, HEAD + 11), "key", label)?;
        // Eight pixels a letter, wider than any font's letters are on average.
        x += 24 + 8 * label.chars().count() as u64 + 18;
    }
    Ok(())
}

fn text(f: &mut fmt::Formatter<'_>, (x, y): (u64, u64), class: &str, words: &str) -> fmt::Result {
    writeln!(f, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", Text(words))
}

/// A length in tenths of a pixel.
#[derive(Clone, Copy)]
struct Tenths(u64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{}", self.0 / 10),
            tenth => write!(f, "{}.{tenth}", self.0 / 10),
        }
    }
}

/// Foreign text, escaped for the content or an attribute of a document.
struct Text<'t>(&'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // XML cannot contain most control characters, not even escaped.
                c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => {
                    f.write_char('\u{FFFD}')?
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

const ABOVE: &str = "above the limit";
const WIDTH: u64 = 880;
const LEFT_EDGE: u64 = 20;
const LEFT: u64 = 76;
const RIGHT: u64 = 860;
const HEAD: u64 = 66;
const LEGEND: u64 = 24;
/// The height of a chart, and the parts of it above and below the area with values.
const CHART: u64 = 226;
const ABOVE_AREA: u64 = 50;
const BELOW: u64 = 36;
const RANKING: u64 = 56;
const ROW: u64 = 23;
const BARS_LEFT: u64 = 330;
/// As many letters as fit beside a bar.
const NAME_MAX: usize = 42;

/// Each colour pair keeps a contrast of 4.5 to 1 for text, and 3 to 1 for areas.
const STYLE: &str = "
.plot{--ground:#fff;--text:#16222b;--quiet:#52626d;--grid:#d9dfe3;--allowed:#2a8f94;--refused:#c4473d;--asked:#52626d;--over:#b3261e;font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
@media (prefers-color-scheme:dark){.plot{--ground:#172128;--text:#e6edf1;--quiet:#9db0bb;--grid:#2b3942;--allowed:#3aa39b;--refused:#e2675d;--asked:#9db0bb;--over:#ff8a80}}
.plot .ground{fill:var(--ground)}.plot text{fill:var(--text);font-variant-numeric:tabular-nums}
.plot .title{font-size:17px;font-weight:650}.plot .name{font-size:13px;font-weight:600}.plot .quiet{fill:var(--quiet)}
.plot .end{text-anchor:end}.plot .middle{text-anchor:middle}.plot .limit{font-weight:600;paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}
.plot .grid{stroke:var(--grid);fill:none}.plot .axis{stroke:var(--quiet);fill:none}
.plot .bound{stroke:var(--text);stroke-width:1.5;stroke-dasharray:6 4;fill:none}
.plot .allowed{fill:var(--allowed)}.plot .refused{fill:var(--refused)}.plot .asked{fill:var(--asked)}.plot .over{fill:var(--over)}
.plot .line{fill:none;stroke-width:1.5}.plot .allowed.line{stroke:var(--allowed)}.plot .refused.line{stroke:var(--refused)}.plot .asked.line{stroke:var(--asked)}
";

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(steps: Vec<(u64, u64)>) -> String {
        let series = |label: &str, ink, shape| Series {
            label: label.into(),
            ink,
            shape,
            steps: steps.clone(),
        };
        let chart = OverTime {
            title: "a <b> & \"c\"".into(),
            counts: "requests".into(),
            span: Span { from_us: 0, to_us: 60_000_000, written: TimeLabels::SinceStart },
            series: vec![
                series("admitted", Ink::Allowed, Drawn::Area),
                series("asked", Ink::Asked, Drawn::Line),
            ],
            bound: Some(Bound { label: "limit 100".into(), value: 100 }),
        };
        let ranking = Ranking {
            title: "most".into(),
            rows: vec![("x\u{1b}".repeat(50), 7)],
            ink: Ink::Refused,
        };
        let charts = vec![Chart::OverTime(chart), Chart::Ranking(ranking)];
        Figure { title: "t".into(), subtitle: "s".into(), charts }.to_string()
    }

    #[test]
    fn only_values_above_the_bound_have_their_own_colour() {
        let above = |svg: &str| svg.matches("<path class=\"over\"").count();
        assert_eq!(above(&figure(vec![(0, 0), (10_000_000, 100), (20_000_000, 5)])), 0);
        assert_eq!(above(&figure(vec![(0, 0), (10_000_000, 101), (20_000_000, 5)])), 1);
        let twice = vec![(0, 200), (10_000_000, 5), (30_000_000, 150), (31_000_000, 180)];
        let svg = figure(twice);
        assert_eq!(above(&svg), 2);
        assert!(svg.contains(ABOVE));
        assert!(!figure(vec![(0, 0)]).contains(ABOVE));
    }

    #[test]
    fn no_input_becomes_markup() {
        let svg = figure(vec![(0, 1)]);
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;"), "{svg}");
        assert!(!svg.contains('\u{1b}'));
        assert_eq!(svg.matches("<svg").count(), 1);
    }

    #[test]
    fn a_peak_of_one_step_among_thousands_is_drawn() {
        let steps: Vec<_> =
            (0..6_000).map(|n| (n * 10_000, u64::from(n == 3_001) * 1_000)).collect();
        let lone = figure(steps);
        assert_eq!(lone.matches("<path class=\"over\"").count(), 1);
        assert!(lone.len() < 8_000, "{}", lone.len());
    }

    #[test]
    fn a_chart_of_nothing_is_drawn_too() {
        assert!(figure(Vec::new()).ends_with("</svg>\n"));
    }
}
