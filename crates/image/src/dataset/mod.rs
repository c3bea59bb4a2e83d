//! Data sets: lists of images (`list`), as files with fingerprints (`manifest`), their normalisation (`normalise`), joint augmentation (`augment`), crops drawn
//! from them (`crop`) out of files held in bounded memory (`store`), repeats of one scene (`repeats`), and how many of each domain a batch takes (`mix`). Crop `i` is a pure function of the seed and `i`, whatever thread asks for it.

pub mod augment;
pub mod crop;
pub mod list;
pub mod manifest;
pub mod mix;
pub mod normalise;
pub mod repeats;
pub mod store;

pub use augment::{Symmetry, intensity};
pub use crop::{Crop, CropSpec, Dataset, Domain, Frame, Invalid, LastRows, Part, Rows};
pub use list::{Entry, Listing, Split};
pub use manifest::Altered;
pub use mix::{Balance, Mix};
pub use normalise::{Normaliser, Range};
pub use repeats::Repeats;
pub use store::{Pixels, Store};
