//! `clearshot deconvolve`: image files without the blur of the microscope, by Richardson-Lucy or Wiener.

use crate::camera::CameraArgs;
use crate::denoise::estimated;
use crate::electrons;
use crate::point_spread::{PointSpread, Width};
use crate::restoring::{Files, Job, Looked};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use clearshot_image::Image;
use clearshot_physics::calibration::blind::Doubt;
use clearshot_physics::{Correlation, Electrons};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{Reach, wiener};
use clearshot_restore::learned::Camera;
use clearshot_restore::saturated::NoiseLevel;
use clearshot_restore::stream::Frames;
use serde_json::json;
use std::io::Write;

#[derive(Args)]
pub struct Deconvolve {
    #[command(flatten)]
    files: Files,
    /// How.
    #[arg(long, value_enum, default_value_t = Way::RichardsonLucy)]
    method: Way,
    /// The point-spread function: a file, its peak in the middle (a plane, or with --volume a stack), gaussian:1.5px, or
    /// airy:na=1.4,em=520nm.
    #[arg(long, value_name = "PSF", conflicts_with = "psf_sigma", required_unless_present_any = ["psf_sigma", "list"])]
    psf: Option<String>,
    /// A Gaussian PSF instead: its standard deviation in pixels, or one for each axis (Z,Y,X).
    #[arg(long, value_delimiter = ',')]
    psf_sigma: Vec<f64>,
    #[command(flatten)]
    camera: CameraArgs,
    /// Electrons per count; unless told, Richardson-Lucy estimates it from the image.
    #[arg(long, value_parser = electrons::gain::<f32>, allow_negative_numbers = true)]
    gain: Option<f32>,
    /// Counts without light; 0 unless told or estimated.
    #[arg(long, value_parser = electrons::counts::<f32>, allow_negative_numbers = true)]
    offset: Option<f32>,
    /// The standard deviation of the read noise in electrons; 0 unless told or estimated.
    #[arg(long, value_parser = electrons::amount::<f32>, allow_negative_numbers = true)]
    read_noise: Option<f32>,
    /// Mean electrons of the background, which is left out of the result.
    #[arg(long, default_value_t = 0.0, value_parser = electrons::amount::<f32>, allow_negative_numbers = true)]
    background: f32,
    /// The strength of the total-variation term (0.002 to 0.02 where noise is strong).
    #[arg(long, default_value_t = 0.0)]
    tv: f32,
    /// So many steps everywhere; unless told, until the predicted error is least, which takes more steps where it is
    /// bright. Pieces of a cut image all take the steps of the brightest of a few.
    #[arg(long)]
    steps: Option<usize>,
    /// Wiener's filter: the power of the noise over that of the image.
    #[arg(long, default_value_t = 0.01)]
    balance: f32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// The likeliest image under Poisson noise, step by step.
    RichardsonLucy,
    /// Division in Fourier space, in one step.
    Wiener,
}

/// Pieces that are looked at for the brightest.
const LOOKED_AT: usize = 9;

