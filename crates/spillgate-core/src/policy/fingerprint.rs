//! The fingerprint of a policy, by which instances see that they have the same one.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use toml::de::{DeTable, DeValue};

/// Hashes what a policy consists of, whatever its layout, comments and settings of the server. A large file is read
/// in pieces, so each section is hashed apart from the others.
#[derive(Debug, Default)]
pub(crate) struct Fingerprint([SipHasher13; SECTIONS.len()]);

impl Fingerprint {
    /// Adds a rule that was built in code.
    pub(crate) fn add_rule(&mut self, rule: &DeTable<'_>) {
        feed_table(rule, &mut self.0[0]);
    }

    /// Adds a section of a piece of the file. The next piece may continue it.
    pub(crate) fn add(&mut self, section: &str, piece: &DeTable<'_>) {
        let (Some(place), Some(content)) =
            (SECTIONS.iter().position(|it| *it == section), piece.get(section))
        else {
            return;
        };
        let hasher = &mut self.0[place];
        match content.get_ref() {
            DeValue::Array(entries) => entries.iter().for_each(|it| feed(it.get_ref(), hasher)),
            DeValue::Table(entries) => feed_table(entries, hasher),
            _ => {}
        }
    }

    pub(crate) fn finish(&self) -> u64 {
        let mut whole = SipHasher13::new();
        self.0.iter().for_each(|section| whole.write_u64(section.finish()));
        whole.finish()
    }
}

fn feed(value: &DeValue<'_>, hasher: &mut SipHasher13) {
    match value {
        DeValue::Array(items) => {
            hasher.write_usize(items.len());
            items.iter().for_each(|item| feed(item.get_ref(), hasher));
        }
        DeValue::Table(fields) => {
            hasher.write_usize(fields.len());
            feed_table(fields, hasher);
        }
        scalar => feed_text(&format!("{scalar:?}"), hasher),
    }
}

fn feed_table(fields: &DeTable<'_>, hasher: &mut SipHasher13) {
    for (field, value) in fields {
        feed_text(field.get_ref(), hasher);
        feed(value.get_ref(), hasher);
    }
}

fn feed_text(text: &str, hasher: &mut SipHasher13) {
    hasher.write_usize(text.len());
    hasher.write(text.as_bytes());
}

const SECTIONS: [&str; 3] = ["rule", "attribute", "override"];

#[cfg(test)]
mod tests {
    use crate::policy::Policy;
    use crate::{Limit, Rule};

    const FILE: &str = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/day\"]\n";
    const OVERRIDE: &str =
        "[[override]]\nrule = \"api\"\nsubject = { user = \"ann\" }\nlimits = [\"9/day\"]\n";

    fn fingerprint(file: &str) -> u64 {
        Policy::from_toml(file).unwrap().fingerprint()
    }

    #[test]
    fn it_depends_on_rules_overrides_and_types_and_on_nothing_else() {
        let same = [
            FILE.to_owned(),
            format!("# A comment\n{}", FILE.replace(" = ", "=")),
            FILE.replace("[\"5/day\"]", "[\n  \"5/day\",\n]"),
        ];
        assert!(same.iter().all(|file| fingerprint(file) == fingerprint(FILE)));
        let others = [
            FILE.replace("5/day", "6/day"),
            FILE.replace("user", "tenant"),
            FILE.replace("api", "web"),
            format!("{FILE}mode = \"shadow\""),
            format!("{FILE}[attribute.user]\ntype = \"ip\""),
            format!("{FILE}{OVERRIDE}"),
            format!("{FILE}{}", OVERRIDE.replace("9/day", "8/day")),
            format!("{FILE}{}", FILE.replace("api", "web")),
            String::new(),
        ];
        let mut all: Vec<u64> = others.iter().map(|file| fingerprint(file)).collect();
        all.push(fingerprint(FILE));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), others.len() + 1);
    }

    #[test]
    fn it_is_the_same_for_any_size_of_the_pieces() {
        let file = format!(
            "{FILE}{OVERRIDE}{}{}",
            FILE.replace("api", "web"),
            OVERRIDE.replace("ann", "bob")
        );
        let by = |bytes| Policy::read(&file, bytes, &mut crate::policy::Problems::in_text(&file));
        assert_eq!(by(1).fingerprint(), by(1 << 20).fingerprint());
    }

    #[test]
    fn a_policy_in_code_has_one_too() {
        let policy = |limit| {
            let rule = Rule::new("api").key(["user"]).limit(limit);
            Policy::builder().rule(rule).build().unwrap().fingerprint()
        };
        assert_eq!(policy(Limit::per_day(5)), policy(Limit::per_day(5)));
        assert_ne!(policy(Limit::per_day(5)), policy(Limit::per_day(6)));
    }
}
