//! `clearshot denoise`: image files without their noise, by a method that needs no training.

use crate::camera::CameraArgs;
use crate::electrons;
use crate::restoring::{Files, Job, Looked};
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::Image;
use clearshot_physics::calibration::blind::{BlindFit, Doubt, Known};
use clearshot_physics::{Correlation, Electrons};
use clearshot_restore::classical::{self, METHODS, Method, Reach, stabilise, stabilised};
use clearshot_restore::learned::Camera;
use clearshot_restore::saturated::NoiseLevel;
use serde_json::json;
use std::io::Write;
use std::path::Path;

#[derive(Args)]
pub struct Denoise {
    #[command(flatten)]
    files: Files,
    /// gaussian, median, wiener, nlm, tv or bm3d; exposure divides the light above --offset by --set ratio=R and does nothing
    /// else, as a baseline for short exposures beside long ones; none passes pixels on as they are.
    #[arg(long, default_value = "bm3d")]
    method: String,
    /// A setting of the method, KEY=VALUE; `denoise --list` shows them all.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The standard deviation of the noise, where it is the same everywhere, in the file's unit.
    #[arg(long, conflicts_with_all = ["gain", "offset", "read_noise", "camera"])]
    noise: Option<f32>,
    #[command(flatten)]
    camera: CameraArgs,
    /// Electrons per count: the noise is a camera's, and the generalised Anscombe transform makes it uniform. Unless this or
    /// --noise is told, methods that need the noise estimate it from the image.
    #[arg(long, value_parser = electrons::gain::<f32>, allow_negative_numbers = true)]
    gain: Option<f32>,
    /// Counts without light; 0 unless told or estimated.
    #[arg(long, value_parser = electrons::counts::<f32>, allow_negative_numbers = true)]
    offset: Option<f32>,
    /// The standard deviation of the read noise in electrons; 0 unless told or estimated.
    #[arg(long, value_parser = electrons::amount::<f32>, allow_negative_numbers = true)]
    read_noise: Option<f32>,
}

/// What the noise of a file is.
#[derive(Clone, Copy)]
enum Noise {
    /// The method does not ask.
    Any,
    Uniform(classical::Noise),
    Camera {
        gain: f32,
        offset: f32,
        read_noise: f32,
        correlation: Correlation,
    },
}

impl Noise {
    /// As saturated pixels are estimated with it.
    fn level(self) -> NoiseLevel {
        match self {
            Noise::Any => NoiseLevel::Unknown,
            Noise::Uniform(noise) => NoiseLevel::Uniform(noise.deviation),
            Noise::Camera { gain, offset, read_noise, .. } => {
                let [gain, offset, read_noise] = [gain, offset, read_noise].map(f64::from);
                NoiseLevel::Camera { gain, offset, read_noise }
            }
        }
    }
}

/// Pieces of an image that are looked at for what all of them are to do alike.
const LOOKED_AT: usize = 9;

