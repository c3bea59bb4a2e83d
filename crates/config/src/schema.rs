//! The reference of a configuration, generated from the JSON Schema of its structs: keys, defaults, choices, and the doc
//! comments of the fields. A key is therefore documented once, where it is defined.

use serde_json::Value as Json;
use std::fmt::Write;

/// Nothing is nested deeper.
const DEEPEST: usize = 8;

/// Every key below a schema's root as a Markdown table, with its default from the struct's own default as JSON.
pub fn schema_reference(schema: &Json, defaults: &Json) -> String {
    let mut out = String::from("| key | default | meaning |\n|---|---|---|\n");
    rows(schema, schema, "", defaults, 0, &mut out);
    out
}

fn rows(root: &Json, of: &Json, path: &str, defaults: &Json, depth: usize, out: &mut String) {
    let Some(properties) = of["properties"].as_object().filter(|_| depth < DEEPEST) else { return };
    for (key, property) in properties {
        let path = crate::tree::joined(path, key);
        let default = defaults.get(key).unwrap_or(&Json::Null);
        let kind = resolved(root, property);
        let is_group = kind["properties"].is_object() && default.is_object();
        let value = if is_group { String::new() } else { format!("`{}`", cell(&default.to_string())) };
        let about = property["description"].as_str().unwrap_or_default();
        let meaning =
            [about, &choices(kind)].iter().filter(|s| !s.is_empty()).copied().collect::<Vec<_>>().join(" ");
        writeln!(out, "| `{path}` | {value} | {} |", cell(&meaning)).expect("writing to a string");
        rows(root, kind, &path, default, depth + 1, out);
    }
}

/// What a property is: what it refers to, alone, as one of several, or as the parts of a list.
fn resolved<'s>(root: &'s Json, property: &'s Json) -> &'s Json {
    if let Some(name) = property["$ref"].as_str() {
        return name.strip_prefix('#').and_then(|path| root.pointer(path)).unwrap_or(property);
    }
    let refers = |other: &&Json| other.get("$ref").is_some();
    match property["anyOf"].as_array().and_then(|all| all.iter().find(refers)) {
        Some(other) => resolved(root, other),
        None if refers(&&property["items"]) => resolved(root, &property["items"]),
        None => property,
    }
}

/// The words that an enum can be.
fn choices(kind: &Json) -> String {
    let of = |part: &Json| -> Vec<String> {
        let words = part["enum"].as_array().into_iter().flatten().chain(part.get("const"));
        words.filter_map(|w| w.as_str().map(|w| format!("`{w}`"))).collect()
    };
    let parts = kind["oneOf"].as_array().into_iter().flatten();
    let words: Vec<String> = of(kind).into_iter().chain(parts.flat_map(of)).collect();
    if words.is_empty() { String::new() } else { format!("One of {}.", words.join(", ")) }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_come_with_default_comment_and_choices() {
        let schema = json!({
            "properties": {
                "seed": {"description": "What follows\nfrom it.", "type": "integer"},
                "inner": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}]},
                "mode": {"$ref": "#/$defs/Mode"},
                "bare": {"type": "array", "items": {"type": "number"}},
                "list": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
            },
            "$defs": {
                "Inner": {"properties": {"deep": {"description": "Deep | down.", "type": "array"}}},
                "Mode": {"oneOf": [{"type": "string", "enum": ["usual"]}, {"const": "max-autotune"}]},
            },
        });
        let defaults = json!({
            "seed": 3, "inner": {"deep": ["a"]}, "mode": "usual", "bare": [1.0, 2.0], "list": [],
        });
        let table = schema_reference(&schema, &defaults);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| `seed` | `3` | What follows from it. |",
                "| `inner` |  |  |",
                "| `inner.deep` | `[\"a\"]` | Deep \\| down. |",
                "| `mode` | `\"usual\"` | One of `usual`, `max-autotune`. |",
                "| `bare` | `[1.0,2.0]` |  |",
                "| `list` | `[]` |  |",
                "| `list.deep` | `null` | Deep \\| down. |",
            ]
        );
    }
}
