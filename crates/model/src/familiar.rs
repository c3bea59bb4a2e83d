//! Compares an image with the training images of a model.
//!
//! A model draws unknown structures as the nearest thing that it knows, and the result looks convincing. A model therefore
//! stores a few numbers of its training images, the [`STATISTICS`], as a mean and a covariance for each kind of image. An
//! image whose Mahalanobis distance from every kind exceeds that of 999 of 1000 training images is reported as strange,
//! with the number that deviates most.
//!
//! All numbers describe the light and not its noise: the contribution of noise to a mean square is known from the camera
//! and subtracted, and the remaining uncertainty bounds the logarithms from below.

use crate::signal::Photons;
use serde::{Deserialize, Serialize};

/// What is looked at, in words that go before "is higher" or "is lower than in any image".
pub const STATISTICS: [&str; 14] = [
    "its light (electrons at the bright end)",
    "its noise without light, beside its bright end",
    "its mean brightness, beside its bright end",
    "its contrast",
    "the share of its few bright places (skewness)",
    "its detail from one pixel to the next",
    "its detail over 2 pixels",
    "the difference between its rows and its columns, over 2 pixels",
    "the difference between its diagonals and its axes, over 2 pixels",
    "its detail over 4 pixels",
    "its detail over 8 pixels",
    "the difference between its rows and its columns, over 8 pixels",
    "the difference between its diagonals and its axes, over 8 pixels",
    "its detail over 16 pixels",
];
const COUNT: usize = STATISTICS.len();
/// The number of an image's bright end among them.
const LIGHT: usize = 0;

/// The numbers of one image.
pub type Statistics = [f64; COUNT];

/// Pixels along a side below which an image tells too little.
pub const LEAST: usize = 32;
/// Sides of the blocks whose differences are looked at, and of those where rows, columns and diagonals are compared.
const SIDES: [usize; 5] = [1, 2, 4, 8, 16];
const COMPARED: [usize; 2] = [2, 8];
/// Mean squares, of the bright end's, that are as good as nothing.
const NOTHING: f64 = 1e-5;

/// Means of blocks of an image.
struct Blocks {
    values: Vec<f64>,
    size: [usize; 2],
}

impl Blocks {
    fn of(values: &[f64], [height, width]: [usize; 2], side: usize) -> Blocks {
        let size = [height / side, width / side];
        let mean = |by: usize, bx: usize| {
            let rows = (by * side..(by + 1) * side).map(|y| y * width + bx * side);
            rows.map(|at| values[at..at + side].iter().sum::<f64>()).sum::<f64>() / (side * side) as f64
        };
        let values = (0..size[0]).flat_map(|y| (0..size[1]).map(move |x| (y, x))).map(|(y, x)| mean(y, x));
        Blocks { values: values.collect(), size }
    }

    /// The mean squared difference of neighbours that lie (down, right) of each other.
    fn difference(&self, down: usize, right: isize) -> f64 {
        let [height, width] = self.size;
        let (mut sum, mut count) = (0.0, 0.0);
        for y in 0..height - down {
            for x in 0..width {
                let Some(other) = x.checked_add_signed(right).filter(|&o| o < width) else { continue };
                sum += (self.values[(y + down) * width + other] - self.values[y * width + x]).powi(2);
                count += 1.0;
            }
        }
        sum / count
    }

    fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// The mean of a power of what lies above the mean.
    fn moment(&self, power: i32) -> f64 {
        let mean = self.mean();
        self.values.iter().map(|v| (v - mean).powi(power)).sum::<f64>() / self.values.len() as f64
    }
}

