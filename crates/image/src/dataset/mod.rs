//! Data sets: lists of images (`list`), their normalisation (`normalise`), joint augmentation (`augment`), and
//! crops drawn from them (`crop`). Crop `i` is a pure function of the seed and `i`, whatever thread asks for it.

pub mod augment;
pub mod crop;
pub mod list;
pub mod normalise;

pub use augment::{Symmetry, intensity};
pub use crop::{Balance, Crop, CropSpec, Dataset};
pub use list::{Entry, Listing, Split};
pub use normalise::{Normaliser, Range};
