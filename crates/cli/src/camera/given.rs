//! The options for camera parameters of commands that restore.

use crate::electrons;
use anyhow::Result;
use clap::Args;
use clearshot::KnownCamera;
use std::path::PathBuf;

/// A camera by its numbers, by a file, or by both.
#[derive(Args, Clone, Debug, Default)]
pub struct KnownCameraArgs {
    /// Set the gain, in electrons per count. Default: estimated from each image.
    #[arg(long, value_parser = electrons::gain::<f64>, allow_negative_numbers = true)]
    gain: Option<f64>,
    /// Set the offset, the counts without light. Default: estimated; 0 if `denoise` or `deconvolve` is given a gain.
    #[arg(long, value_parser = electrons::counts::<f64>, allow_negative_numbers = true)]
    offset: Option<f64>,
    /// Set the read noise, its standard deviation in electrons. Default: estimated; 0 if `denoise` or `deconvolve` is given a gain.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    read_noise: Option<f64>,
    /// Read gain, offset, read noise, noise correlation, saturation and dark current from this file, written by `clearshot camera`, or use typical
    /// values for a type of camera: photography, scmos or ccd. Options for single numbers take precedence. Default: what is not given is estimated
    /// from each image.
    #[arg(long, value_name = "FILE|NAME")]
    camera: Option<PathBuf>,
}

impl KnownCameraArgs {
    /// The first of the options that is given.
    pub fn given(&self) -> Option<&'static str> {
        let numbers = [
            ("--gain", self.gain.is_some()),
            ("--offset", self.offset.is_some()),
            ("--read-noise", self.read_noise.is_some()),
            ("--camera", self.camera.is_some()),
        ];
        numbers.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// # Errors
    /// If the file cannot be read or is not a camera.
    pub fn read(&self) -> Result<KnownCamera> {
        let KnownCameraArgs { gain, offset, read_noise, .. } = *self;
        let numbers = KnownCamera { gain, offset, read_noise, ..KnownCamera::default() };
        match &self.camera {
            Some(path) => Ok(numbers.or(KnownCamera::read(path)?)),
            None => Ok(numbers),
        }
    }
}
