//! `clearshot deconvolve`: removes the blur of the microscope from image files, with Richardson-Lucy or a Wiener
//! filter.

use crate::camera::KnownCameraArgs;
use crate::electrons::{self, Background};
use crate::restoring::Files;
use anyhow::Result;
use clap::{Args, ValueEnum};
use clearshot::{Deconvolution, PointSpread, Restorer};
use std::io::Write;

#[derive(Args)]
#[command(
    override_usage = "clearshot deconvolve [OPTIONS] <IN>... <OUT>\n       clearshot deconvolve [OPTIONS] <IN>... --output <OUT>"
)]
pub struct Deconvolve {
    #[command(flatten)]
    files: Files,
    /// Deconvolve by this method.
    #[arg(long, value_enum, default_value_t = Way::RichardsonLucy)]
    method: Way,
    /// Deconvolve with this point-spread function: a file with its peak in the middle (a plane, or with --volume a stack), which is resampled to the
    /// image's pixel size if both files state theirs; gaussian:1.5px; or airy:na=1.4,em=520nm (add pixel=65nm, and z=200nm for stacks, if the file
    /// does not state them).
    #[arg(long, value_name = "PSF", conflicts_with = "psf_sigma", required_unless_present_any = ["psf_sigma", "list"])]
    psf: Option<String>,
    /// Use a Gaussian PSF of this standard deviation in pixels, or one for each axis (Z,Y,X). Default: --psf.
    #[arg(long, value_delimiter = ',')]
    psf_sigma: Vec<f64>,
    #[command(flatten)]
    camera: KnownCameraArgs,
    /// Set the background, which is left out of the result: mean electrons, or a file of frames without an object, in counts, whose mean over
    /// all planes is the background of each pixel.
    #[arg(long, value_name = "ELECTRONS|FILE", default_value = "0", value_parser = electrons::background, allow_negative_numbers = true)]
    background: Background,
    /// Set the strength of the total-variation term (0.002 to 0.02 where noise is strong).
    #[arg(long, default_value_t = 0.0)]
    tv: f32,
    /// Run this many steps everywhere. Default: until the predicted error is least, which takes more steps where it is
    /// bright. Pieces of a cut image all take the steps of the brightest of a few.
    #[arg(long)]
    steps: Option<usize>,
    /// Set the power of the noise over that of the image, for Wiener's filter.
    #[arg(long, default_value_t = 0.01)]
    balance: f32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Maximum likelihood under Poisson noise, step by step.
    RichardsonLucy,
    /// Division in Fourier space, in one step.
    Wiener,
}

impl Deconvolve {
    pub fn run(self) -> Result<()> {
        if self.files.list {
            return list();
        }
        let restorer = match self.method {
            Way::Wiener => Restorer::wiener(self.balance),
            Way::RichardsonLucy => Restorer::richardson_lucy(Deconvolution {
                background: self.background.level().unwrap_or(0.0) as f32,
                total_variation: self.tv,
                steps: self.steps,
            }),
        };
        let mut settings = self.files.settings(self.camera.read()?);
        settings.background = self.background.file();
        settings.psf = Some(match &self.psf {
            Some(text) => text.parse()?,
            None => PointSpread::gaussian(&self.psf_sigma),
        });
        self.files.restore(&restorer, &settings)
    }
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "richardson-lucy  maximum likelihood under Poisson noise, step by step")?;
    writeln!(out, "    --gain, --offset, --read-noise   the camera; estimated where no gain is given")?;
    writeln!(
        out,
        "    --background 0                   mean electrons, or a file of frames without an object"
    )?;
    writeln!(out, "    --tv 0                           strength of the total-variation term")?;
    writeln!(
        out,
        "    --steps                          default: until the predicted error is least, by brightness"
    )?;
    writeln!(out, "wiener           division in Fourier space, in one step")?;
    writeln!(out, "    --balance 0.01                   the power of the noise over that of the image")?;
    Ok(())
}