impl Denoise {
    pub fn run(self) -> Result<()> {
        if self.files.list {
            return list();
        }
        if self.method == "none" {
            if !self.settings.is_empty() {
                bail!("--set {}: the method none has no settings", self.settings[0]);
            }
            return self.files.each("denoise", &mut |_, _| {
                let reach = Reach::Within { halo: 0, align: 1 };
                let (parameters, noise) = (json!({ "method": "none" }), NoiseLevel::Unknown);
                Ok(Job { parameters, reach, restore: None, saturation: None, noise, sharpens: false })
            });
        }
        if self.method == "exposure" {
            let ratio = self.ratio()?;
            let offset = self.offset.unwrap_or(0.0);
            return self.files.each("denoise", &mut |_, _| {
                let parameters =
                    json!({ "method": "exposure", "settings": { "ratio": ratio }, "offset": offset });
                let restore = Box::new(move |values: &[f32], _: &[usize]| {
                    Ok(values.iter().map(|v| offset + (v - offset) / ratio).collect())
                });
                let reach = Reach::Within { halo: 0, align: 1 };
                let noise = NoiseLevel::Unknown;
                Ok(Job { parameters, reach, restore: Some(restore), saturation: None, noise, sharpens: true })
            });
        }
        let mut method = Method::by_name(&self.method)?;
        for setting in &self.settings {
            let (key, value) =
                setting.split_once('=').with_context(|| format!("--set {setting}: KEY=VALUE is needed"))?;
            method.set(key.trim(), value.trim())?;
        }
        let camera = self.camera.read()?;
        self.files.each("denoise", &mut |image, input| {
            let (noise, saturation) = self.noise_of(image, input, &method, camera.as_ref())?;
            let settings: serde_json::Map<String, serde_json::Value> =
                method.settings().iter().map(|s| (s.key.to_string(), s.value.into())).collect();
            let mut parameters = json!({ "method": self.method, "settings": settings });
            match noise {
                Noise::Any => (),
                Noise::Uniform(noise) => parameters["noise"] = noise.deviation.into(),
                Noise::Camera { gain, offset, read_noise, correlation } => {
                    if !correlation.is_white() {
                        parameters["correlation"] = json!(correlation);
                    }
                    parameters["gain"] = gain.into();
                    parameters["offset"] = offset.into();
                    parameters["read_noise"] = read_noise.into();
                }
            }
            let given = self.noise.is_some() || self.gain.is_some() || camera.is_some();
            let estimated = !given && !matches!(noise, Noise::Any);
            parameters["noise_estimated"] = estimated.into();
            let mut method = method;
            if matches!(method, Method::TotalVariation(_)) {
                method = self.settled(method, image, input, noise, saturation)?;
            }
            let restore = Box::new(move |values: &[f32], shape: &[usize]| match noise {
                Noise::Any => method.run(values, shape, classical::Noise::white(0.0)),
                Noise::Uniform(noise) => method.run(values, shape, noise),
                Noise::Camera { gain, offset, read_noise, correlation } => {
                    let electrons: Vec<f32> = values.iter().map(|v| gain * (v - offset)).collect();
                    let sigma = Electrons(read_noise);
                    let clean = stabilised(&method, Electrons(&electrons), shape, sigma, &correlation)?.0;
                    Ok(clean.iter().map(|v| v / gain + offset).collect())
                }
            });
            let (reach, noise) = (method.reach(), noise.level());
            Ok(Job { parameters, reach, restore: Some(restore), saturation, noise, sharpens: false })
        })
    }

