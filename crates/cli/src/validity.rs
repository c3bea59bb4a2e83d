//! Which pixels hold no measurement, as options of every verb that restores.

use clap::Args;
use clearshot::Settings;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub struct ValidityArgs {
    /// Take pixels at or above this value as saturated: what they held is estimated from their neighbours. Default: where
    /// values pile up at the top of the range.
    #[arg(long, value_name = "VALUE")]
    saturation: Option<f32>,
    /// Take pixels as invalid (dead, hot) that are not zero in this image of the same Y and X: they are filled from their
    /// neighbours. Default: none.
    #[arg(long, value_name = "FILE")]
    mask: Option<PathBuf>,
    /// Write OUT_mask beside each output: 0 valid, 1 not finite, 2 saturated, 3 marked by --mask. Default: no mask.
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
