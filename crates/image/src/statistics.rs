//! Statistics of the physical values of an image, read in bands.

use crate::error::Result;
use crate::image::Image;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    pub count: usize,
    /// Values that are NaN or infinite; the rest is of the others.
    pub not_finite: usize,
    pub least: f64,
    pub greatest: f64,
    pub mean: f64,
    pub deviation: f64,
}

impl Statistics {
    pub fn of(image: &Image) -> Result<Statistics> {
        let mut s = Statistics {
            count: 0,
            not_finite: 0,
            least: f64::INFINITY,
            greatest: f64::NEG_INFINITY,
            mean: 0.0,
            deviation: 0.0,
        };
        let mut squares = 0.0;
        for region in image.bands()? {
            let values = image.read_f64(&region)?;
            let finite = || values.iter().copied().filter(|v| v.is_finite());
            let n = finite().count();
            s.not_finite += values.len() - n;
            if n == 0 {
                continue;
            }
            s.least = finite().fold(s.least, f64::min);
            s.greatest = finite().fold(s.greatest, f64::max);
            // Means and squared deviations of bands, joined as Chan, Golub and LeVeque do.
            let mean = finite().sum::<f64>() / n as f64;
            let here: f64 = finite().map(|v| (v - mean) * (v - mean)).sum();
            let total = (s.count + n) as f64;
            let delta = mean - s.mean;
            squares += here + delta * delta * s.count as f64 * n as f64 / total;
            s.mean += delta * n as f64 / total;
            s.count += n;
        }
        s.deviation = (squares / s.count.max(1) as f64).sqrt();
        Ok(s)
    }
}
