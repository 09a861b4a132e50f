//! Bounds the size of a YAML file with anchors. The loader keeps a copy of each value with an anchor, and makes
//! another copy for each alias, so a short file with anchors within anchors can take any amount of memory.

use std::collections::BTreeMap;

use saphyr_parser::Event;

/// Counts the nodes of these copies before the loader makes them.
#[derive(Default)]
pub struct Copies {
    /// The open lists and mappings: the anchor of each, or 0, and its number of nodes so far.
    open: Vec<(usize, usize)>,
    /// The number of nodes of each value with an anchor.
    nodes: BTreeMap<usize, usize>,
    made: usize,
}

impl Copies {
    /// Counts an event. Returns the reason if the file goes beyond a bound.
    pub fn note(&mut self, event: &Event<'_>) -> Result<(), &'static str> {
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
            return Err("nested too deeply: a descriptor has at most 32 entries");
        }
        if self.made > COPIED_MAX {
            return Err(
                "its anchors and aliases expand to more than 1,000 values; write out the values they repeat",
            );
        }
        Ok(())
    }

    /// Adds the nodes of a finished value to the value around it, and counts a copy if it has an anchor.
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

/// Lists and mappings: two for each entry of the deepest descriptor, doubled.
const NESTED_MAX: usize = 128;
/// Nodes: enough for some hundred limits with all their fields.
const COPIED_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use saphyr_parser::Parser;

    use super::*;

    fn copied_nodes(text: &str) -> Result<usize, &'static str> {
        let mut copies = Copies::default();
        for event in Parser::new_from_str(text) {
            copies.note(&event.expect("YAML").0)?;
        }
        Ok(copies.made)
    }

    #[test]
    fn each_anchor_and_each_alias_makes_a_copy() {
        assert_eq!(copied_nodes("a: [1, 2]"), Ok(0));
        assert_eq!(copied_nodes("a: &a [1, 2]\nb: *a\nc: *a"), Ok(9));
        assert_eq!(copied_nodes("a: &a [1, &b {c: 2}]\nb: *b"), Ok(5 + 3 + 3));
        assert_eq!(copied_nodes("a: &a 1\nb: &b [*a, *a]\nc: *b"), Ok(1 + 2 + 3 + 3));
    }

    #[test]
    fn anchors_within_anchors_are_refused_before_they_fill_the_memory() {
        let nested = |levels: usize| format!("{}1{}", "&a [".repeat(levels), "]".repeat(levels));
        assert_eq!(copied_nodes(&nested(40)), Ok((2..=41).sum()));
        assert!(copied_nodes(&nested(50)).is_err_and(|why| why.contains("anchors and aliases")));
        assert!(copied_nodes(&"[".repeat(130)).is_err_and(|why| why.contains("nested")));
    }
}
