//! Deconvolution without a model: Richardson-Lucy with the noise of the camera, or a Wiener filter.

use super::{Job, Looked, Restore, Subject};
use crate::background::BackgroundMap;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::observer::Ear;
use clearshot_image::fingerprint;
use clearshot_image::grid::Region;
use clearshot_physics::{Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{Reach, wiener as filter};
use clearshot_restore::estimate::as_camera;
use clearshot_restore::learned::Camera;
use clearshot_restore::saturated::NoiseLevel;
use clearshot_restore::stream::Frames;
use serde_json::{Value, json};

/// Pieces that are looked at for the brightest.
const LOOKED_AT: usize = 9;

/// Settings of Richardson-Lucy deconvolution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deconvolution {
    /// Mean electrons of the background, which is removed from the result like the dark current of the camera.
    /// Default: 0.
    pub background: f32,
    /// The strength of the total-variation term; 0.002 to 0.02 for strong noise. Default: 0.
    pub total_variation: f32,
    /// A fixed number of steps for all pixels. Default: until the predicted error is smallest, with more steps in
    /// bright regions.
    pub steps: Option<usize>,
}

/// The PSF for the image, and what the record says of it.
fn psf(subject: &Subject<'_>, ear: &mut Ear<'_>) -> Result<(Psf, Value)> {
    let Some(spread) = &subject.settings.psf else {
        return Err(Error::setting("psf", "deconvolution needs a point-spread function"));
    };
    let d = &subject.image.description;
    let (psf, notice) = spread.fit(d, &Frames::of(d, subject.volume)?.size())?;
    notice.map_or(Ok(()), |notice| ear.notice(notice))?;
    Ok((psf, json!({ "psf": spread.text(), "psf_sigma": spread.sigmas() })))
}

/// # Errors
/// If the PSF does not fit the image.
pub fn wiener(balance: f32, subject: &Subject<'_>, ear: &mut Ear<'_>) -> Result<Job> {
    let (psf, mut parameters) = psf(subject, ear)?;
    parameters["method"] = "wiener".into();
    parameters["balance"] = balance.into();
    let reach = RichardsonLucy::reach(&psf);
    let correlation = subject.settings.camera.correlation.unwrap_or_default();
    let restore: Restore =
        Box::new(move |values, shape, _| filter::deconvolve(values, shape, &psf, balance, &correlation));
    let (saturation, noise, camera) = (None, NoiseLevel::Unknown, None);
    Ok(Job { parameters, reach, restore: Some(restore), saturation, noise, sharpens: true, camera })
}

