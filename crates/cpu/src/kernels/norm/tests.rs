//! Against a plain f64 norm, at every level; the same bits for any number of threads.

use super::*;
use crate::Cpu;
use crate::act::Act;
use crate::simd::Level;

const EPS: f32 = 1e-5;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e3779b97f4a7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) as f32 / (1u64 << 31) as f32) - 0.5
    };
    (0..n).map(|_| (next() + next() + next() + next()) * 1.7).collect()
}

/// One norm: the parts' channels and gaps, and all inputs.
struct Problem {
    dims: NormDims,
    parts: Vec<(usize, usize)>,
    data: Vec<Vec<f32>>,
    gamma: Option<Vec<f32>>,
    beta: Option<Vec<f32>>,
    film: Option<(Vec<f32>, Vec<f32>)>,
    act: Act,
    dy: Vec<f32>,
    addends: Option<Vec<Vec<f32>>>,
}

#[derive(PartialEq)]
struct Results {
    stats: Vec<f32>,
    y: Vec<f32>,
    dx: Vec<f32>,
    dgamma: Vec<f32>,
    dbeta: Vec<f32>,
    dscale: Vec<f32>,
    dshift: Vec<f32>,
}

impl Problem {
    /// `parts` are (channels, gap at the end of a pixel); `options` turns on gamma, beta, the
    /// modulation and the addend, one bit each.
    fn new(n: usize, s: usize, groups: usize, parts: &[(usize, usize)], act: Act, options: u32) -> Problem {
        let c = parts.iter().map(|p| p.0).sum();
        let on = |bit: u32, len: usize, seed: u64| (options >> bit & 1 == 1).then(|| noise(len, seed));
        let data = parts.iter().enumerate().map(|(i, &(channels, gap))| {
            noise(n * s * (channels + gap), 10 + i as u64).iter().map(|x| x * 3.0 + 5.0).collect()
        });
        Problem {
            dims: NormDims { n, s, c, groups },
            parts: parts.to_vec(),
            data: data.collect(),
            gamma: on(0, c, 1),
            beta: on(1, c, 2),
            film: on(2, n * c, 3).map(|scale| (scale, noise(n * c, 4))),
            act,
            dy: noise(n * s * c, 5),
            addends: (options >> 3 & 1 == 1)
                .then(|| parts.iter().map(|p| noise(n * s * p.0, 6 + p.0 as u64)).collect()),
        }
    }

    fn addends(&self) -> [Option<&[f32]>; MAX_PARTS] {
        std::array::from_fn(|i| self.addends.as_ref().and_then(|a| a.get(i)).map(|a| &a[..]))
    }

    /// What is added to dx at a pixel and a channel of all.
    fn addend(&self, pixel: usize, mut channel: usize) -> f64 {
        for (i, &(channels, _)) in self.parts.iter().enumerate() {
            if channel < channels {
                return self.addends.as_ref().map_or(0.0, |a| f64::from(a[i][pixel * channels + channel]));
            }
            channel -= channels;
        }
        unreachable!("a channel of no part")
    }

    fn inputs(&self) -> (Vec<Part<'_>>, Affine<'_>) {
        let parts = self.parts.iter().zip(&self.data);
        let parts = parts.map(|(&(channels, gap), data)| Part { data, channels, stride: channels + gap });
        let affine = Affine {
            gamma: self.gamma.as_deref(),
            beta: self.beta.as_deref(),
            film: self.film.as_ref().map(|(a, b)| (&a[..], &b[..])),
        };
        (parts.collect(), affine)
    }

