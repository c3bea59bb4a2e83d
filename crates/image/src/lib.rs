//! Image files: lazy reading with all metadata, writing in the same form, cutting into tiles and stitching, and data
//! sets.
//!
//! [`Image::open`] recognises a file by its contents and returns a [`Description`] and regions of pixels; [`Writer`]
//! writes a file region by region; [`copy`] combines the two. Formats are rows of [`format::FORMATS`]. A path may be an
//! address ([`address`]).

pub mod address;
pub mod archive;
pub(crate) mod aside;
pub(crate) mod bytes;
pub mod collection;
mod copy;
pub mod dataset;
mod dtype;
mod error;
mod fingerprint;
pub mod format;
mod geometry;
pub mod grid;
mod image;
mod marks;
mod mosaic;
pub mod picture;
mod planes;
mod provenance;
pub(crate) mod raw;
pub(crate) mod remote;
mod reshape;
mod share;
mod single;
mod statistics;
pub mod tiles;
mod writer;

pub use aside::discard_unfinished;
pub use collection::Collection;
pub use copy::{Progress, copy, copy_shared, copy_with, not_kept};
pub use dtype::DType;
pub use error::{Error, Result};
pub use fingerprint::fingerprint;
pub use geometry::{Geometry, Step, Surround};
pub use image::{Axis, Channel, Description, Dim, Image, Rescale, Source, lengths};
pub use marks::Marks;
pub use mosaic::Mosaic;
pub use provenance::Provenance;
pub use reshape::{reshape, take_back};
pub use share::Share;
pub use statistics::Statistics;
pub use writer::{WriteOptions, Writer};
