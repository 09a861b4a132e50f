//! What a short file may make of itself: the loader keeps a copy of whatever has an anchor, and makes another
//! wherever an alias stands for it, so that anchors within anchors and aliases of aliases multiply.

use std::collections::BTreeMap;

use saphyr_parser::Event;

/// Counts the nodes of such copies before they are made.
#[derive(Default)]
pub(super) struct Copies {
    /// The lists and mappings around what comes next: each its anchor, or 0, and how many nodes it holds so far.
    open: Vec<(usize, usize)>,
    /// Of what has an anchor.
    nodes: BTreeMap<usize, usize>,
    made: usize,
}

impl Copies {
    /// Takes note of what the file says next; answers why it goes too far, if it does.
    pub(super) fn note(&mut self, event: &Event<'_>) -> Result<(), &'static str> {
        match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                self.open.push((*anchor, 1));
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((anchor, nodes)) = self.open.pop() {
                    self.close(anchor, nodes);
                }
            }
            Event::Scalar(_, _, anchor, _) => self.close(*anchor, 1),
            Event::Alias(anchor) => {
                let nodes = self.nodes.get(anchor).copied().unwrap_or(1);
                self.made += nodes;
                self.close(0, nodes);
            }
            _ => {}
        }
        if self.open.len() > NESTED_MAX {
            return Err("nested deeper than any limit is");
        }
        if self.made > COPIED_MAX {
            return Err("its anchors and aliases stand for too much; write out what they repeat");
        }
        Ok(())
    }

    /// What is around it holds it as well, and what has an anchor is copied.
    fn close(&mut self, anchor: usize, nodes: usize) {
        if let Some((_, around)) = self.open.last_mut() {
            *around += nodes;
        }
        if anchor > 0 {
            self.nodes.insert(anchor, nodes);
            self.made += nodes;
        }
    }
}

/// Lists and mappings: two for each entry of the deepest descriptor, and as many again.
const NESTED_MAX: usize = 128;
/// Nodes: some hundred limits with all that they may say.
const COPIED_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use saphyr_parser::Parser;

    use super::*;

    fn made_of(text: &str) -> Result<usize, &'static str> {
        let mut copies = Copies::default();
        for event in Parser::new_from_str(text) {
            copies.note(&event.expect("YAML").0)?;
        }
        Ok(copies.made)
    }

    #[test]
    fn a_copy_is_made_for_each_anchor_and_each_alias() {
        assert_eq!(made_of("a: [1, 2]"), Ok(0));
        assert_eq!(made_of("a: &a [1, 2]\nb: *a\nc: *a"), Ok(9));
        assert_eq!(made_of("a: &a [1, &b {c: 2}]\nb: *b"), Ok(5 + 3 + 3));
        assert_eq!(made_of("a: &a 1\nb: &b [*a, *a]\nc: *b"), Ok(1 + 2 + 3 + 3));
    }

    #[test]
    fn anchors_within_anchors_are_refused_before_they_fill_the_memory() {
        let nested = |levels: usize| format!("{}1{}", "&a [".repeat(levels), "]".repeat(levels));
        assert_eq!(made_of(&nested(40)), Ok((2..=41).sum()));
        assert!(made_of(&nested(50)).is_err_and(|why| why.contains("anchors and aliases")));
        assert!(made_of(&"[".repeat(130)).is_err_and(|why| why.contains("nested")));
    }
}
