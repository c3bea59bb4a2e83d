//! The reference of a configuration as Markdown, generated from its files: every key with its value and the comment beside it.

use crate::compose::compose;
use crate::groups::Groups;
use crate::print::flow;
use crate::tree::{Node, Value, walk};
use crate::{ConfigError, Origin};
use std::fmt::Write;

/// Every key of what `primary` composes to, with default and meaning, then the options of every group with what they
/// set. Keys without a meaning have an empty cell.
///
/// # Errors
/// If a file is missing or not YAML.
pub fn reference(groups: &Groups, primary: &str) -> Result<String, ConfigError> {
    let tree = compose(groups, primary, &[])?;
    let mut out = String::new();
    writeln!(out, "## Keys of `{primary}`\n").expect("writing to a string");
    table(&tree.root, &mut out);
    out.push('\n');
    out.push_str(&group_reference(groups)?);
    Ok(out)
}

/// The options of every group, with what each sets.
///
/// # Errors
/// If a file is not YAML.
pub fn group_reference(groups: &Groups) -> Result<String, ConfigError> {
    let mut out = String::new();
    for group in groups.groups() {
        let options = groups.options(&group);
        let nested = group.contains('/');
        if options.is_empty() || nested {
            continue;
        }
        let head = if out.is_empty() { "" } else { "\n" };
        writeln!(out, "{head}## Group `{group}`").expect("writing to a string");
        for option in &options {
            let origin = Origin { file: group.as_str().into(), line: 0 };
            let file = groups.option(&group, option, &origin)?;
            writeln!(out, "\n### `{group}={option}`\n").expect("writing to a string");
            table(&file.node, &mut out);
        }
    }
    Ok(out)
}

fn table(root: &Node, out: &mut String) {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    out.push_str("| key | value | meaning |\n|---|---|---|\n");
    walk(root, "", &mut |path, node| {
        let is_group = matches!(&node.value, Value::Map(entries) if !entries.is_empty());
        if path.is_empty() || (is_group && node.about.is_empty()) {
            return;
        }
        let value = if is_group { String::new() } else { format!("`{}`", cell(&flow(node))) };
        writeln!(out, "| `{path}` | {value} | {} |", cell(&node.about)).expect("writing to a string");
    });
}
