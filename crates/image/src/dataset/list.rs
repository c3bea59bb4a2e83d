//! Which files a data set is made of: folders, glob patterns and CSV manifests; pairs by name; splits by
//! scene. What is missing or cannot be paired is reported, not passed over in silence.

use crate::address::{Address, is_address};
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Files that found no partner, with what was looked for.
    pub unpaired: Vec<String>,
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
        let entries = files(source)?
            .into_iter()
            .map(|input| {
                let scene = stem(&input);
                Entry { input, target: None, scene, domain: String::new(), split: None }
            })
            .collect();
        Ok(Listing { entries, unpaired: Vec::new() })
    }

    /// Inputs and targets with the same name, endings aside.
    pub fn pairs(inputs: &str, targets: &str) -> Result<Listing> {
        let by_name = |source: &str| -> Result<BTreeMap<String, PathBuf>> {
            let mut map = BTreeMap::new();
            for file in files(source)? {
                if let Some(other) = map.insert(stem(&file), file.clone()) {
                    return request(format!("{} and {} have one name", other.display(), file.display()));
                }
            }
            Ok(map)
        };
        let (inputs, mut targets) = (by_name(inputs)?, by_name(targets)?);
        let mut listing = Listing::default();
        for (name, input) in inputs {
            match targets.remove(&name) {
                Some(target) => listing.entries.push(Entry {
                    input,
                    target: Some(target),
                    scene: name,
                    domain: String::new(),
                    split: None,
                }),
                None => listing.unpaired.push(format!("{}: no target named {name}", input.display())),
            }
        }
        listing.unpaired.extend(targets.values().map(|t| format!("{}: no input of that name", t.display())));
        if listing.entries.is_empty() {
            return request(format!("no pairs: {}", listing.unpaired.join("; ")));
        }
        Ok(listing)
    }

    /// A CSV file with a header line: `input` and, as wanted, `target`, `scene`, `domain`, `split` (train,
    /// validation or test). Names are relative to the manifest, or addresses.
    pub fn manifest(path: &Path) -> Result<Listing> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        let refuse = |line: usize, what: String| request(format!("{}, line {line}: {what}", path.display()));
        let mut rows = parse_csv(&text).into_iter();
        let Some((_, header)) = rows.next() else { return refuse(1, "no header line".to_string()) };
        let known = ["input", "target", "scene", "domain", "split"];
        let header: Vec<String> = header.iter().map(|h| h.trim().to_lowercase()).collect();
        if let Some(unknown) = header.iter().find(|h| !known.contains(&h.as_str())) {
            return refuse(1, format!("column {unknown:?}; columns are {}", known.join(", ")));
        }
        if !header.iter().any(|h| h == "input") {
            return refuse(1, "no column named input".to_string());
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let beside = |name: String| if is_address(&name) { PathBuf::from(name) } else { folder.join(name) };
        let mut entries: Vec<Entry> = Vec::new();
        let mut stated: BTreeMap<String, Split> = BTreeMap::new();
        for (line, row) in rows {
            if row.len() != header.len() {
                return refuse(line, format!("{} fields, and the header has {}", row.len(), header.len()));
            }
            let field = |name: &str| {
                let at = header.iter().position(|h| h == name)?;
                Some(row[at].trim().to_string()).filter(|v| !v.is_empty())
            };
            let Some(input) = field("input") else { return refuse(line, "no input".to_string()) };
            let input = beside(input);
            let split = match field("split").as_deref() {
                None => None,
                Some("train") => Some(Split::Train),
                Some("validation" | "val") => Some(Split::Validation),
                Some("test") => Some(Split::Test),
                Some(other) => {
                    return refuse(line, format!("split {other:?}; it is train, validation or test"));
                }
            };
            let scene = field("scene").unwrap_or_else(|| stem(&input));
            if let Some(split) = split
                && let Some(other) = stated.insert(scene.clone(), split).filter(|other| *other != split)
            {
                return refuse(line, format!("scene {scene:?} is in {split:?} and, before, in {other:?}"));
            }
            let target = field("target").map(beside);
            entries.push(Entry { input, target, scene, domain: field("domain").unwrap_or_default(), split });
        }
        if entries.is_empty() {
            return refuse(1, "no rows".to_string());
        }
        Ok(Listing { entries, unpaired: Vec::new() })
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

/// Rows of fields with the line each begins on; fields may be quoted, with doubled quotes inside. Empty lines
/// are left out.
fn parse_csv(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut rows = Vec::new();
    let (mut row, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let (mut line, mut begun) = (1, 1);
    let mut chars = text.trim_start_matches('\u{feff}').chars().peekable();
    loop {
        match chars.next() {
            Some('"') if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            Some('"') if quoted || field.is_empty() => quoted = !quoted,
            Some(',') if !quoted => row.push(std::mem::take(&mut field)),
            Some('\r') if !quoted => {}
            end @ (Some('\n') | None) if !quoted || end.is_none() => {
                row.push(std::mem::take(&mut field));
                if row.iter().any(|f| !f.trim().is_empty()) {
                    rows.push((begun, std::mem::take(&mut row)));
                }
                row.clear();
                line += 1;
                begun = line;
                if end.is_none() {
                    return rows;
                }
            }
            Some(c) => {
                line += usize::from(c == '\n');
                field.push(c);
            }
            None => return rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_fields_may_be_quoted() {
        let rows = parse_csv("a,b\n\"x, \"\"y\"\"\",2\r\n\n3,\"two\nlines\"\n");
        assert_eq!(rows[1], (2, vec!["x, \"y\"".to_string(), "2".to_string()]));
        assert_eq!(rows[2], (4, vec!["3".to_string(), "two\nlines".to_string()]));
        assert_eq!(rows.len(), 3);
    }

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
                scene: format!("scene {}", i / 3),
                domain: String::new(),
                split: None,
            })
            .collect();
        let listing = Listing { entries, unpaired: Vec::new() };
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
