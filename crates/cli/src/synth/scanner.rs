//! The scanners of `synth`: their options and settings.

use crate::electrons;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use clearshot_scenes::{Ct, Mr, Scanner};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Photons are counted behind the section at many angles; slices by filtered backprojection.
    Ct,
    /// Rows of k-space are read with noise; magnitudes of the inverse transform.
    Mr,
}

#[derive(Args)]
pub struct ScannerArgs {
    /// Simulate a scanner, with the scene as a section of a body: `ct` counts photons behind it at many angles and reconstructs it by filtered backprojection; `mr` reads rows of its Fourier transform
    /// (k-space) with noise and takes magnitudes. The files are in the scene's unit, 0 to 1; CT covers the circle that fits into the section, and outside of it the truth is 0 too. Default: a
    /// camera.
    #[arg(long, value_enum, conflicts_with_all = ["peak", "background", "read_noise", "psf_sigma", "speckle", "salt_and_pepper", "flat_field", "hot_pixels", "bits"])]
    scanner: Option<Kind>,
    /// Set the mean photons of an unattenuated ray, for CT. Default: 20000.
    #[arg(long, requires = "scanner", value_parser = electrons::ratio::<f64>, allow_negative_numbers = true)]
    photons: Option<f64>,
    /// Set the number of angles, evenly over half a turn, for CT. Default: 180.
    #[arg(long, requires = "scanner", value_parser = clap::value_parser!(u32).range(1..))]
    views: Option<u32>,
    /// Set the standard deviation of the electronic noise in photons, for CT. Default: 5.
    #[arg(long, requires = "scanner", value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    electronic_noise: Option<f64>,
    /// Set the standard deviation of the noise of real and imaginary parts, for MR. Default: 0.06.
    #[arg(long, requires = "scanner", value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    mr_noise: Option<f64>,
    /// Read one in N rows of k-space, always those in the middle and the others at random, for MR. Default: 1, all rows.
    #[arg(long, requires = "scanner", value_name = "N", value_parser = acceleration, allow_negative_numbers = true)]
    acceleration: Option<f64>,
}

fn acceleration(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n >= 1.0);
    number.ok_or_else(|| "a number of 1 or more is needed".into())
}

/// A scanner's numbers, for the record in its images.
pub fn record(scanner: &Scanner) -> Value {
    match scanner {
        Scanner::Ct(ct) => json!({
            "kind": "ct", "photons": ct.photons, "electronic_noise": ct.electronic_noise, "views": ct.views,
            "opacity": ct.opacity,
        }),
        Scanner::Mr(mr) => json!({
            "kind": "mr", "noise": mr.noise, "acceleration": mr.acceleration, "centre": mr.centre,
        }),
    }
}

impl ScannerArgs {
    /// The scanner that is asked for, if one is.
    pub fn scanner(&self) -> Result<Option<Scanner>> {
        let ct = [
            ("--photons", self.photons.is_some()),
            ("--views", self.views.is_some()),
            ("--electronic-noise", self.electronic_noise.is_some()),
        ];
        let mr = [("--mr-noise", self.mr_noise.is_some()), ("--acceleration", self.acceleration.is_some())];
        let foreign = |options: &[(&str, bool)], name: &str| match options.iter().find(|(_, given)| *given) {
            Some((option, _)) => bail!("{option}: an option of --scanner {name}; leave it out"),
            None => Ok(()),
        };
        Ok(Some(match self.scanner {
            None => return Ok(None),
            Some(Kind::Ct) => {
                foreign(&mr, "mr")?;
                let usual = Ct::default();
                Scanner::Ct(Ct {
                    photons: self.photons.unwrap_or(usual.photons),
                    views: self.views.map_or(usual.views, |n| n as usize),
                    electronic_noise: self.electronic_noise.unwrap_or(usual.electronic_noise),
                    ..usual
                })
            }
            Some(Kind::Mr) => {
                foreign(&ct, "ct")?;
                let usual = Mr::default();
                Scanner::Mr(Mr {
                    noise: self.mr_noise.unwrap_or(usual.noise),
                    acceleration: self.acceleration.unwrap_or(usual.acceleration),
                    ..usual
                })
            }
        }))
    }
}
