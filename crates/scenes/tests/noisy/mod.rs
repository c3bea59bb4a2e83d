//! Images of generated scenes with known noise, independent or correlated, and the errors of its estimates.

use clearshot_physics::calibration::blind::{Known, estimate};
use clearshot_physics::{Adu, Correlation, Psf, poisson};
use clearshot_scenes::{Camera, Scene};
use clearshot_tensor::noise::Key;

/// Filters along Y and X that noise has passed.
pub const FILTERS: [(&str, [&[f64]; 2]); 4] = [
    ("independent", [&[1.0], &[1.0]]),
    ("along rows", [&[1.0], &[0.3, 1.0, 0.3]]),
    ("weak", [&[0.2, 1.0, 0.2], &[0.2, 1.0, 0.2]]),
    ("strong", [&[0.5, 1.0, 0.5], &[0.5, 1.0, 0.5]]),
];
const LAGS: [(isize, isize); 4] = [(0, 1), (1, 0), (1, 1), (0, 2)];
const READ_NOISE: f64 = 2.0;
const BACKGROUND: f64 = 5.0;
const PEAK: f64 = 100.0;
pub const OFFSET: f64 = 100.0;

/// Noise of `side` x `side` pixels behind filters along Y and X, of the same variance; it is periodic.
pub fn filtered(noise: &[f32], side: usize, [down, right]: [&[f64]; 2]) -> Vec<f32> {
    let power: f64 = [down, right].iter().map(|t| t.iter().map(|x| x * x).sum::<f64>()).product();
    let reach = |t: &[f64]| t.len() / 2;
    let at = |y: usize, x: usize| noise[y % side * side + x % side];
    let of = |i: usize| {
        let (y, x) = (i / side + side - reach(down), i % side + side - reach(right));
        let row = |(k, w): (usize, &f64)| {
            let along = right.iter().enumerate();
            w * along.map(|(l, v)| v * f64::from(at(y + k, x + l))).sum::<f64>()
        };
        (down.iter().enumerate().map(row).sum::<f64>() / power.sqrt()) as f32
    };
    (0..side * side).map(of).collect()
}

/// The estimate from one image.
pub struct Told {
    /// The ratio of estimated to true standard deviation at the dark and the bright end of the image.
    pub deviations: [f64; 2],
    /// The lags (0, 1), (1, 0), (1, 1) and (0, 2) less the true ones.
    pub lags: [f64; 4],
    /// The stated standard error of a lag.
    pub error: f64,
}

impl Told {
    /// The root mean square of the four lags' errors, what a standard error stands for.
    pub fn off(&self) -> f64 {
        (self.lags.iter().map(|l| l * l).sum::<f64>() / self.lags.len() as f64).sqrt()
    }
}

/// A picture behind a lens with a PSF of 1.2 pixels, of so many electrons above 5, and the mean electrons of its pixels.
pub fn picture(
    scene: Scene,
    side: usize,
    filters: [&[f64]; 2],
    number: u32,
    peak: f64,
) -> (Vec<f32>, Vec<f64>) {
    let shape = [side, side];
    let psf = Psf::gaussian(&[1.2, 1.2]).expect("a PSF");
    let clear = Camera { psf: Some(psf), background: 0.0, read_noise: 0.0, ..Camera::for_peak(1e6) };
    let scene = scene.generate(9, number, &shape).expect("a scene");
    let seen = clear.take(&scene, &shape, 9, number).expect("a picture").values;
    let mean: Vec<f64> = seen.iter().map(|v| peak * f64::from(*v) / 1e6 + BACKGROUND).collect();
    let [shots, reads] = [1, 2].map(|stream| Key { seed: 77, step: number, stream });
    let mut noise = vec![0f32; side * side];
    reads.fill_normal(0, &mut noise);
    for (i, n) in noise.iter_mut().enumerate() {
        *n = (poisson::draw(mean[i], shots, i as u64) - mean[i] + READ_NOISE * f64::from(*n)) as f32;
    }
    let noise = filtered(&noise, side, filters);
    (noise.iter().zip(&mean).map(|(n, m)| (f64::from(*n) + m + OFFSET) as f32).collect(), mean)
}

/// The standard deviation of the noise of a pixel of so many electrons.
pub fn deviation(electrons: f64) -> f64 {
    (electrons.max(0.0) + READ_NOISE * READ_NOISE).sqrt()
}

/// What a picture of 100 electrons above 5 tells.
pub fn told(scene: Scene, side: usize, filters: [&[f64]; 2], number: u32) -> Told {
    let shape = [side, side];
    let (image, _) = picture(scene, side, filters, number, PEAK);
    let fit = estimate(&[Adu(&image)], shape, &Known::default()).expect("a fit");
    let truth = Correlation::of_filters(filters);
    Told {
        deviations: fit.levels.map(|level| fit.line.deviation(level) / deviation(level - OFFSET)),
        lags: LAGS.map(|(dy, dx)| fit.correlation.at(dy, dx) - truth.at(dy, dx)),
        error: fit.correlation_error,
    }
}
