//! Destinations for restored values as they are computed, so that an image larger than memory is never held whole.

use crate::error::Result;
use clearshot_image::Description;
use clearshot_restore::stream::Sink;

/// Provides destinations for restored images and maps. `()` has none, so that all are held in memory.
pub trait Outlet {
    /// The destination of an image, as 32-bit floats in native byte order: the restored `image` itself, `std`, `chi2`,
    /// `sample1`, `sample2`, and so on. `None` holds it in memory.
    ///
    /// # Errors
    /// If it does not fit the destination.
    fn sink(&self, name: &str, description: &Description) -> Result<Option<Box<dyn Sink>>>;
}

impl Outlet for () {
    fn sink(&self, _: &str, _: &Description) -> Result<Option<Box<dyn Sink>>> {
        Ok(None)
    }
}
