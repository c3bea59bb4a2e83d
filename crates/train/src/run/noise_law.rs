//! Checks whether the noise of held-out images is camera noise, without which estimates from splits of them are invalid.
//!
//! Splits are independent if pixels are and if the third moment of the noise is that of counted electrons, their number.
//! Detectors that multiply electrons (EMCCD, photomultipliers) have up to one and a half times as much, and part of the
//! noise that a split hides can then be predicted from the other part. The correlation of noise is estimated from the image
//! too, but less accurately than a gain of a tenth of a decibel requires.

use super::gain::overlap;
use super::judgement::Judgement;

/// The largest correlation of neighbours, and the largest deviation of the third moment from the camera's, that splits are trusted with.
const MOST_SHARED: f64 = 0.05;
const MOST_SKEW: f64 = 0.2;
const STANDARD_ERRORS: f64 = 2.0;

/// The noise of held-out images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseLaw {
    /// The largest correlation of neighbours.
    pub correlation: f64,
    /// The third moment of the noise over that of counted electrons.
    pub skew: f64,
    /// Its standard error.
    pub skew_error: f64,
}

impl NoiseLaw {
    /// Of images that were judged, crops of as many pixels as `distinct` of them have; none where they tell nothing.
    pub(super) fn of(judged: &[Judgement], distinct: Option<f64>) -> Option<NoiseLaw> {
        let sum = |of: &dyn Fn(&Judgement) -> f64| judged.iter().map(of).sum::<f64>();
        let electrons = sum(&|j| j.noise.electrons);
        let skew = (sum(&|j| j.noise.third) + sum(&|j| j.noise.taken)) / electrons;
        let skew_error = sum(&|j| j.noise.variance).sqrt() / electrons * overlap(judged.len(), distinct);
        let correlation = judged.iter().fold(0.0, |most, j| f64::max(most, j.noise.correlation));
        (electrons > 0.0 && skew.is_finite()).then_some(NoiseLaw { correlation, skew, skew_error })
    }

    /// Why no gain can be estimated; nothing where one can.
    pub fn refusal(&self) -> Option<String> {
        let NoiseLaw { correlation, skew, skew_error } = *self;
        if correlation > MOST_SHARED {
            return Some(format!(
                "neighbouring pixels share noise (correlation {correlation:.2}), so the gain of a model cannot be estimated from held-out electrons"
            ));
        }
        let off = (skew - 1.0).abs();
        (off > MOST_SKEW + STANDARD_ERRORS * skew_error).then(|| {
            let cause = if skew > 1.0 { ", as with an EMCCD or a photomultiplier" } else { "" };
            format!(
                "the noise is not that of counted electrons: its third moment is {skew:.2} of theirs (standard error {skew_error:.2}){cause}, so the gain of a \
                 model cannot be estimated from held-out electrons"
            )
        })
    }
}
