//! Guided sampling against known posteriors: Gaussian images (also under a PSF), Gamma-distributed and two-level ones under
//! Poisson noise. Denoisers have closed forms; nothing is trained.

use clearshot_diffusion::guide::{Covariance, Discrepancy, Measurement, NormAdaptive, Proximal};
use clearshot_diffusion::host::{self, HostEstimate};
use clearshot_diffusion::sampler::{
    Churn, Ddim, Ddpm, DpmSolver, Program, Variance, ddim, ddpm, dpm_solver_pp, euler, heun,
};
use clearshot_diffusion::{Guide, Law, Level, Levels};
use clearshot_physics::noise::Window;
use clearshot_physics::poisson;
use clearshot_physics::{
    Boundary, Correlation, Electrons, Forward, Likelihood, Map, Normalised, Operator, Psf, Scale,
};
use clearshot_tensor::noise::Key;

const MEAN: f64 = 0.2;
const SD: f64 = 0.5;

fn normals(n: usize, seed: u64, step: u32) -> Vec<f64> {
    let key = Key { seed, step, stream: 77 };
    (0..n as u64).map(|i| key.normal(i).into()).collect()
}

fn forward(
    operator: Operator,
    per_unit: f64,
    background: f64,
    read_noise: f64,
    likelihood: Likelihood,
) -> Forward {
    Forward {
        operator,
        scale: Scale::new(Electrons(0.0), Electrons(per_unit)).unwrap(),
        exposure: 1.0,
        background: Map::Uniform(background),
        read_noise: Map::Uniform(read_noise),
        correlation: Correlation::WHITE,
        likelihood,
    }
}

/// E[x0 | x] of white Gaussian images.
fn gaussian_denoiser(x: &[f64], level: &Level) -> Vec<f64> {
    let gain = level.alpha * SD * SD / (level.alpha.powi(2) * SD * SD + level.sigma.powi(2));
    x.iter().map(|v| MEAN + gain * (v - level.alpha * MEAN)).collect()
}

/// Runs a program on the host with a denoiser, from noise of the first level.
fn sample(
    program: &Program,
    n: usize,
    seed: u64,
    denoiser: impl FnMut(&[f64], &Level) -> HostEstimate,
) -> Vec<f64> {
    let start = program.start();
    let x = normals(n, seed, u32::MAX).iter().map(|v| v * start.sigma).collect();
    host::run(program, x, denoiser, |step| normals(n, seed, step as u32), |_| ()).unwrap()
}

/// The denoiser `prior` with a guide. `back` multiplies by the transposed derivative of the prior at x.
fn guided<'a>(
    guide: &'a Guide,
    y: &'a [f64],
    mut prior: impl FnMut(&[f64], &Level) -> Vec<f64> + 'a,
    back: impl Fn(&[f64], &[f64], &Level) -> Vec<f64> + 'a,
) -> impl FnMut(&[f64], &Level) -> HostEstimate + 'a {
    move |x, level| {
        let x0 = prior(x, level);
        let measurement = Measurement { y: Electrons(y), valid: None };
        let change = guide.correction_on_host(&x0, level, &measurement, |g| back(g, x, level)).unwrap();
        HostEstimate::of(x0.iter().zip(change).map(|(a, c)| a + c).collect())
    }
}

/// For laws that do not go through the denoiser.
fn no_way_back(g: &[f64], _: &[f64], _: &Level) -> Vec<f64> {
    g.to_vec()
}

/// Noise before every step, as much as there can be.
const FULL_CHURN: Churn = Churn { amount: 1e9, range: [0.0, f64::INFINITY], noise: 1.0 };

