//! Parses YAML text into nodes with lines and comments.
//!
//! The events of the parser do not contain comments, so they are taken from the text: those after a key on its line, and
//! those on the lines directly above it. Aliases are expanded with a limit, so that a small file cannot become a large
//! tree.

use crate::ConfigError;
use crate::tree::{Node, Origin, Tree, Value};
use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::HashMap;
use std::sync::Arc;

const MOST_NODES: usize = 100_000;
const DEEPEST: usize = 64;

/// An open list or map of the document.
enum Open {
    List(Vec<Node>),
    Map { entries: Vec<(String, Node)>, key: Option<(String, usize)> },
}

struct Builder<'a> {
    file: Arc<str>,
    lines: Vec<&'a str>,
    open: Vec<(Open, Origin, usize)>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    done: Option<Node>,
}

/// The document in a text; an empty one is an empty map.
pub(crate) fn parse(text: &str, file: &str) -> Result<Node, ConfigError> {
    let file: Arc<str> = file.into();
    let mut builder = Builder {
        file: file.clone(),
        lines: text.lines().collect(),
        open: Vec::new(),
        anchors: HashMap::new(),
        nodes: 0,
        done: None,
    };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|e| ConfigError::Yaml {
            origin: Origin { file: file.clone(), line: e.marker().line() },
            why: e.info().to_string(),
        })?;
        builder.take(event, Origin { file: file.clone(), line: span.start.line() })?;
    }
    let empty = || Node::new(Value::Map(Vec::new()), Origin { file, line: 1 });
    Ok(builder.done.filter(|n| n.value != Value::Null).unwrap_or_else(empty))
}

impl Tree {
    /// A document by itself, for files of others that are not configurations: nothing is composed, and `file` is what messages call it.
    ///
    /// # Errors
    /// If the text is not YAML, or more than a description of something would hold.
    pub fn parse(text: &str, file: &str) -> Result<Tree, ConfigError> {
        Ok(Tree { root: parse(text, file)? })
    }
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, origin: Origin) -> Result<(), ConfigError> {
        let fail = |why: &str| Err(ConfigError::Yaml { origin: origin.clone(), why: why.into() });
        match event {
            Event::DocumentStart(_) if self.done.is_some() => fail("one document is allowed in a file"),
            Event::Scalar(text, style, anchor, _) => {
                let quoted = style != ScalarStyle::Plain;
                let value = match &*text {
                    "" | "~" | "null" | "Null" | "NULL" if !quoted => Value::Null,
                    _ => Value::Scalar { text: text.into_owned(), quoted },
                };
                self.place(Node::new(value, origin), anchor)
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.place(node, 0),
                None => fail("an alias of something that is not whole yet"),
            },
            Event::SequenceStart(anchor, _) => self.begin(Open::List(Vec::new()), origin, anchor),
            Event::MappingStart(anchor, _) => {
                self.begin(Open::Map { entries: Vec::new(), key: None }, origin, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some((open, origin, anchor)) = self.open.pop() else {
                    return fail("an end without a beginning");
                };
                let value = match open {
                    Open::List(items) => Value::List(items),
                    Open::Map { entries, .. } => Value::Map(entries),
                };
                self.place(Node::new(value, origin), anchor)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, open: Open, origin: Origin, anchor: usize) -> Result<(), ConfigError> {
        let as_key = matches!(self.open.last(), Some((Open::Map { key: None, .. }, ..)));
        if as_key || self.open.len() >= DEEPEST {
            let why = if as_key { "a key must be a plain word" } else { "values are nested too deeply" };
            return Err(ConfigError::Yaml { origin, why: why.into() });
        }
        self.open.push((open, origin, anchor));
        Ok(())
    }

    /// Puts a finished value where it belongs; in a map, every other one is a key.
    fn place(&mut self, mut node: Node, anchor: usize) -> Result<(), ConfigError> {
        let line = node.origin.line;
        let fail =
            |why: String| Err(ConfigError::Yaml { origin: Origin { file: self.file.clone(), line }, why });
        self.nodes += size(&node);
        if self.nodes > MOST_NODES {
            return fail(format!("more than {MOST_NODES} values"));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.done = Some(node),
            Some((Open::List(items), ..)) => items.push(node),
            Some((Open::Map { entries, key }, ..)) => match (key.take(), node.value) {
                (None, Value::Scalar { text, .. }) => {
                    if text == "<<" {
                        return fail("merge keys (<<) are not supported; write the keys out".into());
                    }
                    if entries.iter().any(|(k, _)| *k == text) {
                        return fail(format!("the key '{text}' occurs twice"));
                    }
                    *key = Some((text, line));
                }
                (None, other) => {
                    return fail(format!("a key must be a plain word, and this is {}", other.name()));
                }
                (Some((name, key_line)), value) => {
                    node.value = value;
                    node.about = about(&self.lines, key_line);
                    // A group of keys, or a null, stands where its key does.
                    node.origin = Origin { file: self.file.clone(), line: key_line };
                    entries.push((name, node));
                }
            },
        }
        Ok(())
    }
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|(_, n)| size(n)).sum::<usize>(),
        _ => 1,
    }
}

