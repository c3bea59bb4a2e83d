//! Composes a primary file, its list of defaults and overrides into one tree.
//!
//! The option of each group is determined first: by the command line, otherwise by an `override` in a chosen file (the last
//! one wins), otherwise by the list of defaults. A chosen file may override groups listed before it, so the choice is
//! repeated until nothing changes. The chosen files are then merged in the order of the list, the user's files after them,
//! and overrides of values last. Of keys that exclude each other, the last one is kept.

use crate::exclusive::{self, Exclusive};
use crate::groups::{self, File, Groups};
use crate::overrides::{Act, Override};
use crate::tree::{Node, Origin, Tree, Value, joined};
use crate::{ConfigError, interpolate};
use std::collections::BTreeMap;
use std::path::Path;

/// Which options were asked for in a group, by whom; none: the group is left out.
type Choices = BTreeMap<String, (Vec<String>, Origin)>;

/// Files whose chosen options override others' may do so in turn; this often.
const MOST_ROUNDS: usize = 16;
const DEEPEST: usize = 16;

/// A file's own contents and where they go.
struct Layer {
    node: Node,
    package: String,
}

struct Walk<'a> {
    groups: &'a Groups,
    command_line: &'a Choices,
    overridden: &'a Choices,
    /// Overrides that were met on the way, for the next round.
    met: Choices,
    /// Groups that the lists of defaults mention.
    mentioned: Vec<String>,
    layers: Vec<Layer>,
}

/// Composes the primary file `primary` of `groups` with overrides; see the crate for what these can be.
///
/// A plain `key=value` may name a key that no file has, as long as the struct that reads the tree has it.
///
/// # Errors
/// If a file, an option or a group is missing, a file is not YAML, or an override cannot be applied.
pub fn compose(groups: &Groups, primary: &str, overrides: &[String]) -> Result<Tree, ConfigError> {
    compose_with(groups, primary, &[], overrides)
}

/// As [`compose`], with files of the user's that are known to be files, whatever their paths look like; those among
/// the overrides come after them.
///
/// # Errors
/// As [`compose`].
pub fn compose_with(
    groups: &Groups,
    primary: &str,
    files: &[&Path],
    overrides: &[String],
) -> Result<Tree, ConfigError> {
    let mut user_files: Vec<File> = files.iter().map(|f| groups::read(f)).collect::<Result<_, _>>()?;
    let mut values: Vec<Override> = Vec::new();
    let mut command_line = Choices::new();
    for text in overrides {
        let is_file = [".yaml", ".yml"].iter().any(|end| text.ends_with(end)) && !text.contains('=');
        if is_file {
            user_files.push(groups::read(Path::new(text))?);
            continue;
        }
        let o = Override::parse(text)?;
        // `group={key: value}` changes keys of the group's option, whichever it is.
        let is_choice = !matches!(o.value, Some(Value::Map(_))) && !o.key.contains('.');
        if is_choice && groups.is_group(&o.key) {
            choose(&mut command_line, &o)?;
        } else {
            values.push(o);
        }
    }
    let Some(first) = groups.find(primary)? else {
        return Err(ConfigError::Primary { name: primary.into(), known: groups.options("") });
    };
    let mut overridden = Choices::new();
    for round in 0.. {
        let mut walk = Walk {
            groups,
            command_line: &command_line,
            overridden: &overridden,
            met: Choices::new(),
            mentioned: Vec::new(),
            layers: Vec::new(),
        };
        walk.file(&first, "", 0)?;
        for file in &user_files {
            walk.file(file, "", 0)?;
        }
        for (group, (options, origin)) in &command_line {
            if !walk.mentioned.contains(group) {
                for option in options {
                    let file = groups.option(group, option, origin)?;
                    walk.file(&file, group, 0)?;
                }
            }
        }
        if walk.met == overridden {
            return finish(walk.layers, &values, groups.exclusive_keys());
        }
        if round == MOST_ROUNDS {
            let origin = walk.met.values().next().map_or_else(Origin::command_line, |(_, o)| o.clone());
            let why = "overrides of groups override each other in a circle".into();
            return Err(ConfigError::Defaults { origin, why });
        }
        overridden = walk.met;
    }
    unreachable!("the loop returns")
}

