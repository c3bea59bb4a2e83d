//! `clearshot psf`: measures a point-spread function from an image of beads, and writes a file for `--psf`.

use anyhow::{Result, bail};
use clap::Args;
use clearshot::{BeadSettings, average_beads};
use clearshot_image::format::has_known_extension;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
pub struct Psf {
    /// Average the beads of this image.
    #[arg(value_name = "BEADS")]
    image: PathBuf,
    /// Write the point-spread function to this file, with the image's pixel size; `restore` and `deconvolve --psf` resample it to the pixels of their
    /// images.
    #[arg(short, long, alias = "out", value_name = "OUT")]
    output: PathBuf,
    /// Use this many pixels on each side of a bead's brightest pixel.
    #[arg(long, default_value_t = 8, value_name = "PIXELS")]
    radius: usize,
    /// Use beads of at least this height above the background, relative to the brightest pixel.
    #[arg(long, default_value_t = 0.3, value_name = "SHARE")]
    least: f64,
    /// Average volumes along Z, Y and X. Default: one plane.
    #[arg(long)]
    volume: bool,
    /// Use this image of a file that contains several, by name or number. Default: the first.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Replace existing files. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

impl Psf {
    pub fn run(self) -> Result<()> {
        if !has_known_extension(&self.output) {
            bail!("{}: name a file such as psf.tif, psf.ome.tif or psf.npy", self.output.display());
        }
        let (radius, least, volume, item) = (self.radius, self.least, self.volume, self.item);
        let beads = average_beads(&self.image, &BeadSettings { radius, least, volume, item })?;
        beads.write(&self.output, self.force)?;
        let fwhm = beads.fwhm();
        if self.json {
            let record = json!({
                "output": self.output, "beads": beads.count, "fwhm_pixels": fwhm, "pixel_nm": beads.pixels,
            });
            println!("{record}");
            return Ok(());
        }
        let widths: Vec<String> = fwhm.iter().map(|w| format!("{w:.2}")).collect();
        println!(
            "{}: {} beads, full width at half maximum {} pixels",
            self.output.display(),
            beads.count,
            widths.join(" x ")
        );
        if let Some(pixels) = &beads.pixels {
            let widths: Vec<String> = fwhm.iter().zip(pixels).map(|(w, p)| format!("{:.0}", w * p)).collect();
            println!("{} nm", widths.join(" x "));
        }
        Ok(())
    }
}