impl Deconvolve {
    pub fn run(self) -> Result<()> {
        if self.files.list {
            return list();
        }
        let spread = self.point_spread()?;
        let camera = self.camera.read()?;
        let from = |of: fn(&Camera) -> f64| camera.as_ref().map(|c| of(c) as f32);
        let (given_gain, given_offset) = (self.gain.or(from(|c| c.gain)), self.offset.or(from(|c| c.offset)));
        let given_noise = self.read_noise.or(from(|c| c.read_noise));
        let given_correlation = camera.map(|c| c.correlation);
        self.files.each("deconvolve", &mut |image, input| {
            let size = Frames::of(&image.description, self.files.is_volume())?.size();
            let (psf, said) = spread.of(&image.description, &size)?;
            if let Some(said) = said {
                eprintln!("clearshot: {}: {said}", input.display());
            }
            let reach = RichardsonLucy::reach(&psf);
            let mut parameters = json!({ "psf": self.psf, "psf_sigma": self.psf_sigma });
            if self.method == Way::Wiener {
                parameters["method"] = "wiener".into();
                parameters["balance"] = self.balance.into();
                let (psf, balance, correlation) =
                    (psf.clone(), self.balance, given_correlation.unwrap_or_default());
                let restore = Box::new(move |values: &[f32], shape: &[usize]| {
                    wiener::deconvolve(values, shape, &psf, balance, &correlation)
                });
                return Ok(Job {
                    parameters,
                    reach,
                    restore: Some(restore),
                    saturation: None,
                    noise: NoiseLevel::Unknown,
                    sharpens: true,
                });
            }
            let (mut offset, mut read_noise) = (given_offset.unwrap_or(0.0), given_noise.unwrap_or(0.0));
            let mut saturation = None;
            let mut correlation: Correlation = given_correlation.unwrap_or_default();
            let gain = match given_gain {
                Some(gain) => gain,
                None => {
                    let fit = estimated(&self.files, image, input, self.offset, self.read_noise)?;
                    saturation = fit.saturation.map(|v| v as f32);
                    if fit.doubts.contains(&Doubt::GainNotSeen) {
                        bail!("the image does not tell its gain: say --gain (and --offset, --read-noise)");
                    }
                    (offset, read_noise) = (fit.offset as f32, fit.read_noise as f32);
                    correlation = fit.correlation;
                    fit.gain as f32
                }
            };
            let mut settings = RichardsonLucy {
                background: self.background,
                read_noise,
                correlation,
                total_variation: self.tv,
                stop: self.steps.map_or(RichardsonLucy::USUAL.stop, Stop::Steps),
                ..RichardsonLucy::USUAL
            };
            let electrons =
                move |values: &[f32]| -> Vec<f32> { values.iter().map(|v| gain * (v - offset)).collect() };
            if let Some((mean, Looked { values, shape, .. })) =
                self.brightest(image, reach, saturation, &psf.shape())?
            {
                settings.start = Some(settings.start_of(f64::from(gain) * (mean - f64::from(offset))));
                if self.steps.is_none() {
                    let found = settings.run(Electrons(&electrons(&values)), &shape, &psf)?;
                    settings.stop = found.levels.map_or(Stop::Steps(found.steps), Stop::Levels);
                    eprintln!("clearshot: {}: {} for all pieces", input.display(), in_words(&settings.stop));
                }
            }
            parameters["method"] = "richardson-lucy".into();
            parameters["gain"] = gain.into();
            parameters["gain_estimated"] = given_gain.is_none().into();
            parameters["offset"] = offset.into();
            parameters["read_noise"] = read_noise.into();
            if !correlation.is_white() {
                parameters["correlation"] = json!(correlation);
            }
            parameters["background"] = self.background.into();
            parameters["tv"] = self.tv.into();
            parameters["steps"] = match settings.stop {
                Stop::Steps(n) => n.into(),
                stop => in_words(&stop).into(),
            };
            let psf = psf.clone();
            let restore = Box::new(move |values: &[f32], shape: &[usize]| {
                let sharp = settings.run(Electrons(&electrons(values)), shape, &psf)?;
                Ok(sharp.values.iter().map(|v| v / gain + offset).collect())
            });
            let [gain, offset, read_noise] = [gain, offset, read_noise].map(f64::from);
            let noise = NoiseLevel::Camera { gain, offset, read_noise };
            Ok(Job { parameters, reach, restore: Some(restore), saturation, noise, sharpens: true })
        })
    }

    /// Of an image that is cut, the brightest of a few pieces, without invalid pixels, and the mean of all of them.
    fn brightest(
        &self,
        image: &Image,
        reach: Reach,
        full: Option<f32>,
        psf: &[usize],
    ) -> Result<Option<(f64, Looked)>> {
        let (mut best, mut most): (Option<Looked>, f64) = (None, f64::NEG_INFINITY);
        let (mut sum, mut count) = (0.0, 0);
        self.files.look_at(image, reach, LOOKED_AT, 0, full, &mut |looked| {
            let light = looked.values.iter().map(|&v| f64::from(v)).sum::<f64>();
            (sum, count) = (sum + light, count + looked.values.len());
            let mean = light / looked.values.len() as f64;
            // What is left over at an edge may be narrower than the PSF.
            let fits = looked.shape.iter().zip(psf).all(|(n, p)| n >= p);
            if fits && mean > most {
                (best, most) = (Some(looked), mean);
            }
            Ok(())
        })?;
        Ok(best.map(|looked| (sum / count as f64, looked)))
    }

    fn point_spread(&self) -> Result<PointSpread> {
        let axes = if self.files.is_volume() { 3 } else { 2 };
        if let Some(text) = &self.psf {
            return PointSpread::parse(text, axes);
        }
        if self.psf_sigma.len() != 1 && self.psf_sigma.len() != axes {
            bail!("--psf-sigma has {} numbers, and one or {axes} are needed", self.psf_sigma.len());
        }
        let words: Vec<String> = self.psf_sigma.iter().map(|s| s.to_string()).collect();
        let widths = self.psf_sigma.iter().map(|&s| Width::Pixels(s)).collect();
        Ok(PointSpread::Gaussian { text: format!("gaussian:{}", words.join(",")), widths })
    }
}

/// When steps end, in words.
fn in_words(stop: &Stop) -> String {
    match stop {
        Stop::Steps(n) => format!("{n} steps"),
        Stop::Levels(levels) => format!("{} to {} steps by brightness", levels.least(), levels.most()),
        Stop::Predicted { .. } | Stop::Discrepancy { .. } => "least predicted error".into(),
    }
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "richardson-lucy  the likeliest image under Poisson noise, step by step")?;
    writeln!(out, "    --gain, --offset, --read-noise   the camera; estimated where no gain is told")?;
    writeln!(out, "    --background 0                   mean electrons that are left out of the result")?;
    writeln!(out, "    --tv 0                           strength of the total-variation term")?;
    writeln!(
        out,
        "    --steps                          unless told, until the predicted error is least, by brightness"
    )?;
    writeln!(out, "wiener           division in Fourier space, in one step")?;
    writeln!(out, "    --balance 0.01                   the power of the noise over that of the image")?;
    Ok(())
}
