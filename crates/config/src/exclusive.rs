//! Keys of which only one can be used at a time, for example the length of training as a number of iterations or as
//! seconds.
//!
//! A later key replaces earlier ones from other files or groups: these become `null`. Two of them in the same place are an
//! error.

use crate::ConfigError;
use crate::tree::{Node, Value};

/// Keys, dotted, of which one at a time can be meant.
pub(crate) type Exclusive = &'static [&'static str];

/// Which key of each of the sets one place gives, if it gives one.
///
/// # Errors
/// If it gives two of a set.
pub(crate) fn chosen(
    place: &Node,
    sets: &[Exclusive],
) -> Result<Vec<(Exclusive, &'static str)>, ConfigError> {
    let mut out = Vec::new();
    for &set in sets {
        let given = |key: &&'static str| {
            let node = key.split('.').try_fold(place, |node, part| node.child(part))?;
            (node.value != Value::Null).then(|| (*key, node.origin.clone()))
        };
        let given: Vec<_> = set.iter().filter_map(given).collect();
        match given[..] {
            [] => {}
            [(key, _)] => out.push((set, key)),
            _ => return Err(ConfigError::Exclusive { given, keys: set }),
        }
    }
    Ok(out)
}

/// Takes back what was said before under the other keys of a set.
pub(crate) fn take_back(root: &mut Node, chosen: &[(Exclusive, &'static str)]) {
    for (set, key) in chosen {
        let Some(origin) = at(root, key).map(|node| node.origin.clone()) else { continue };
        for other in set.iter().filter(|other| *other != key) {
            if let Some(node) = at(root, other).filter(|node| node.value != Value::Null) {
                node.value = Value::Null;
                node.origin = origin.clone();
            }
        }
    }
}

fn at<'a>(root: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    key.split('.').try_fold(root, |node, part| node.child_mut(part))
}
