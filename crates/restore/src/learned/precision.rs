//! Chooses the precision for an image on a GPU if it is automatic: the fastest whose error is harmless.
//!
//! A network in 16 bits is several times as fast as in 32, and differs by about a thousandth of the range of the image.
//! Whether this matters depends on the noise: it is negligible at a hundred photons, but not at a hundred thousand. The
//! difference from fp32 is therefore measured on one crop of the image, in standard deviations of the noise at each
//! pixel. The error of a restored image is at least 0.15 of them; a difference of [`LIMIT`] adds two per cent to that
//! squared error, 0.08 dB, and a hundredth of that for harder images. In units of the noise, the error grows with the
//! square root of the signal, so a result also holds for darker images, and a run over many files measures again only
//! for brighter ones.

use super::Error;
use super::measured::{Camera, Measured};
use super::restorer::Restorer;
use clearshot_runtime::{Device, Precision};
use serde::Serialize;

/// The largest allowed difference from fp32, as a root mean square in standard deviations of the noise.
pub const LIMIT: f64 = 0.02;
/// What is tried, the fastest first; of the two of 16 bits the more exact one, which may overflow.
const TRIED: [Precision; 3] = [Precision::F16, Precision::Bf16, Precision::Tf32];
/// The side of the crop that is tried.
const SIDE: usize = 256;
/// How many times the light of the image that was measured another may have without being measured.
const LIKE: f64 = 1.5;

/// A precision with its measured error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Settled {
    #[serde(serialize_with = "named")]
    pub precision: Precision,
    /// The root mean square difference from fp32 in standard deviations of the noise; `None` if it could not be
    /// measured.
    pub error: Option<f64>,
    /// Electrons at the bright end of the image that it was measured on.
    pub peak: f64,
}

fn named<S: serde::Serializer>(precision: &Precision, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(precision.name())
}

impl Settled {
    pub fn in_words(&self) -> String {
        let name = self.precision.name();
        match self.error {
            _ if self.precision == Precision::F32 => format!("{name}: nothing faster is exact enough"),
            Some(error) => format!(
                "{name}: differs from fp32 by {:.2} % of the noise's standard deviation, measured on a crop",
                100.0 * error
            ),
            None => name.to_string(),
        }
    }
}

/// The first precision whose result is close enough to that of fp32, with its error; results are in the unit of the
/// file, and `answer` returns `None` if a precision fails. fp32 if there is none.
///
/// # Errors
/// As `answer`.
pub fn settle(
    exact: &[f32],
    camera: &Camera,
    mut answer: impl FnMut(Precision) -> Result<Option<Vec<f32>>, Error>,
) -> Result<(Precision, f64), Error> {
    for precision in TRIED {
        let Some(values) = answer(precision)? else { continue };
        let error = difference(exact, &values, camera);
        if error < LIMIT {
            return Ok((precision, error));
        }
    }
    Ok((Precision::F32, 0.0))
}

/// The root mean square difference of two restored images in standard deviations of the noise.
fn difference(exact: &[f32], other: &[f32], camera: &Camera) -> f64 {
    let one = |(a, b): (&f32, &f32)| (f64::from(a - b) / camera.deviation(f64::from(*a))).powi(2);
    (exact.iter().zip(other).map(one).sum::<f64>() / exact.len().max(1) as f64).sqrt()
}

impl Restorer {
    /// Chooses the precision for an image if it is automatic and on a GPU; `None` otherwise. If it cannot be measured,
    /// because the model has no direct estimate or there is no camera, fp32 is used.
    ///
    /// # Errors
    /// If the device fails.
    pub fn settle_precision(
        &mut self,
        image: &Measured,
        camera: Option<&Camera>,
    ) -> Result<Option<Settled>, Error> {
        if !self.is_precision_open() || matches!(self.device(), Device::Cpu { .. }) {
            return Ok(None);
        }
        let Some(camera) = camera.filter(|_| self.answers_at_once()) else {
            return Ok(Some(Settled { precision: Precision::F32, error: None, peak: 0.0 }));
        };
        let peak = image.photons(camera)?.peak;
        if let Some(settled) = self.settled().filter(|s| peak <= LIKE * s.peak) {
            return Ok(Some(settled));
        }
        let crop = [image.middle(SIDE, self.scratch())?];
        let answer = |it: &mut Restorer, precision| {
            it.set_precision(precision);
            it.estimate(&crop, camera, None, &mut || Ok(())).map(|made| made.into_iter().flatten().collect())
        };
        let exact: Vec<f32> = answer(self, Precision::F32)?;
        let (precision, error) = settle(&exact, camera, |precision| match answer(self, precision) {
            // Too large a number for 16 bits.
            Err(Error::NonFinite { .. }) => Ok(None),
            other => other.map(Some),
        })?;
        self.set_precision(precision);
        let settled = Settled { precision, error: Some(error), peak };
        self.keep_settled(settled);
        Ok(Some(settled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_near_enough_is_taken() {
        let camera = Camera { gain: 2.0, offset: 100.0, read_noise: 3.0, ..Camera::default() };
        let exact: Vec<f32> = (0..400).map(|i| 100.0 + (i % 50) as f32).collect();
        // Off by a share of the noise at each pixel.
        let off = |share: f64| -> Vec<f32> {
            exact.iter().map(|&v| v + (share * camera.deviation(f64::from(v))) as f32).collect()
        };
        let of = |shares: [Option<f64>; 3]| {
            settle(&exact, &camera, |precision| {
                let at = TRIED.iter().position(|p| *p == precision).unwrap();
                Ok(shares[at].map(off))
            })
            .unwrap()
        };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
        let (precision, error) = of([Some(0.005), Some(0.01), Some(0.001)]);
        assert!(precision == Precision::F16 && near(error, 0.005), "{error}");
        // One that overflows is passed over, one that is too far off too.
        let (precision, error) = of([None, Some(0.015), Some(0.001)]);
        assert!(precision == Precision::Bf16 && near(error, 0.015), "{error}");
        let (precision, error) = of([Some(0.03), Some(0.4), Some(0.012)]);
        assert!(precision == Precision::Tf32 && near(error, 0.012), "{error}");
        assert_eq!(of([Some(0.03), Some(0.4), Some(0.05)]), (Precision::F32, 0.0));
        // What is not finite is not near.
        assert_eq!(of([Some(f64::NAN), None, None]), (Precision::F32, 0.0));
    }

    #[test]
    fn errors_are_told_in_words() {
        let settled = Settled { precision: Precision::F16, error: Some(0.0061), peak: 10.0 };
        assert!(
            settled.in_words().starts_with("fp16: differs from fp32 by 0.61 %"),
            "{}",
            settled.in_words()
        );
        assert_eq!(serde_json::to_value(settled).unwrap()["precision"], "fp16");
    }
}
