//! Interpolation: `${a.b}` in a value is replaced by the value of another key.

use crate::ConfigError;
use crate::tree::{Node, Tree, Value, joined};

const LONGEST_CHAIN: usize = 32;
const LONGEST_TEXT: usize = 1 << 20;
/// References that one value may come to, those inside of what it refers to included: two in each of a chain's values
/// double with every link.
const MOST_REFERENCES: usize = 10_000;

/// The tree with every reference replaced by what it refers to.
pub(crate) fn resolve(tree: Tree) -> Result<Tree, ConfigError> {
    let mut out = tree.clone();
    visit(&mut out.root, "", &tree)?;
    Ok(out)
}

fn visit(node: &mut Node, path: &str, tree: &Tree) -> Result<(), ConfigError> {
    match &mut node.value {
        Value::Map(entries) => {
            entries.iter_mut().try_for_each(|(key, child)| visit(child, &joined(path, key), tree))
        }
        Value::List(items) => items
            .iter_mut()
            .enumerate()
            .try_for_each(|(i, child)| visit(child, &joined(path, &i.to_string()), tree)),
        Value::Scalar { text, .. } if text.contains("${") => {
            let fail = |why: String| ConfigError::Interpolation {
                path: path.into(),
                origin: node.origin.clone(),
                why,
            };
            let value = resolved(&node.value, tree, 0, &mut 0).map_err(fail)?;
            node.value = value;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn resolved(value: &Value, tree: &Tree, depth: usize, seen: &mut usize) -> Result<Value, String> {
    let Value::Scalar { text, .. } = value else { return Ok(value.clone()) };
    if depth > LONGEST_CHAIN {
        return Err(format!("'{text}' refers to itself"));
    }
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("${") {
        let end = rest[start..].find('}').ok_or_else(|| format!("'{text}' has ${{ without }}"))? + start;
        let name = rest[start + 2..end].trim();
        let target = tree.get(name).filter(|_| !name.is_empty()).ok_or_else(|| {
            format!(
                "'{text}' refers to {name}, which does not exist{}",
                crate::nearest::meant(name, &tree.paths())
            )
        })?;
        *seen += 1;
        if *seen > MOST_REFERENCES {
            return Err(format!("'{text}' comes to more than {MOST_REFERENCES} references"));
        }
        let found = resolved(&target.value, tree, depth + 1, seen)?;
        out.push_str(&rest[..start]);
        rest = &rest[end + 1..];
        let is_whole = out.is_empty() && rest.is_empty() && start == 0;
        match found {
            found if is_whole => {
                return if refers(&found) {
                    Err(format!(
                        "'{text}' refers to a group or list that refers further; name a single value"
                    ))
                } else {
                    Ok(found)
                };
            }
            Value::Scalar { text, .. } => out.push_str(&text),
            Value::Null => out.push_str("null"),
            other => return Err(format!("'{text}' puts {} into a text", other.name())),
        }
        if out.len() > LONGEST_TEXT {
            return Err("the text refers to itself".into());
        }
    }
    out.push_str(rest);
    Ok(Value::Scalar { text: out, quoted: true })
}

fn refers(value: &Value) -> bool {
    match value {
        Value::Scalar { text, .. } => text.contains("${"),
        Value::List(items) => items.iter().any(|n| refers(&n.value)),
        Value::Map(entries) => entries.iter().any(|(_, n)| refers(&n.value)),
        Value::Null => false,
    }
}