/// The numbers of a plane of electrons on its scale; none of one that is too small, or dark all over.
///
/// # Panics
/// If there are not as many electrons as pixels.
pub fn statistics(electrons: &[f32], size: [usize; 2], photons: &Photons) -> Option<Statistics> {
    assert_eq!(electrons.len(), size[0] * size[1], "a number for each pixel");
    if size[0].min(size[1]) < LEAST {
        return None;
    }
    let Photons { background, read_noise, peak, correlation } = *photons;
    let light: Vec<f64> = electrons.iter().map(|&e| (f64::from(e) - background) / peak).collect();
    let pixels = light.len() as f64;
    let mean_electrons = electrons.iter().map(|&e| f64::from(e)).sum::<f64>() / pixels;
    // The mean variance of a pixel: that of Poisson's law is its mean.
    let noise = (mean_electrons.max(0.0) + read_noise * read_noise) / (peak * peak);
    let fours = Blocks::of(&light, size, 4);
    let noise_of_fours = noise * correlation.of_squares(4, 0, 0);
    let left = fours.moment(2) - noise_of_fours;
    if left < BLANK * noise_of_fours * (2.0 * 16.0 / pixels).sqrt() {
        return None;
    }
    let contrast = (left + 10.0 * NOTHING + 0.1 * noise_of_fours).sqrt();
    // The third cumulant of Poisson's law is its mean, too.
    let third = fours.moment(3) - mean_electrons / (256.0 * peak.powi(3));
    let mut out = vec![
        peak.log10(),
        ((background + read_noise * read_noise).sqrt() / peak).max(1e-6).log10(),
        fours.mean(),
        contrast.log10(),
        third / contrast.powi(3),
    ];
    for side in SIDES {
        let blocks = Blocks::of(&light, size, side);
        let area = (side * side) as f64;
        // What noise adds to the mean squared difference of neighbours.
        let of = |(down, right)| {
            let [own, shared] = [(0, 0), (down, right)].map(|(d, r)| correlation.of_squares(side, d, r));
            let noise = 2.0 * noise * (own - shared).max(0.0);
            let unsure = (3.0 * noise * (2.0 * area / pixels).sqrt()).max(NOTHING);
            (blocks.difference(down as usize, right) - noise).max(0.0) + unsure
        };
        let [rows, columns] = [of((0, 1)), of((1, 0))];
        out.push((0.5 * (rows + columns)).log10());
        if COMPARED.contains(&side) {
            let diagonals = 0.5 * (of((1, 1)) + of((1, -1)));
            out.push((rows / columns).log10());
            out.push((2.0 * diagonals / (rows + columns)).log10());
        }
    }
    out.try_into().ok().filter(|all: &Statistics| all.iter().all(|v| v.is_finite()))
}

/// Standard deviations of a blank image's variance that one with something in it exceeds.
const BLANK: f64 = 4.0;

/// The images of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    name: String,
    mean: Vec<f64>,
    /// The rows of the covariance's lower triangle.
    covariance: Vec<Vec<f64>>,
}

/// What a model's training images are like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Familiar {
    kinds: Vec<Kind>,
    /// The squared distance that one training image in a thousand is beyond.
    level: f64,
    /// The least and the most light of all, in electrons at the bright end.
    light: [f64; 2],
    /// Pixels along a side of the images.
    pub crop: usize,
}

/// How far an image is from what a model knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// Squared, from the nearest kind.
    pub square: f64,
    /// As a share of what one training image in a thousand is beyond.
    pub share: f64,
    /// The kind that it is nearest to.
    pub kind: String,
    /// The statistic that is most out of place there, and whether it is too high.
    pub statistic: &'static str,
    pub high: bool,
}

impl Distance {
    pub fn is_strange(&self) -> bool {
        self.share > 1.0
    }
}

impl Familiar {
    /// From the numbers of training images, each with its kind among `names`. None where there are too few of every kind.
    pub fn of(images: &[(usize, Statistics)], names: &[String], crop: usize) -> Option<Familiar> {
        let mut kinds = Vec::new();
        for (k, name) in names.iter().enumerate() {
            let of: Vec<&Statistics> = images.iter().filter(|(kind, _)| *kind == k).map(|(_, s)| s).collect();
            if of.len() >= 2 * COUNT {
                kinds.push(Kind::of(name, &of));
            }
        }
        if kinds.is_empty() {
            return None;
        }
        let light =
            |f: fn(f64, f64) -> f64| images.iter().map(|(_, s)| s[LIGHT]).reduce(f).map(|l| 10f64.powf(l));
        let light = [light(f64::min)?, light(f64::max)?];
        let mut familiar = Familiar { kinds, level: 1.0, light, crop };
        let counts: Vec<usize> = familiar
            .kinds
            .iter()
            .map(|k| images.iter().filter(|(i, _)| names[*i] == k.name).count())
            .collect();
        // As far as each would be from the others: of its own kind without itself.
        let from_others = |(own, image): &(usize, Statistics)| {
            let of = |(kind, &n): (&Kind, &usize)| {
                let square = sum_of_squares(&kind.whitened(image));
                if kind.name == names[*own] { left_out(square, n) } else { square }
            };
            familiar.kinds.iter().zip(&counts).map(of).fold(f64::INFINITY, f64::min)
        };
        let mut squares: Vec<f64> = images.iter().map(from_others).collect();
        squares.sort_by(f64::total_cmp);
        let at = |share: f64| squares[((squares.len() - 1) as f64 * share).round() as usize];
        // The tail falls as an exponential: as far again from one in a hundred as that from one in ten.
        familiar.level = 2.0 * at(0.99) - at(0.9);
        (familiar.level.is_finite() && familiar.level > 0.0).then_some(familiar)
    }