/// Every sampler, with steps enough that what it leaves is below the Monte-Carlo error.
fn programs() -> Vec<(&'static str, Program)> {
    let few = Levels::karras([0.002, 80.0], 7.0, 60).unwrap();
    let many = Levels::karras([0.002, 80.0], 7.0, 600).unwrap();
    let churn = Churn { amount: 60.0, range: [0.0, f64::INFINITY], noise: 1.0 };
    let solver = |order, stochastic| DpmSolver { order, stochastic, ..DpmSolver::default() };
    let eta = |eta| Ddim { eta, ..Ddim::default() };
    vec![
        ("ddpm", ddpm(&many, &Ddpm::default()).unwrap()),
        (
            "ddpm, large variance",
            ddpm(&many, &Ddpm { variance: Variance::FixedLarge, temperature: 1.0 }).unwrap(),
        ),
        ("ddim", ddim(&many, &eta(0.0)).unwrap()),
        ("ddim, eta 0.5", ddim(&many, &eta(0.5)).unwrap()),
        ("ddim, eta 1, preserving", ddim(&many.preserving(), &eta(1.0)).unwrap()),
        ("dpm-solver++ 1", dpm_solver_pp(&many, &solver(1, false)).unwrap()),
        ("dpm-solver++ 2", dpm_solver_pp(&few, &solver(2, false)).unwrap()),
        ("dpm-solver++ 3", dpm_solver_pp(&few, &solver(3, false)).unwrap()),
        ("sde-dpm-solver++ 2", dpm_solver_pp(&few, &solver(2, true)).unwrap()),
        ("euler", euler(&many, &Churn::NONE).unwrap()),
        ("heun", heun(&few, &Churn::NONE).unwrap()),
        ("heun, churn", heun(&many, &churn).unwrap()),
        ("heun, preserving", heun(&few.preserving(), &Churn::NONE).unwrap()),
    ]
}

/// White Gaussian images, Gaussian noise: with the proximal law every sampler draws from the posterior.
#[test]
fn gaussian_images_every_sampler() {
    let n = 64 * 64;
    let truth: Vec<f64> = normals(n, 1, 0).iter().map(|v| MEAN + SD * v).collect();
    let (peak, sigma) = (20.0, 6.0);
    let model = forward(Operator::identity([64, 64]).unwrap(), peak, 3.0, sigma, Likelihood::Gaussian);
    let y: Vec<f64> = truth.iter().zip(normals(n, 2, 0)).map(|(x, e)| peak * x + 3.0 + sigma * e).collect();
    let variance = 1.0 / (1.0 / (SD * SD) + (peak / sigma).powi(2));
    let mean: Vec<f64> =
        y.iter().map(|y| variance * (MEAN / (SD * SD) + (y - 3.0) * peak / (sigma * sigma))).collect();
    let guide = Guide::new(model, Law::Proximal(Proximal::new(SD))).unwrap();
    for (name, program) in programs() {
        let x = sample(&program, n, 3, guided(&guide, &y, gaussian_denoiser, no_way_back));
        let z: Vec<f64> = x.iter().zip(&mean).map(|(x, m)| (x - m) / variance.sqrt()).collect();
        let bias = z.iter().sum::<f64>() / n as f64;
        let spread = z.iter().map(|v| v * v).sum::<f64>() / n as f64;
        let covered =
            truth.iter().zip(&x).filter(|(t, x)| (*t - *x).abs() < 1.645 * (2.0 * variance).sqrt()).count();
        let covered = covered as f64 / n as f64;
        println!("{name}: bias {bias:.4}, variance {spread:.4}, coverage {covered:.4}");
        let error = 1.0 / (n as f64).sqrt();
        assert!(bias.abs() < 4.0 * error, "{name}: {bias}");
        assert!((spread - 1.0).abs() < 4.0 * error * 2f64.sqrt() + 0.02, "{name}: {spread}");
        assert!((0.85..=0.95).contains(&covered), "{name}: {covered}");
    }
}

