//! The files that options are chosen from: the built-in ones, and folders of the user, which take precedence.

use crate::ConfigError;
use crate::exclusive::Exclusive;
use crate::parse::parse;
use crate::tree::{Node, Origin};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders of YAML files. `trainer/gpu.yaml` is option `gpu` of group `trainer`; files at the top are primary.
#[derive(Clone, Debug)]
pub struct Groups {
    embedded: &'static [(&'static str, &'static str)],
    folders: Vec<PathBuf>,
    exclusive: &'static [Exclusive],
}

/// A file that was chosen.
pub(crate) struct File {
    pub node: Node,
    /// Where its contents go: what `# @package` says, if it says something.
    pub package: Option<String>,
}

impl Groups {
    /// Files built in, as (path with slashes and `.yaml`, contents).
    pub fn embedded(files: &'static [(&'static str, &'static str)]) -> Groups {
        Groups { embedded: files, folders: Vec::new(), exclusive: &[] }
    }

    /// Sets of dotted keys of which one at a time can be meant. One that is written later, in another file or on the command
    /// line, takes the place of the others; two at one place are an error.
    pub fn exclusive(self, sets: &'static [&'static [&'static str]]) -> Groups {
        Groups { exclusive: sets, ..self }
    }

    pub(crate) fn exclusive_keys(&self) -> &'static [Exclusive] {
        self.exclusive
    }

    /// A folder whose files come before those that are there already.
    ///
    /// # Errors
    /// If it is not a folder.
    pub fn in_front(mut self, folder: &Path) -> Result<Groups, ConfigError> {
        let metadata = std::fs::metadata(folder);
        let error = match metadata {
            Ok(m) if m.is_dir() => None,
            Ok(_) => Some(std::io::Error::other("a folder of YAML files is needed, and this is a file")),
            Err(e) => Some(e),
        };
        if let Some(error) = error {
            return Err(ConfigError::File { path: folder.into(), error });
        }
        self.folders.insert(0, folder.into());
        Ok(self)
    }

    /// Every option of a group, sorted; of the group '' the primary files. Options in folders below have slashes.
    pub fn options(&self, group: &str) -> Vec<String> {
        let prefix = if group.is_empty() { String::new() } else { format!("{group}/") };
        let own = |path: &str| -> Option<String> {
            let rest = path.strip_prefix(&prefix)?.strip_suffix(".yaml")?;
            (!group.is_empty() || !rest.contains('/')).then(|| rest.to_string())
        };
        self.paths().iter().filter_map(|p| own(p)).collect()
    }

    /// Every group, sorted: the folders that hold files.
    pub fn groups(&self) -> Vec<String> {
        let mut out = BTreeSet::new();
        for path in self.paths() {
            let parents = path.match_indices('/').map(|(i, _)| path[..i].to_string());
            out.extend(parents);
        }
        out.into_iter().collect()
    }

    pub(crate) fn is_group(&self, name: &str) -> bool {
        let inside = format!("{name}/");
        self.paths().iter().any(|p| p.starts_with(&inside))
    }

    fn paths(&self) -> BTreeSet<String> {
        let mut out: BTreeSet<String> = self.embedded.iter().map(|(p, _)| p.to_string()).collect();
        for folder in &self.folders {
            list(folder, "", 0, &mut out);
        }
        out
    }

    /// A file by its path without ending; a user's folders first. None if there is none.
    pub(crate) fn find(&self, path: &str) -> Result<Option<File>, ConfigError> {
        let is_inside = !path.split('/').any(|part| matches!(part, "" | "." | ".."));
        if !is_inside {
            return Ok(None);
        }
        for folder in &self.folders {
            let file = folder.join(format!("{path}.yaml"));
            if file.is_file() {
                return read(&file).map(Some);
            }
        }
        let name = format!("{path}.yaml");
        let Some((name, text)) = self.embedded.iter().find(|(p, _)| *p == name) else { return Ok(None) };
        Ok(Some(File { node: parse(text, name)?, package: package(text) }))
    }

    pub(crate) fn option(&self, group: &str, option: &str, origin: &Origin) -> Result<File, ConfigError> {
        let path = if group.is_empty() { option.to_string() } else { format!("{group}/{option}") };
        if let Some(file) = self.find(&path)? {
            return Ok(file);
        }
        if !group.is_empty() && !self.is_group(group) {
            let (origin, group) = (origin.clone(), group.into());
            return Err(ConfigError::Group { origin, group, known: self.groups() });
        }
        let known = self.options(group);
        Err(ConfigError::Option { origin: origin.clone(), group: group.into(), option: option.into(), known })
    }
}

/// A file of the user's, wherever it lies.
pub(crate) fn read(path: &Path) -> Result<File, ConfigError> {
    const LARGEST: u64 = 16 << 20;
    let failed = |error| ConfigError::File { path: path.into(), error };
    if std::fs::metadata(path).map_err(failed)?.len() > LARGEST {
        return Err(failed(std::io::Error::other("larger than any configuration (16 MiB)")));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Ok(File { node: parse(&text, &path.display().to_string())?, package: package(&text) })
}

/// What the comment `# @package NAME` before the first key says.
fn package(text: &str) -> Option<String> {
    let head = text.lines().take_while(|l| l.trim().is_empty() || l.trim_start().starts_with('#'));
    head.filter_map(|l| l.trim().trim_start_matches('#').trim().strip_prefix("@package"))
        .map(|name| name.trim().to_string())
        .next()
}

fn list(folder: &Path, prefix: &str, depth: usize, out: &mut BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        if entry.path().is_dir() && depth < 8 {
            list(&entry.path(), &format!("{path}/"), depth + 1, out);
        } else if path.ends_with(".yaml") {
            out.insert(path);
        }
    }
}
