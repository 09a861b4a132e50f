//! The metrics in the types of OTLP, read from their text for Prometheus, so that both have the same families.

use std::mem;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

/// The span of time that totals are about, in nanoseconds since 1970.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) began_ns: u64,
    pub(super) now_ns: u64,
}

/// Returns the families of a text that have samples.
pub(super) fn metrics_of(text: &str, times: Times) -> Vec<Metric> {
    let families = text.split("# HELP ").filter_map(Family::read);
    families
        .filter(|family| !family.samples.is_empty())
        .map(|family| family.metric(times))
        .collect()
}

/// Returns an attribute, or a label, with a text as its value.
pub(super) fn attribute(key: &str, value: String) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value)) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

struct Family<'t> {
    name: &'t str,
    help: &'t str,
    kind: &'t str,
    samples: Vec<Sample<'t>>,
}

struct Sample<'t> {
    name: &'t str,
    labels: Vec<(&'t str, String)>,
    value: &'t str,
}

impl<'t> Family<'t> {
    /// Reads the lines from after `# HELP ` on: the rest of that line, the type, the samples.
    fn read(text: &'t str) -> Option<Family<'t>> {
        let (head, rest) = text.split_once('\n')?;
        let (name, help) = head.split_once(' ')?;
        let (kind, samples) = rest.split_once('\n')?;
        let (_, kind) = kind.rsplit_once(' ')?;
        let samples = samples.lines().filter_map(Sample::read).collect();
        Some(Family { name, help, kind, samples })
    }

    fn metric(self, times: Times) -> Metric {
        let (name, description) = (self.name.to_owned(), self.help.to_owned());
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let data = match self.kind {
            "histogram" => {
                let data_points = self.histograms(times);
                Data::Histogram(Histogram { data_points, aggregation_temporality })
            }
            "counter" => {
                let point = |sample: Sample<'_>| NumberDataPoint {
                    start_time_unix_nano: times.began_ns,
                    ..sample.point(times)
                };
                let data_points = self.samples.into_iter().map(point).collect();
                Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
            }
            _ => {
                let data_points = self.samples.into_iter().map(|sample| sample.point(times));
                Data::Gauge(Gauge { data_points: data_points.collect() })
            }
        };
        Metric { name, description, data: Some(data), ..Metric::default() }
    }

    /// Returns a point for each histogram: its buckets come first, then the sum, last the count.
    fn histograms(self, times: Times) -> Vec<HistogramDataPoint> {
        let (mut points, mut point, mut below) = (Vec::new(), HistogramDataPoint::default(), 0);
        for sample in self.samples {
            match sample.name.strip_prefix(self.name) {
                Some("_bucket") => {
                    let up_to = sample.whole();
                    point.bucket_counts.push(up_to.saturating_sub(below));
                    below = up_to;
                    let bound = sample.labels.iter().find(|(label, _)| *label == "le");
                    let bound = bound.and_then(|(_, bound)| bound.parse::<f64>().ok());
                    point.explicit_bounds.extend(bound.filter(|bound| bound.is_finite()));
                }
                Some("_sum") => point.sum = Some(sample.real()),
                _ => {
                    point.count = sample.whole();
                    point.start_time_unix_nano = times.began_ns;
                    point.time_unix_nano = times.now_ns;
                    point.attributes = sample.attributes();
                    points.push(mem::take(&mut point));
                    below = 0;
                }
            }
        }
        points
    }
}