/// Driven by chi2, samples of a calibrated measurement end with a chi2 of 1.
#[test]
fn chi2_ends_at_one() {
    let n = 64 * 64;
    let blur = Operator::blur([64, 64], &Psf::gaussian(&[0.8, 0.8]).unwrap(), Boundary::Reflect).unwrap();
    for (name, operator) in [("identity", Operator::identity([64, 64]).unwrap()), ("blur", blur)] {
        let model = forward(operator, 40.0, 5.0, 1.5, Likelihood::ShiftedPoisson);
        let truth: Vec<f64> = normals(n, 1, 0).iter().map(|v| 1.5 + 0.3 * v).collect();
        let key = Key { seed: 12, step: 0, stream: 0 };
        let y = model.measure(Normalised(&truth), &Window::all([1, 64, 64]), key).unwrap().0;
        let prior = |x: &[f64], level: &Level| {
            let gain = level.alpha * 0.09 / (level.alpha.powi(2) * 0.09 + level.sigma.powi(2));
            x.iter().map(|v| 1.5 + gain * (v - 1.5 * level.alpha)).collect::<Vec<_>>()
        };
        let levels = Levels::karras([0.002, 20.0], 7.0, 30).unwrap();
        let guide = Guide::new(model.clone(), Law::Discrepancy(Discrepancy::default())).unwrap();
        for program in [heun(&levels, &FULL_CHURN).unwrap(), heun(&levels, &Churn::NONE).unwrap()] {
            let x = sample(&program, n, 3, guided(&guide, &y, prior, no_way_back));
            let chi2 = model.chi2(Normalised(&x), Electrons(&y), None).unwrap().unwrap();
            println!("{name}: chi2 {chi2:.4}");
            assert!((0.95..=1.05).contains(&chi2), "{name}: {chi2}");
        }
    }
}

