//! Small, empty and broken images through everything: an error or a number, never a panic.

use clearshot_metrics::artefacts::{Pattern, omission_psnr, power_ratio};
use clearshot_metrics::frc::{Taper, Threshold, one_image, two_images};
use clearshot_metrics::hausdorff::hausdorff;
use clearshot_metrics::intensity::{Normalisation, mae, mse, nrmse, psnr, snr};
use clearshot_metrics::ms_ssim::ms_ssim;
use clearshot_metrics::overlap::{dice, iou, precision};
use clearshot_metrics::photometry::{aperture, flux};
use clearshot_metrics::residual::{bias, chi2, kolmogorov_smirnov, whiteness};
use clearshot_metrics::segment::{Connectivity, Labels};
use clearshot_metrics::ssim::{Ssim, Window};
use clearshot_metrics::statistics::{RankLaw, bootstrap, holm, paired_t, wilcoxon};
use clearshot_metrics::stratify::stratify;
use clearshot_metrics::{Crop, ImageRef, Pair, Rounding};
use clearshot_tensor::noise::Key;

const SHAPES: [&[usize]; 8] =
    [&[1, 1], &[1, 5], &[2, 2], &[3, 3], &[7, 8], &[1, 1, 1], &[2, 1, 3], &[4, 5, 6]];

fn fill(n: usize, kind: usize) -> Vec<f64> {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 0.0, -0.0];
    let value = |i: usize| match kind {
        0..8 => odd[kind],
        8 => odd[i % 8],
        _ => (i as f64 * 0.7).sin(),
    };
    (0..n).map(value).collect()
}

fn compare(pair: &Pair<'_>) {
    let _ = (mse(pair), mae(pair), psnr(pair, 1.0), snr(pair));
    for n in [Normalisation::Euclidean, Normalisation::MinMax, Normalisation::Mean] {
        nrmse(pair, n);
    }
    for size in [0, 1, 3, 7] {
        let ssim = Ssim { window: Window::Uniform { size }, sample_covariance: false, ..Ssim::uniform7(1.0) };
        let _ = (ssim.mean(pair), ms_ssim(pair, &ssim, 2));
    }
    let _ = Ssim::wang2004(1.0).mean(pair);
    let _ = stratify(pair, &[f64::NEG_INFINITY, 0.0, f64::INFINITY], 1.0);
}

fn analyse(a: ImageRef<'_>, b: ImageRef<'_>) {
    let shape = a.shape();
    let ones = vec![1.0; shape.len()];
    for taper in [Taper::None, Taper::Hann, Taper::Tukey(0.3)] {
        for curve in [two_images(a, b, &ones, taper), one_image(a, &ones, taper)].into_iter().flatten() {
            curve.resolution(Threshold::HalfBit);
        }
    }
    let _ = (chi2(a, b, b, None), whiteness(a, None), bias(a.data(), 0.95), kolmogorov_smirnov(a.data()));
    let mask = |x: ImageRef<'_>| x.data().iter().map(|&x| x > 0.0).collect::<Vec<bool>>();
    let (ma, mb) = (mask(a), mask(b));
    let _ = (dice(&ma, &mb), iou(&ma, &mb), hausdorff(&ma, &mb, shape, &ones, 95.0));
    let labels = |x| Labels::by_otsu(x, Connectivity::Corners);
    if let (Ok(la), Ok(lb)) = (labels(a), labels(b)) {
        precision(&la, &lb, &[0.5]).unwrap();
    }
    let _ = (aperture(a, [0.0, 0.4], 1.7), flux(a, [0.0, 0.4], 1.7, 2.0, 4.0), power_ratio(a, &ma));
    let _ = omission_psnr(a, b, &mb, 1.0);
    if let Ok(plane) = a.plane() {
        let disk = Pattern::disk(plane, [0.0; 2], 2.0, 1.0, 1.0).unwrap();
        let _ = (disk.insert(a), disk.response(a, b));
    }
    let _ = (paired_t(a.data(), b.data()), wilcoxon(a.data(), b.data(), RankLaw::Exact), holm(a.data()));
    let _ = wilcoxon(a.data(), b.data(), RankLaw::Normal);
    let key = Key { seed: 0, step: 0, stream: 0 };
    let _ = bootstrap(a.data(), |x| x[0], 5, 0.9, key);
}

#[test]
fn nothing_panics() {
    for shape in SHAPES {
        let n = shape.iter().product();
        for kinds in 0..100 {
            let (a, b) = (fill(n, kinds / 10), fill(n, kinds % 10));
            let (a, b) = (ImageRef::new(&a, shape).unwrap(), ImageRef::new(&b, shape).unwrap());
            for rounding in [Rounding::Keep, Rounding::WholeWithin { low: 1.0, high: 0.0 }] {
                compare(&Pair::new(a, b, None, rounding, Crop::Nothing).unwrap());
            }
            analyse(a, b);
        }
    }
}
