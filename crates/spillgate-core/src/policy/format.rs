//! Recognises files in YAML and JSON, whose syntax errors as TOML would help no reader.

use super::problem::Problem;

/// Returns the problem of a text whose first line is YAML or JSON, and cannot be TOML.
pub fn other_format(text: &str) -> Option<Problem> {
    let starts = text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line.trim_start_matches('\u{feff}').trim()))
    });
    let (at, first) =
        starts.into_iter().find(|(_, line)| !line.is_empty() && !line.starts_with('#'))?;
    let format = if is_json(first, &text[at..]) {
        "JSON"
    } else if is_yaml(first) {
        "YAML"
    } else {
        return None;
    };
    let way_out = match text.contains("descriptors") {
        true => {
            "; `spillgate import envoy FILE` converts a configuration of Envoy's rate limit service"
        }
        false => "",
    };
    Some(Problem::of_file(
        at,
        format!("this is {format}, and a policy is TOML; {EXAMPLE}{way_out}"),
    ))
}

/// Returns whether a text begins with an object or a list of objects.
fn is_json(first: &str, text: &str) -> bool {
    let in_list =
        text.trim_start().strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('{'));
    first.starts_with('{') || in_list
}

/// Returns whether a line is a mark of YAML, an item of a list, or a key before a colon.
fn is_yaml(first: &str) -> bool {
    let item = first.strip_prefix("- ").unwrap_or(first);
    let is_key = |key: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        !key.is_empty() && key.bytes().all(plain)
    };
    let has_key = item
        .split_once(':')
        .is_some_and(|(key, value)| is_key(key) && (value.is_empty() || value.starts_with(' ')));
    first.starts_with("---") || first.starts_with("%YAML") || has_key
}

const EXAMPLE: &str = "a rule in one line of TOML is rule = [{ name = \"login\", key = [\"ip\"], limits = [\"5/minute\"] }]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_other_formats_by_the_first_line() {
        for (text, format) in [
            ("rules:\n  - name: login\n", "YAML"),
            ("# limits\n\n---\nrules: []\n", "YAML"),
            ("- name: login\n", "YAML"),
            ("domain: web\ndescriptors: []\n", "YAML"),
            ("{\"rule\": []}", "JSON"),
            ("\n[\n  {\"name\": \"login\"}]", "JSON"),
        ] {
            let problem = other_format(text).expect(text);
            assert!(problem.message.starts_with(&format!("this is {format}, and")), "{text}");
        }
        let envoy = other_format("domain: web\ndescriptors: []\n").unwrap();
        assert!(envoy.message.contains("spillgate import envoy FILE"), "{}", envoy.message);
        for text in
            ["", "# a: b\n", "[[rule]]\n", "\"a: b\" = 1", "a = \"b: c\"", "[ \"a\" ]", "a.b = {}"]
        {
            assert!(other_format(text).is_none(), "{text}");
        }
    }

    #[test]
    fn the_example_is_a_policy() {
        let (_, example) = EXAMPLE.split_once(" is ").unwrap();
        assert_eq!(crate::Policy::from_toml(example).unwrap().rules().len(), 1);
    }
}
