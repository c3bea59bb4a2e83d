//! Images of any axes with a model: their planes or volumes ([`Parts`]), restoring them, and writing the result.

pub(crate) mod binning;
mod budget;
mod colours;
pub(crate) mod decide;
pub(crate) mod engine;
pub(crate) mod image;
mod kept;
mod outputs;
pub(crate) mod parts;
mod record;
mod series;
pub(crate) mod session;

pub(crate) use outputs::Map;
pub use parts::Parts;
pub(crate) use session::{Learned, Session};
