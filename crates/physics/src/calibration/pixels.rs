//! Estimates the growth of noise with brightness from all pixels of an image, for images whose bright regions are never
//! smooth.
//!
//! In images of filaments and stars every bright block contains structure, so the smooth blocks of [`super::blind`] are
//! dark and do not determine the slope. Here each 3 x 3 neighbourhood gives three numbers that are uncorrelated in
//! white noise: its level, its second difference along both axes (squared: noise, and a little structure) and its
//! slopes along either axis (squared: the same noise, and more structure). Neighbourhoods are grouped by the pixels
//! around them, whose noise is independent, so that the grouping is not biased; groups differ in brightness and in
//! steepness, and `V = at zero + slope * level + share * structure` is fitted to their means. The squared slopes minus
//! the squared second difference measure the structure; its share in the second difference is fitted.

use crate::units::Adu;

/// The growth of the variance with the level, in ADU, and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    pub slope: f64,
    pub error: f64,
}

/// Neighbourhoods that are looked at, at most.
const MOST: usize = 1 << 20;
/// Pixels from the middle of a neighbourhood to the edge of what is around it.
const REACH: usize = 3;
/// Neighbourhoods that make a group, and that make three groups of different steepness.
const FEWEST: usize = 40;
const FEWEST_SPLIT: usize = 240;
/// Groups that a fit of three numbers needs.
const FEWEST_GROUPS: usize = 6;
/// Neighbourhoods overlap: as many as this tell as much as one alone.
const SHARED: f64 = 2.5;
/// No group's variance is trusted to be nearer than this.
const MODEL_ERROR: f64 = 0.02;

/// What one neighbourhood shows.
#[derive(Clone, Copy)]
struct Place {
    level: f64,
    /// The square of the second difference, scaled so that white noise gives its variance.
    fine: f64,
    /// The mean square of the two slopes less that.
    structure: f64,
    /// The level and the steepness of the pixels around.
    around: f64,
    steepness: f64,
}

struct Group {
    level: f64,
    variance: f64,
    structure: f64,
    relative_error: f64,
}

/// The growth of noise with light, or nothing where there is too little to tell it.
pub(super) fn growth(planes: &[Adu<&[f32]>], shape: [usize; 2], saturation: Option<f64>) -> Option<Growth> {
    let mut places = collect(planes, shape, saturation.unwrap_or(f64::INFINITY));
    let groups = group(&mut places);
    (groups.len() >= FEWEST_GROUPS).then(|| fit(&groups)).flatten()
}

fn collect(planes: &[Adu<&[f32]>], [height, width]: [usize; 2], full: f64) -> Vec<Place> {
    let side = 2 * REACH + 1;
    if height < side || width < side {
        return Vec::new();
    }
    let all = planes.len() * (height - side + 1) * (width - side + 1);
    let step = (all as f64 / MOST as f64).sqrt().ceil().max(1.0) as usize;
    let mut places = Vec::with_capacity(all / (step * step) + 1);
    for plane in planes {
        for y in (REACH..height - REACH).step_by(step) {
            for x in (REACH..width - REACH).step_by(step) {
                places.extend(look(plane.0, width, [y, x], full));
            }
        }
    }
    places
}

/// The neighbourhood of one pixel, if all of it can be used.
fn look(plane: &[f32], width: usize, [y, x]: [usize; 2], full: f64) -> Option<Place> {
    let reach = REACH as isize;
    let (mut level, mut fine, mut across, mut down) = (0.0, 0.0, 0.0, 0.0);
    let (mut around, mut wide_across, mut wide_down) = (0.0, 0.0, 0.0);
    for dy in -reach..=reach {
        let row = &plane[(y as isize + dy) as usize * width + x - REACH..][..2 * REACH + 1];
        for (value, dx) in row.iter().zip(-reach..=reach) {
            let v = f64::from(*value);
            if !(v.is_finite() && v < full) {
                return None;
            }
            if dy.abs() <= 1 && dx.abs() <= 1 {
                let second = |d: isize| if d == 0 { -2.0 } else { 1.0 };
                level += v / 9.0;
                fine += second(dy) * second(dx) * v;
                across += dx as f64 * v;
                down += dy as f64 * v;
            } else {
                if dy.abs() <= 2 && dx.abs() <= 2 {
                    around += v / 16.0;
                }
                wide_across += dx as f64 * v;
                wide_down += dy as f64 * v;
            }
        }
    }
    let fine = fine * fine / 36.0;
    let structure = (across * across + down * down) / 12.0 - fine;
    Some(Place { level, fine, structure, around, steepness: wide_across.hypot(wide_down) })
}

