//! The choice of the method for an image: the model, BM3D, a blur, the measurement itself, or a mixture.
//!
//! A model is best on images like its training images, BM3D on bright and repetitive ones, and the measurement itself
//! if there is hardly any noise. The squared error of each is estimated without the truth. For an estimate f of the
//! mean of a measurement y with noise of covariance C, Stein's lemma gives the expected squared error as that of
//! |f(y) - y|^2 + 2 tr(C J) minus a number that is the same for all f, where J is the Jacobian of f; and tr(C J) is the
//! mean of n (f(y + e n) - f(y)) / e over noise n of covariance C (Ramani, Blu and Unser 2008). C is that of the
//! camera: the variance of each pixel, and the correlation between pixels. One n is enough, because the mean is over
//! many pixels. The same numbers give the error of every mixture of the candidates, so the best mixture is the solution
//! of a small quadratic problem (`risk`).
//!
//! The choice is made on a few crops of the image (`crops`); a candidate without weight is not run on the whole image.

mod crops;
mod risk;

use super::Error;
use super::measured::{Camera, Measured};
use super::restorer::{Place, Restored, Restorer};
use crate::classical::{self, Method, Reach};
use clearshot_physics::Electrons;
use crops::{MARGIN, Places};
use risk::{Made, Sums};
use serde::Serialize;
use std::ops::Range;

/// Blurs that are tried, as standard deviations in pixels.
const BLURS: [f32; 4] = [0.5, 0.8, 1.2, 2.0];
/// Images with fewer pixels along a side tell too little, and so do fewer pixels in all.
const LEAST_SIDE: usize = 32;
const LEAST_PIXELS: usize = LEAST_SIDE * LEAST_SIDE;

/// A method for restoring an image.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Candidate {
    Model,
    Bm3d,
    /// A Gaussian blur of this standard deviation in pixels.
    Gaussian(f32),
    /// The unchanged measurement.
    Raw,
}

impl Candidate {
    pub fn name(&self) -> &'static str {
        match self {
            Candidate::Model => "model",
            Candidate::Bm3d => "bm3d",
            Candidate::Gaussian(_) => "gaussian",
            Candidate::Raw => "raw",
        }
    }

    /// For people: blurs are told apart by their widths.
    fn called(&self) -> String {
        match self {
            Candidate::Gaussian(sigma) => format!("gaussian of {sigma} pixels"),
            other => other.name().to_string(),
        }
    }
}

/// One candidate in a choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    pub candidate: Candidate,
    /// The estimated mean squared error divided by the noise variance; about 1 for the measurement itself. `None` if it
    /// was not tried.
    pub risk: Option<f64>,
    pub weight: f64,
}

/// Candidates with their estimated errors and their weights in the result, which sum to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub shares: Vec<Share>,
    /// The estimated error of the mixture, as [`Share::risk`].
    pub risk: Option<f64>,
}

impl Choice {
    /// One candidate, without estimating the others.
    pub fn only(candidate: Candidate) -> Choice {
        Choice { shares: vec![Share { candidate, risk: None, weight: 1.0 }], risk: None }
    }

    pub fn weight(&self, name: &str) -> f64 {
        self.shares.iter().filter(|s| s.candidate.name() == name).map(|s| s.weight).sum()
    }

    /// Whether only the model is used.
    pub fn is_model(&self) -> bool {
        self.weight("model") >= 1.0
    }

    /// A description: "model 70 %, bm3d 30 % (estimated errors in noise variances: model 0.031, bm3d 0.036, ...)".
    pub fn in_words(&self) -> String {
        let taken: Vec<String> = self
            .shares
            .iter()
            .filter(|s| s.weight > 0.0)
            .map(|s| format!("{} {:.0} %", s.candidate.called(), 100.0 * s.weight))
            .collect();
        let risks: Vec<String> = self
            .shares
            .iter()
            .filter_map(|s| Some(format!("{} {:.3}", s.candidate.called(), s.risk?)))
            .collect();
        match risks.is_empty() {
            true => taken.join(", "),
            false => format!(
                "{} (estimated squared error over the noise's variance: {})",
                taken.join(", "),
                risks.join(", ")
            ),
        }
    }