fn choose(choices: &mut Choices, o: &Override) -> Result<(), ConfigError> {
    let fail = |why: &str| ConfigError::Override { text: o.text.clone(), why: why.into() };
    let options = match (o.act, &o.value) {
        (Act::Delete, _) => Vec::new(),
        (_, Some(value)) => {
            options(value).ok_or_else(|| fail("an option is a word; several are a list of words"))?
        }
        (_, None) => return Err(fail("an option is missing")),
    };
    choices.insert(o.key.clone(), (options, Origin::command_line()));
    Ok(())
}

/// The names of options in a value: a word, a list of words, or nothing.
fn options(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::Scalar { text, .. } => Some(vec![text.trim_end_matches(".yaml").to_string()]),
        Value::List(items) => items
            .iter()
            .map(|n| options(&n.value).filter(|o| o.len() == 1).map(|mut o| o.remove(0)))
            .collect(),
        Value::Map(_) => None,
    }
}

impl Walk<'_> {
    /// Adds a file's layers: what its defaults choose, and itself at `_self_`, else last.
    fn file(&mut self, file: &File, group: &str, depth: usize) -> Result<(), ConfigError> {
        if depth > DEEPEST {
            let why = "files choose each other in a circle".into();
            return Err(ConfigError::Defaults { origin: file.node.origin.clone(), why });
        }
        let mut own = file.node.clone();
        let Value::Map(entries) = &mut own.value else {
            let (origin, why) = (own.origin, format!("a file holds keys, and this one {}", own.value.name()));
            return Err(ConfigError::Yaml { origin, why });
        };
        let defaults = entries.iter().position(|(k, _)| k == "defaults").map(|i| entries.remove(i).1);
        let package = match file.package.as_deref() {
            Some("_global_") => String::new(),
            None | Some("_group_") => group.replace('/', "."),
            Some(name) => name.to_string(),
        };
        let mut own = Some(Layer { node: own, package });
        if let Some(list) = defaults {
            let Value::List(items) = &list.value else {
                let why = "defaults is a list, of `- group: option`".into();
                return Err(ConfigError::Defaults { origin: list.origin, why });
            };
            for item in items {
                if matches!(&item.value, Value::Scalar { text, .. } if text == "_self_") {
                    self.layers.extend(own.take());
                } else {
                    self.entry(item, group, depth)?;
                }
            }
        }
        self.layers.extend(own);
        Ok(())
    }

    fn entry(&mut self, item: &Node, inside: &str, depth: usize) -> Result<(), ConfigError> {
        let origin = &item.origin;
        let fail = |why: String| ConfigError::Defaults { origin: origin.clone(), why };
        let (key, value) = match &item.value {
            Value::Scalar { text, .. } => {
                let file = self.groups.option(inside, text.trim_end_matches(".yaml"), origin)?;
                return self.file(&file, inside, depth + 1);
            }
            Value::Map(entries) if entries.len() == 1 => (&entries[0].0, &entries[0].1.value),
            _ => return Err(fail("an entry of defaults is `group: option`, a file's name or _self_".into())),
        };
        let asked =
            options(value).ok_or_else(|| fail(format!("{key}: an option is a word, or a list of them")))?;
        let (word, name) = key.split_once(' ').map_or(("", key.as_str()), |(w, n)| (w, n.trim()));
        if name.contains('@') {
            return Err(fail(format!(
                "{key}: packages in lists of defaults are not supported; use # @package"
            )));
        }
        let group = match name.strip_prefix('/') {
            Some(absolute) => absolute.to_string(),
            None if inside.is_empty() || word == "override" => name.to_string(),
            None => format!("{inside}/{name}"),
        };
        // A group that an earlier list mentions already is overridden, whether or not the word says so.
        if word == "override" || (self.mentioned.contains(&group) && word.is_empty()) {
            if !self.groups.is_group(&group) {
                let known = self.groups.groups();
                return Err(ConfigError::Group { origin: origin.clone(), group, known });
            }
            self.met.insert(group, (asked, origin.clone()));
            return Ok(());
        }
        if !matches!(word, "" | "optional") {
            return Err(fail(format!("{key}: '{word}' is unknown; there are override and optional")));
        }
        self.mentioned.push(group.clone());
        let listed = (asked, origin.clone());
        let chosen =
            self.command_line.get(&group).or_else(|| self.overridden.get(&group)).unwrap_or(&listed).clone();
        for option in &chosen.0 {
            if word == "optional" && self.groups.find(&format!("{group}/{option}"))?.is_none() {
                continue;
            }
            let file = self.groups.option(&group, option, &chosen.1)?;
            self.file(&file, &group, depth + 1)?;
        }
        Ok(())
    }
}

