//! Prints trees as YAML that reads back as the same tree, with or without the origin of every value.

use crate::tree::{Node, Tree, Value};
use std::fmt::Write;

impl Tree {
    /// The tree as YAML.
    pub fn yaml(&self) -> String {
        self.print(false)
    }

    /// The tree as YAML, with each value's file and line as a comment.
    pub fn yaml_with_origins(&self) -> String {
        self.print(true)
    }

    fn print(&self, origins: bool) -> String {
        let mut lines: Vec<(String, String)> = Vec::new();
        match &self.root.value {
            Value::Map(entries) => block(entries, 0, &mut lines),
            _ => lines.push((flow(&self.root), self.root.origin.to_string())),
        }
        let width = lines.iter().map(|(l, _)| l.chars().count()).max().unwrap_or(0).min(60);
        let mut out = String::new();
        for (line, origin) in lines {
            let result = if origins && !origin.is_empty() {
                writeln!(out, "{line:width$}  # {origin}")
            } else {
                writeln!(out, "{line}")
            };
            result.expect("writing to a string");
        }
        out
    }
}

fn block(entries: &[(String, Node)], indent: usize, lines: &mut Vec<(String, String)>) {
    if entries.is_empty() && indent == 0 {
        lines.push(("{}".into(), String::new()));
    }
    for (key, node) in entries {
        let head = format!("{}{}:", "  ".repeat(indent), scalar(key, false));
        match &node.value {
            Value::Map(inner) if !inner.is_empty() => {
                lines.push((head, String::new()));
                block(inner, indent + 1, lines);
            }
            _ => lines.push((format!("{head} {}", flow(node)), node.origin.to_string())),
        }
    }
}

/// A value on one line.
pub(crate) fn flow(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".into(),
        Value::Scalar { text, quoted } => scalar(text, *quoted),
        Value::List(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let parts: Vec<String> =
                entries.iter().map(|(k, n)| format!("{}: {}", scalar(k, false), flow(n))).collect();
            format!("{{{}}}", parts.join(", "))
        }
    }
}

/// A plain word if YAML reads it as that word, otherwise in quotes.
fn scalar(text: &str, quoted: bool) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '/' | '$' | '^');
    let begins_well = text
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '+' | '$' | '^'))
        || matches!(text.as_bytes(), [b'-', b'0'..=b'9' | b'.', ..]);
    let is_null = matches!(text, "null" | "Null" | "NULL");
    let is_mark = text.starts_with("...");
    let is_unresolved = text == "???";
    if !quoted && (is_unresolved || (begins_well && text.chars().all(is_plain) && !is_null && !is_mark)) {
        return text.into();
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                write!(out, "\\u{:04x}", c as u32).expect("writing to a string");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
