//! Manifests: a data set as one CSV file with a fingerprint of every file.
//!
//! A folder only shows which files exist now. A manifest records which files there were, their contents, and which belong
//! together, so that later one can check that the same images are used for training.

use super::list::{Entry, Listing, Split, stem};
use crate::address::{exists, is_address};
use crate::aside::AsideFile;
use crate::error::{Error, Result, request};
use crate::fingerprint::fingerprint;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const COLUMNS: [&str; 9] =
    ["input", "target", "mask", "scene", "domain", "split", "sha256", "target_sha256", "mask_sha256"];

/// The state of a file since its manifest was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Altered {
    Missing,
    Changed,
    /// The manifest has no fingerprint of it.
    Unknown,
}

impl Altered {
    pub fn word(self) -> &'static str {
        match self {
            Altered::Missing => "missing",
            Altered::Changed => "changed",
            Altered::Unknown => "without a fingerprint",
        }
    }
}

impl Listing {
    /// A CSV file with a header line: `input` and, as wanted, `target`, `mask`, `scene`, `domain`, `split` (train, validation
    /// or test), and the fingerprints `sha256`, `target_sha256` and `mask_sha256`. Names are relative to the manifest, or addresses.
    ///
    /// # Errors
    /// If it cannot be read, or a line of it cannot be meant: which.
    pub fn manifest(path: &Path) -> Result<Listing> {
        let text = match std::fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                return request(format!(
                    "{}: not a text file; a manifest is a CSV file with a header line",
                    path.display()
                ));
            }
            read => read.map_err(|e| Error::io(path, e))?,
        };
        let refuse = |line: usize, what: String| request(format!("{}, line {line}: {what}", path.display()));
        let mut rows = parse_csv(&text).into_iter();
        let Some((_, header)) = rows.next() else { return refuse(1, "no header line".to_string()) };
        let header: Vec<String> = header.iter().map(|h| h.trim().to_lowercase()).collect();
        if let Some(unknown) = header.iter().find(|h| !COLUMNS.contains(&h.as_str())) {
            return refuse(1, format!("column {unknown:?}; columns are {}", COLUMNS.join(", ")));
        }
        if !header.iter().any(|h| h == "input") {
            return refuse(1, "no column named input".to_string());
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let beside = |name: String| if is_address(&name) { PathBuf::from(name) } else { folder.join(name) };
        let mut entries: Vec<Entry> = Vec::new();
        let mut sums = BTreeMap::new();
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
                return refuse(
                    line,
                    format!("scene {scene:?} is in {} and, before, in {}", split.word(), other.word()),
                );
            }
            let target = field("target").map(beside);
            let mask = field("mask").map(beside);
            let files = [
                ("sha256", Some(&input)),
                ("target_sha256", target.as_ref()),
                ("mask_sha256", mask.as_ref()),
            ];
            for (name, file) in files {
                let Some(sum) = field(name).map(|sum| sum.to_lowercase()) else { continue };
                if sum.len() != 64 || !sum.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return refuse(line, format!("{name} {sum:?}; it is 64 hexadecimal digits"));
                }
                let Some(file) = file else { return refuse(line, format!("a {name} without its file")) };
                if sums.insert(file.clone(), sum.clone()).is_some_and(|other| other != sum) {
                    return refuse(line, format!("another {name} of {} than before", file.display()));
                }
            }
            let domain = field("domain").unwrap_or_default();
            entries.push(Entry { input, target, mask, scene, domain, split });
        }
        if entries.is_empty() {
            return refuse(1, "no rows".to_string());
        }
        Ok(Listing { entries, unpaired: Vec::new(), sums })
    }

    /// Every file once: inputs, targets and masks.
    pub fn files(&self) -> Vec<&Path> {
        let each = self.entries.iter().flat_map(Entry::files);
        let mut files: Vec<&Path> = each.flatten().map(PathBuf::as_path).collect();
        files.sort();
        files.dedup();
        files
    }

    /// Reads every file for its fingerprint. `told` is called with the number done.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn take_sums(&mut self, mut told: impl FnMut(usize)) -> Result<()> {
        let mut sums = BTreeMap::new();
        for (done, file) in self.files().into_iter().enumerate() {
            told(done);
            sums.insert(file.to_path_buf(), fingerprint(file)?);
        }
        self.sums = sums;
        Ok(())
    }

    /// The files that are not what the manifest says. `told` is called with the number done.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub fn altered(&self, mut told: impl FnMut(usize)) -> Result<Vec<(PathBuf, Altered)>> {
        let mut found = vec![];
        for (done, file) in self.files().into_iter().enumerate() {
            told(done);
            let what = match self.sums.get(file) {
                _ if !exists(file)? => Altered::Missing,
                None => Altered::Unknown,
                Some(sum) if *sum != fingerprint(file)? => Altered::Changed,
                Some(_) => continue,
            };
            found.push((file.to_path_buf(), what));
        }
        Ok(found)
    }

    /// Writes a manifest, whole or not at all; files below its folder are named from there.
    ///
    /// # Errors
    /// If it is there already and may not be replaced, or cannot be written.
    pub fn write_manifest(&self, path: &Path, replace: bool) -> Result<()> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let full = |path: &Path| path.canonicalize().map_err(|e| Error::io(path, e));
        let folder = full(folder)?;
        let named = |file: &Path| -> Result<String> {
            let whole = if is_address(file) { file.to_path_buf() } else { full(file)? };
            let name = whole.strip_prefix(&folder).unwrap_or(&whole);
            match name.to_str() {
                Some(name) => Ok(quoted(name)),
                None => request(format!("{}: a manifest names files in UTF-8", file.display())),
            }
        };
        let mut text = format!("{}\n", COLUMNS.join(","));
        for entry in &self.entries {
            let sum =
                |file: Option<&PathBuf>| file.and_then(|f| self.sums.get(f)).cloned().unwrap_or_default();
            let fields = [
                named(&entry.input)?,
                entry.target.as_ref().map_or(Ok(String::new()), |t| named(t))?,
                entry.mask.as_ref().map_or(Ok(String::new()), |m| named(m))?,
                quoted(&entry.scene),
                quoted(&entry.domain),
                entry.split.map_or("", Split::word).to_string(),
                sum(Some(&entry.input)),
                sum(entry.target.as_ref()),
                sum(entry.mask.as_ref()),
            ];
            text += &format!("{}\n", fields.join(","));
        }
        let mut file = AsideFile::create(path, replace)?;
        file.append(text.as_bytes()).map_err(|e| Error::io(path, e))?;
        file.commit()
    }

    /// A number that two listings share if they name the same images in the same order, wherever these lie: their names,
    /// scenes, domains, splits and, where they are known, fingerprints (SHA-256, in hexadecimal).
    pub fn identity(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |field: &str| {
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field);
        };
        let name = |p: &Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for entry in &self.entries {
            for file in entry.files() {
                add(&file.map(|f| name(f)).unwrap_or_default());
                add(file.and_then(|f| self.sums.get(f)).map_or("", String::as_str));
            }
            add(&entry.scene);
            add(&entry.domain);
            add(entry.split.map_or("", Split::word));
        }
        crate::fingerprint::hexadecimal(hash)
    }
}

