//! `clearshot deconvolve`: image files without the blur of the microscope, by Richardson-Lucy.

use crate::restoring::{Files, regions};
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::Image;
use clearshot_physics::{Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use std::path::PathBuf;

#[derive(Args)]
pub struct Deconvolve {
    #[command(flatten)]
    files: Files,
    /// A file with the point-spread function, its peak in the middle: a plane, or with --volume a stack.
    #[arg(long, conflicts_with = "psf_sigma", required_unless_present = "psf_sigma")]
    psf: Option<PathBuf>,
    /// A Gaussian PSF instead: its standard deviation in pixels, or one for each axis (Z,Y,X).
    #[arg(long, value_delimiter = ',')]
    psf_sigma: Vec<f64>,
    /// Electrons per count.
    #[arg(long, default_value_t = 1.0)]
    gain: f32,
    /// Counts without light.
    #[arg(long, default_value_t = 0.0)]
    offset: f32,
    /// The standard deviation of the read noise in electrons.
    #[arg(long, default_value_t = 0.0)]
    read_noise: f32,
    /// Mean electrons of the background, which is left out of the result.
    #[arg(long, default_value_t = 0.0)]
    background: f32,
    /// The strength of the total-variation term (0.002 to 0.02 where noise is strong).
    #[arg(long, default_value_t = 0.0)]
    tv: f32,
    /// So many steps; unless told, until the predicted error is least.
    #[arg(long)]
    steps: Option<usize>,
}

impl Deconvolve {
    pub fn run(self) -> Result<()> {
        let (gain, offset) = (self.gain, self.offset);
        if !(gain.is_finite() && gain > 0.0) {
            bail!("--gain {gain}: electrons per count are a number above zero");
        }
        let psf = self.point_spread()?;
        let settings = RichardsonLucy {
            background: self.background,
            read_noise: self.read_noise,
            total_variation: self.tv,
            stop: self.steps.map_or(RichardsonLucy::USUAL.stop, Stop::Steps),
            ..RichardsonLucy::USUAL
        };
        let parameters = serde_json::json!({
            "method": "richardson-lucy", "psf": self.psf, "psf_sigma": self.psf_sigma, "gain": gain, "offset": offset,
            "read_noise": self.read_noise, "background": self.background, "tv": self.tv, "steps": self.steps,
        });
        self.files.each("deconvolve", &parameters, &mut |values, shape| {
            let electrons: Vec<f32> = values.iter().map(|v| gain * (v - offset)).collect();
            let sharp = settings.run(Electrons(&electrons), shape, &psf)?;
            Ok(sharp.values.iter().map(|v| v / gain + offset).collect())
        })
    }

    fn point_spread(&self) -> Result<Psf> {
        let axes = if self.files.is_volume() { 3 } else { 2 };
        let Some(path) = &self.psf else {
            let sigmas = match self.psf_sigma[..] {
                [one] => vec![one; axes],
                ref many if many.len() == axes => many.to_vec(),
                _ => bail!("--psf-sigma has {} numbers, and one or {axes} are needed", self.psf_sigma.len()),
            };
            return Ok(Psf::gaussian(&sigmas)?);
        };
        let name = || path.display().to_string();
        let image = Image::open(path)?;
        let parts = regions(&image, axes == 3).with_context(name)?;
        let [(region, shape)] = &parts[..] else {
            bail!("{}: {} planes or volumes, and a PSF is one", name(), parts.len());
        };
        let values = image.read_f64(region)?.iter().map(|v| v.max(0.0)).collect();
        Psf::new(&shape[..], values).with_context(name)
    }
}
