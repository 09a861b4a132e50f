//! `store.ring`: the independent servers of a ring.

use std::fmt;

use spillgate::store::Ring;

use super::without_credentials;
use crate::config::value;

/// The nodes of a ring.
pub(crate) struct Nodes(Vec<Node>);

/// A node of a ring.
struct Node {
    name: String,
    url: String,
    weight: u32,
}

impl Nodes {
    /// Parses a list of nodes, each `name=url` or `name*weight=url`.
    pub(crate) fn parse(text: &str) -> Result<Nodes, String> {
        value::list(text).map(Node::parse).collect::<Result<_, _>>().map(Nodes)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the ring in the library's form, with each address as `login` changes it. The library checks it.
    pub fn ring(&self, login: impl Fn(&str) -> String) -> Ring {
        self.0.iter().fold(Ring::new(), |ring, node| {
            ring.weighted_node(&node.name, login(&node.url), node.weight)
        })
    }

    /// Returns what places subjects: name and weight of each node.
    pub fn placement(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|node| (&node.name[..], node.weight))
    }

    /// Returns the addresses of all nodes.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|node| node.url.as_str())
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ring of")?;
        let shown = |node: &Node| format!(" {}={}", node.name, without_credentials(&node.url));
        self.0.iter().map(shown).try_for_each(|node| f.write_str(&node))
    }
}

impl Node {
    /// Parses `name=url` or `name*weight=url`.
    fn parse(text: &str) -> Result<Node, String> {
        let (name, url) = text.split_once('=').ok_or_else(|| {
            "a node is written name=redis://host:port, or name*weight=redis://host:port".to_owned()
        })?;
        let (name, weight) = name.split_once('*').unwrap_or((name, "1"));
        Ok(Node {
            name: name.to_owned(),
            url: value::store_url(url)?,
            weight: value::count(weight)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_name_an_address_and_perhaps_a_weight() {
        let node = Node::parse("b*2=redis://host:6379?a=b").unwrap();
        assert_eq!((&node.name[..], &node.url[..], node.weight), ("b", "redis://host:6379?a=b", 2));
        for text in ["redis://host", "a", "a*=redis://host", "a=host"] {
            assert!(Node::parse(text).is_err(), "{text:?}");
        }
    }
}
