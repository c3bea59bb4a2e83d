//! Overrides as on a command line: `key=value`, `+key=value`, `++key=value`, `~key`, `~key=value`.
//!
//! A value is a word up to the end (`data.input=/images/*.tif`), a quoted string, a list `[a, b]` or a map `{a: 1, b: 2}`.
//! It is not YAML: `#`, `*` and `: ` in a path have no special meaning.

use crate::ConfigError;
use crate::tree::{Node, Origin, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Set,
    /// The key must be new.
    Add,
    /// New or not.
    Force,
    Delete,
}

#[derive(Clone, Debug)]
pub(crate) struct Override {
    pub act: Act,
    /// Dotted; the name of a group may have slashes.
    pub key: String,
    /// None only where something is deleted whatever its value.
    pub value: Option<Value>,
    pub text: String,
}

impl Override {
    pub fn parse(text: &str) -> Result<Override, ConfigError> {
        let fail = |why: String| ConfigError::Override { text: text.into(), why };
        let (act, rest) = match text.strip_prefix("++") {
            Some(rest) => (Act::Force, rest),
            None => match (text.strip_prefix('+'), text.strip_prefix('~')) {
                (Some(rest), _) => (Act::Add, rest),
                (_, Some(rest)) => (Act::Delete, rest),
                _ => (Act::Set, text),
            },
        };
        let (key, value) = match rest.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None if act == Act::Delete => (rest, None),
            None => {
                return Err(fail(
                    "write key=value, group=option, +key=value, ~key or the path of a .yaml file".into(),
                ));
            }
        };
        let key = key.trim().trim_start_matches('/');
        let is_word = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/'))
        };
        if !key.split('.').all(is_word) {
            return Err(fail(format!("'{key}' is not a key: keys are words joined by dots")));
        }
        let value = value.map(|v| parse_value(v).map_err(fail)).transpose()?;
        Ok(Override { act, key: key.into(), value, text: text.into() })
    }
}

/// A value of an override.
pub(crate) fn parse_value(text: &str) -> Result<Value, String> {
    let text = text.trim();
    match text.chars().next() {
        Some('[' | '{' | '"' | '\'') => {
            let mut reader = Reader { rest: text, depth: 0 };
            let value = reader.value()?;
            if reader.rest.trim().is_empty() {
                return Ok(value);
            }
            Err(format!("unexpected '{}' after the value", reader.rest.trim()))
        }
        _ => Ok(plain(text)),
    }
}

fn plain(text: &str) -> Value {
    match text {
        "" | "null" | "~" => Value::Null,
        _ => Value::word(text),
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn eat(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_start();
        let found = self.rest.strip_prefix(c);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn value(&mut self) -> Result<Value, String> {
        self.depth += 1;
        if self.depth > 64 {
            return Err("values are nested too deeply".into());
        }
        let node = |value| Node::new(value, Origin::command_line());
        let value = if self.eat('[') {
            let mut items = Vec::new();
            while !self.eat(']') {
                items.push(node(self.value()?));
                self.separator(']', "a list")?;
            }
            Value::List(items)
        } else if self.eat('{') {
            let mut entries: Vec<(String, Node)> = Vec::new();
            while !self.eat('}') {
                let key = match self.scalar(&[':', ',', '}'])? {
                    Value::Scalar { text, .. } => text,
                    _ => return Err("a key is missing in {...}".into()),
                };
                if !self.eat(':') {
                    return Err(format!("the key '{key}' has no value"));
                }
                if entries.iter().any(|(k, _)| *k == key) {
                    return Err(format!("the key '{key}' occurs twice"));
                }
                entries.push((key, node(self.value()?)));
                self.separator('}', "a group of keys")?;
            }
            Value::Map(entries)
        } else {
            self.scalar(&[',', ']', '}'])?
        };
        self.depth -= 1;
        Ok(value)
    }

    fn separator(&mut self, close: char, what: &str) -> Result<(), String> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(close) || self.eat(',') {
            return Ok(());
        }
        Err(format!("{what} is not closed by '{close}'"))
    }

    fn scalar(&mut self, ends: &[char]) -> Result<Value, String> {
        self.rest = self.rest.trim_start();
        let Some(quote @ ('"' | '\'')) = self.rest.chars().next() else {
            let end = self.rest.find(ends).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return Ok(plain(word.trim()));
        };
        let mut text = String::new();
        let mut letters = self.rest.char_indices().skip(1);
        while let Some((i, c)) = letters.next() {
            match c {
                '\\' if quote == '"' => match letters.next().map(|(_, c)| c) {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some(c @ ('\\' | '"' | '\'')) => text.push(c),
                    _ => return Err("after \\ comes n, t, \\ or a quote".into()),
                },
                c if c == quote => {
                    self.rest = &self.rest[i + 1..];
                    return Ok(Value::Scalar { text, quoted: true });
                }
                c => text.push(c),
            }
        }
        Err(format!("the string is not closed by {quote}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Act, String, Option<Value>) {
        let o = Override::parse(text).unwrap();
        (o.act, o.key, o.value)
    }

    #[test]
    fn every_form() {
        let word = |t: &str| Some(Value::word(t));
        assert_eq!(parsed("a.b=max-autotune"), (Act::Set, "a.b".into(), word("max-autotune")));
        assert_eq!(
            parsed("experiment=im2im/labelfree"),
            (Act::Set, "experiment".into(), word("im2im/labelfree"))
        );
        assert_eq!(parsed("+a=1"), (Act::Add, "a".into(), word("1")));
        assert_eq!(parsed("++a=1"), (Act::Force, "a".into(), word("1")));
        assert_eq!(parsed("~a.b"), (Act::Delete, "a.b".into(), None));
        assert_eq!(parsed("a="), (Act::Set, "a".into(), Some(Value::Null)));
        // A path means itself, whatever its letters mean in YAML.
        assert_eq!(parsed("a=/x y/*.tif # =1, b"), (Act::Set, "a".into(), word("/x y/*.tif # =1, b")));
        let Some(Value::List(items)) = parsed("a=[1, 'b, c', [x], {k: v}]").2 else { panic!() };
        assert_eq!(items.len(), 4);
        assert_eq!(items[1].value, Value::Scalar { text: "b, c".into(), quoted: true });
        assert_eq!(items[3].child("k").unwrap().value, Value::word("v"));
        // Hydra's users write maps without spaces.
        let Some(map @ Value::Map(_)) = parsed("a={b:1,c:\"x\\\"y\"}").2 else { panic!() };
        let node = Node::new(map, Origin::command_line());
        assert_eq!(node.child("b").unwrap().value, Value::word("1"));
        assert_eq!(node.child("c").unwrap().value, Value::Scalar { text: "x\"y".into(), quoted: true });
    }

    #[test]
    fn invalid_overrides_are_refused() {
        for text in [
            "a",
            "=1",
            "a..b=1",
            "a b=1",
            "a=[1",
            "a={b}",
            "a='x",
            "a=[1] 2",
            "a={b:1,b:2}",
            "~",
            "a=\"\\q\"",
        ] {
            let said = Override::parse(text).unwrap_err().to_string();
            assert!(said.starts_with(&format!("override '{text}': ")), "{said}");
        }
        let deep = format!("a={}", "[".repeat(100_000));
        assert!(Override::parse(&deep).is_err());
    }
}
