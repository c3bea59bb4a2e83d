//! The table of formats. A format is one file (or folder) here and one row below: how to recognise it,
//! how to open it, and how to write it.

pub mod dicom;
pub mod fits;
pub(crate) mod jpeg;
pub(crate) mod jpeg2000;
pub(crate) mod jpegls;
pub mod nifti;
pub mod npy;
pub mod png;
pub mod tiff;
pub mod zarr;
pub(crate) mod zip;

use crate::address::Address;
use crate::bytes::Bytes;
use crate::error::{Error, Result, request};
use crate::image::{Description, Image};
use crate::share::Share;
use crate::writer::{Joined, Target, WriteOptions};
use std::path::Path;

/// A row of the table of formats.
pub struct Format {
    pub name: &'static str,
    /// Endings of file names, without the dot, the longest first.
    pub extensions: &'static [&'static str],
    /// Whether the first bytes (none for a folder) and the name look like it.
    recognise: fn(&Path, &[u8]) -> bool,
    open: fn(&Path, Option<&str>) -> Result<Image>,
    create: Create,
}

type Create = fn(&Path, &Description, &WriteOptions) -> Result<Box<dyn Target>>;

/// Every format, in the order in which files are tried. DICOM is first: what stands before its mark may be a
/// TIFF header.
pub const FORMATS: &[Format] = &[
    Format {
        name: dicom::NAME,
        extensions: &["dcm", "dicom"],
        recognise: dicom::recognise,
        open: dicom::open,
        create: dicom::create,
    },
    Format {
        name: tiff::NAME,
        extensions: &[
            "ome.tiff", "ome.tif", "ome.tf2", "ome.tf8", "ome.btf", "tiff", "tif", "svs", "btf", "tf8",
        ],
        recognise: tiff::recognise,
        open: tiff::open,
        create: tiff::create,
    },
    Format {
        name: zarr::NAME,
        extensions: &["ome.zarr.zip", "zarr.zip", "ome.zarr", "zarr", "ozx"],
        recognise: zarr::recognise,
        open: zarr::open,
        create: zarr::create,
    },
    Format {
        name: npy::NAME,
        extensions: &["npy", "npz"],
        recognise: npy::recognise,
        open: npy::open,
        create: npy::create,
    },
    Format {
        name: png::NAME,
        extensions: &["png"],
        recognise: png::recognise,
        open: png::open,
        create: png::create,
    },
    Format {
        name: jpeg::file::NAME,
        extensions: &["jpg", "jpeg"],
        recognise: jpeg::file::recognise,
        open: jpeg::file::open,
        create: jpeg::file::create,
    },
    Format {
        name: fits::NAME,
        extensions: &["fits.gz", "fit.gz", "fts.gz", "fits", "fit", "fts"],
        recognise: fits::recognise,
        open: fits::open,
        create: fits::create,
    },
    Format {
        name: nifti::NAME,
        extensions: &["nii.gz", "nii", "hdr", "img"],
        recognise: nifti::recognise,
        open: nifti::open,
        create: nifti::create,
    },
];

/// The usual extensions of the formats that are written.
pub const WRITTEN: &str = ".tif, .ome.tif, .ome.zarr, .nii.gz, .fits, .npy, .png or .dcm";

fn known() -> String {
    FORMATS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
}

/// Whether a file's name has an ending that some format uses.
pub fn has_known_extension(path: &Path) -> bool {
    by_name(path).is_some()
}

fn by_name(path: &Path) -> Option<&'static Format> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    FORMATS.iter().find(|f| f.extensions.iter().any(|e| name.ends_with(&format!(".{e}"))))
}

/// Refuses what cannot be written at an address; a name without an ending is that of a folder of images.
pub fn refuse_output(path: &Path) -> Result<()> {
    let Some(address) = Address::of(path)? else { return Ok(()) };
    refuse_other_than_zarr(&address.path())?;
    if address.is_s3() {
        return Ok(());
    }
    request(format!(
        "{address}: http addresses are for reading only; write to s3://BUCKET/NAME.zarr (AWS_ENDPOINT_URL names a server other than Amazon's) or to a local folder"
    ))
}

