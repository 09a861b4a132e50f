//! Finds the setting that an unknown name most likely means.

use super::settings;

/// Returns the setting that differs least from an unknown name; `None` if all differ too much to be a typing mistake.
pub(super) fn closest_setting(name: &str) -> Option<String> {
    let fields = node_fields(name);
    let known = settings().into_iter().map(str::to_owned).chain(fields);
    let (distance, closest) = known.map(|known| (distance(name, &known), known)).min()?;
    let is_beginning = closest.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    (distance <= DISTANCE_MAX || is_beginning).then_some(closest)
}

/// Returns the settings of the node of a ring that a name such as `store.ring.nodes.0.ulr` is about; of no node if it is
/// about none.
fn node_fields(name: &str) -> impl Iterator<Item = String> {
    let number = name.strip_prefix(NODES).and_then(|node| node.split_once('.'));
    number
        .into_iter()
        .flat_map(|(number, _)| NODE_FIELDS.map(|field| format!("{NODES}{number}.{field}")))
}

/// Returns how many bytes to insert, remove or change to turn one text into the other (Levenshtein).
pub(super) fn distance(a: &str, b: &str) -> usize {
    // One row of the usual table at a time: before `a`'s byte `i`, `row[j]` is the distance of `a[..i]` and `b[..j]`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, to) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

const NODES: &str = "store.ring.nodes.";
const NODE_FIELDS: [&str; 3] = ["name", "url", "weight"];

/// The most differences of a typing mistake.
const DISTANCE_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_finds_the_setting_and_other_names_find_none() {
        for (name, closest) in [
            ("server.httpp", Some("server.http")),
            ("store.ulr", Some("store.url")),
            ("store.tls.caa", Some("store.tls.ca")),
            ("telemetry.log_level", Some("telemetry.log.level")),
            ("server.resp.password", Some("server.resp.password_file")),
            ("store.ring.nodes.12.ulr", Some("store.ring.nodes.12.url")),
            ("store.ring.nodes.0.wieght", Some("store.ring.nodes.0.weight")),
            ("server", None),
            ("store.compression", None),
            ("telemetry.dashboard.refresh", None),
        ] {
            assert_eq!(closest_setting(name).as_deref(), closest, "{name}");
        }
    }

    #[test]
    fn the_distance_counts_inserted_removed_and_changed_bytes() {
        for (a, b, expected) in [("", "", 0), ("abc", "", 3), ("abc", "abd", 1), ("ab", "ba", 2)] {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }
}