    fn run(&self, level: Level, threads: usize) -> Results {
        let cpu = Cpu::with_level(threads, level);
        let NormDims { n, s, c, groups } = self.dims;
        let (parts, affine) = self.inputs();
        let mut r = Results {
            stats: vec![0.0; n * groups * 2],
            y: vec![0.0; n * s * c],
            dx: vec![0.0; n * s * c],
            dgamma: vec![0.0; c],
            dbeta: vec![0.0; c],
            dscale: vec![0.0; n * c],
            dshift: vec![0.0; n * c],
        };
        let mut workspace = vec![f32::NAN; forward_workspace(&self.dims, threads)];
        forward(&cpu, &self.dims, &parts, &affine, EPS, self.act, &mut r.stats, &mut r.y, &mut workspace);
        let mut workspace = vec![f32::NAN; grad_workspace(&self.dims, threads)];
        let inputs = GradInputs {
            parts: &parts,
            stats: &r.stats,
            affine,
            act: self.act,
            dy: &self.dy,
            addends: self.addends(),
        };
        let gradients = NormGradients {
            dx: Some(PartGradients::Whole(&mut r.dx)),
            dgamma: Some(&mut r.dgamma),
            dbeta: Some(&mut r.dbeta),
            dscale: Some(&mut r.dscale),
            dshift: Some(&mut r.dshift),
        };
        grad(&cpu, &self.dims, &inputs, gradients, &mut workspace);
        r
    }

    /// x at an image, pixel and channel.
    fn x(&self, pixel: usize, mut c: usize) -> f64 {
        for (&(channels, gap), data) in self.parts.iter().zip(&self.data) {
            if c < channels {
                return data[pixel * (channels + gap) + c] as f64;
            }
            c -= channels;
        }
        unreachable!()
    }

    /// The same results in the plainest way.
    fn exact(&self) -> [Vec<f64>; 7] {
        let NormDims { n, s, c, groups } = self.dims;
        let width = c / groups;
        let count = (s * width) as f64;
        let zeros = |len| vec![0.0; len];
        let mut out = [
            zeros(n * groups * 2),
            zeros(n * s * c),
            zeros(n * s * c),
            zeros(c),
            zeros(c),
            zeros(n * c),
            zeros(n * c),
        ];
        let [stats, y, dx, dgamma, dbeta, dscale, dshift] = &mut out;
        for image in 0..n {
            for g in 0..groups {
                let all = || {
                    (0..s * width).map(|i| (image * s + i / width, g * width + i % width)).collect::<Vec<_>>()
                };
                let mean = all().iter().map(|&(p, c)| self.x(p, c)).sum::<f64>() / count;
                let var = all().iter().map(|&(p, c)| (self.x(p, c) - mean).powi(2)).sum::<f64>() / count;
                let rstd = 1.0 / (var + EPS as f64).sqrt();
                stats[(image * groups + g) * 2] = mean;
                stats[(image * groups + g) * 2 + 1] = rstd;
                let (mut one, mut two) = (0.0, 0.0);
                let mut slopes = Vec::new();
                for (p, ch) in all() {
                    let gamma = self.gamma.as_ref().map_or(1.0, |v| v[ch] as f64);
                    let beta = self.beta.as_ref().map_or(0.0, |v| v[ch] as f64);
                    let film = self
                        .film
                        .as_ref()
                        .map_or((0.0, 0.0), |(a, b)| (a[image * c + ch] as f64, b[image * c + ch] as f64));
                    let hat = (self.x(p, ch) - mean) * rstd;
                    let u = (hat * gamma + beta) * (1.0 + film.0) + film.1;
                    let (value, slope) = exact_act(self.act, u);
                    y[p * c + ch] = value;
                    let du = self.dy[p * c + ch] as f64 * slope;
                    dgamma[ch] += du * (1.0 + film.0) * hat;
                    dbeta[ch] += du * (1.0 + film.0);
                    dscale[image * c + ch] += du * (hat * gamma + beta);
                    dshift[image * c + ch] += du;
                    let dhat = du * gamma * (1.0 + film.0);
                    one += dhat / count;
                    two += dhat * hat / count;
                    slopes.push((p, ch, hat, dhat));
                }
                for (p, ch, hat, dhat) in slopes {
                    let addend = self.addend(p, ch);
                    dx[p * c + ch] = rstd * (dhat - one - hat * two) + addend;
                }
            }
        }
        out
    }
}

