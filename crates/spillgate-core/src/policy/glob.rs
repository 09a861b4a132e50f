//! Forms of values: literal text with gaps in it.

use std::fmt;

use crate::path::normalised_path;

/// A form of values: `/api/*`, `*.png`, `/users/{id}/posts`.
///
/// `RuleSpec::matching` and the policy file take it as a text with `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Glob {
    /// The text before the first gap.
    head: Box<[u8]>,
    /// Each gap, with the text between it and the next.
    gaps: Box<[Step]>,
}

/// A gap, and the text between it and the next.
type Step = (Gap, Box<[u8]>);

/// The bytes that may stand in a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Gap {
    /// Any bytes, or none.
    Any,
    /// One whole segment of a path.
    Segment,
}

impl Glob {
    /// Parses a text in which each `*` stands for any bytes, or none. Returns `None` if it has no
    /// `*`, or two without a text between them.
    pub(crate) fn of_text(text: &str) -> Option<Glob> {
        let (head, gaps) = text.split_once('*')?;
        let gaps: Vec<&str> = gaps.split('*').collect();
        let (_, between) = gaps.split_last()?;
        let gap = |text: &&str| (Gap::Any, Box::from(text.as_bytes()));
        let is_double = between.iter().any(|text| text.is_empty());
        (!is_double)
            .then(|| Glob { head: head.as_bytes().into(), gaps: gaps.iter().map(gap).collect() })
    }

    /// Parses a path in which `{name}` stands for one segment and `*` for any bytes. Returns `None`
    /// if a `{name}` is only a part of a segment, if two `*` stand side by side, or if no path in
    /// its normal form can match.
    pub(crate) fn of_path(text: &str) -> Option<Glob> {
        let mut glob = Glob { head: Box::default(), gaps: Box::default() };
        let (mut literal, mut gaps) = (String::new(), Vec::new());
        // The pattern with a letter in each gap, which shows whether its text is in normal form.
        let mut example = String::from(if text.starts_with('*') { "/" } else { "" });
        let mut open: Option<Gap> = None;
        let mut close = |gap: Option<Gap>, literal: &mut String| {
            let text: Box<[u8]> = std::mem::take(literal).into_bytes().into();
            match gap {
                None => glob.head = text,
                Some(gap) => gaps.push((gap, text)),
            }
        };
        for (place, segment) in text.split('/').enumerate() {
            if place > 0 {
                literal.push('/');
                example.push('/');
            }
            if segment.starts_with('{') && segment.ends_with('}') {
                close(open.replace(Gap::Segment), &mut literal);
                example.push('x');
                continue;
            }
            if segment.contains(['{', '}']) || segment.contains("**") {
                return None;
            }
            for (place, part) in segment.split('*').enumerate() {
                if place > 0 {
                    close(open.replace(Gap::Any), &mut literal);
                    example.push('x');
                }
                literal.push_str(part);
                example.push_str(part);
            }
        }
        close(open, &mut literal);
        glob.gaps = gaps.into();
        (normalised_path(&example) == example).then_some(glob)
    }

    /// Lower-cases the text between the gaps.
    pub(crate) fn in_lower_case(mut self) -> Glob {
        self.head.make_ascii_lowercase();
        self.gaps.iter_mut().for_each(|(_, text)| text.make_ascii_lowercase());
        self
    }

    /// Makes the form of all values that begin with a text.
    pub(crate) fn of_prefix(text: &str) -> Glob {
        Glob { head: text.as_bytes().into(), gaps: [(Gap::Any, Box::default())].into() }
    }

    /// Returns the text with which every value of this form begins.
    #[doc(hidden)]
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns whether every value that begins with its head has this form.
    #[doc(hidden)]
    pub fn is_prefix(&self) -> bool {
        matches!(&*self.gaps, [(Gap::Any, last)] if last.is_empty())
    }

    /// Returns whether every value has this form.
    #[doc(hidden)]
    pub fn is_any(&self) -> bool {
        self.head.is_empty() && self.is_prefix()
    }

