//! A composed configuration: values in order, each with its origin.

use std::fmt;
use std::sync::Arc;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A file, as it was named or as it is called among the embedded ones; or `command line`.
    pub file: Arc<str>,
    /// From 1; 0 where there are no lines.
    pub line: usize,
}

impl Origin {
    pub(crate) fn command_line() -> Origin {
        Origin { file: "command line".into(), line: 0 }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// A value and its origin. Nodes are equal when their values are, wherever they came from.
#[derive(Clone, Debug)]
pub struct Node {
    pub value: Value,
    pub origin: Origin,
    /// The comments beside or above the key.
    pub about: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    /// A plain word, whose type follows from how it looks and from who reads it; or, quoted, a string.
    Scalar {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.value == other.value
    }
}

impl Value {
    pub(crate) fn word(text: &str) -> Value {
        Value::Scalar { text: text.into(), quoted: false }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Scalar { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a group of keys",
        }
    }
}

impl Node {
    pub(crate) fn new(value: Value, origin: Origin) -> Node {
        Node { value, origin, about: String::new() }
    }

    /// The value under a key of this node.
    pub fn child(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, n)| n),
            Value::List(items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    pub(crate) fn child_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Map(entries) => entries.iter_mut().find(|(k, _)| k == key).map(|(_, n)| n),
            Value::List(items) => items.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Lays `over` upon this node: keys of both are merged, everything else is replaced.
    pub(crate) fn merge(&mut self, over: Node) {
        match (&mut self.value, over.value) {
            (Value::Map(own), Value::Map(others)) => {
                for (key, node) in others {
                    match own.iter_mut().find(|(k, _)| *k == key) {
                        Some((_, mine)) => mine.merge(node),
                        None => own.push((key, node)),
                    }
                }
                if self.about.is_empty() {
                    self.about = over.about;
                }
            }
            (_, value) => {
                self.value = value;
                self.origin = over.origin;
                // A file that sets a value seldom says again what the key means.
                if self.about.is_empty() {
                    self.about = over.about;
                }
            }
        }
    }
}

/// A whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    pub root: Node,
}

impl Tree {
    /// The node at a dotted path; the empty path is the root.
    pub fn get(&self, path: &str) -> Option<&Node> {
        if path.is_empty() {
            return Some(&self.root);
        }
        path.split('.').try_fold(&self.root, |node, key| node.child(key))
    }

    /// The dotted paths of all values that have no keys of their own, in their order.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        walk(&self.root, "", &mut |path, node| {
            if !matches!(&node.value, Value::Map(entries) if !entries.is_empty()) {
                out.push(path.to_string());
            }
        });
        out
    }
}

impl Tree {
    /// What a struct that was read from this tree holds in full, as JSON, with the origin of every value: this tree's, or
    /// `default` for what it does not say.
    pub fn resolved(&self, full: &serde_json::Value) -> Tree {
        let default = Origin { file: "default".into(), line: 0 };
        Tree { root: resolved(Some(&self.root), full, &default) }
    }
}

fn resolved(given: Option<&Node>, full: &serde_json::Value, default: &Origin) -> Node {
    use serde_json::Value as Json;
    let quoted = |text: &str| {
        // A word stays a word; what looks like something else is put in quotes.
        let is_word = text.parse::<f64>().is_err() && !matches!(text, "true" | "false" | "null" | "~" | "");
        Value::Scalar { text: text.into(), quoted: !is_word }
    };
    let value = match full {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::word(&b.to_string()),
        Json::Number(n) => Value::word(&n.to_string()),
        Json::String(s) => quoted(s),
        Json::Array(items) => {
            let at = |i: usize| given.and_then(|g| g.child(&i.to_string()));
            Value::List(items.iter().enumerate().map(|(i, v)| resolved(at(i), v, default)).collect())
        }
        Json::Object(entries) => Value::Map(
            entries
                .iter()
                .map(|(k, v)| (k.clone(), resolved(given.and_then(|g| g.child(k)), v, default)))
                .collect(),
        ),
    };
    Node::new(value, given.map_or_else(|| default.clone(), |g| g.origin.clone()))
}

/// Every node below and with this one, keys only: the items of lists are not visited.
pub(crate) fn walk<'a>(node: &'a Node, path: &str, visit: &mut impl FnMut(&str, &'a Node)) {
    visit(path, node);
    if let Value::Map(entries) = &node.value {
        for (key, child) in entries {
            walk(child, &joined(path, key), visit);
        }
    }
}

pub(crate) fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}
