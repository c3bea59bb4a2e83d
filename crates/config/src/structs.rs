//! The reference of a configuration from the Rust structs that read it: keys, types and defaults, and what the comments
//! on the fields say. So what documents a key stands where the key is defined, once.
//!
//! The source is read as text, line by line: structs of plain `pub name: Type,` fields and enums, formatted by rustfmt.

use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A struct's fields or an enum's variants.
#[derive(Debug, Default)]
struct Item {
    is_enum: bool,
    rename: String,
    /// Name, type, comment.
    members: Vec<(String, String, String)>,
}

/// Every key below a struct of a source as a Markdown table, with its default from the struct's own default as JSON.
pub fn struct_reference(sources: &[&str], root: &str, defaults: &Json) -> String {
    let mut items = BTreeMap::new();
    sources.iter().for_each(|s| collect(s, &mut items));
    let mut out = String::from("| key | default | meaning |\n|---|---|---|\n");
    rows(&items, root, "", defaults, 0, &mut out);
    out
}

/// Keys of a struct that no comment explains.
pub fn undocumented(sources: &[&str], root: &str) -> Vec<String> {
    let mut items = BTreeMap::new();
    sources.iter().for_each(|s| collect(s, &mut items));
    let mut out = Vec::new();
    missing(&items, root, "", 0, &mut out);
    out
}

fn collect(source: &str, items: &mut BTreeMap<String, Item>) {
    let mut lines = source.lines().peekable();
    let mut rename = String::new();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if let Some(rest) = trimmed.strip_prefix("#[serde(") {
            if let Some(at) = rest.find("rename_all = \"") {
                rename = rest[at + 14..].split('"').next().unwrap_or("").to_string();
            }
            continue;
        }
        let head = trimmed.strip_prefix("pub ").unwrap_or(trimmed);
        let (is_enum, rest) = match (head.strip_prefix("struct "), head.strip_prefix("enum ")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => {
                if !trimmed.starts_with("#[") && !trimmed.starts_with("//") {
                    rename.clear();
                }
                continue;
            }
        };
        let rename = std::mem::take(&mut rename);
        let Some(name) = rest.strip_suffix(" {") else { continue };
        let mut item = Item { is_enum, rename, members: Vec::new() };
        let mut about: Vec<&str> = Vec::new();
        let mut depth = 0;
        for line in lines.by_ref() {
            let trimmed = line.trim();
            if depth == 0 && trimmed == "}" {
                break;
            }
            if let Some(text) = trimmed.strip_prefix("///").filter(|_| depth == 0) {
                about.push(text.trim());
                continue;
            }
            if trimmed.starts_with("#[") || trimmed.starts_with("//") {
                continue;
            }
            let said = if depth == 0 { about.join(" ") } else { String::new() };
            if depth == 0 && is_enum {
                let end = trimmed.find([' ', ',', '(', '{']).unwrap_or(trimmed.len());
                item.members.push((trimmed[..end].to_string(), String::new(), said));
            } else if let Some((name, kind)) =
                trimmed.trim_start_matches("pub ").split_once(": ").filter(|_| depth == 0)
            {
                item.members.push((
                    name.trim_start_matches("r#").into(),
                    kind.trim_end_matches(',').into(),
                    said,
                ));
            }
            about.clear();
            depth += trimmed.matches('{').count() as i32 - trimmed.matches('}').count() as i32;
        }
        items.insert(name.split('<').next().unwrap_or(name).to_string(), item);
    }
}

/// The type inside `Option<...>` and the like that is one of the items.
fn inner<'a>(items: &'a BTreeMap<String, Item>, kind: &str) -> Option<(&'a str, &'a Item)> {
    let words = kind.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter_map(|w| items.get_key_value(w)).map(|(k, v)| (k.as_str(), v)).next()
}

fn rows(
    items: &BTreeMap<String, Item>,
    name: &str,
    path: &str,
    defaults: &Json,
    depth: usize,
    out: &mut String,
) {
    let Some(item) = items.get(name).filter(|_| depth < 8) else { return };
    for (field, kind, about) in &item.members {
        let path = crate::tree::joined(path, field);
        let default = defaults.get(field).unwrap_or(&Json::Null);
        let found = inner(items, kind);
        let choices = found.filter(|(_, i)| i.is_enum).map(|(_, i)| choices(i)).unwrap_or_default();
        let is_group = matches!(found, Some((_, i)) if !i.is_enum) && default.is_object();
        let value = if is_group { String::new() } else { format!("`{}`", cell(&default.to_string())) };
        let meaning = [about.as_str(), &choices]
            .iter()
            .filter(|s| !s.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" ");
        writeln!(out, "| `{path}` | {value} | {} |", cell(&meaning)).expect("writing to a string");
        if let Some((inner, _)) = found.filter(|(_, i)| !i.is_enum) {
            rows(items, inner, &path, default, depth + 1, out);
        }
    }
}

fn missing(items: &BTreeMap<String, Item>, name: &str, path: &str, depth: usize, out: &mut Vec<String>) {
    let Some(item) = items.get(name).filter(|_| depth < 8) else { return };
    for (field, kind, about) in &item.members {
        let path = crate::tree::joined(path, field);
        match inner(items, kind) {
            Some((inner, i)) if !i.is_enum => missing(items, inner, &path, depth + 1, out),
            // An enum's choices say what it is.
            Some(_) => {}
            None if about.is_empty() => out.push(path),
            None => {}
        }
    }
}

fn choices(item: &Item) -> String {
    let names: Vec<String> =
        item.members.iter().map(|(name, _, _)| format!("`{}`", renamed(name, &item.rename))).collect();
    if names.is_empty() { String::new() } else { format!("One of {}.", names.join(", ")) }
}

fn renamed(name: &str, rule: &str) -> String {
    let joint = match rule {
        "snake_case" => '_',
        "kebab-case" => '-',
        "lowercase" => return name.to_lowercase(),
        _ => return name.to_string(),
    };
    let mut out = String::new();
    for (i, c) in name.char_indices() {
        if c.is_uppercase() && i > 0 {
            out.push(joint);
        }
        out.extend(c.to_lowercase());
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
/// A run.
#[derive(Clone, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// What follows
    /// from it.
    pub seed: u64,
    pub inner: Option<Inner>,
    pub mode: Mode,
    pub bare: [f64; 2],
}

#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// As usual.
    #[default]
    Usual,
    MaxAutotune { most: u32 },
}

pub struct Inner {
    /// Deep | down.
    pub deep: Vec<String>,
}
"#;

    #[test]
    fn keys_come_with_default_comment_and_choices() {
        let defaults =
            serde_json::json!({"seed": 3, "inner": {"deep": ["a"]}, "mode": "usual", "bare": [1.0, 2.0]});
        let table = struct_reference(&[SOURCE], "Run", &defaults);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| `seed` | `3` | What follows from it. |",
                "| `inner` |  |  |",
                "| `inner.deep` | `[\"a\"]` | Deep \\| down. |",
                "| `mode` | `\"usual\"` | One of `usual`, `max-autotune`. |",
                "| `bare` | `[1.0,2.0]` |  |",
            ]
        );
        assert_eq!(undocumented(&[SOURCE], "Run"), ["bare"]);
    }
}