/// The laws that are exact as noise vanishes.
fn exact_in_the_end(sd: f64) -> [(&'static str, Law); 4] {
    [
        ("proximal", Law::Proximal(Proximal { iterations: 12, ..Proximal::new(sd) })),
        ("covariance", Law::Covariance(Covariance { iterations: 2, ..Covariance::new(sd) })),
        ("sigma squared", Law::SigmaSquared { kappa: 1.0 }),
        ("through", Law::Through { kappa: 1.0 }),
    ]
}

/// Discrete Hartley transform of a square image: its own inverse, and what filters that are even along both
/// axes are diagonal in.
fn hartley(x: &[f64], side: usize) -> Vec<f64> {
    let cas = |i: usize, j: usize| {
        let angle = std::f64::consts::TAU * (i * j % side) as f64 / side as f64;
        (angle.sin() + angle.cos()) / (side as f64).sqrt()
    };
    let table: Vec<f64> = (0..side * side).map(|i| cas(i / side, i % side)).collect();
    let rows = |x: &[f64]| -> Vec<f64> {
        // Transforms the rows and transposes.
        let mut out = vec![0.0; side * side];
        for r in 0..side {
            for k in 0..side {
                out[k * side + r] = (0..side).map(|c| table[k * side + c] * x[r * side + c]).sum();
            }
        }
        out
    };
    rows(&rows(x))
}

/// Images with the spectrum `power`, blurred by a PSF, with Gaussian noise that neighbours may share: closed forms in Fourier
/// space.
struct Blurred {
    side: usize,
    /// The variance of each mode.
    power: Vec<f64>,
    transfer: Vec<f64>,
    /// The noise's variance in each mode over its mean.
    noise: Vec<f64>,
    guide: Box<dyn Fn(Law) -> Guide>,
    y: Vec<f64>,
    peak: f64,
    sigma: f64,
}

impl Blurred {
    fn new(white: bool) -> Blurred {
        Blurred::in_noise(white, Correlation::WHITE)
    }

    fn in_noise(white: bool, correlation: Correlation) -> Blurred {
        let (side, peak, sigma) = (16, 20.0, 4.0);
        let psf = Psf::gaussian_within(&[1.1, 1.1], &[7, 7]).unwrap();
        let blur = Operator::blur([side, side], &psf, Boundary::Periodic).unwrap();
        let mut point = vec![0.0; side * side];
        point[0] = 1.0;
        let spread: Vec<f64> = blur.apply(&point).unwrap();
        let transfer: Vec<f64> = hartley(&spread, side).iter().map(|h| h * side as f64).collect();
        let frequency = |k: usize| k.min(side - k) as f64;
        let power: Vec<f64> = (0..side * side)
            .map(|i| match white {
                true => SD * SD,
                false => 2.0 / (1.0 + frequency(i / side).powi(2) + frequency(i % side).powi(2)) + 0.01,
            })
            .collect();
        let modes = normals(side * side, 41, 0)
            .into_iter()
            .zip(&power)
            .map(|(n, p)| n * p.sqrt())
            .collect::<Vec<_>>();
        let truth: Vec<f64> = hartley(&modes, side).iter().map(|v| v + MEAN).collect();
        let model = Forward { correlation, ..forward(blur, peak, 0.0, sigma, Likelihood::Gaussian) };
        let mean = model.mean(Normalised(&truth)).unwrap().0;
        let noise = correlation.spectrum([side, side]);
        let modes: Vec<f64> =
            normals(side * side, 42, 0).iter().zip(&noise).map(|(e, s)| e * s.sqrt()).collect();
        let y = mean.iter().zip(hartley(&modes, side)).map(|(m, e)| m + sigma * e).collect();
        let guide = Box::new(move |law| Guide::new(model.clone(), law).unwrap());
        Blurred { side, power, transfer, noise, guide, y, peak, sigma }
    }

    /// Multiplies each mode by a number that follows from its variance.
    fn filter(&self, x: &[f64], of: impl Fn(f64) -> f64) -> Vec<f64> {
        let modes =
            hartley(x, self.side).into_iter().zip(&self.power).map(|(m, p)| m * of(*p)).collect::<Vec<_>>();
        hartley(&modes, self.side)
    }

    fn gain(level: &Level, power: f64) -> f64 {
        level.alpha * power / (level.alpha.powi(2) * power + level.sigma.powi(2))
    }

    fn denoise(&self, x: &[f64], level: &Level) -> Vec<f64> {
        let from_mean: Vec<f64> = x.iter().map(|v| v - level.alpha * MEAN).collect();
        self.filter(&from_mean, |p| Blurred::gain(level, p)).iter().map(|v| v + MEAN).collect()
    }

    /// Posterior variance of each mode, and the posterior mean as an image.
    fn posterior(&self) -> (Vec<f64>, Vec<f64>) {
        let flat = vec![self.peak * MEAN; self.y.len()];
        let residual: Vec<f64> = self.y.iter().zip(flat).map(|(y, m)| y - m).collect();
        let seen = hartley(&residual, self.side);
        let n = seen.len();
        let known = |i: usize| self.peak * self.transfer[i] / (self.sigma.powi(2) * self.noise[i]);
        let variance: Vec<f64> =
            (0..n).map(|i| 1.0 / (1.0 / self.power[i] + known(i) * self.peak * self.transfer[i])).collect();
        let modes: Vec<f64> = (0..n).map(|i| variance[i] * known(i) * seen[i]).collect();
        let mean = hartley(&modes, self.side).iter().map(|v| v + MEAN).collect();
        (variance, mean)
    }

    /// Samples' deviations from the posterior mean, mode by mode, in posterior standard deviations: the mean
    /// over modes of samples x (mean deviation)^2, and the mean square deviation. Both are 1 if exact.
    fn deviations(&self, program: &Program, law: Law, below: f64, samples: u64) -> (f64, f64) {
        let guide = (self.guide)(law).gated([0.0, below]).unwrap();
        let (variance, mean) = self.posterior();
        let n = mean.len();
        let (mut sums, mut squares) = (vec![0.0; n], 0.0);
        for seed in 0..samples {
            let back = |g: &[f64], _: &[f64], level: &Level| self.filter(g, |p| Blurred::gain(level, p));
            let x = sample(program, n, 100 + seed, guided(&guide, &self.y, |x, l| self.denoise(x, l), back));
            let off: Vec<f64> = x.iter().zip(&mean).map(|(x, m)| x - m).collect();
            for (i, z) in hartley(&off, self.side).into_iter().enumerate() {
                let z = z / variance[i].sqrt();
                sums[i] += z;
                squares += z * z;
            }
        }
        let count = samples as f64;
        (sums.iter().map(|s| s * s / count).sum::<f64>() / n as f64, squares / (count * n as f64))
    }
}

/// Under a PSF, white images: the proximal law is exact at every level, for samplers of every kind.
#[test]
fn blurred_white_images() {
    let problem = Blurred::new(true);
    let (_, mean) = problem.posterior();
    let law = Law::Proximal(Proximal { iterations: 16, ..Proximal::new(SD) });
    // The posterior mean is its own guided estimate at every level.
    let guide = (problem.guide)(law);
    for sigma in [0.01, 0.3, 5.0, 80.0] {
        let level = Level::new(1.0, sigma, 0.0);
        let mut estimate = guided(&guide, &problem.y, |x, l| problem.denoise(x, l), no_way_back);
        let x0 = estimate(&mean, &level).x0;
        let error = x0.iter().zip(&mean).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error < 1e-6, "sigma {sigma}: {error:e}");
    }
    let few = Levels::karras([0.002, 80.0], 7.0, 40).unwrap();
    let many = Levels::karras([0.002, 80.0], 7.0, 300).unwrap();
    let programs = [
        ("heun", heun(&few, &Churn::NONE).unwrap()),
        ("dpm-solver++ 2", dpm_solver_pp(&few, &DpmSolver::default()).unwrap()),
        ("ddim, eta 1", ddim(&many, &Ddim { eta: 1.0, ..Ddim::default() }).unwrap()),
    ];
    for (name, program) in programs {
        let (bias, spread) = problem.deviations(&program, law, f64::INFINITY, 12);
        println!("{name}: bias {bias:.4}, variance {spread:.4}");
        // Chi-squared laws of 256 and of 3072 degrees, four standard deviations, and a tenth of the steps' own.
        assert!((bias - 1.0).abs() < 4.0 * (2.0f64 / 256.0).sqrt(), "{name}: {bias}");
        assert!((spread - 1.0).abs() < 4.0 * (2.0f64 / 3072.0).sqrt() + 0.02, "{name}: {spread}");
    }
}