    /// Returns whether a value has this form.
    ///
    /// It takes at most the time of the value's length times the pattern's: a `*` that was filled
    /// with enough for what follows up to the next `*` never needs more.
    pub fn matches(&self, value: &[u8]) -> bool {
        let Some(mut rest) = value.strip_prefix(&*self.head) else { return false };
        let mut gaps = &*self.gaps;
        // The last `*`, and the bytes from where it may take one more.
        let mut retry: Option<(&[Step], &[u8])> = None;
        loop {
            let next = match gaps {
                [] => rest.is_empty().then_some((gaps, rest)),
                [(Gap::Any, last)] => return rest.ends_with(last),
                [(Gap::Any, literal), after @ ..] => {
                    retry = Some((gaps, rest));
                    rest.strip_prefix(&**literal).map(|rest| (after, rest))
                }
                [(Gap::Segment, literal), after @ ..] => {
                    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
                    let filled = rest[end..].strip_prefix(&**literal).filter(|_| end > 0);
                    filled.map(|rest| (after, rest))
                }
            };
            match (next, retry) {
                (Some(_), _) if gaps.is_empty() => return true,
                (Some(next), _) => (gaps, rest) = next,
                (None, Some((from, [_, shorter @ ..]))) => (gaps, rest) = (from, shorter),
                (None, _) => return false,
            }
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
        f.write_str(&text(&self.head))?;
        for (gap, literal) in &self.gaps {
            let gap = match gap {
                Gap::Any => "*",
                Gap::Segment => "{..}",
            };
            write!(f, "{gap}{}", text(literal))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The simplest implementation, which tries every length of every gap.
    fn has_form(pattern: &[u8], value: &[u8]) -> bool {
        match pattern {
            [] => value.is_empty(),
            [b'*', pattern @ ..] => {
                (0..=value.len()).any(|length| has_form(pattern, &value[length..]))
            }
            [b'{', b'}', pattern @ ..] => {
                let end = value.iter().position(|byte| *byte == b'/').unwrap_or(value.len());
                end > 0 && has_form(pattern, &value[end..])
            }
            [byte, pattern @ ..] => value
                .split_first()
                .is_some_and(|(first, value)| first == byte && has_form(pattern, value)),
        }
    }

    proptest! {
        #[test]
        fn a_text_matches_the_values_that_a_search_finds(
            pattern in "[ab]{0,2}(\\*[ab]{1,2}){0,3}\\*?", value in "[ab*]{0,8}",
        ) {
            let Some(glob) = Glob::of_text(&pattern) else { return Ok(()) };
            let expected = has_form(pattern.as_bytes(), value.as_bytes());
            prop_assert_eq!(glob.matches(value.as_bytes()), expected, "{} {}", pattern, value);
        }

        #[test]
        fn a_path_matches_the_paths_that_a_search_finds(
            pattern in "(/(a|ab|\\{\\}|a\\*|\\*b|\\*)){1,5}", value in "(/[ab]{0,2}){1,5}",
        ) {
            let Some(glob) = Glob::of_path(&pattern) else { return Ok(()) };
            let expected = has_form(pattern.as_bytes(), value.as_bytes());
            prop_assert_eq!(glob.matches(value.as_bytes()), expected, "{} {}", pattern, value);
        }
    }

    #[test]
    fn a_hostile_value_takes_no_more_time_than_its_length_times_the_patterns() {
        let glob = Glob::of_text("*a*a*a*a*a*a*a*a*b").unwrap();
        assert!(!glob.matches(&[b'a'; 4_096]));
    }

    #[test]
    fn patterns_that_no_path_can_match_are_refused() {
        for pattern in ["users/{id}", "/a//{id}", "/a/../*", "/a%7e*", "/v{n}", "/a/**", "/{a"] {
            assert_eq!(Glob::of_path(pattern), None, "{pattern}");
        }
        for pattern in ["*", "*.png", "/users/{id}", "/.w*", "/{a}/{b}", "*/edit"] {
            assert!(Glob::of_path(pattern).is_some(), "{pattern}");
        }
    }
}
