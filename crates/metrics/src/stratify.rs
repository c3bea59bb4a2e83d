//! Scores by signal level, separately for dark and bright parts of a scene.
//!
//! A single number for an image hides that noise matters most where the signal is weak. Valid pixels are divided into
//! strata by their true value, and each stratum has its own error, bias and PSNR.

use crate::error::{require, require_positive};
use crate::{MetricError, Pair};

/// The pixels whose true value lies in `low..high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stratum {
    pub low: f64,
    pub high: f64,
    pub pixels: usize,
    /// The mean of restored less true; NaN, like the next three, in a stratum without pixels.
    pub bias: f64,
    pub mae: f64,
    pub mse: f64,
    /// In dB, with the data range of the whole.
    pub psnr: f64,
}

/// One stratum between each two neighbouring `edges`; the outermost may be infinite. True values
/// outside all strata, and NaN, are left out.
///
/// # Errors
/// If the edges are not two or more in rising order or the data range is not above zero.
pub fn stratify(pair: &Pair<'_>, edges: &[f64], data_range: f64) -> Result<Vec<Stratum>, MetricError> {
    require_positive("the data range", data_range)?;
    if edges.len() < 2 {
        return Err(MetricError::Count { what: "the edges", got: edges.len(), needed: "two or more" });
    }
    edges.windows(2).try_for_each(|e| require(e[0] < e[1], "an edge", e[1], "more than the one before"))?;
    // Pixels, and the sums of error, absolute error and squared error.
    let mut sums = vec![(0usize, [0.0; 3]); edges.len() - 1];
    for (t, x) in pair.values() {
        let above = edges.partition_point(|&e| e <= t);
        let Some(stratum) = above.checked_sub(1).and_then(|i| sums.get_mut(i)) else { continue };
        let e = x - t;
        stratum.0 += 1;
        stratum.1.iter_mut().zip([e, e.abs(), e * e]).for_each(|(s, e)| *s += e);
    }
    let row = |(edge, (pixels, sums)): (&[f64], (usize, [f64; 3]))| {
        let [bias, mae, mse] = sums.map(|s| s / pixels as f64);
        let psnr = 10.0 * (data_range * data_range / mse).log10();
        Stratum { low: edge[0], high: edge[1], pixels, bias, mae, mse, psnr }
    };
    Ok(edges.windows(2).zip(sums).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crop, ImageRef, Rounding};

    #[test]
    fn pixels_go_by_their_true_value() {
        let truth = [5.0, 100.0, 99.0, 2500.0, f64::NAN, -1.0];
        let image = [8.0, 90.0, 98.0, 2500.0, 7.0, 3.0];
        let view = |x| ImageRef::new(x, &[2, 3]).unwrap();
        let pair = Pair::new(view(&truth), view(&image), None, Rounding::Keep, Crop::Nothing).unwrap();
        let rows = stratify(&pair, &[0.0, 100.0, 500.0, 2000.0, f64::INFINITY], 100.0).unwrap();
        assert_eq!(rows.iter().map(|r| r.pixels).collect::<Vec<_>>(), [2, 1, 0, 1]);
        assert_eq!((rows[0].bias, rows[0].mae, rows[0].mse), (1.0, 2.0, 5.0));
        assert_eq!((rows[1].bias, rows[1].mse, rows[1].psnr), (-10.0, 100.0, 20.0));
        assert!(rows[2].mse.is_nan() && rows[2].psnr.is_nan());
        assert_eq!((rows[3].low, rows[3].high, rows[3].psnr), (2000.0, f64::INFINITY, f64::INFINITY));
        for edges in [&[][..], &[1.0], &[1.0, 1.0], &[2.0, 1.0], &[0.0, f64::NAN]] {
            assert!(stratify(&pair, edges, 1.0).is_err());
        }
    }
}
