//! `store.ring`: the independent servers of a ring, and those of the ring that it replaces.

use std::fmt;

use spillgate::store::Ring;

use super::without_credentials;
use crate::config::value;

/// A ring, and the one that it replaces.
pub(crate) struct NumberedNodes {
    number: u32,
    nodes: Vec<Node>,
    previous: Vec<Node>,
    /// The number of the ring before; by default one less than `number`.
    previous_number: Option<u32>,
}

/// A node of a ring. Fields that are not set yet are empty.
struct Node {
    name: String,
    url: String,
    weight: u32,
}

impl Default for NumberedNodes {
    fn default() -> Self {
        let (nodes, previous) = (Vec::new(), Vec::new());
        NumberedNodes { number: FIRST, nodes, previous, previous_number: None }
    }
}

impl NumberedNodes {
    /// Returns the number of nodes that the service connects to: during a change, those of both rings.
    pub(super) fn count(&self) -> usize {
        self.nodes.len() + self.previous.len()
    }

    /// Applies one setting, named without its `store.ring.`. Returns `Ok(false)` if there is no setting of that name.
    pub(super) fn set(&mut self, field: &str, text: &str) -> Result<bool, String> {
        match field {
            "number" => self.number = value::number(text)?,
            "nodes" => self.nodes = nodes(text)?,
            "previous" => self.previous = nodes(text)?,
            "previous_number" => self.previous_number = Some(value::number(text)?),
            _ => {
                let (list, node) = match field.split_once('.') {
                    Some(("nodes", node)) => (&mut self.nodes, node),
                    Some(("previous", node)) => (&mut self.previous, node),
                    _ => return Ok(false),
                };
                return set_node(list, node, text);
            }
        }
        Ok(true)
    }

    /// Returns the ring in the library's form, with each address as `login` changes it. The library checks it.
    pub(super) fn ring(&self, login: impl Fn(&str) -> String) -> Ring {
        let of = |number: u32, nodes: &[Node]| {
            nodes.iter().fold(Ring::numbered(number), |ring, node| {
                ring.weighted_node(&node.name, login(&node.url), node.weight)
            })
        };
        let ring = of(self.number, &self.nodes);
        if self.previous.is_empty() {
            return ring;
        }
        let number = self.previous_number.unwrap_or(self.number.saturating_sub(1));
        ring.replacing(of(number, &self.previous))
    }

    /// Returns the addresses of all nodes, those before a change included.
    pub(super) fn urls(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().chain(&self.previous).map(|node| node.url.as_str())
    }
}

impl fmt::Display for NumberedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ring {} of", self.number)?;
        let shown = |node: &Node| format!(" {}={}", node.name, without_credentials(&node.url));
        self.nodes.iter().map(shown).try_for_each(|node| f.write_str(&node))
    }
}

impl Node {
    /// Parses `name=url` or `name*weight=url`.
    fn of(text: &str) -> Result<Node, String> {
        let (name, url) = text.split_once('=').ok_or_else(|| {
            "a node is written name=redis://host:port, or name*weight=redis://host:port".to_owned()
        })?;
        let (name, weight) = name.split_once('*').unwrap_or((name, "1"));
        Ok(Node {
            name: name.to_owned(),
            url: value::store_url(url)?,
            weight: value::number(weight)?,
        })
    }
}

fn nodes(text: &str) -> Result<Vec<Node>, String> {
    value::list(text).map(Node::of).collect()
}

/// Applies one field of one node, named `0.url`. Returns `Ok(false)` if there is no field of that name.
fn set_node(nodes: &mut Vec<Node>, field: &str, text: &str) -> Result<bool, String> {
    let Some((index, field)) = field.split_once('.') else { return Ok(false) };
    let Ok(index) = index.parse::<usize>() else { return Ok(false) };
    if index > nodes.len() {
        return Err(format!("there is no node {} before it; count them from 0", index - 1));
    }
    if index == nodes.len() {
        nodes.push(Node { name: String::new(), url: String::new(), weight: 1 });
    }
    let node = &mut nodes[index];
    match field {
        "name" => text.clone_into(&mut node.name),
        "url" => node.url = value::store_url(text)?,
        "weight" => node.weight = value::number(text)?,
        _ => return Ok(false),
    }
    Ok(true)
}

const FIRST: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_name_an_address_and_perhaps_a_weight() {
        let node = Node::of("b*2=redis://host:6379?a=b").unwrap();
        assert_eq!((&node.name[..], &node.url[..], node.weight), ("b", "redis://host:6379?a=b", 2));
        for text in ["redis://host", "a", "a*=redis://host", "a=host"] {
            assert!(Node::of(text).is_err(), "{text:?}");
        }
    }
}
