//! Denoising without a model: the noise of an image, given or estimated, and the method applied to it.

use super::{Job, Looked, Restore, Subject};
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::observer::Ear;
use crate::settings::Settings;
use clearshot_physics::{Correlation, Electrons};
use clearshot_restore::classical::richardson_lucy::Stop;
use clearshot_restore::classical::{self, Method, Reach, stabilise, stabilised};
use clearshot_restore::learned::Camera;
use clearshot_restore::saturated::NoiseLevel;
use serde_json::{Map, Value, json};

/// Pieces of an image that are looked at for what all of them are to do alike.
const LOOKED_AT: usize = 9;

/// What the noise of an image is.
#[derive(Clone, Copy)]
enum Noise {
    /// The method does not need the noise.
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
    fn camera(c: &Camera) -> Noise {
        let (gain, offset, read_noise) = (c.gain as f32, c.offset as f32, c.read_noise as f32);
        Noise::Camera { gain, offset, read_noise, correlation: c.correlation }
    }

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

    fn record(self, parameters: &mut Value) {
        match self {
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
    }
}

/// The noise of an image and how it was come by.
struct Found {
    noise: Noise,
    /// Where the image's own values say that pixels are saturated.
    saturation: Option<f32>,
    camera: Option<Camera>,
}

/// The signal above the offset, divided by a ratio of exposures.
///
/// # Errors
/// If the ratio is not positive.
pub fn exposure(ratio: f32, settings: &Settings) -> Result<Job> {
    if !(ratio.is_finite() && ratio > 0.0) {
        return Err(Error::setting("ratio", format!("is {ratio}; a finite number above zero is needed")));
    }
    let offset = settings.camera.offset.unwrap_or(0.0) as f32;
    let parameters = json!({ "method": "exposure", "settings": { "ratio": ratio }, "offset": offset });
    let restore: Restore =
        Box::new(move |values, _, _| Ok(values.iter().map(|v| offset + (v - offset) / ratio).collect()));
    Ok(Job::pixel_by_pixel(parameters, Some(restore)))
}

/// # Errors
/// If the noise is needed, not given, and cannot be estimated.
pub fn prepare(method: Method, subject: &Subject<'_>, ear: &mut Ear<'_>) -> Result<Job> {
    let Found { noise, saturation, camera } = noise_of(&method, subject, ear)?;
    let settings: Map<String, Value> =
        method.settings().iter().map(|s| (s.key.to_string(), s.value.into())).collect();
    let mut parameters = json!({ "method": method.name(), "settings": settings });
    noise.record(&mut parameters);
    let given = subject.settings.noise.is_some() || subject.settings.camera.gain.is_some();
    parameters["noise_estimated"] = (!given && !matches!(noise, Noise::Any)).into();
    let method = match method {
        Method::TotalVariation(_) => settled(method, subject, noise, saturation, ear)?,
        other => other,
    };
    let restore: Restore = Box::new(move |values, shape, _| match noise {
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
    Ok(Job { parameters, reach, restore: Some(restore), saturation, noise, sharpens: false, camera })
}

/// As given, or as the image says; then also where its pixels are saturated.
fn noise_of(method: &Method, subject: &Subject<'_>, ear: &mut Ear<'_>) -> Result<Found> {
    let known = &subject.settings.camera;
    if let Some(sigma) = subject.settings.noise {
        let noise = Noise::Uniform(classical::Noise::white(sigma));
        return Ok(Found { noise, saturation: None, camera: None });
    }
    if let Some(camera) = known.with_gain() {
        return Ok(Found { noise: Noise::camera(&camera), saturation: None, camera: Some(camera) });
    }
    if matches!(method, Method::Gaussian(_) | Method::Median(_)) {
        return Ok(Found { noise: Noise::Any, saturation: None, camera: None });
    }
    let mut estimated = known.estimate(subject.image, &subject.validity)?;
    estimated.uniform = !estimated.sees_gain();
    let camera = clearshot_restore::estimate::as_camera(&estimated.fit);
    let found = match estimated.uniform {
        true => {
            let (deviation, correlation) = (estimated.deviation() as f32, estimated.fit.correlation);
            let noise = Noise::Uniform(classical::Noise { deviation, correlation });
            Found { noise, saturation: None, camera: None }
        }
        false => Found { noise: Noise::camera(&camera), saturation: None, camera: Some(camera) },
    };
    let saturation = estimated.fit.saturation;
    ear.notice(Notice::Estimated(Box::new(estimated)))?;
    saturation.map_or(Ok(()), |full| ear.notice(Notice::PilesUp(full)))?;
    Ok(Found { saturation: saturation.map(|v| v as f32), ..found })
}

/// The method as every piece of an image that is cut is to have it.
fn settled(
    method: Method,
    subject: &Subject<'_>,
    noise: Noise,
    full: Option<f32>,
    ear: &mut Ear<'_>,
) -> Result<Method> {
    let mut said = Vec::new();
    let Reach::Fading { overlap } = method.reach() else { return Ok(method) };
    let mut look = |Looked { mut values, shape, core, .. }: Looked| {
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
    };
    subject.look_at(method.reach(), LOOKED_AT, overlap, full, &mut look)?;
    let settled = method.settled(&said);
    if let Reach::Within { halo, .. } = settled.reach() {
        ear.notice(Notice::Steps(Stop::Steps(halo)))?;
    }
    Ok(settled)
}
