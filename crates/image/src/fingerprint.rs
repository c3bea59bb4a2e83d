//! A hash of the contents of a file, by which a second run recognises the input of the first.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::image::Image;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A number of all the bytes of a file, or of all files of a folder with their names, in hexadecimal (SHA-256). At an address,
/// of what the server lists (names, lengths and its marks of contents), or of the pixels where it does not list.
///
/// # Errors
/// If something of it cannot be read.
pub fn fingerprint(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    match Address::of(path)? {
        None => add(path, &mut hash).map_err(|e| Error::io(path, e))?,
        Some(address) => match address.listed_state().ok().flatten() {
            Some(lines) => lines.iter().for_each(|line| hash.update(format!("{line}\n"))),
            None => add_pixels(path, &mut hash)?,
        },
    }
    Ok(hexadecimal(hash))
}

pub(crate) fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn add_pixels(path: &Path, hash: &mut Sha256) -> Result<()> {
    let image = Image::open(path)?;
    hash.update(format!("{} {:?} {}\n", image.description.axes(), image.shape(), image.dtype().name()));
    for region in image.bands()? {
        hash.update(image.read(&region)?);
    }
    Ok(())
}

/// Entries of a folder are separated by the lengths of their names and contents.
fn add(path: &Path, hash: &mut Sha256) -> std::io::Result<()> {
    if path.is_dir() {
        let mut inside: Vec<PathBuf> =
            std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>()?;
        inside.sort();
        for path in inside {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            let length = std::fs::metadata(&path)?;
            let length = if length.is_dir() { u64::MAX } else { length.len() };
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update(length.to_le_bytes());
            add(&path, hash)?;
        }
        // The folder's end.
        hash.update(u64::MAX.to_le_bytes());
        return Ok(());
    }
    let mut file = std::fs::File::open(path)?;
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(()),
            n => hash.update(&part[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_bytes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("abc");
        std::fs::write(&path, "abc").expect("a file");
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fingerprint(&path).expect("a number"), known);
        assert!(fingerprint(&dir.path().join("none")).expect_err("nothing").to_string().contains("none"));
    }

    /// What is in a folder, however deep, and where; not what the folder itself is called.
    #[test]
    fn a_folder_is_all_that_it_holds() {
        let dir = tempfile::tempdir().expect("a folder");
        let number = |name: &str, files: &[(&str, &str)]| {
            let root = dir.path().join(name);
            for (file, text) in files {
                let path = root.join(file);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(path, text).expect("a file");
            }
            fingerprint(&root).expect("a number")
        };
        let first = number("first", &[("0/a", "1"), ("0/b", "2")]);
        assert_eq!(number("same", &[("0/b", "2"), ("0/a", "1")]), first);
        let others = [
            number("value", &[("0/a", "1"), ("0/b", "3")]),
            number("place", &[("0/a", "1"), ("b", "2")]),
            number("swapped", &[("0/a", "2"), ("0/b", "1")]),
            number("border", &[("0/a", "1b"), ("0/2", "")]),
            number("more", &[("0/a", "1"), ("0/b", "2"), ("0/c", "")]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert!(*other != first && !others[..i].contains(other), "case {i}");
        }
    }
}
