//! What reading and writing images refuses, with the file, the format and the reason.
//!
//! Parsers work on bytes and do not know where these came from: they return a [`Fault`], and the border
//! of each format adds the file's name and the format's.

use crate::format::WRITTEN;
use std::path::{Path, PathBuf};

/// Why an image could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: there is no such file or folder", path.display())]
    Missing { path: PathBuf },
    #[error("{}: the disk is full; nothing was written, make room and try again", path.display())]
    DiskFull { path: PathBuf },
    #[error("{}: cannot be written, the file system is read-only; choose another folder", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{}: exists already; choose another name, or replace it with --force", path.display())]
    Exists { path: PathBuf },
    #[error("{}: not an image of a format that can be read ({known}){}", path.display(), instead(path))]
    UnknownFormat { path: PathBuf, known: String },
    #[error("{}: its extension is not that of a format that is written; write {WRITTEN}", path.display())]
    UnknownEnding { path: PathBuf },
    #[error("{}: damaged {format} file: {what}", path.display())]
    Damaged { path: PathBuf, format: &'static str, what: String },
    #[error("{}: not supported in {format} files: {what}{}", path.display(), advised(*instead))]
    Unsupported { path: PathBuf, format: &'static str, what: String, instead: Option<&'static str> },
    #[error("{}: {format} file asks for more memory than is sensible: {what}", path.display())]
    Limit { path: PathBuf, format: &'static str, what: String },
    #[error("{}: {what}", path.display())]
    Remote { path: PathBuf, what: String },
    #[error("{}: has no image {item}; it has: {}", path.display(), items.join(", "))]
    NoSuchItem { path: PathBuf, item: String, items: Vec<String> },
    #[error("region {region:?} of level {level} does not lie in an image of shape {shape:?}")]
    Region { region: Vec<std::ops::Range<usize>>, level: usize, shape: Vec<usize> },
    #[error("{got} bytes were given for a region that has {expected}")]
    Length { expected: usize, got: usize },
    #[error("{}: finished with {missing} of {total} chunks of level {level} not written", path.display())]
    Incomplete { path: PathBuf, level: usize, missing: usize, total: usize },
    #[error("{what}")]
    Request { what: String },
}

/// Advice for a file of unknown format.
fn instead(path: &Path) -> &'static str {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    match ending.as_str() {
        _ if path.metadata().is_ok_and(|m| m.is_file() && m.len() == 0) => "; the file is empty",
        "webp" | "heic" | "gif" => {
            "; such pictures were compressed for looking at, and what is lost does not come back: take the original, as TIFF or PNG"
        }
        "czi" | "nd2" | "lif" | "oib" | "oif" | "lsm" | "vsi" | "ims" | "dv" => {
            "; export it as OME-TIFF from the microscope's program, or by Fiji or bfconvert"
        }
        "bmp" | "mrc" | "h5" | "hdf5" | "mat" | "raw" => "; save it as TIFF in the program that made it",
        "nrrd" | "nhdr" | "mha" | "mhd" | "mgh" | "mgz" | "mnc" | "par" | "rec" => {
            "; convert it to NIfTI first (nibabel, SimpleITK and 3D Slicer do)"
        }
        "z" | "bz2" | "xz" | "zip" | "7z" | "tar" => "; unpack it first",
        _ => "",
    }
}

/// What can be done about features of files that are not read; the caller names the feature ([`unsupported_instead`]).
pub(crate) mod instead {
    pub const COMPLEX: &str = "save its real and imaginary parts, or magnitude and phase, as two images";
    pub const DICOM_JPEG: &str = "unpack the pixels first with another program (gdcmconv --raw IN OUT, or dcmdjpls IN OUT for JPEG-LS)";
    pub const DICOM_MPEG: &str = "take the frames out with a video program first";
    pub const TIFF_COMPRESSION: &str =
        "save it again with LZW, deflate, Zstandard or no compression in the program that made it";
}

/// Advice behind what is wrong, where there is any.
fn advised(instead: Option<&str>) -> String {
    instead.map_or(String::new(), |advice| format!("; {advice}"))
}

pub type Result<T> = std::result::Result<T, Error>;

/// What a parser found wrong, before the file's name is added.
#[derive(Debug)]
pub(crate) enum Fault {
    Damaged(String),
    /// Unsupported files, with advice.
    Unsupported(String, Option<&'static str>),
    Limit(String),
    /// A server that does not do what it was asked.
    Remote(String),
    /// A server that refuses to show or take something.
    Forbidden(String),
    Io(std::io::Error),
}

pub(crate) type Parsed<T> = std::result::Result<T, Fault>;

impl From<std::io::Error> for Fault {
    fn from(e: std::io::Error) -> Fault {
        Fault::Io(e)
    }
}

impl Fault {
    /// With what can be done about a feature that is not read, where nothing was said of it.
    pub fn or_instead(self, instead: &'static str) -> Fault {
        match self {
            Fault::Unsupported(what, None) => Fault::Unsupported(what, Some(instead)),
            other => other,
        }
    }

    /// The same once more, for another who waited for the same thing.
    pub fn again(&self) -> Fault {
        match self {
            Fault::Damaged(what) => Fault::Damaged(what.clone()),
            Fault::Unsupported(what, instead) => Fault::Unsupported(what.clone(), *instead),
            Fault::Limit(what) => Fault::Limit(what.clone()),
            Fault::Remote(what) => Fault::Remote(what.clone()),
            Fault::Forbidden(what) => Fault::Forbidden(what.clone()),
            Fault::Io(e) => Fault::Io(std::io::Error::new(e.kind(), e.to_string())),
        }
    }

    pub fn at(self, path: &Path, format: &'static str) -> Error {
        let path = path.to_path_buf();
        match self {
            Fault::Damaged(what) => Error::Damaged { path, format, what },
            Fault::Unsupported(what, instead) => Error::Unsupported { path, format, what, instead },
            Fault::Limit(what) => Error::Limit { path, format, what },
            Fault::Remote(what) | Fault::Forbidden(what) => Error::Remote { path, what },
            Fault::Io(source) => Error::io(&path, source),
        }
    }
}

pub(crate) fn damaged<T>(what: impl Into<String>) -> Parsed<T> {
    Err(Fault::Damaged(what.into()))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Parsed<T> {
    Err(Fault::Unsupported(what.into(), None))
}

/// As [`unsupported`], with what can be done about it.
pub(crate) fn unsupported_instead<T>(what: impl Into<String>, instead: &'static str) -> Parsed<T> {
    Err(Fault::Unsupported(what.into(), Some(instead)))
}

pub(crate) fn request<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Request { what: what.into() })
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
        let path = path.to_path_buf();
        match source.kind() {
            std::io::ErrorKind::StorageFull => Error::DiskFull { path },
            std::io::ErrorKind::NotFound => Error::Missing { path },
            std::io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly { path },
            // Without the name of a file aside, which says nothing to who asked for another.
            std::io::ErrorKind::PermissionDenied => {
                Error::Io { path, source: std::io::ErrorKind::PermissionDenied.into() }
            }
            _ => Error::Io { path, source },
        }
    }
}

/// Runs a decoder of another crate; a panic inside it becomes a fault of the file.
pub(crate) fn guarded<T>(what: &str, decode: impl FnOnce() -> Parsed<T>) -> Parsed<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode)) {
        Ok(outcome) => outcome,
        Err(_) => damaged(format!("the {what} decoder failed on the data")),
    }
}
