//! The files of a data set: folders and glob patterns (for manifests see `manifest`); pairs by name; splits by scene.
//! Missing or unpaired files are reported.

use crate::address::Address;
use crate::error::{Error, Result, request};
use crate::format::has_known_extension;
use clearshot_tensor::Fnv1a;
use clearshot_tensor::noise::Key;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// One image, or one pair of images of the same thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub input: PathBuf,
    pub target: Option<PathBuf>,
    /// An image whose pixels other than zero mark those that hold no measurement.
    pub mask: Option<PathBuf>,
    /// Images of one scene never end up in different splits.
    pub scene: String,
    pub domain: String,
    /// Set by a manifest that says so itself.
    pub split: Option<Split>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Split {
    Train,
    Validation,
    Test,
}

impl Split {
    /// As manifests say it.
    pub fn word(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Files that found no partner, with what was looked for.
    pub unpaired: Vec<String>,
    /// What a manifest says the files are, by their fingerprints.
    pub sums: BTreeMap<PathBuf, String>,
}

/// The files of a folder (not of folders below), of a glob pattern, or one file, in the order of their names; the images at
/// an address.
pub fn files(source: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(source);
    if let Some(address) = Address::of(path)? {
        return address.images();
    }
    let is_store = |p: &Path| p.is_dir() && has_known_extension(p);
    let mut found: Vec<PathBuf> = if path.is_dir() && !is_store(path) {
        let entries = std::fs::read_dir(path).map_err(|e| Error::io(path, e))?;
        entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| has_known_extension(p) && (p.is_file() || is_store(p)))
            .filter(|p| !p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.')))
            .collect()
    } else if path.exists() {
        vec![path.to_path_buf()]
    } else if !source.contains(['*', '?', '[']) {
        return Err(Error::io(path, std::io::ErrorKind::NotFound.into()));
    } else {
        let matches = glob::glob(source)
            .map_err(|e| Error::Request { what: format!("{source}: neither a file nor a pattern: {e}") })?;
        matches.flatten().filter(|p| p.is_file() || is_store(p)).collect()
    };
    if found.is_empty() {
        return request(format!("{source}: no images there"));
    }
    found.sort();
    Ok(found)
}

/// A file's name without any of the endings that formats use.
pub fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lower = name.to_lowercase();
    let endings = crate::format::FORMATS.iter().flat_map(|f| f.extensions);
    let longest = endings.filter(|e| lower.ends_with(&format!(".{e}"))).map(|e| e.len() + 1).max();
    name[..name.len() - longest.unwrap_or(0)].to_string()
}

impl Listing {
    /// Images without partners; each is a scene of its own.
    pub fn single(source: &str) -> Result<Listing> {
        Ok(Listing::of_files(files(source)?))
    }

    /// The same of files that are known.
    pub fn of_files(files: Vec<PathBuf>) -> Listing {
        let entry = |input: PathBuf| {
            let scene = stem(&input);
            Entry { input, target: None, mask: None, scene, domain: String::new(), split: None }
        };
        Listing { entries: files.into_iter().map(entry).collect(), ..Listing::default() }
    }

    /// Gives inputs the masks that have their names, endings aside; not all need to have one.
    ///
    /// # Errors
    /// If there are none, or two have one name.
    pub fn with_masks(mut self, source: &str) -> Result<Listing> {
        let mut masks = by_name(source)?;
        for entry in &mut self.entries {
            entry.mask = masks.remove(&stem(&entry.input)).or(entry.mask.take());
        }
        self.unpaired
            .extend(masks.values().map(|m| format!("{}: no partner with the same name", m.display())));
        Ok(self)
    }

    /// Inputs and targets with the same name, endings aside.
    pub fn pairs(inputs: &str, targets: &str) -> Result<Listing> {
        let (inputs, mut targets) = (by_name(inputs)?, by_name(targets)?);
        let mut listing = Listing::default();
        for (name, input) in inputs {
            match targets.remove(&name) {
                Some(target) => listing.entries.push(Entry {
                    input,
                    target: Some(target),
                    mask: None,
                    scene: name,
                    domain: String::new(),
                    split: None,
                }),
                None => listing.unpaired.push(format!("{}: no partner with the same name", input.display())),
            }
        }
        listing
            .unpaired
            .extend(targets.values().map(|t| format!("{}: no partner with the same name", t.display())));
        if listing.entries.is_empty() {
            return request(format!("no pairs: {}", listing.unpaired.join("; ")));
        }
        Ok(listing)
    }

    /// The entries of one split. A scene's split is a function of the seed and its name alone, so adding files
    /// moves none; what a manifest states is kept, for the whole scene.
    pub fn split(&self, which: Split, validation: f64, test: f64, seed: u64) -> Vec<Entry> {
        let stated: BTreeMap<&str, Split> =
            self.entries.iter().filter_map(|e| Some((e.scene.as_str(), e.split?))).collect();
        let of = |scene: &str| {
            stated.get(scene).copied().unwrap_or_else(|| split_of(scene, validation, test, seed))
        };
        self.entries.iter().filter(|e| of(&e.scene) == which).cloned().collect()
    }

    pub fn scenes(&self) -> usize {
        self.entries.iter().map(|e| e.scene.as_str()).collect::<HashSet<_>>().len()
    }
}

fn by_name(source: &str) -> Result<BTreeMap<String, PathBuf>> {
    let mut map = BTreeMap::new();
    for file in files(source)? {
        if let Some(other) = map.insert(stem(&file), file.clone()) {
            return request(format!("{} and {} have the same name", other.display(), file.display()));
        }
    }
    Ok(map)
}

fn split_of(scene: &str, validation: f64, test: f64, seed: u64) -> Split {
    let hash = Fnv1a::of(scene.as_bytes());
    let u = f64::from(Key { seed, step: 0, stream: 0x5911 }.uniform(hash >> 2));
    if u < test {
        Split::Test
    } else if u < test + validation {
        Split::Validation
    } else {
        Split::Train
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_lose_the_whole_ending() {
        for (name, expected) in [("a.ome.tif", "a"), ("b.c.nii.gz", "b.c"), ("d.png", "d"), ("e.zarr", "e")] {
            assert_eq!(stem(Path::new(name)), expected);
        }
    }

    #[test]
    fn scenes_are_never_divided_and_fractions_hold() {
        let entries = (0..3000)
            .map(|i| Entry {
                input: format!("{i}.tif").into(),
                target: None,
                mask: None,
                scene: format!("scene {}", i / 3),
                domain: String::new(),
                split: None,
            })
            .collect();
        let listing = Listing { entries, ..Listing::default() };
        let mut all = HashSet::new();
        let mut total = 0;
        for (which, fraction) in [(Split::Train, 0.7), (Split::Validation, 0.2), (Split::Test, 0.1)] {
            let part = listing.split(which, 0.2, 0.1, 5);
            assert_eq!(part, listing.split(which, 0.2, 0.1, 5));
            let scenes: HashSet<String> = part.iter().map(|e| e.scene.clone()).collect();
            // Four standard deviations of a binomial count of 1000.
            let spread = 4.0 * (1000.0f64 * fraction * (1.0 - fraction)).sqrt();
            assert!((scenes.len() as f64 - 1000.0 * fraction).abs() < spread, "{which:?}: {}", scenes.len());
            assert!(scenes.is_disjoint(&all));
            all.extend(scenes);
            total += part.len();
        }
        assert_eq!(total, 3000);
    }
}
