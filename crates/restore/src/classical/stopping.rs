//! Which step of [`super::richardson_lucy`] is nearest to the true image, judged by steps that go further.
//!
//! Let x_k be the image after k steps and e_k its noise. As x_K of a later step K is nearer to the truth in the mean, the
//! error of x_k is `|x_k - x_K|^2 + 2 <e_k, e_K>` and a part that is the same for all k: what both have of the same noise
//! hides in their difference and is put back (Stein, 1981; as Eldar, 2009, does for inverse problems, with x_K in place of
//! an inverse that does not exist). `<e_k, e_K>` is measured on the twin, an image that is deconvolved from data with a
//! little more noise. A step is the result as soon as no step between it and K = [`AHEAD`] k + [`FIRST`] is predicted to be
//! better. If K is far, the noise of x_K hides the signal; if it is near, too little of the error is seen.
//!
//! Where little is lit, first steps change so little that chance decides. Therefore a step must also predict the data: its
//! chi2 - 1 + 2 f (f: degrees of freedom, measured on the twin too) may exceed the least one by [`MISFIT`] times f.
//!
//! The three numbers were chosen on 180 generated images (every kind of scene, peaks of 5 to 1000 electrons, PSFs of 1 to
//! 2.5 pixels, sides of 64 to 160, three seeds) and tried on 180 of three other seeds; docs/images.md has the outcome.

use clearshot_tensor::noise::Key;
use rayon::prelude::*;
use std::collections::VecDeque;

/// See the module.
const AHEAD: f64 = 1.75;
const FIRST: f64 = 5.0;
const MISFIT: f64 = 1.5;
/// Steps that are judged lie apart by this factor.
const APART: f64 = 1.1;
/// Predictions that differ by less than this part of the noise are equal.
const EQUAL: f64 = 1e-5;
/// Images of more pixels are judged by about as many of them, spread all over.
const SAMPLE: usize = 1 << 18;

/// A step that may be the result.
pub(super) struct Candidate {
    pub step: usize,
    pub values: Vec<f32>,
    /// The values of the pixels that are looked at, if those are not all.
    looked_at: Option<Vec<f32>>,
    /// What a unit of noise in the data makes of these pixels.
    noise: Vec<f32>,
    /// What is predicted of its misfit to other data of the same scene.
    misfit: f64,
}

/// Predicts errors; see the module.
pub(super) struct Judge {
    /// The pixels that are looked at, if not all.
    places: Option<Vec<usize>>,
    /// The oldest first.
    candidates: VecDeque<Candidate>,
    next: usize,
    /// The least predicted misfit and the degrees of freedom there.
    least: (f64, f64),
}

impl Judge {
    pub fn new(pixels: usize) -> Judge {
        let one_of = pixels.div_ceil(SAMPLE) as u32;
        let key = Key { seed: 0x7112, step: 0, stream: 0 };
        let places = (one_of > 1)
            .then(|| (0..pixels).filter(|&i| key.block(i as u64)[0].is_multiple_of(one_of)).collect());
        Judge { places, candidates: VecDeque::new(), next: 1, least: (f64::INFINITY, 0.0) }
    }

    /// Looks at a step: its image, that of the twin whose data differ by `change` of their noise, chi2 and the degrees of
    /// freedom. Gives the result if it is clear now.
    pub fn see(
        &mut self,
        step: usize,
        x: &[f32],
        twin: &[f32],
        change: f32,
        chi2: f64,
        freedom: f64,
    ) -> Option<Candidate> {
        let misfit = chi2 + 2.0 * freedom;
        if misfit < self.least.0 {
            self.least = (misfit, freedom);
        }
        if step < self.next {
            return None;
        }
        self.next = (step + 1).max((step as f64 * APART).round() as usize);
        self.keep(step, x, twin, change, misfit);
        while let Some(oldest) = self.candidates.front()
            && step as f64 >= AHEAD * oldest.step as f64 + FIRST
        {
            let fits = oldest.misfit - self.least.0 <= MISFIT * self.least.1;
            if fits && self.best() == 0 {
                return self.candidates.pop_front();
            }
            self.candidates.pop_front();
        }
        None
    }

    /// The result where no further step can be made: of those that are left, the one of the least predicted error.
    pub fn last(mut self, step: usize, x: Vec<f32>, twin: &[f32], change: f32) -> Candidate {
        if self.candidates.back().is_none_or(|c| c.step != step) {
            self.keep(step, &x, twin, change, f64::INFINITY);
        }
        let best = self.best();
        let fallback =
            Candidate { step, values: x, looked_at: None, noise: Vec::new(), misfit: f64::INFINITY };
        self.candidates.remove(best).unwrap_or(fallback)
    }

    fn keep(&mut self, step: usize, x: &[f32], twin: &[f32], change: f32, misfit: f64) {
        let noise = |i: usize| (twin[i] - x[i]) / change;
        let (looked_at, noise) = match &self.places {
            None => (None, (0..x.len()).map(noise).collect()),
            Some(places) => {
                (Some(places.iter().map(|&i| x[i]).collect()), places.iter().map(|&i| noise(i)).collect())
            }
        };
        self.candidates.push_back(Candidate { step, values: x.to_vec(), looked_at, noise, misfit });
    }

    /// Which candidate has the least predicted error, judged by the latest; the first of equal ones.
    fn best(&self) -> usize {
        let Some(last) = self.candidates.back() else { return 0 };
        let equal = EQUAL * sum(last, last, |_, _, e, f| e * f);
        let error = |c: &Candidate| sum(c, last, |x, y, e, f| (x - y) * (x - y) + 2.0 * e * f);
        let errors: Vec<f64> = self.candidates.iter().map(error).collect();
        let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
        errors.iter().position(|e| *e <= least + equal).unwrap_or(0)
    }
}

impl Candidate {
    fn seen(&self) -> &[f32] {
        self.looked_at.as_deref().unwrap_or(&self.values)
    }
}

/// A sum over pixels of values and noise of two images, by pieces of a fixed size so that threads do not change it.
fn sum(a: &Candidate, b: &Candidate, of: fn(f64, f64, f64, f64) -> f64) -> f64 {
    const PIECE: usize = 4096;
    let parts: Vec<f64> = (a.seen().par_chunks(PIECE).zip(b.seen().par_chunks(PIECE)))
        .zip(a.noise.par_chunks(PIECE).zip(b.noise.par_chunks(PIECE)))
        .map(|((x, y), (e, f))| {
            let mut part = 0.0;
            for i in 0..x.len() {
                part += of(x[i].into(), y[i].into(), e[i].into(), f[i].into());
            }
            part
        })
        .collect();
    parts.iter().sum()
}