/// What comments say of the key on a line (from 1): behind it, else the block directly above it.
fn about(lines: &[&str], line: usize) -> String {
    let Some(own) = line.checked_sub(1).and_then(|i| lines.get(i)) else { return String::new() };
    if let Some(behind) = behind(own) {
        return behind.trim().to_string();
    }
    let mut above: Vec<&str> = Vec::new();
    for l in lines[..line - 1].iter().rev() {
        match l.trim().strip_prefix('#') {
            Some(comment) if !comment.trim_start().starts_with('@') => above.push(comment.trim()),
            _ => break,
        }
    }
    above.reverse();
    above.join(" ")
}

/// The comment at the end of a line: from the first `#` after white space that is not within quotes.
fn behind(line: &str) -> Option<&str> {
    let mut quote: Option<char> = None;
    let mut before = ' ';
    for (i, c) in line.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '#' && before.is_whitespace() && i > 0 => return Some(&line[i + 1..]),
            None if matches!(c, '"' | '\'') && !before.is_alphanumeric() => quote = Some(c),
            None => {}
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        parse(text, "f.yaml").unwrap_err().to_string()
    }

    #[test]
    fn values_know_their_lines_and_comments() {
        let text = "# @package _global_\n# How many.\n# In all.\na: 3\nb:\n  c: 'x # y'  # the letter\n  d: [1, 2]\ne: null\n";
        let root = parse(text, "f.yaml").unwrap();
        let at = |path: &[&str]| path.iter().fold(&root, |n, k| n.child(k).unwrap()).clone();
        assert_eq!(
            (at(&["a"]).origin.to_string(), at(&["a"]).about.as_str()),
            ("f.yaml:4".into(), "How many. In all.")
        );
        let c = at(&["b", "c"]);
        assert_eq!(c.value, Value::Scalar { text: "x # y".into(), quoted: true });
        assert_eq!((c.about.as_str(), c.origin.line), ("the letter", 6));
        assert_eq!(at(&["b", "d", "1"]).value, Value::word("2"));
        assert_eq!(at(&["e"]).value, Value::Null);
        assert_eq!(parse("", "f").unwrap().value, Value::Map(vec![]));
        assert_eq!(parse("# nothing\n", "f").unwrap().value, Value::Map(vec![]));
    }

    #[test]
    fn invalid_yaml_is_refused_with_its_line() {
        assert!(said("a: 1\nb: [1, 2\n").starts_with("f.yaml:"), "{}", said("a: 1\nb: [1, 2\n"));
        assert_eq!(said("a: 1\na: 2"), "f.yaml:2: not YAML that can be used here: the key 'a' occurs twice");
        assert!(said("x: &x {a: 1}\ny:\n  <<: *x\n").contains("merge keys"));
        assert!(said("? [1]\n: 2\n").contains("a plain word"));
        assert!(said("---\na: 1\n---\nb: 2\n").contains("one document"));
        assert!(said(&format!("a: {}{}", "[".repeat(200), "]".repeat(200))).contains("deep"));
    }

    /// Ten aliases of ten aliases of ...: refused, not expanded.
    #[test]
    fn aliases_do_not_explode() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..10 {
            let items = vec![format!("*a{}", i - 1); 10].join(", ");
            text += &format!("a{i}: &a{i} [{items}]\n");
        }
        assert!(said(&text).contains("more than 100000 values"));
        let two = parse("a: &x {p: 1}\nb: *x\n", "f").unwrap();
        assert_eq!(two.child("a"), two.child("b"));
    }
}
