//! The images of a file that has several: which of them are restored, and where each goes. Every restorer goes
//! through all of them unless one is named.

use crate::error::{Error, Result};
use crate::notice::Notice;
use clearshot_image::collection::{self, Collection};
use clearshot_image::{Description, Image};
use std::path::{Path, PathBuf};

/// Where the result of one image goes.
pub struct Spot {
    /// What is written: the output, or what becomes a part of it.
    pub write: PathBuf,
    /// The output itself.
    pub output: PathBuf,
    /// What names of files beside the output are made of: OUT, or OUT_IMAGE where there are several.
    pub base: PathBuf,
    /// The input as it is called in messages.
    pub shown: PathBuf,
    /// The image in the file that holds those before it, for its writer to keep.
    pub kept: Option<Description>,
    /// Whether other images go into the same file.
    pub is_shared: bool,
}

impl Spot {
    /// Of an image that has the output for itself.
    pub fn alone(input: &Path, output: &Path) -> Spot {
        let (output, shown) = (output.to_path_buf(), input.to_path_buf());
        Spot { write: output.clone(), base: output.clone(), output, shown, kept: None, is_shared: false }
    }
}

/// What extensions of FITS files are called that hold no light: marks, errors and weights.
const NO_LIGHT: [&str; 9] = ["DQ", "MASK", "BPM", "FLAGS", "ERR", "VAR", "IVAR", "WHT", "SIGMA"];

/// The numbers of the images to restore, and the names of those that hold no light and are not.
pub fn light(d: &Description) -> (Vec<usize>, Vec<String>) {
    let holds_none = |name: &str| {
        let name = name.split(',').next().unwrap_or("").to_uppercase();
        d.format == "FITS" && NO_LIGHT.contains(&name.as_str())
    };
    let (dark, light): (Vec<usize>, Vec<usize>) = (0..d.items.len()).partition(|&n| holds_none(&d.items[n]));
    (light, dark.into_iter().map(|n| d.items[n].clone()).collect())
}

/// What there is to say of the images of a file that has several; `as_written` is what the first is written as.
pub fn notices(output: &Path, first: &Description, as_written: &Description) -> Vec<Notice> {
    let (numbers, names) = light(first);
    let copied = Collection::is_one_file(first, as_written, output);
    let apart = (!copied).then(|| Notice::FilesApart {
        count: numbers.len(),
        output: output.to_path_buf(),
        first: collection::apart(output, &first.items, numbers.first().copied().unwrap_or(0)),
    });
    let dark = (!names.is_empty()).then_some(Notice::NoLight { names, copied });
    apart.into_iter().chain(dark).collect()
}

/// Calls with every image of a file that has several and where it goes; `as_written` is what the first is written as.
///
/// # Errors
/// If an image cannot be opened or the call fails; the image's name stands before why.
pub fn each(
    input: &Path,
    output: &Path,
    first: &Description,
    as_written: &Description,
    replace: bool,
    mut one: impl FnMut(Image, &Spot) -> Result<()>,
) -> Result<()> {
    let together = Collection::is_one_file(first, as_written, output);
    let mut all = Collection::begin(first, as_written, output, replace)?;
    for number in light(first).0 {
        let shown =
            PathBuf::from(format!("{} [{}]", input.display(), collection::label(&first.items, number)));
        let named = |e: Error| e.at(format!("image {number} {:?}", first.items[number]));
        let image = Image::open_number(input, number).map_err(|e| named(e.into()))?;
        let spot = all.spot(number)?;
        let base = collection::apart(output, &first.items, number);
        let output = if together { output.to_path_buf() } else { base.clone() };
        let spot = Spot { write: spot.path, output, base, shown, kept: spot.kept, is_shared: together };
        one(image, &spot).map_err(named)?;
    }
    Ok(all.finish()?)
}