impl Entry {
    fn files(&self) -> [Option<&PathBuf>; 3] {
        [Some(&self.input), self.target.as_ref(), self.mask.as_ref()]
    }
}

/// A field of a CSV file.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) || field.trim() != field {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
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

    fn pair(folder: &Path, name: &str, domain: &str) -> Entry {
        let file = |part: &str| folder.join(part).join(name);
        for part in ["in", "out", "bad"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
            std::fs::write(file(part), format!("{part} {name}")).unwrap();
        }
        let scene = format!("{domain}/{name}");
        let (target, mask) = (Some(file("out")), Some(file("bad")));
        Entry { input: file("in"), target, mask, scene, domain: domain.into(), split: None }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let mut entries = vec![pair(&root, "plain.tif", "x"), pair(&root, "odd, \"name\" .tif", "y z")];
        entries[1].split = Some(Split::Test);
        let mut listing = Listing { entries, ..Listing::default() };
        let mut seen = vec![];
        listing.take_sums(|done| seen.push(done)).unwrap();
        assert_eq!((seen, listing.sums.len()), (vec![0, 1, 2, 3, 4, 5], 6));
        let path = root.join("list.csv");
        listing.write_manifest(&path, false).unwrap();
        assert!(matches!(listing.write_manifest(&path, false), Err(Error::Exists { .. })));
        assert!(
            std::fs::read_to_string(&path)
                .unwrap()
                .contains("\nin/plain.tif,out/plain.tif,bad/plain.tif,x/plain.tif,x,,")
        );
        let again = Listing::manifest(&path).unwrap();
        assert_eq!(again, listing);
        assert_eq!(again.identity(), listing.identity());
        assert_eq!(again.altered(|_| ()).unwrap(), []);
        // The same files elsewhere are the same data set; another order, scene or content is another.
        let moved = tempfile::tempdir().unwrap();
        let elsewhere = moved.path().join("other");
        std::fs::rename(&root, &elsewhere).unwrap();
        let again = Listing::manifest(&elsewhere.join("list.csv")).unwrap();
        assert_eq!(again.identity(), listing.identity());
        let mut other = again.clone();
        other.entries.swap(0, 1);
        assert_ne!(other.identity(), listing.identity());
        // A flipped bit, a missing file, and one without a fingerprint.
        std::fs::write(elsewhere.join("in/plain.tif"), "in plain.tig").unwrap();
        std::fs::remove_file(elsewhere.join("out/plain.tif")).unwrap();
        let mut unknown = again.clone();
        unknown.sums.remove(&elsewhere.join("in/odd, \"name\" .tif"));
        let altered: Vec<Altered> = unknown.altered(|_| ()).unwrap().into_iter().map(|(_, a)| a).collect();
        assert_eq!(altered, [Altered::Unknown, Altered::Changed, Altered::Missing]);
        std::fs::rename(&elsewhere, &root).unwrap();
    }

    #[test]
    fn invalid_fingerprints_are_refused_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.csv");
        let sum = "0".repeat(64);
        for (rows, said) in [
            ("a.tif,,12\n".to_string(), "line 2: sha256 \"12\""),
            (format!("a.tif,,{}\n", "g".repeat(64)), "line 2: sha256"),
            (format!("a.tif,{sum},{sum}\n"), "line 2: a target_sha256 without its file"),
            (format!("a.tif,,{sum}\na.tif,,{}\n", "1".repeat(64)), "line 3: another sha256"),
        ] {
            std::fs::write(&path, format!("input,target_sha256,sha256\n{rows}")).unwrap();
            let error = Listing::manifest(&path).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