    /// How many times the light of the exposure that is wanted these files have.
    fn ratio(&self) -> Result<f32> {
        let needed = "the method exposure needs --set ratio=R: the exposure of these files over the one that is wanted";
        let [setting] = &self.settings[..] else { bail!("{needed}, and no other setting") };
        let Some(("ratio", value)) = setting.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            bail!("--set {setting}: {needed}");
        };
        let ratio = value.parse::<f32>().ok().filter(|r| r.is_finite() && *r > 0.0);
        ratio.with_context(|| format!("--set {setting}: a finite number above zero is needed"))
    }

    /// The method as every piece of an image that is cut is to have it.
    fn settled(
        &self,
        method: Method,
        image: &Image,
        input: &Path,
        noise: Noise,
        full: Option<f32>,
    ) -> Result<Method> {
        let mut said = Vec::new();
        let Reach::Fading { overlap } = method.reach() else { return Ok(method) };
        self.files.look_at(
            image,
            method.reach(),
            LOOKED_AT,
            overlap,
            full,
            &mut |Looked { mut values, shape, core }| {
                let noise = match noise {
                    Noise::Any => classical::Noise::white(0.0),
                    Noise::Uniform(noise) => noise,
                    Noise::Camera { gain, offset, read_noise, correlation } => {
                        values.iter_mut().for_each(|v| *v = gain * (*v - offset));
                        values = stabilise(Electrons(&values), Electrons(read_noise))?;
                        classical::Noise { deviation: 1.0, correlation }
                    }
                };
                said.extend(method.says(&values, &shape, &core, noise)?);
                Ok(())
            },
        )?;
        let settled = method.settled(&said);
        if let Reach::Within { halo, .. } = settled.reach() {
            eprintln!("clearshot: {}: {halo} steps for all pieces", input.display());
        }
        Ok(settled)
    }

    /// As told, or as the image says; then also where its pixels are full.
    fn noise_of(
        &self,
        image: &Image,
        input: &Path,
        method: &Method,
        camera: Option<&Camera>,
    ) -> Result<(Noise, Option<f32>)> {
        if let Some(sigma) = self.noise {
            return Ok((Noise::Uniform(classical::Noise::white(sigma)), None));
        }
        let from = |of: fn(&Camera) -> f64| camera.map(|c| of(c) as f32);
        if let Some(gain) = self.gain.or(from(|c| c.gain)) {
            let offset = self.offset.or(from(|c| c.offset)).unwrap_or(0.0);
            let read_noise = self.read_noise.or(from(|c| c.read_noise)).unwrap_or(0.0);
            let correlation = camera.map(|c| c.correlation).unwrap_or_default();
            return Ok((Noise::Camera { gain, offset, read_noise, correlation }, None));
        }
        if matches!(method, Method::Gaussian(_) | Method::Median(_)) {
            return Ok((Noise::Any, None));
        }
        let fit = estimated(&self.files, image, input, self.offset, self.read_noise)?;
        let (saturation, correlation) = (fit.saturation.map(|v| v as f32), fit.correlation);
        if fit.doubts.contains(&Doubt::GainNotSeen) {
            let deviation = fit.line.deviation(fit.line.pivot) as f32;
            return Ok((Noise::Uniform(classical::Noise { deviation, correlation }), saturation));
        }
        let (gain, offset, read_noise) = (fit.gain as f32, fit.offset as f32, fit.read_noise as f32);
        Ok((Noise::Camera { gain, offset, read_noise, correlation }, saturation))
    }
}

/// The camera as a file's own pixels tell it, said aloud.
pub fn estimated(
    files: &Files,
    image: &Image,
    input: &Path,
    offset: Option<f32>,
    read_noise: Option<f32>,
) -> Result<BlindFit> {
    let known =
        Known { offset: offset.map(f64::from), read_noise: read_noise.map(f64::from), ..Known::default() };
    let fit = files.camera_of(image, known)?;
    let name = input.display();
    if fit.doubts.contains(&Doubt::GainNotSeen) {
        let sigma = fit.line.deviation(fit.line.pivot);
        eprintln!("clearshot: {name}: noise estimated from the image: sigma {sigma:.4} everywhere");
    } else {
        eprintln!(
            "clearshot: {name}: noise estimated from the image: gain {:.4} +- {:.4} electrons per count, offset {:.2} ({:.2} to {:.2}), read noise {:.2} electrons ({:.2} to {:.2})",
            fit.gain,
            fit.gain_error,
            fit.offset,
            fit.offset_range[0],
            fit.offset_range[1],
            fit.read_noise,
            fit.read_noise_range[0],
            fit.read_noise_range[1]
        );
    }
    if let Some(full) = fit.saturation {
        eprintln!("clearshot: {name}: values pile up at {full}: taken as saturated pixels");
    }
    for doubt in &fit.doubts {
        eprintln!("clearshot: {name}: {}", doubt.about());
    }
    Ok(fit)
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for row in &METHODS {
        writeln!(out, "{:<9} {}", row.name, row.about)?;
        for s in row.method.settings() {
            // As many digits as 32 bits have.
            writeln!(out, "    {:<16} {:<8} {}", s.key, s.value as f32, s.about)?;
        }
    }
    writeln!(out, "{:<9} the light over the exposure, nothing else", "exposure")?;
    writeln!(out, "    {:<16} {:<8} these files' exposure over the one that is wanted", "ratio", "")?;
    writeln!(out, "{:<9} pixels passed on as they are", "none")?;
    Ok(())
}