/// The normal distribution below u, by Gauss's rule.
fn normal_below(u: f64) -> f64 {
    let steps = 60;
    let h = u / steps as f64;
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let third = (0.6f64).sqrt() / 2.0;
    let step = |i: usize| {
        let m = (i as f64 + 0.5) * h;
        (5.0 * density(m - third * h) + 8.0 * density(m) + 5.0 * density(m + third * h)) / 18.0
    };
    0.5 + h * (0..steps).map(step).sum::<f64>()
}

fn exact_value(act: Act, u: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match act {
        Act::Identity => u,
        Act::Silu => u * sigmoid(u),
        Act::Relu => u.max(0.0),
        Act::LeakyRelu(slope) => {
            if u > 0.0 {
                u
            } else {
                u * slope as f64
            }
        }
        Act::Snap([step, first, last]) => {
            let [step, first, last] = [step, first, last].map(f64::from);
            (u / step).round_ties_even().clamp(first, last) * step
        }
        Act::Gelu => u * normal_below(u),
        Act::GeluTanh => {
            0.5 * u * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (u + 0.044715 * u * u * u)).tanh())
        }
        Act::Sigmoid => sigmoid(u),
        Act::Tanh => u.tanh(),
        Act::Softplus => u.exp().ln_1p(),
    }
}

/// The value, and the slope by differences (rectifiers: by sign).
fn exact_act(act: Act, u: f64) -> (f64, f64) {
    let h = 1e-4;
    let slope = match act {
        Act::Relu => {
            if u > 0.0 {
                1.0
            } else {
                0.0
            }
        }
        Act::LeakyRelu(slope) => {
            if u > 0.0 {
                1.0
            } else {
                slope as f64
            }
        }
        _ => {
            let f = |k: f64| exact_value(act, u + k * h);
            (8.0 * (f(1.0) - f(-1.0)) - (f(2.0) - f(-2.0))) / (12.0 * h)
        }
    };
    (exact_value(act, u), slope)
}

/// Relative L2 distance; where the exact values all but vanish, against 0.1 a value.
fn distance(got: &[f32], want: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(want).map(|(g, w)| (*g as f64 - w).powi(2)).sum();
    let size: f64 = want.iter().map(|w| w * w).sum();
    (error / size.max(1e-2 * want.len() as f64)).sqrt()
}

fn check(problem: &Problem, level: Level) {
    let r = problem.run(level, 2);
    let want = problem.exact();
    let got = [&r.stats, &r.y, &r.dx, &r.dgamma, &r.dbeta, &r.dscale, &r.dshift];
    // u = x a + b loses digits where a group's mean is far above its deviation, as may happen by
    // chance in groups of two or three values.
    let ratios: f64 = want[0].chunks(2).map(|s| (s[0] * s[1]).powi(2)).sum();
    let loss = (ratios / (want[0].len() / 2) as f64).sqrt().max(4.0) / 4.0;
    for (i, limit) in [1e-6, 2e-6, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5].into_iter().enumerate() {
        let limit = if i == 0 { limit } else { limit * loss };
        let error = distance(got[i], &want[i]);
        let Problem { dims, parts, act, .. } = problem;
        assert!(error <= limit, "{level:?} {dims:?} {parts:?} {act:?}: output {i} is off by {error:e}");
    }
}