/// Refuses what is not a Zarr folder at an address.
fn refuse_other_than_zarr(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let what = match by_name(path) {
        Some(format) if format.name != zarr::NAME => format!("{} files", format.name),
        Some(_) if name.ends_with(".zip") || name.ends_with(".ozx") => "zip archives".to_string(),
        _ => return Ok(()),
    };
    request(format!(
        "{}: {what} are read and written on local disks only, and Zarr folders at addresses; copy the file here first, or write to a name that ends in .zarr",
        path.display()
    ))
}

pub(crate) fn open(path: &Path, item: Option<&str>) -> Result<Image> {
    if let Some(address) = Address::of(path)? {
        refuse_other_than_zarr(&address.path())?;
        return zarr::open(&address.path(), item);
    }
    let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    let head = if meta.is_dir() {
        Vec::new()
    } else {
        Bytes::open(path)?.head(4096).map_err(|fault| fault.at(path, "image"))?
    };
    match FORMATS.iter().find(|f| (f.recognise)(path, &head)) {
        Some(format) => (format.open)(path, item),
        None => Err(Error::UnknownFormat { path: path.to_path_buf(), known: known() }),
    }
}

pub(crate) fn create(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
) -> Result<(&'static str, Box<dyn Target>)> {
    let shown = Address::of(path)?.map(|address| address.path());
    let path = shown.as_deref().unwrap_or(path);
    refuse_output(path)?;
    let format = written_as(path)?;
    Ok((format.name, (format.create)(path, description, options)?))
}

/// The format that a file of this name is written in.
fn written_as(path: &Path) -> Result<&'static Format> {
    by_name(path)
        .or_else(|| within_zarr(path))
        .ok_or_else(|| Error::UnknownEnding { path: path.to_path_buf() })
}

/// Refuses what a file of this name cannot hold of an image of this description, before anything is made.
pub(crate) fn check(path: &Path, description: &Description) -> Result<()> {
    refuse_output(path)?;
    match written_as(path)?.name {
        zarr::NAME => zarr::check(path, description),
        tiff::NAME => tiff::check(path, description),
        png::NAME => png::check(path, description),
        dicom::NAME => dicom::check(path, description),
        // None is written, and nothing is made.
        jpeg::file::NAME => jpeg::file::create(path, description, &WriteOptions::default()).map(drop),
        _ => Ok(()),
    }
}

/// Whether several writers can make a file of this name together: an OME-Zarr folder, which has a file for each chunk.
pub fn can_be_shared(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    by_name(path).is_some_and(|f| f.name == zarr::NAME) && name.ends_with(".zarr")
}

pub(crate) fn join(
    path: &Path,
    description: &Description,
    options: &WriteOptions,
    share: &Share,
) -> Result<(&'static str, Joined)> {
    refuse_output(path)?;
    if !can_be_shared(path) {
        return request(format!(
            "{}: only OME-Zarr folders can be written by several jobs; write to a name that ends in .ome.zarr",
            path.display()
        ));
    }
    Ok((zarr::NAME, zarr::join(path, description, options, share)?))
}

/// The format of a group in a folder of Zarr: `PLATE.zarr/A/1/0`.
fn within_zarr(path: &Path) -> Option<&'static Format> {
    let is_store = |folder: &Path| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.ends_with(".zarr")
    };
    let format = FORMATS.iter().find(|f| f.name == zarr::NAME);
    path.ancestors().skip(1).any(is_store).then_some(format).flatten()
}

/// Whether a file written from this description has the other images of the file that it was read from.
pub(crate) fn keeps_others(path: &Path, description: &Description) -> bool {
    match by_name(path).map(|f| f.name) {
        Some(tiff::NAME) => tiff::keeps_others(path, description),
        Some(fits::NAME) => fits::keeps_others(description),
        _ => false,
    }
}

/// Which of several images is meant: by name, by number (with a `#` before it never a name), or the first.
pub(crate) fn choose(path: &Path, items: &[String], item: Option<&str>) -> Result<usize> {
    let Some(wanted) = item else { return Ok(0) };
    items
        .iter()
        .position(|name| name == wanted)
        .or_else(|| {
            let number = wanted.strip_prefix('#').unwrap_or(wanted).parse().ok();
            number.filter(|&n: &usize| n < items.len())
        })
        .ok_or_else(|| Error::NoSuchItem {
            path: path.to_path_buf(),
            item: wanted.to_string(),
            items: items.to_vec(),
        })
}
