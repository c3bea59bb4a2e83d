//! The images of a multi-image file: which of them are restored, and where each is written. All are restored unless one
//! is selected.

use crate::error::{Error, Result};
use crate::notice::Notice;
use clearshot_image::collection::{self, Collection};
use clearshot_image::{Description, Image};
use std::path::{Path, PathBuf};

/// The destination of the result of one image.
pub struct Spot {
    /// The file to write: the output, or a file that becomes part of it.
    pub write: PathBuf,
    /// The output itself.
    pub output: PathBuf,
    /// The prefix of the names of additional files: OUT, or OUT_IMAGE if there are several images.
    pub base: PathBuf,
    /// The name of the input in messages.
    pub shown: PathBuf,
    /// The image in the file with the previous images, which the writer keeps.
    pub kept: Option<Description>,
    /// Whether other images go into the same file.
    pub is_shared: bool,
}

impl Spot {
    /// For an image with its own output file.
    pub fn alone(input: &Path, output: &Path) -> Spot {
        let (output, shown) = (output.to_path_buf(), input.to_path_buf());
        Spot { write: output.clone(), base: output.clone(), output, shown, kept: None, is_shared: false }
    }
}

/// What extensions of FITS files are called that hold no light: marks, errors and weights.
const NO_LIGHT: [&str; 9] = ["DQ", "MASK", "BPM", "FLAGS", "ERR", "VAR", "IVAR", "WHT", "SIGMA"];

/// The numbers of the images to restore, and the names of those that are skipped because they are masks, errors or
/// weights.
pub fn light(d: &Description) -> (Vec<usize>, Vec<String>) {
    let holds_none = |name: &str| {
        let name = name.split(',').next().unwrap_or("").to_uppercase();
        d.format == "FITS" && NO_LIGHT.contains(&name.as_str())
    };
    let (dark, light): (Vec<usize>, Vec<usize>) = (0..d.items.len()).partition(|&n| holds_none(&d.items[n]));
    (light, dark.into_iter().map(|n| d.items[n].clone()).collect())
}

/// The notices about the images of a multi-image file; `as_written` is the output description of the first.
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

/// Calls a function with every image of a multi-image file and its destination; `as_written` is the output description
/// of the first.
///
/// # Errors
/// If an image cannot be opened or the call fails; the message begins with the name of the image.
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