/// Images, pixels, groups, and the parts' channels and gaps.
type Shape = (usize, usize, usize, &'static [(usize, usize)]);

const ACTS: [Act; 9] = [
    Act::Identity,
    Act::Silu,
    Act::Relu,
    Act::LeakyRelu(0.2),
    Act::Gelu,
    Act::GeluTanh,
    Act::Sigmoid,
    Act::Tanh,
    Act::Softplus,
];

#[test]
fn every_activation() {
    for level in Level::available() {
        for act in ACTS {
            check(&Problem::new(2, 130, 4, &[(24, 0)], act, 15), level);
            check(&Problem::new(20, 1, 1, &[(70, 0)], act, 7), level);
        }
    }
}

#[test]
fn every_option() {
    for level in Level::available() {
        for options in 0..16 {
            check(&Problem::new(2, 50, 2, &[(6, 0)], Act::Silu, options), level);
            check(&Problem::new(3, 5, 2, &[(34, 1)], Act::Silu, options), level);
        }
    }
}

#[test]
fn shapes() {
    let list: &[Shape] = &[
        (1, 1000, 1, &[(1, 0)]),
        (2, 77, 2, &[(2, 0)]),
        (3, 33, 1, &[(3, 0)]),
        (2, 4500, 4, &[(8, 0)]),
        (2, 100, 8, &[(8, 3)]),
        (1, 600, 32, &[(64, 0)]),
        (2, 300, 64, &[(64, 0)]),
        (1, 40, 32, &[(512, 0)]),
        (1, 50, 1, &[(100, 0)]),
        (300, 1, 1, &[(256, 0)]),
        (50, 1, 4, &[(8, 0)]),
        (20, 2, 3, &[(3, 0)]),
        (9, 1, 37, &[(37, 0)]),
        (7, 3, 2, &[(40, 8)]),
        (5, 8, 2, &[(10, 0)]),
    ];
    for level in Level::available() {
        for &(n, s, groups, parts) in list {
            check(&Problem::new(n, s, groups, parts, Act::Silu, 15), level);
        }
    }
}

#[test]
fn parts_and_groups_that_straddle_them() {
    for level in Level::available() {
        for s in [1, 5, 300] {
            for parts in [&[(10, 0), (14, 2)][..], &[(3, 1), (1, 0), (7, 0), (13, 5)], &[(64, 0), (32, 0)]] {
                check(&Problem::new(3, s, 4, parts, Act::Gelu, 15), level);
            }
        }
    }
}

#[test]
fn gradients_of_parts_apart() {
    let problem = Problem::new(2, 40, 4, &[(10, 0), (14, 2)], Act::Silu, 15);
    let cpu = Cpu::new(2);
    let whole = problem.run(cpu.level, 2);
    let (parts, affine) = problem.inputs();
    let (mut one, mut two) = (vec![0.0; 80 * 10], vec![0.0; 80 * 14]);
    let inputs = GradInputs {
        parts: &parts,
        stats: &whole.stats,
        affine,
        act: problem.act,
        dy: &problem.dy,
        addends: problem.addends(),
    };
    let mut workspace = vec![0.0; grad_workspace(&problem.dims, 2)];
    let list = &mut [&mut one[..], &mut two[..]];
    let gradients = NormGradients { dx: Some(PartGradients::Parts(list)), ..Default::default() };
    grad(&cpu, &problem.dims, &inputs, gradients, &mut workspace);
    for (pixel, row) in whole.dx.chunks(24).enumerate() {
        assert_eq!(row[..10], one[pixel * 10..][..10]);
        assert_eq!(row[10..], two[pixel * 14..][..14]);
    }
}

#[test]
fn a_mean_far_above_the_deviation() {
    for level in Level::available() {
        for (n, s, groups, c) in [(2, 5000, 4, 16), (1, 9000, 1, 1), (20, 1, 1, 256), (1, 400, 8, 128)] {
            let mut problem = Problem::new(n, s, groups, &[(c, 0)], Act::Identity, 0);
            problem.data[0].iter_mut().for_each(|x| *x = (*x - 5.0) / 3.0 + 1000.0);
            let (r, want) = (problem.run(level, 2), &problem.exact()[0]);
            for (got, want) in r.stats.iter().zip(want) {
                assert!((*got as f64 - want).abs() < 1e-5 * want, "{level:?} {s} {c}: {got} {want}");
            }
        }
    }
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let list: [Shape; 4] = [
        (2, 5000, 4, &[(16, 0)]),
        (1, 3000, 8, &[(24, 0), (40, 0)]),
        (2000, 1, 1, &[(64, 0)]),
        (3, 900, 128, &[(128, 0)]),
    ];
    for level in Level::available() {
        for (n, s, groups, parts) in list {
            let problem = Problem::new(n, s, groups, parts, Act::Silu, 15);
            let one = problem.run(level, 1);
            assert!((2..=3).all(|t| problem.run(level, t) == one), "{level:?} {:?}", problem.dims);
        }
    }
}
