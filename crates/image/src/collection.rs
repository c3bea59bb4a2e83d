//! Writes several images of one file, one after the other, into one file of the same kind.
//!
//! TIFF and FITS writers copy the other images of the file that an image was read from, so each image goes into the file
//! that the previous one made. Zarr has a folder for each image; the groups around them (plates, wells) are copied. Where
//! neither is possible, each image becomes a separate file, named after the output and the image. Everything is made in a
//! hidden folder and renamed when complete.

use crate::address::is_address;
use crate::aside::AsidePlace;
use crate::dataset::list::stem;
use crate::error::{Error, Result};
use crate::format::{keeps_others, zarr};
use crate::image::{Description, Image};
use std::path::{Path, PathBuf};

/// See the module.
pub struct Collection {
    output: PathBuf,
    items: Vec<String>,
    way: Way,
}

enum Way {
    /// The goes that are done.
    Chain(AsidePlace, usize),
    Groups(AsidePlace),
    Apart,
}

/// Where an image is to be written.
pub struct Spot {
    pub path: PathBuf,
    /// The image in the file that holds those before it, for its writer to keep.
    pub kept: Option<Description>,
}

impl Collection {
    /// Begins a file of the images that `input` has. `written` is what the first of them will be written as.
    ///
    /// # Errors
    /// If the output is there and may not be replaced, or its folder cannot be written.
    pub fn begin(
        input: &Description,
        written: &Description,
        output: &Path,
        replace: bool,
    ) -> Result<Collection> {
        let way = if keeps_others(output, written) {
            Way::Chain(AsidePlace::create(output, replace)?, 0)
        } else if groups(input, output) {
            let place = AsidePlace::create(output, replace)?;
            let root = place.room(0)?;
            for (key, bytes) in zarr::frame(&input.path, &input.items)? {
                let path = root.join(key);
                let fail = |e| Error::io(&path, e);
                std::fs::create_dir_all(path.parent().unwrap_or(&root)).map_err(fail)?;
                std::fs::write(&path, bytes).map_err(fail)?;
            }
            Way::Groups(place)
        } else {
            Way::Apart
        };
        Ok(Collection { output: output.to_path_buf(), items: input.items.clone(), way })
    }

    /// Whether one file will hold all images; otherwise each becomes a file of its own.
    pub fn is_one_file(input: &Description, written: &Description, output: &Path) -> bool {
        keeps_others(output, written) || groups(input, output)
    }

    /// Whether a single image written as this brings the other images of its file along.
    pub fn brings_others(written: &Description, output: &Path) -> bool {
        written.items.len() > 1 && keeps_others(output, written)
    }

    /// Where image `item` goes. Images come one after the other, each written before the next is asked for.
    ///
    /// # Errors
    /// If what was written before cannot be read.
    pub fn spot(&mut self, item: usize) -> Result<Spot> {
        match &mut self.way {
            Way::Apart => Ok(Spot { path: apart(&self.output, &self.items, item), kept: None }),
            Way::Groups(place) => {
                let path = place.room(0)?.join(&self.items[item]);
                let folder = path.parent().unwrap_or(&path);
                std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
                Ok(Spot { path, kept: None })
            }
            Way::Chain(place, done) => {
                let kept = match *done {
                    0 => None,
                    n => Some(Image::open_number(place.room(n - 1)?, item)?.description),
                };
                if *done > 1 {
                    place.clear(*done - 2);
                }
                *done += 1;
                Ok(Spot { path: place.room(*done - 1)?, kept })
            }
        }
    }

    /// Gives the file its name, now that all images are written.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn finish(self) -> Result<()> {
        match self.way {
            Way::Apart => Ok(()),
            Way::Groups(place) => place.commit(0),
            Way::Chain(place, done) => place.commit(done.saturating_sub(1)),
        }
    }
}

/// Whether images are folders in a folder.
fn groups(input: &Description, output: &Path) -> bool {
    let name = output.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    input.format == zarr::NAME && name.ends_with(".zarr") && !is_address(output)
}

/// The image that was made of another. A file of the same format may have the input's other images too, in the same order or, where
/// they have names, in any.
///
/// # Errors
/// If the output cannot be read.
pub fn written(of: &Description, output: &Path) -> Result<Image> {
    let first = Image::open(output)?;
    let name = &of.items[of.item];
    let only = |items: &[String]| -> Option<usize> {
        let mut found = (0..items.len()).filter(|&n| items[n] == *name);
        found.next().filter(|_| found.next().is_none())
    };
    if let (Some(_), Some(number), true) =
        (only(&of.items), only(&first.description.items), of.items.len() > 1)
    {
        return Image::open_number(output, number);
    }
    if of.item > 0 && first.description.items.len() == of.items.len() {
        return Image::open_number(output, of.item);
    }
    Ok(first)
}

/// The name of an image's own file: OUT_NAME where the images have distinct names that files can have, otherwise OUT_NUMBER.
pub fn apart(output: &Path, items: &[String], item: usize) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = stem(output);
    let ending = &name[stem.len()..];
    output.with_file_name(format!("{stem}_{}{ending}", label(items, item)))
}

/// What an image is called in names of files.
pub fn label(items: &[String], item: usize) -> String {
    let names: Vec<String> = items.iter().map(|n| n.replace(['/', ','], "-")).collect();
    let plain = |n: &String| {
        !n.is_empty()
            && !n.starts_with('.')
            && n.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let distinct = (0..names.len()).all(|i| !names[..i].contains(&names[i]));
    if distinct && names.iter().all(plain) { names[item].clone() } else { item.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_their_images() {
        let named = |items: &[&str], n: usize| {
            let items: Vec<String> = items.iter().map(|s| s.to_string()).collect();
            apart(Path::new("a/out.ome.tif"), &items, n).display().to_string()
        };
        assert_eq!(named(&["A/1/0", "A/2/0"], 1), "a/out_A-2-0.ome.tif");
        assert_eq!(named(&["SCI", "SCI,2"], 1), "a/out_SCI-2.ome.tif");
        for names in [["", ""], ["x", "x"], ["first image", "b"], ["..", "b"]] {
            assert_eq!(named(&names, 1), "a/out_1.ome.tif");
        }
    }

    #[test]
    fn an_image_is_found_again_by_its_name() {
        use crate::format::zip::{ZipWriter, checksum};
        let folder = tempfile::TempDir::new().expect("a folder");
        let (input, output) = (folder.path().join("in.npz"), folder.path().join("out.npz"));
        let mut zip = ZipWriter::new(std::fs::File::create(&input).expect("a file"));
        for (name, value) in [("one.npy", 1u8), ("two.npy", 2)] {
            let head = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2), }";
            let data =
                [b"\x93NUMPY\x01\x00\x76\x00", format!("{head:<117}\n").as_bytes(), &[value; 4]].concat();
            let (crc, size) = checksum(&mut &data[..]).expect("a sum");
            zip.add(name, size, crc, &mut &data[..]).expect("added");
        }
        zip.finish().expect("finished");
        // The image that is written stands first, before those that it brings along.
        let second = Image::open_number(&input, 1).expect("an image");
        crate::copy_with(&second, &output, false, &mut |_| {}).expect("copied");
        assert_eq!(Image::open(&output).expect("an image").description.items, ["two", "one"]);
        let found = written(&second.description, &output).expect("found");
        assert_eq!(found.read_f64(&found.whole()).expect("values"), [2.0; 4]);
    }
}