/// Under a PSF, images with a spectrum: exact in the end, with churn. The laws that overshoot where
/// `r^2 sensitivity^2 information` exceeds 1 are let in below that only.
#[test]
fn blurred_images_with_a_spectrum() {
    let problem = Blurred::new(false);
    let sd = (problem.power.iter().sum::<f64>() / 256.0).sqrt();
    let levels = Levels::karras([0.01, 10.0], 3.0, 600).unwrap();
    let program = heun(&levels, &FULL_CHURN).unwrap();
    for (name, law) in exact_in_the_end(sd) {
        let bounded = ["proximal", "covariance"].contains(&name);
        let gate = if bounded { f64::INFINITY } else { problem.sigma / problem.peak };
        let (bias, spread) = problem.deviations(&program, law, gate, 4);
        println!("{name}: bias {bias:.4}, variance {spread:.4}");
        assert!((bias - 1.0).abs() < 4.0 * (2.0f64 / 256.0).sqrt(), "{name}: {bias}");
        assert!((spread - 1.0).abs() < 4.0 * (2.0f64 / 1024.0).sqrt(), "{name}: {spread}");
    }
}

/// Images with a spectrum, under a PSF: the covariance law is exact at every level once its equations are solved, for
/// samplers of every kind and without churn. The proximal law, which knows of no correlation, is not.
#[test]
fn correlated_images_at_every_level() {
    let problem = Blurred::new(false);
    let sd = (problem.power.iter().sum::<f64>() / 256.0).sqrt();
    let (_, mean) = problem.posterior();
    let law = |iterations| Law::Covariance(Covariance { iterations, ..Covariance::new(sd) });
    let back = |g: &[f64], _: &[f64], level: &Level| problem.filter(g, |p| Blurred::gain(level, p));
    let worst = |law: Law, level: &Level| {
        let guide = (problem.guide)(law);
        // The posterior mean, without noise, is its own guided estimate.
        let x: Vec<f64> = mean.iter().map(|v| level.alpha * v).collect();
        let x0 = guided(&guide, &problem.y, |x, l| problem.denoise(x, l), back)(&x, level).x0;
        x0.iter().zip(&mean).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    for (alpha, sigma) in [(1.0, 0.01), (0.6, 0.8), (1.0, 5.0), (1.0, 80.0)] {
        let level = Level::new(alpha, sigma, 0.0);
        let error = worst(law(40), &level);
        assert!(error < 1e-6, "sigma {sigma}: {error:e}");
    }
    let proximal = Law::Proximal(Proximal { iterations: 40, ..Proximal::new(sd) });
    assert!(worst(proximal, &Level::new(0.6, 0.8, 0.0)) > 1e-2);
    let few = Levels::karras([0.002, 80.0], 7.0, 40).unwrap();
    let many = Levels::karras([0.002, 80.0], 7.0, 300).unwrap();
    let programs = [
        ("heun", heun(&few, &Churn::NONE).unwrap()),
        ("dpm-solver++ 2", dpm_solver_pp(&few, &DpmSolver::default()).unwrap()),
        ("ddim, eta 1", ddim(&many, &Ddim { eta: 1.0, ..Ddim::default() }).unwrap()),
    ];
    for (name, program) in programs {
        let (bias, spread) = problem.deviations(&program, law(12), f64::INFINITY, 12);
        println!("{name}: bias {bias:.4}, variance {spread:.4}");
        assert!((bias - 1.0).abs() < 4.0 * (2.0f64 / 256.0).sqrt(), "{name}: {bias}");
        assert!((spread - 1.0).abs() < 4.0 * (2.0f64 / 3072.0).sqrt() + 0.02, "{name}: {spread}");
    }
}

/// Noise that neighbours share: with its covariance the proximal law is exact for white images and the covariance law for others, and
/// samples have the mean and the variance of every mode; taken for white, the same noise misleads.
#[test]
fn noise_that_neighbours_share() {
    let correlation = Correlation::gaussian([0.5, 0.35]);
    let worst = |problem: &Blurred, guide: &Guide, level: &Level| {
        let (_, mean) = problem.posterior();
        let back = |g: &[f64], _: &[f64], level: &Level| problem.filter(g, |p| Blurred::gain(level, p));
        let x: Vec<f64> = mean.iter().map(|v| level.alpha * v).collect();
        let x0 = guided(guide, &problem.y, |x, l| problem.denoise(x, l), back)(&x, level).x0;
        x0.iter().zip(&mean).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let [white, others] = [true, false].map(|white| Blurred::in_noise(white, correlation));
    let sd = (others.power.iter().sum::<f64>() / 256.0).sqrt();
    let proximal = Law::Proximal(Proximal { iterations: 60, ..Proximal::new(SD) });
    let covariance = Law::Covariance(Covariance { iterations: 60, ..Covariance::new(sd) });
    for (alpha, sigma) in [(1.0, 0.01), (0.6, 0.8), (1.0, 5.0), (1.0, 80.0)] {
        let level = Level::new(alpha, sigma, 0.0);
        for (problem, law) in [(&white, proximal), (&others, covariance)] {
            let error = worst(problem, &(problem.guide)(law), &level);
            assert!(error < 1e-6, "{law:?} at {sigma}: {error:e}");
        }
    }
    let ignorant = (Blurred::new(true).guide)(proximal);
    assert!(worst(&white, &ignorant, &Level::new(1.0, 5.0, 0.0)) > 0.05);
    let few = Levels::karras([0.002, 80.0], 7.0, 60).unwrap();
    for (name, program) in [
        ("heun", heun(&few, &Churn::NONE).unwrap()),
        ("dpm-solver++ 2", dpm_solver_pp(&few, &DpmSolver::default()).unwrap()),
    ] {
        let (bias, spread) = white.deviations(&program, proximal, f64::INFINITY, 12);
        println!("{name}: bias {bias:.4}, variance {spread:.4}");
        assert!((bias - 1.0).abs() < 4.0 * (2.0f64 / 256.0).sqrt(), "{name}: {bias}");
        assert!((spread - 1.0).abs() < 4.0 * (2.0f64 / 3072.0).sqrt() + 0.02, "{name}: {spread}");
    }
}

/// Gamma-distributed pixels under Poisson noise, whose posterior is Gamma's again.
#[test]
fn gamma_pixels_under_poisson_noise() {
    let (shape, rate, peak, n) = (2.0f64, 2.0, 10.0, 2500);
    let key = Key { seed: 9, step: 0, stream: 0 };
    // Of shape 2: the sum of two exponentials.
    let exponential = |i: u64| -f64::from(key.uniform(i)).ln() / rate;
    let truth: Vec<f64> = (0..n as u64).map(|i| exponential(2 * i) + exponential(2 * i + 1)).collect();
    let y: Vec<f64> = truth.iter().zip(0..).map(|(x, i)| poisson::draw(peak * x, key, i)).collect();
    let model = forward(Operator::identity([1, n]).unwrap(), peak, 0.0, 0.0, Likelihood::Poisson);
    let moments = |x: f64, level: &Level| {
        let r = level.ratio();
        gamma_moments(x / level.alpha - rate * r * r, r)
    };
    let denoiser = |x: &[f64], level: &Level| x.iter().map(|x| moments(*x, level).0).collect::<Vec<_>>();
    // dx0/dx = alpha Var[x0 | x] / sigma^2.
    let back = |g: &[f64], x: &[f64], level: &Level| {
        let derivative = |x: f64| moments(x, level).1 / (level.sigma * level.ratio());
        g.iter().zip(x).map(|(g, x)| g * derivative(*x)).collect::<Vec<_>>()
    };
    let levels = Levels::karras([0.02, 0.6], 1.0, 1000).unwrap();
    let program = heun(&levels, &FULL_CHURN).unwrap();
    for (name, law) in exact_in_the_end(shape.sqrt() / rate) {
        let guide = Guide::new(model.clone(), law).unwrap();
        let x = sample(&program, n, 5, guided(&guide, &y, denoiser, back));
        let (mut bias, mut spread, mut covered) = (0.0, 0.0, 0.0);
        for i in 0..n {
            let (a, b) = (shape + y[i], rate + peak);
            let (mean, variance) = (a / b, a / (b * b));
            let z = (x[i] - mean) / variance.sqrt();
            bias += z / n as f64;
            spread += z * z / n as f64;
            let inside = (x[i] - truth[i]).abs() < 1.645 * (2.0 * variance).sqrt();
            covered += f64::from(u8::from(inside)) / n as f64;
        }
        println!("{name}: bias {bias:.4}, variance {spread:.4}, coverage {covered:.4}");
        let error = 1.0 / (n as f64).sqrt();
        assert!(bias.abs() < 4.0 * error, "{name}: {bias}");
        assert!((spread - 1.0).abs() < 6.0 * error * 2f64.sqrt(), "{name}: {spread}");
        assert!((0.85..=0.95).contains(&covered), "{name}: {covered}");
    }
}

/// Pixels of two levels under Poisson noise; the posterior by enumeration.
#[test]
fn two_levels_under_poisson_noise() {
    let (low, high, peak, n, samples) = (0.2, 1.0, 8.0, 400, 40);
    let key = Key { seed: 9, step: 0, stream: 0 };
    let truth = (0..n as u64).map(|i| if key.uniform(i) < 0.5 { low } else { high });
    let model = forward(Operator::identity([1, n]).unwrap(), peak, 0.5, 0.0, Likelihood::Poisson);
    let y: Vec<f64> = truth.zip(0..).map(|(x, i)| poisson::draw(peak * x + 0.5, key, i)).collect();
    let share = |x: f64, level: &Level| {
        let (x, v) = (x / level.alpha, level.ratio().powi(2));
        1.0 / (1.0 + (((x - high).powi(2) - (x - low).powi(2)) / (2.0 * v)).exp())
    };
    let mixed = |p: f64| low + (high - low) * p;
    let prior = |x: &[f64], level: &Level| x.iter().map(|x| mixed(share(*x, level))).collect::<Vec<_>>();
    let back = |g: &[f64], x: &[f64], level: &Level| {
        let variance = |p: f64| (high - low).powi(2) * p * (1.0 - p);
        let derivative = |x: f64| variance(share(x, level)) / (level.sigma * level.ratio());
        g.iter().zip(x).map(|(g, x)| g * derivative(*x)).collect::<Vec<_>>()
    };
    let at = |y: f64, x: f64| Likelihood::Poisson.value(y, peak * x + 0.5, 0.0);
    let odds = |y: f64| at(y, low) - at(y, high);
    let exact: Vec<f64> = y.iter().map(|y| mixed(1.0 / (1.0 + (-odds(*y)).exp()))).collect();
    let expected_error =
        (exact.iter().map(|e| (e - low) * (high - e)).sum::<f64>() / (n * samples) as f64).sqrt();

    let levels = Levels::karras([0.02, 10.0], 5.0, 60).unwrap();
    let program = heun(&levels, &FULL_CHURN).unwrap();
    let error_of = |mut draw: Box<dyn FnMut(u64) -> Vec<f64> + '_>| {
        let mut mean = vec![0.0; n];
        for seed in 0..samples as u64 {
            mean.iter_mut().zip(draw(5 + seed)).for_each(|(m, x)| *m += x / samples as f64);
        }
        (mean.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / n as f64).sqrt()
    };
    // With E[x0 | x, y] itself, by enumeration.
    let conditional = |x: &[f64], level: &Level| {
        let one = |(x, y): (&f64, &f64)| {
            let p = share(*x, level);
            mixed(1.0 / (1.0 + (-(p / (1.0 - p)).ln() - odds(*y)).exp()))
        };
        HostEstimate::of(x.iter().zip(&y).map(one).collect())
    };
    let error = error_of(Box::new(|seed| sample(&program, n, seed, conditional)));
    println!("enumerated: {error:.4} where {expected_error:.4} is expected of {samples} samples");
    assert!(error < 1.2 * expected_error, "{error} {expected_error}");
    // What each law reaches, in the same unit; the levels are 0.8 apart. Modes do not mix at low noise, so
    // none is exact here.
    let reached = [
        ("through", Law::Through { kappa: 1.0 }, 0.045),
        ("sigma squared", Law::SigmaSquared { kappa: 1.0 }, 0.05),
        ("covariance", Law::Covariance(Covariance::new(0.4)), 0.08),
        ("proximal", Law::Proximal(Proximal::new(0.4)), 0.15),
        ("discrepancy", Law::Discrepancy(Discrepancy::default()), 0.15),
        ("sigma", Law::Sigma { kappa: 0.1 }, 0.15),
        ("constant", Law::Constant { kappa: 0.01 }, 0.25),
        (
            "norm-adaptive",
            Law::NormAdaptive(NormAdaptive { lambda: 0.05, eps: 1e-3, warm_up: [0.6, 0.3] }),
            0.33,
        ),
    ];
    for (name, law, most) in reached {
        let guide = Guide::new(model.clone(), law).unwrap();
        let error = error_of(Box::new(|seed| sample(&program, n, seed, guided(&guide, &y, prior, back))));
        println!("{name}: {error:.4}");
        assert!(error < most, "{name}: {error}");
    }
}

/// Mean and variance of the law t exp(-(t - mu)^2 / 2 s^2) on t > 0.
fn gamma_moments(mu: f64, s: f64) -> (f64, f64) {
    let z = mu / s;
    if z > -3.0 {
        let below = 0.5 * libm::erfc(-z / 2f64.sqrt());
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        let m0 = below;
        let m1 = mu * m0 + s * density;
        let m2 = mu * m1 + s * s * m0;
        let m3 = mu * m2 + 2.0 * s * s * m1;
        let mean = m2 / m1;
        return (mean, m3 / m1 - mean * mean);
    }
    // In units of s / |z| the law is t exp(-t - t^2 / 2 z^2).
    let (mut sums, unit) = ([0.0; 3], s / -z);
    for i in 1..=600 {
        let t = i as f64 * 0.05;
        let w = t * (-t - 0.5 * t * t / (z * z)).exp();
        sums[0] += w;
        sums[1] += w * t;
        sums[2] += w * t * t;
    }
    let mean = sums[1] / sums[0];
    (unit * mean, unit * unit * (sums[2] / sums[0] - mean * mean))
}