fn finish(layers: Vec<Layer>, overrides: &[Override], sets: &[Exclusive]) -> Result<Tree, ConfigError> {
    let empty = || Node::new(Value::Map(Vec::new()), Origin::command_line());
    let mut root = empty();
    for layer in layers {
        let mut node = layer.node;
        let path = layer.package;
        for key in path.rsplit('.').filter(|k| !k.is_empty()) {
            let origin = node.origin.clone();
            node = Node::new(Value::Map(vec![(key.to_string(), node)]), origin);
        }
        let chosen = exclusive::chosen(&node, sets)?;
        root.merge(node);
        exclusive::take_back(&mut root, &chosen);
    }
    // The command line is one place, however many overrides it has.
    let mut said = empty();
    for o in overrides {
        apply(&mut root, o)?;
        if o.act != Act::Delete {
            apply(&mut said, &Override { act: Act::Force, ..o.clone() })?;
        }
    }
    exclusive::take_back(&mut root, &exclusive::chosen(&said, sets)?);
    interpolate::resolve(Tree { root })
}

/// Sets, adds or deletes one key.
fn apply(root: &mut Node, o: &Override) -> Result<(), ConfigError> {
    let fail = |why: String| ConfigError::Override { text: o.text.clone(), why };
    let mut path = String::new();
    let mut node = root;
    let keys: Vec<&str> = o.key.split('.').collect();
    let (last, parents) = keys.split_last().ok_or_else(|| fail("a key is missing".into()))?;
    let missing = |path: &str, known: Vec<String>| {
        fail(format!("there is no key {path}{}", crate::nearest::meant(path, &known)))
    };
    for key in parents {
        let full = joined(&path, key);
        let known = children(node, &path);
        match &mut node.value {
            Value::List(_) => {}
            Value::Map(entries) => {
                if !entries.iter().any(|(k, _)| k == key) {
                    if o.act == Act::Delete {
                        return Err(missing(&full, known));
                    }
                    let empty = Node::new(Value::Map(Vec::new()), Origin::command_line());
                    entries.push((key.to_string(), empty));
                }
            }
            // A key below `null` makes it a group of keys.
            value @ Value::Null if o.act != Act::Delete => {
                let empty = Node::new(Value::Map(Vec::new()), Origin::command_line());
                *value = Value::Map(vec![(key.to_string(), empty)]);
            }
            value => return Err(fail(format!("{path} is {}, and has no keys", value.name()))),
        }
        node = node.child_mut(key).ok_or_else(|| missing(&full, known))?;
        path = full;
    }
    let full = joined(&path, last);
    let known = children(node, &path);
    if o.act != Act::Delete && node.value == Value::Null {
        node.value = Value::Map(Vec::new());
    }
    if o.act == Act::Delete {
        let found = node.child(last).ok_or_else(|| missing(&full, known))?;
        if o.value.as_ref().is_some_and(|v| !same_word(v, &found.value)) {
            return Err(fail(format!("{full} has another value; ~{full} deletes it whatever it is")));
        }
        match &mut node.value {
            Value::Map(entries) => entries.retain(|(k, _)| k != last),
            Value::List(items) => drop(items.remove(last.parse().unwrap_or(0))),
            _ => {}
        }
        return Ok(());
    }
    let value = o.value.clone().unwrap_or(Value::Null);
    match (node.child_mut(last), o.act) {
        (Some(_), Act::Add) => Err(fail(format!("{full} exists already; write {full}=VALUE to change it"))),
        (Some(found), _) => {
            // A map given to a group of keys changes those it names, as Hydra's does.
            found.merge(Node::new(value, Origin::command_line()));
            Ok(())
        }
        (None, _) => match &mut node.value {
            Value::Map(entries) => {
                entries.push((last.to_string(), Node::new(value, Origin::command_line())));
                Ok(())
            }
            Value::List(items) => {
                Err(fail(format!("{path} is a list of {}, and has no item {last}", items.len())))
            }
            other => Err(fail(format!("{path} is {}, and has no keys", other.name()))),
        },
    }
}

fn same_word(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Scalar { text: a, .. }, Value::Scalar { text: b, .. }) => a == b,
        _ => a == b,
    }
}

fn children(node: &Node, path: &str) -> Vec<String> {
    match &node.value {
        Value::Map(entries) => entries.iter().map(|(k, _)| joined(path, k)).collect(),
        _ => Vec::new(),
    }
}