    /// Mixes the restored image: the result of the model, combined with the others by their weights. chi2 remains that
    /// of the model, because it tests the camera parameters for this image, which a mixture would hide.
    ///
    /// # Errors
    /// If a restorer fails.
    pub fn apply(&self, measured: &Measured, camera: &Camera, restored: &mut Restored) -> Result<(), Error> {
        self.apply_at(measured, camera, restored, None)
    }

    /// The same only in some boxes of the image; values outside are unspecified.
    ///
    /// # Errors
    /// If a restorer fails.
    pub fn apply_at(
        &self,
        measured: &Measured,
        camera: &Camera,
        restored: &mut Restored,
        wanted: Option<&[Place]>,
    ) -> Result<(), Error> {
        if self.is_model() {
            return Ok(());
        }
        let mut mixed: Vec<f32> = vec![0.0; restored.image.len()];
        for share in self.shares.iter().filter(|s| s.weight > 0.0) {
            let w = share.weight as f32;
            let mut add = |values: &[f32]| mixed.iter_mut().zip(values).for_each(|(m, v)| *m += w * v);
            match share.candidate {
                Candidate::Model => add(&restored.image),
                other => add(&classical(other, measured, camera, wanted)?),
            }
        }
        measured.raise(&mut mixed);
        let model = self.weight("model") as f32;
        for (i, mixed) in mixed.into_iter().enumerate() {
            let shift = mixed - restored.image[i];
            restored.image[i] = mixed;
            restored.samples.iter_mut().for_each(|s| s[i] += shift);
        }
        // Where others than the model count, how far they are off is known for the whole image alone.
        if let (Some(deviation), Some(risk)) = (&mut restored.deviation, self.risk) {
            let others = ((1.0 - model) as f64 * risk.max(0.0)).sqrt() as f32;
            let noise = |v: f32| camera.deviation(f64::from(v)) as f32;
            deviation.iter_mut().zip(restored.image.iter()).for_each(|(d, &v)| *d = d.max(others * noise(v)));
        }
        Ok(())
    }
}

/// What a classical candidate makes of a measurement, or of boxes of it, plane by plane and channel by channel.
fn classical(
    candidate: Candidate,
    image: &Measured,
    camera: &Camera,
    wanted: Option<&[Place]>,
) -> Result<Vec<f32>, Error> {
    let [.., height, width] = image.size[..] else { return Err(Error::Size { size: image.size.clone() }) };
    let (c, plane) = (image.channels, height * width);
    let mut out = vec![0.0; image.values.len()];
    let method = match candidate {
        Candidate::Raw => {
            out.copy_from_slice(&image.values);
            return Ok(out);
        }
        Candidate::Gaussian(sigma) => Method::Gaussian(classical::gaussian::Gaussian { sigma }),
        _ => Method::Bm3d(classical::bm3d::Bm3d::USUAL),
    };
    let whole = [image.size.iter().map(|&n| 0..n).collect::<Place>()];
    for place in wanted.unwrap_or(&whole) {
        let [planes @ .., rows, columns] = &place[..] else { continue };
        // As far as the method looks, from where it would begin in the whole plane, so that bits are the same.
        let seen = |core: &Range<usize>, len: usize| match method.reach() {
            Reach::Within { halo, align } => {
                core.start.saturating_sub(halo) / align * align..core.end.saturating_add(halo).min(len)
            }
            Reach::Fading { .. } => 0..len,
        };
        let (down, across) = (seen(rows, height), seen(columns, width));
        let depth = planes.first().cloned().unwrap_or(0..1);
        for (z, channel) in depth.flat_map(|z| (0..c).map(move |ch| (z, ch))) {
            let at = |y: usize, x: usize| (z * plane + y * width + x) * c + channel;
            let pixels = |y: usize| across.clone().map(move |x| (y, x));
            let values: Vec<f32> =
                down.clone().flat_map(pixels).map(|(y, x)| image.values[at(y, x)]).collect();
            let shape = [down.len(), across.len()];
            let made = match candidate {
                Candidate::Gaussian(_) => method.run(&values, &shape, classical::Noise::white(0.0))?,
                _ => bm3d(&method, &values, shape, camera)?,
            };
            for y in rows.clone() {
                let row = &made[(y - down.start) * across.len()..];
                columns.clone().for_each(|x| out[at(y, x)] = row[x - across.start]);
            }
        }
    }
    Ok(out)
}

