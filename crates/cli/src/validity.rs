//! The options for invalid pixels of all commands that restore.

use clap::Args;
use clearshot::Settings;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub struct ValidityArgs {
    /// Treat pixels at or above this value as saturated: their values are estimated from their neighbours. Default: the top of the range, if values
    /// pile up there.
    #[arg(long, value_name = "VALUE")]
    saturation: Option<f32>,
    /// Treat pixels as invalid (dead, hot) where this image of the same size in Y and X is not zero: they are filled from their neighbours. Default:
    /// none.
    #[arg(long, value_name = "FILE")]
    mask: Option<PathBuf>,
    /// Write OUT_mask next to each output: 0 valid, 1 not finite, 2 saturated, 3 marked by --mask. Default: no mask.
    #[arg(long)]
    save_mask: bool,
}

impl ValidityArgs {
    pub fn set(&self, settings: &mut Settings) {
        settings.saturation = self.saturation;
        settings.mask.clone_from(&self.mask);
        settings.save_mask = self.save_mask;
    }
}
