//! Compares samples of a server over time, and reports growth.

use std::fmt;

/// The figures of a server at one moment, and of its answers since the sample before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) at_s: u64,
    pub(super) answers: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) resident_kib: u64,
    pub(super) descriptors: u64,
    pub(super) keys: u64,
    pub(super) store_kib: u64,
}

impl Sample {
    pub(super) const HEAD: &str = "| s | answers | p50 us | p99 us | resident KiB | descriptors | keys | store KiB |\n\
         |---|---|---|---|---|---|---|---|";
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sample { at_s, answers, p50_us, p99_us, resident_kib, descriptors, keys, store_kib } =
            self;
        write!(
            f,
            "| {at_s} | {answers} | {p50_us} | {p99_us} | {resident_kib} | {descriptors} | {keys} | {store_kib} |"
        )
    }
}

/// Reports growth: the median of the last quarter beyond that of the first by more than is tolerated. A leak grows
/// with time; other figures vary about a constant.
pub(super) fn drift(samples: &[Sample]) -> Vec<String> {
    let quarter = samples.len() / 4;
    let (first, last) = (&samples[..quarter], &samples[samples.len() - quarter..]);
    let grew = |(name, of, percent, more): &Tolerated| {
        let (before, after) = (median(first, of), median(last, of));
        let most = before + before * percent / 100 + more;
        (after > most)
            .then(|| format!("{name}: {before} at first, {after} at last, and {most} is the most"))
    };
    TOLERATED.iter().filter_map(grew).collect()
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> u64 {
    let mut all: Vec<u64> = samples.iter().map(of).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

/// A figure, by how many hundredths it may grow, and by how much more.
type Tolerated = (&'static str, fn(&Sample) -> u64, u64, u64);

/// Response times vary with the load of the machine.
const TOLERATED: [Tolerated; 6] = [
    ("resident memory, KiB", |sample| sample.resident_kib, 10, 4_096),
    ("descriptors", |sample| sample.descriptors, 0, 4),
    ("keys in the store", |sample| sample.keys, 15, 100),
    ("memory of the store, KiB", |sample| sample.store_kib, 15, 4_096),
    ("p50, us", |sample| sample.p50_us, 50, 500),
    ("p99, us", |sample| sample.p99_us, 100, 5_000),
];

#[test]
fn growth_is_reported_and_variation_is_not() {
    let of = |number: u64| Sample {
        resident_kib: 50_000 + number % 7 * 300,
        descriptors: 30 + number % 2,
        keys: 5_000 + number % 5 * 40,
        p50_us: 200 + number % 3 * 100,
        p99_us: 2_000 + number % 11 * 200,
        ..Sample::default()
    };
    let steady: Vec<Sample> = (0..60).map(of).collect();
    assert_eq!(drift(&steady), Vec::<String>::new());
    type Leak = fn(&mut Sample, u64);
    let leaks: [(Leak, &str); 4] = [
        (|sample, number| sample.resident_kib += number * 300, "resident"),
        (|sample, number| sample.descriptors += number / 4, "descriptors"),
        (|sample, number| sample.keys += number * 30, "keys"),
        (|sample, number| sample.p50_us += number * 30, "p50"),
    ];
    for (leak, name) in leaks {
        let mut leaking = steady.clone();
        leaking.iter_mut().zip(0..).for_each(|(sample, number)| leak(sample, number));
        let reported = drift(&leaking);
        assert!(reported.len() == 1 && reported[0].starts_with(name), "{reported:?}");
    }
}