/// Tenths of the neighbourhoods by the level around them, and ever smaller parts of the brightest tenth.
fn group(places: &mut [Place]) -> Vec<Group> {
    places.sort_by(|a, b| a.around.total_cmp(&b.around));
    let n = places.len() as f64;
    let tenths = (1..10).map(|i| f64::from(i) / 10.0);
    let top = (1..14).map(|i| 1.0 - 0.1 * 0.6f64.powi(i));
    let mut cuts = vec![0];
    for cut in tenths.chain(top).map(|q| (q * n).round() as usize) {
        if cut >= cuts[cuts.len() - 1] + FEWEST && cut + FEWEST <= places.len() {
            cuts.push(cut);
        }
    }
    cuts.push(places.len());
    let mut groups = Vec::new();
    for cut in cuts.windows(2) {
        let like = &mut places[cut[0]..cut[1]];
        if like.len() < FEWEST {
            continue;
        }
        let parts = if like.len() < FEWEST_SPLIT { 1 } else { 3 };
        like.sort_by(|a, b| a.steepness.total_cmp(&b.steepness));
        groups.extend(like.chunks(like.len().div_ceil(parts)).map(Group::of));
    }
    groups
}

impl Group {
    fn of(places: &[Place]) -> Group {
        let count = places.len() as f64;
        let mean = |of: fn(&Place) -> f64| places.iter().map(of).sum::<f64>() / count;
        Group {
            level: mean(|p| p.level),
            variance: mean(|p| p.fine),
            structure: mean(|p| p.structure),
            relative_error: (2.0 * SHARED / count).sqrt().hypot(MODEL_ERROR),
        }
    }
}

fn fit(groups: &[Group]) -> Option<Growth> {
    let count = groups.len() as f64;
    let usual = groups.iter().map(|g| g.variance).sum::<f64>() / count;
    if !(usual.is_finite() && usual > 0.0) {
        return None;
    }
    let middle = groups.iter().map(|g| g.level).sum::<f64>() / count;
    let mut expected: Vec<f64> = groups.iter().map(|g| g.variance.max(1e-3 * usual)).collect();
    let mut trust = vec![1.0; groups.len()];
    let mut growth = None;
    for _ in 0..40 {
        let weights: Vec<f64> = groups
            .iter()
            .zip(&expected)
            .zip(&trust)
            .map(|((g, v), t)| t / (v * g.relative_error).powi(2))
            .collect();
        let row = |g: &Group| [1.0, g.level - middle, g.structure];
        let mut solved = solve(groups, &weights, row, 3)?;
        if solved.0[2] < 0.0 {
            // Structure can only add.
            solved = solve(groups, &weights, row, 2)?;
        }
        let (numbers, error) = solved;
        let mut deviations: Vec<f64> = Vec::with_capacity(groups.len());
        for (g, v) in groups.iter().zip(&mut expected) {
            let model: f64 = row(g).iter().zip(&numbers).map(|(r, n)| r * n).sum();
            *v = model.max(0.02 * g.variance).max(1e-6 * usual);
            deviations.push((g.variance - *v) / (*v * g.relative_error));
        }
        let mut sizes: Vec<f64> = deviations.iter().map(|d| d.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let scatter = (sizes[sizes.len() / 2] / 0.6745).max(1.0);
        for (t, d) in trust.iter_mut().zip(&deviations) {
            let far = d.max(0.0) / (4.0 * scatter);
            *t = (1.0 - far * far).max(0.01).powi(2);
        }
        growth = Some(Growth { slope: numbers[1], error: error * scatter });
    }
    growth.filter(|g| g.slope.is_finite() && g.error.is_finite())
}

/// The weighted least squares of the first `unknowns` numbers, and the error of the second.
fn solve(
    groups: &[Group],
    weights: &[f64],
    row: impl Fn(&Group) -> [f64; 3],
    unknowns: usize,
) -> Option<([f64; 3], f64)> {
    // Normal equations beside the unit vector whose solution is the second column of the inverse.
    let mut m = [[0.0; 5]; 3];
    let mut scale = [0f64; 3];
    for g in groups {
        row(g).iter().zip(&mut scale).for_each(|(r, s)| *s = s.max(r.abs()));
    }
    if scale[..unknowns].iter().any(|s| !(*s > 0.0 && s.is_finite())) {
        return None;
    }
    for (g, w) in groups.iter().zip(weights) {
        let r = row(g);
        for i in 0..unknowns {
            for j in 0..unknowns {
                m[i][j] += w * r[i] / scale[i] * r[j] / scale[j];
            }
            m[i][3] += w * r[i] / scale[i] * g.variance;
        }
    }
    m[1][4] = 1.0;
    for i in 0..unknowns {
        let pivot = (i..unknowns).max_by(|&a, &b| m[a][i].abs().total_cmp(&m[b][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() <= 1e-12 * m[0][0].abs() || !m[i][i].is_finite() {
            return None;
        }
        for k in 0..unknowns {
            if k != i {
                let factor = m[k][i] / m[i][i];
                for j in i..5 {
                    m[k][j] -= factor * m[i][j];
                }
            }
        }
    }
    let mut numbers = [0.0; 3];
    for i in 0..unknowns {
        numbers[i] = m[i][3] / m[i][i] / scale[i];
    }
    Some((numbers, (m[1][4] / m[1][1]).max(0.0).sqrt() / scale[1]))
}