    pub fn distance(&self, image: &Statistics) -> Distance {
        let each = self.kinds.iter().map(|kind| (kind, kind.whitened(image)));
        let nearest = each.min_by(|(_, a), (_, b)| sum_of_squares(a).total_cmp(&sum_of_squares(b)));
        let (kind, whitened) = nearest.expect("there is a kind");
        let off = kind.off(image);
        let most = (0..COUNT).max_by(|&a, &b| off[a].abs().total_cmp(&off[b].abs())).unwrap_or(LIGHT);
        Distance {
            square: sum_of_squares(&whitened),
            share: sum_of_squares(&whitened) / self.level,
            kind: kind.name.clone(),
            statistic: STATISTICS[most],
            high: off[most] > 0.0,
        }
    }

    /// The most light that was trained on, in electrons at the bright end.
    pub fn brightest(&self) -> f64 {
        self.light[1]
    }

    /// Whether the numbers are of the statistics that this program knows.
    pub(crate) fn is_whole(&self) -> bool {
        let fits = |kind: &Kind| {
            kind.mean.len() == COUNT
                && kind.covariance.len() == COUNT
                && kind.covariance.iter().enumerate().all(|(i, row)| row.len() == i + 1)
                && (0..COUNT).all(|i| kind.covariance[i][i] > 0.0)
        };
        !self.kinds.is_empty() && self.level > 0.0 && self.crop > 0 && self.kinds.iter().all(fits)
    }
}

fn sum_of_squares(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum()
}

/// The squared distance of one of `n` images from the mean and by the covariance of the others, from that of all.
fn left_out(square: f64, n: usize) -> f64 {
    let n = n as f64;
    let (share, grown) = (square / (n - 1.0), n / (n - 1.0));
    grown * grown * (n - 2.0) * share / (1.0 - grown * share).max(1e-3)
}

/// Added to variances, so that a statistic that never varied in training can be off by a little.
const LEAST_VARIANCE: f64 = 1e-4;

impl Kind {
    fn of(name: &str, images: &[&Statistics]) -> Kind {
        let n = images.len() as f64;
        let mean: Vec<f64> = (0..COUNT).map(|i| images.iter().map(|s| s[i]).sum::<f64>() / n).collect();
        let both = |i: usize, j: usize| {
            let sum: f64 = images.iter().map(|s| (s[i] - mean[i]) * (s[j] - mean[j])).sum();
            sum / (n - 1.0) + if i == j { LEAST_VARIANCE } else { 0.0 }
        };
        let covariance = (0..COUNT).map(|i| (0..=i).map(|j| both(i, j)).collect()).collect();
        Kind { name: name.into(), mean, covariance }
    }

