//! Repeats: several noisy images of one scene, as files or along T, for training without clean images.

use super::list::{Entry, Listing, files, stem};
use crate::error::{Result, request};
use crate::image::{Axis, Description};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Where the repeats of a scene are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeats {
    /// The planes or volumes along T of each file.
    T,
    /// Files: those of one folder below the given one, or those whose names differ in their last number.
    Files,
}

impl Repeats {
    /// How many repeats a file holds in itself.
    pub fn inside(self, d: &Description) -> usize {
        match self {
            Repeats::T => d.dim(Axis::T).map_or(1, |dim| dim.len),
            Repeats::Files => 1,
        }
    }
}

impl Listing {
    /// Files whose scenes say which of them are repeats of one another.
    ///
    /// # Errors
    /// If there are no files.
    pub fn repeats(source: &str, by: Repeats) -> Result<Listing> {
        if by == Repeats::T {
            return Listing::single(source);
        }
        let entry = |input, scene| Entry {
            input,
            target: None,
            mask: None,
            scene,
            domain: String::new(),
            split: None,
        };
        let mut entries = vec![];
        for folder in folders(source) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let inside = files(&folder.to_string_lossy()).unwrap_or_default();
            entries.extend(inside.into_iter().map(|input| entry(input, name.clone())));
        }
        if entries.is_empty() {
            return Listing::named_alike(files(source)?);
        }
        only_repeats(entries, source)
    }

    /// Files of which those in one folder whose names differ in their last number are repeats of one scene.
    ///
    /// # Errors
    /// If no two are.
    pub fn named_alike(files: Vec<PathBuf>) -> Result<Listing> {
        let place = files.first().map(|f| f.display().to_string()).unwrap_or_default();
        let folders: HashSet<&Path> = files.iter().filter_map(|f| f.parent()).collect();
        let several = folders.len() > 1;
        let mut listing = Listing::of_files(files.clone());
        for entry in &mut listing.entries {
            let scene = without_number(&stem(&entry.input)).to_string();
            let folder = entry.input.parent().filter(|_| several).map(|f| f.join(&scene));
            entry.scene = folder.map_or(scene, |f| f.to_string_lossy().into_owned());
        }
        only_repeats(listing.entries, &place)
    }
}

/// Entries without others of their scene are left out.
fn only_repeats(entries: Vec<Entry>, source: &str) -> Result<Listing> {
    let alone = |e: &Entry| entries.iter().filter(|o| o.scene == e.scene).count() < 2;
    let (unpaired, entries): (Vec<Entry>, Vec<Entry>) = entries.iter().cloned().partition(alone);
    if entries.is_empty() {
        return request(format!(
            "{source}: no two files are repeats of one scene; repeats have a folder of their own below it, or names that \
             differ in their last number only (cell_01.tif, cell_02.tif)"
        ));
    }
    let unpaired = unpaired.iter().map(|e| format!("{}: no repeat of it", e.input.display())).collect();
    Ok(Listing { entries, unpaired, ..Listing::default() })
}

/// The folders below a folder that are not images themselves, in the order of their names.
fn folders(source: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(Path::new(source)) else { return vec![] };
    let mut found: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    found.retain(|p| p.is_dir() && !crate::format::has_known_extension(p));
    found.sort();
    found
}

/// A name without its last number and what separates the two.
fn without_number(name: &str) -> &str {
    let end = name.rfind(|c: char| c.is_ascii_digit()).map_or(0, |i| i + 1);
    let begin = name[..end].trim_end_matches(|c: char| c.is_ascii_digit());
    let kept = begin.trim_end_matches(['_', '-', ' ', '.']);
    if kept.is_empty() { begin } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_last_number() {
        for (name, scene) in
            [("cell_01", "cell"), ("a2-b-003", "a2-b"), ("17", ""), ("x", ""), ("w1_t5 c", "w1_t")]
        {
            assert_eq!(without_number(name), scene, "{name}");
        }
    }

    #[test]
    fn files_of_a_folder_or_a_name_are_one_scene() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a_1.npy", "a_2.npy", "b_1.npy"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let listing = Listing::repeats(dir.path().to_str().unwrap(), Repeats::Files).unwrap();
        assert_eq!(listing.entries.iter().map(|e| e.scene.as_str()).collect::<Vec<_>>(), ["a", "a"]);
        assert!(listing.unpaired.len() == 1 && listing.unpaired[0].contains("b_1.npy"));
        for (folder, name) in [("x", "1.npy"), ("x", "other.npy"), ("y", "1.npy"), ("y", "2.npy")] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join(name), "").unwrap();
        }
        let listing = Listing::repeats(dir.path().to_str().unwrap(), Repeats::Files).unwrap();
        assert_eq!(
            listing.entries.iter().map(|e| e.scene.as_str()).collect::<Vec<_>>(),
            ["x", "x", "y", "y"]
        );
    }
}