impl<'t> Sample<'t> {
    fn read(line: &'t str) -> Option<Sample<'t>> {
        let (head, value) = line.rsplit_once(' ')?;
        let (name, mut rest) = head.split_once('{').unwrap_or((head, ""));
        let mut labels = Vec::new();
        while let Some((label, quoted)) = rest.split_once("=\"") {
            let (text, after) = unquoted(quoted);
            labels.push((label.trim_start_matches(','), text));
            rest = after;
        }
        Some(Sample { name, labels, value })
    }

    fn point(&self, times: Times) -> NumberDataPoint {
        NumberDataPoint {
            attributes: self.attributes(),
            time_unix_nano: times.now_ns,
            value: Some(Number::AsDouble(self.real())),
            ..NumberDataPoint::default()
        }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        self.labels.iter().map(|(label, value)| attribute(label, value.clone())).collect()
    }

    fn whole(&self) -> u64 {
        self.value.parse().unwrap_or_default()
    }

    fn real(&self) -> f64 {
        self.value.parse().unwrap_or_default()
    }
}

/// Reads the value of a label up to its closing quote, and returns what follows too.
fn unquoted(text: &str) -> (String, &str) {
    let (mut value, mut characters) = (String::new(), text.chars());
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => value.extend(characters.next().map(|escaped| match escaped {
                'n' => '\n',
                other => other,
            })),
            other => value.push(other),
        }
    }
    (value, characters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { began_ns: 1, now_ns: 2 };

    fn one(text: &str) -> Metric {
        let [metric] = <[Metric; 1]>::try_from(metrics_of(text, TIMES)).unwrap();
        metric
    }

    #[test]
    fn a_counter_is_a_sum_since_the_start() {
        let text = "# HELP a_total Calls.\n# TYPE a_total counter\na_total{x=\"1\",y=\"\"} 5\n\
                    a_total{x=\"q\\\"}\\\\\\n, z=\",y=\"2\"} 7\n";
        let metric = one(text);
        assert_eq!((&*metric.name, &*metric.description), ("a_total", "Calls."));
        let Some(Data::Sum(sum)) = metric.data else { panic!("{metric:?}") };
        assert!(sum.is_monotonic);
        assert_eq!(sum.aggregation_temporality(), AggregationTemporality::Cumulative);
        let point = |value, x: &str, y: &str| NumberDataPoint {
            attributes: vec![attribute("x", x.to_owned()), attribute("y", y.to_owned())],
            start_time_unix_nano: 1,
            time_unix_nano: 2,
            value: Some(Number::AsDouble(value)),
            ..NumberDataPoint::default()
        };
        assert_eq!(sum.data_points, [point(5.0, "1", ""), point(7.0, "q\"}\\\n, z=", "2")]);
    }

    #[test]
    fn a_gauge_may_be_infinite_or_negative() {
        let metric = one("# HELP g G.\n# TYPE g gauge\ng +Inf\ng{a=\"b\"} -0.25\n");
        let Some(Data::Gauge(gauge)) = metric.data else { panic!("{metric:?}") };
        let values: Vec<Option<Number>> =
            gauge.data_points.iter().map(|point| point.value).collect();
        assert_eq!(values, [f64::INFINITY, -0.25].map(|value| Some(Number::AsDouble(value))));
        assert!(gauge.data_points.iter().all(|point| point.start_time_unix_nano == 0));
    }

    #[test]
    fn the_buckets_of_a_histogram_do_not_include_those_below() {
        let histogram = |s: &str, counts: [u64; 3]| {
            let [low, high, all] = counts;
            format!(
                "h_bucket{{s=\"{s}\",le=\"0.1\"}} {low}\nh_bucket{{s=\"{s}\",le=\"2.5\"}} {high}\n\
                 h_bucket{{s=\"{s}\",le=\"+Inf\"}} {all}\nh_sum{{s=\"{s}\"}} 6.5\nh_count{{s=\"{s}\"}} {all}\n"
            )
        };
        let (one_s, two_s) = (histogram("one", [1, 4, 4]), histogram("two", [0, 0, 3]));
        let metric = one(&format!("# HELP h H.\n# TYPE h histogram\n{one_s}{two_s}"));
        let Some(Data::Histogram(histogram)) = metric.data else { panic!("{metric:?}") };
        let point = |s: &str, count, buckets: [u64; 3]| HistogramDataPoint {
            attributes: vec![attribute("s", s.to_owned())],
            start_time_unix_nano: 1,
            time_unix_nano: 2,
            count,
            sum: Some(6.5),
            bucket_counts: buckets.to_vec(),
            explicit_bounds: vec![0.1, 2.5],
            ..HistogramDataPoint::default()
        };
        assert_eq!(histogram.data_points, [point("one", 4, [1, 3, 0]), point("two", 3, [0, 0, 3])]);
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        assert_eq!(metrics_of("# HELP a A.\n# TYPE a gauge\n", TIMES), []);
        assert_eq!(metrics_of("", TIMES), []);
    }
}
