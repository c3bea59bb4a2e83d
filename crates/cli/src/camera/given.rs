//! The camera of a file, as an option of verbs that restore.

use anyhow::Result;
use clap::Args;
use clearshot_restore::camera::file;
use clearshot_restore::learned::Camera;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub struct CameraArgs {
    /// Take gain, offset, read noise and the correlation of the noise from this file, which `clearshot camera` writes; options
    /// that name a number go before it. Default: what is not given is estimated from each image.
    #[arg(long, value_name = "FILE")]
    camera: Option<PathBuf>,
}

impl CameraArgs {
    pub fn is_given(&self) -> bool {
        self.camera.is_some()
    }

    /// # Errors
    /// If the file cannot be read or is not a camera.
    pub fn read(&self) -> Result<Option<Camera>> {
        Ok(self.camera.as_deref().map(file::read).transpose()?)
    }
}