    /// Cholesky's factor of the covariance, by rows.
    fn factor(&self) -> Vec<Vec<f64>> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(COUNT);
        for (i, row) in self.covariance.iter().enumerate() {
            let mut made: Vec<f64> = Vec::with_capacity(i + 1);
            for j in 0..=i {
                let before = if j < i { &rows[j][..j] } else { &made[..j] };
                let left = row[j] - made.iter().zip(before).map(|(a, b)| a * b).sum::<f64>();
                let pivot = if j < i { rows[j][j] } else { 1.0 };
                made.push(if j < i { left / pivot } else { left.max(1e-3 * LEAST_VARIANCE).sqrt() });
            }
            rows.push(made);
        }
        rows
    }

    /// What an image differs by, in numbers that are independent and of variance 1.
    fn whitened(&self, image: &Statistics) -> Vec<f64> {
        let mut out: Vec<f64> = Vec::with_capacity(COUNT);
        for (i, row) in self.factor().iter().enumerate() {
            let sum: f64 = row.iter().zip(&out).map(|(a, b)| a * b).sum();
            out.push((image[i] - self.mean[i] - sum) / row[i]);
        }
        out
    }

    /// How far each statistic is off by itself, in standard deviations; where none is by much, how far each is off from
    /// what the others before it let expect.
    fn off(&self, image: &Statistics) -> Vec<f64> {
        let alone: Vec<f64> =
            (0..COUNT).map(|i| (image[i] - self.mean[i]) / self.covariance[i][i].sqrt()).collect();
        if alone.iter().any(|z| z.abs() > 4.0) { alone } else { self.whitened(image) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    fn normal(seed: u64, count: usize) -> Vec<f32> {
        let mut out = vec![0.0; count];
        Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut out);
        out
    }

    /// Images of numbers with a known covariance: squared distances are chi-squared, their mean the count of numbers.
    #[test]
    fn distances_of_normal_numbers_are_chi_squared() {
        let drawn = |seed: u64, count: usize| -> Vec<(usize, Statistics)> {
            let draw = |chunk: &[f32]| {
                let n: Vec<f64> = chunk.iter().map(|&v| f64::from(v)).collect();
                // Neighbours hang together; scales differ.
                let of = |i: usize| (1.0 + i as f64) * (n[i] + if i > 0 { 0.9 * n[i - 1] } else { 0.0 });
                (0, std::array::from_fn(of))
            };
            normal(seed, count * COUNT).chunks(COUNT).map(draw).collect()
        };
        let familiar = Familiar::of(&drawn(1, 4000), &["all".into()], 64).expect("enough");
        let others = drawn(2, 4000);
        let squares: Vec<f64> = others.iter().map(|(_, s)| familiar.distance(s).square).collect();
        let mean = squares.iter().sum::<f64>() / squares.len() as f64;
        assert!((mean - COUNT as f64).abs() < 0.3, "{mean}");
        let strange = others.iter().filter(|(_, s)| familiar.distance(s).is_strange()).count();
        assert!((1..16).contains(&strange), "{strange} of 4000, where about 4 are expected");
        let mut far = others[0].1;
        far[4] += 60.0;
        let found = familiar.distance(&far);
        assert!(found.is_strange() && found.high && found.statistic == STATISTICS[4], "{found:?}");
        // Left out by formula and in fact.
        let few = drawn(3, 60);
        let numbers: Vec<&Statistics> = few.iter().map(|(_, s)| s).collect();
        let square = sum_of_squares(&Kind::of("all", &numbers).whitened(numbers[0]));
        let without = sum_of_squares(&Kind::of("others", &numbers[1..]).whitened(numbers[0]));
        assert!((left_out(square, 60) / without - 1.0).abs() < 1e-3, "{square} {without}");
        let text = serde_json::to_string(&familiar).expect("JSON");
        assert_eq!(serde_json::from_str::<Familiar>(&text).expect("itself"), familiar);
        assert!(familiar.is_whole() && Familiar::of(&drawn(1, COUNT), &["all".into()], 64).is_none());
    }

    /// The same light under little and under much noise has the same numbers, but for the light itself.
    #[test]
    fn noise_is_taken_off() {
        let (n, photons) = (128, |peak| Photons::new(5.0, 2.0, peak).expect("numbers"));
        let seen = |peak: f64, seed: u64| {
            let value = |i: usize| 0.5 + 0.5 * ((i % n) as f64 / 9.0).sin() * ((i / n) as f64 / 7.0).cos();
            let noise = normal(seed, n * n);
            let electrons = |(i, z): (usize, &f32)| {
                let mean = 5.0 + peak * value(i);
                (mean + f64::from(*z) * (mean + 4.0).sqrt()) as f32
            };
            let plane: Vec<f32> = noise.iter().enumerate().map(electrons).collect();
            statistics(&plane, [n, n], &photons(peak)).expect("numbers")
        };
        let (few, many) = (seen(200.0, 1), seen(20_000.0, 2));
        for i in 2..COUNT {
            assert!((few[i] - many[i]).abs() < 0.1, "{}: {} {}", STATISTICS[i], few[i], many[i]);
        }
        assert!((many[0] - few[0] - 2.0).abs() < 1e-9);
        let blank: Vec<f32> = normal(3, n * n).iter().map(|z| 5.0 + 3.0 * z).collect();
        assert_eq!(statistics(&blank, [n, n], &photons(100.0)), None);
        assert_eq!(statistics(&blank[..31 * 31], [31, 31], &photons(100.0)), None);
    }
}