/// # Errors
/// If the PSF does not fit the image, or the gain is neither given nor determined by the image.
pub fn richardson_lucy(steps: &Deconvolution, subject: &Subject<'_>, ear: &mut Ear<'_>) -> Result<Job> {
    let (psf, mut parameters) = psf(subject, ear)?;
    let (camera, saturation) = camera(subject, ear)?;
    let (gain, offset, read_noise) = (camera.gain as f32, camera.offset as f32, camera.read_noise as f32);
    let map = background(subject)?;
    let dark = subject.settings.camera.dark.unwrap_or(0.0) as f32;
    let level =
        map.as_ref().map_or(steps.background + dark, |map| (gain * (map.mean() as f32 - offset)).max(0.0));
    let mut settings = RichardsonLucy {
        background: level,
        read_noise,
        correlation: camera.correlation,
        total_variation: steps.total_variation,
        stop: steps.steps.map_or(RichardsonLucy::USUAL.stop, Stop::Steps),
        ..RichardsonLucy::USUAL
    };
    let electrons =
        move |values: &[f32]| -> Vec<f32> { values.iter().map(|v| gain * (v - offset)).collect() };
    let beneath = move |region: &Region| -> Option<Vec<f32>> {
        let counts = map.as_ref()?.of(region);
        Some(counts.into_iter().map(|v| (gain * (v - offset)).max(0.0)).collect())
    };
    let reach = RichardsonLucy::reach(&psf);
    if let Some((mean, Looked { values, shape, region, .. })) = brightest(subject, reach, saturation, &psf)? {
        settings.start = Some(settings.start_of(f64::from(gain) * (mean - f64::from(offset))));
        if steps.steps.is_none() {
            let found = settings.run_over(
                beneath(&region).as_deref(),
                Electrons(&electrons(&values)),
                &shape,
                &psf,
            )?;
            settings.stop = found.levels.map_or(Stop::Steps(found.steps), Stop::Levels);
            ear.notice(Notice::Steps(settings.stop))?;
        }
    }
    parameters["method"] = "richardson-lucy".into();
    parameters["gain"] = gain.into();
    parameters["gain_estimated"] = subject.settings.camera.gain.is_none().into();
    parameters["offset"] = offset.into();
    parameters["read_noise"] = read_noise.into();
    if !camera.correlation.is_white() {
        parameters["correlation"] = json!(camera.correlation);
    }
    parameters["background"] = level.into();
    if let Some(path) = &subject.settings.background {
        parameters["background_file"] = fingerprint(path)?.into();
    }
    parameters["tv"] = steps.total_variation.into();
    parameters["steps"] = match settings.stop {
        Stop::Steps(n) => n.into(),
        Stop::Levels(levels) => format!("{} to {} steps by brightness", levels.least(), levels.most()).into(),
        Stop::Predicted { .. } | Stop::Discrepancy { .. } => "least predicted error".into(),
    };
    let restore: Restore = Box::new(move |values, shape, region| {
        let background = beneath(region);
        let sharp = settings.run_over(background.as_deref(), Electrons(&electrons(values)), shape, &psf)?;
        Ok(sharp.values.iter().map(|v| v / gain + offset).collect())
    });
    let [g, o, r] = [gain, offset, read_noise].map(f64::from);
    let noise = NoiseLevel::Camera { gain: g, offset: o, read_noise: r };
    let camera = Some(camera);
    Ok(Job { parameters, reach, restore: Some(restore), saturation, noise, sharpens: true, camera })
}

/// The background of each pixel, where a file gives it.
fn background(subject: &Subject<'_>) -> Result<Option<BackgroundMap>> {
    let path = subject.settings.background.as_deref();
    path.map(|path| BackgroundMap::open(path, &subject.image.description)).transpose()
}

/// The camera as given or estimated, and the saturated pixels of the image.
fn camera(subject: &Subject<'_>, ear: &mut Ear<'_>) -> Result<(Camera, Option<f32>)> {
    let known = &subject.settings.camera;
    if let Some(camera) = known.with_gain() {
        return Ok((camera, None));
    }
    let estimated = known.estimate(subject.image, &subject.validity)?;
    if !estimated.sees_gain() {
        let why = "the image does not tell it, and deconvolution needs it: give the gain, and offset and read noise if they are not zero";
        return Err(Error::setting("gain", why));
    }
    let (camera, saturation) = (as_camera(&estimated.fit), estimated.fit.saturation);
    ear.notice(Notice::Estimated(Box::new(estimated)))?;
    saturation.map_or(Ok(()), |full| ear.notice(Notice::PilesUp(full)))?;
    Ok((camera, saturation.map(|v| v as f32)))
}

/// Of an image that is cut, the brightest of a few pieces, without invalid pixels, and the mean of all of them.
fn brightest(
    subject: &Subject<'_>,
    reach: Reach,
    full: Option<f32>,
    psf: &Psf,
) -> Result<Option<(f64, Looked)>> {
    let (mut best, mut most): (Option<Looked>, f64) = (None, f64::NEG_INFINITY);
    let (mut sum, mut count) = (0.0, 0);
    subject.look_at(reach, LOOKED_AT, 0, full, &mut |looked| {
        let light = looked.values.iter().map(|&v| f64::from(v)).sum::<f64>();
        (sum, count) = (sum + light, count + looked.values.len());
        let mean = light / looked.values.len() as f64;
        // What is left over at an edge may be narrower than the PSF.
        let fits = looked.shape.iter().zip(&psf.shape()[..]).all(|(n, p)| n >= p);
        if fits && mean > most {
            (best, most) = (Some(looked), mean);
        }
        Ok(())
    })?;
    Ok(best.map(|looked| (sum / count as f64, looked)))
}