fn bm3d(method: &Method, counts: &[f32], shape: [usize; 2], camera: &Camera) -> Result<Vec<f32>, Error> {
    let electrons: Vec<f32> = counts.iter().map(|&v| camera.electrons(v)).collect();
    let read_noise = Electrons(camera.read_noise as f32);
    let made = classical::stabilised(method, Electrons(&electrons), &shape, read_noise, &camera.correlation)?;
    Ok(made.0.into_iter().map(|e| camera.counts(e)).collect())
}

/// Chooses the mixture for an image with a camera. It is the model alone if nothing else can replace it: with a PSF or
/// guidance, for volumes, and for models with other output images. Pixels with `counted` false are not used for the
/// errors.
///
/// # Errors
/// If the device fails, or `ran` says to stop.
pub fn choose(
    restorer: &mut Restorer,
    image: &Measured,
    camera: &Camera,
    counted: Option<&[bool]>,
    ran: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Choice, Error> {
    let [height, width] = image.size[..] else { return Ok(Choice::only(Candidate::Model)) };
    if !is_open(restorer, [height, width]) {
        return Ok(Choice::only(Candidate::Model));
    }
    // Crops are seen on the scale of the whole.
    let camera = &Camera { background: Some(image.photons(camera)?.background), ..*camera };
    let cut = crops::cut(image, [height, width], counted, restorer.scratch())?;
    let (images, counted): (Vec<_>, Vec<_>) = cut.into_iter().map(|c| (c.measured, c.counted)).unzip();
    let model = restorer.estimate(&images, camera, Some(MARGIN), ran)?;
    let mut probes = Vec::new();
    let mut probed = Vec::new();
    for (i, (y, mean)) in images.iter().zip(&model).enumerate() {
        probes.push(crops::noise(y, mean, camera, i as u32));
        probed.push(crops::shifted(y, &probes[i], restorer.scratch())?);
    }
    let model_probed = restorer.estimate(&probed, camera, Some(MARGIN), ran)?;
    let others: Vec<Candidate> =
        [Candidate::Bm3d].into_iter().chain(BLURS.map(Candidate::Gaussian)).chain([Candidate::Raw]).collect();
    let mut sums = Sums::default();
    for (i, (of_image, of_probed)) in model.into_iter().zip(model_probed).enumerate() {
        let mut made = vec![Made { of_image, of_probed }];
        for &other in &others {
            let of_image = classical(other, &images[i], camera, None)?;
            made.push(Made { of_image, of_probed: classical(other, &probed[i], camera, None)? });
        }
        let channels = images[i].channels;
        let row = images[i].size.last().map_or(0, |n| n * channels);
        sums.add(&images[i].values, &probes[i], &made, &counted[i], [row, channels]);
    }
    if sums.pixels < LEAST_PIXELS {
        return Ok(Choice::only(Candidate::Model));
    }
    let candidates: Vec<Candidate> = [Candidate::Model].into_iter().chain(others).collect();
    Ok(sums.choice(&candidates, camera.correlation.at(0, 1).max(camera.correlation.at(1, 0))))
}

/// The number of runs of the network in [`choose`] for images of a size; zero if there is no choice.
///
/// # Errors
/// If nothing fits the device's memory, or the device fails.
pub fn runs(restorer: &mut Restorer, size: &[usize]) -> Result<usize, Error> {
    let [height, width] = *size else { return Ok(0) };
    if !is_open(restorer, [height, width]) {
        return Ok(0);
    }
    let (down, across) = (Places::along(height), Places::along(width));
    let count = down.first.len() * across.first.len();
    // The crops as they are, and once more with a little noise.
    Ok(2 * restorer.estimate_forecast(&[down.seen, across.seen], count, Some(MARGIN))?.runs)
}

/// Whether others could stand in the model's place.
fn is_open(restorer: &Restorer, [height, width]: [usize; 2]) -> bool {
    let about = &restorer.model().about;
    let same = about.input_channels() == about.channels && about.signal == clearshot_model::Signal::Photons;
    same && restorer.answers_at_once() && height.min(width) >= LEAST_SIDE
}
