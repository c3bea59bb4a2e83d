//! Estimates the noise of a camera from a movie: differences of neighbouring frames in static regions.
//!
//! The second difference of three neighbouring frames is noise with six times the variance wherever the scene is
//! static. Uniform motion and bleaching cancel in it, and a change of brightness of the whole frame is corrected. The
//! remaining motion adds to it locally and mostly at low frequencies. Differences are therefore cut into blocks like
//! single images, and the quietest blocks of each brightness give the noise. If everything moves, this overestimates
//! the noise: frames treated as single images then show less noise, and their result is used instead.
//!
//! Differences and blocks use an internal unit, in which 32-bit floats can represent the squares of small values; the
//! results of groups of blocks are in ADU again.

use super::blind::{self, BlindFit, Doubt, Known, NoiseLine, darkest, unit};
use super::blocks::{Block, COEFFICIENTS, SIDE, collect, mean_squares};
use super::ends::Ends;
use super::groups::{Group, IN_DIFFERENCES, group};
use super::lags::Lags;
use super::line::fit;
use super::measurement::{CameraMeasurement, Source};
use super::repeats::{Bins, Series};
use super::resolve::Seen;
use super::spectrum::quiet;
use super::stripes::lines;
use crate::correlation::Correlation;
use crate::error::{PhysicsError, require_length};
use crate::units::Adu;
use std::collections::HashSet;

/// Blocks that are looked at, at most; those that a fit needs.
const MOST_BLOCKS: usize = 1 << 16;
const FEWEST_BLOCKS: usize = 64;
/// Steps of brightness that blocks are sorted into.
const STEPS: usize = 24;
/// Blocks of like brightness that are compared with each other for the correlation.
const LIKE: usize = 256;
/// Turns of choosing blocks and measuring the correlation.
const TURNS: usize = 4;
/// The least power of a frequency that blocks are chosen by.
const LEAST_POWER: f64 = 0.02;
/// What choosing blocks of little power at low frequencies takes off the correlation of independent noise, at most.
const OF_CHOOSING: f64 = 0.03;
/// Below this share of quiet blocks most places move.
const FEW_QUIET: f64 = 0.3;

/// Neighbouring frames, in a unit of so many ADU.
struct Step {
    /// The level that belongs to the noise; NaN where a pixel is clipped.
    mean: Vec<f32>,
    /// Their difference with the variance of one frame, less changes of brightness.
    noise: Vec<f32>,
}

/// A block of a difference, and where it lies.
struct Place {
    step: usize,
    origin: usize,
}

/// The camera from movies, each with its frames in order.
///
/// # Errors
/// If a movie has less than two frames, a frame has another size, a known parameter is impossible, or there are too few
/// usable blocks.
pub fn from_movies(
    movies: &[Series<'_>],
    shape: [usize; 2],
    known: &Known,
) -> Result<CameraMeasurement, PhysicsError> {
    known.check()?;
    let fewest = movies.iter().map(Vec::len).min().unwrap_or(0);
    if fewest < 2 {
        return Err(PhysicsError::TooFew { what: "frames of a movie", got: fewest, needed: 2 });
    }
    let all: Vec<Adu<&[f32]>> = movies.iter().flatten().copied().collect();
    let pixels = shape[0].saturating_mul(shape[1]);
    all.iter().try_for_each(|f| require_length("a frame", f.0.len(), pixels))?;
    let ends = Ends::of(&all);
    let full = known.saturation.or(ends.full());
    let usable = |v: f32| {
        v.is_finite()
            && full.is_none_or(|f| f64::from(v) < f)
            && !(ends.clipped_low && f64::from(v) <= ends.lowest)
    };
    let unit = unit(&all);
    let near = movies.iter().flat_map(|m| m.windows(m.len().min(THREE.len())));
    let steps: Vec<Step> = near.map(|frames| Step::of(frames, &usable, unit)).collect();
    let (mut blocks, places) = cut(&steps, shape);
    if blocks.len() < FEWEST_BLOCKS {
        let what = "blocks of 8 x 8 usable pixels";
        return Err(PhysicsError::TooFew { what, got: blocks.len(), needed: FEWEST_BLOCKS });
    }
    let (found, correlation_error, quiet_share) = correlation(&blocks, &places, &steps, shape[1]);
    let correlation = known.correlation.unwrap_or(found);
    let power = mean_squares(&correlation).map(|s| s.max(LEAST_POWER));
    blocks.sort_by(|a, b| a.level.total_cmp(&b.level));
    let trim = blocks.len() / 200;
    let brightest = blocks[blocks.len() - 1 - trim].level;
    let step = (brightest - blocks[trim].level) / STEPS as f64;
    let slope = |unit: f64| known.gain.map(|gain| (gain * unit).recip());
    let mut groups = seen(group(&mut blocks, step, |like| quietest(like, &power)))?;
    for _ in 0..2 {
        let line = fit(&groups, slope(unit)).line;
        groups = seen(group(&mut blocks, step, |like| evened(like, &power, &line)))?;
    }
    for group in &mut groups {
        (group.level, group.variance) = (group.level * unit, group.variance * unit * unit);
    }
    let found = fit(&groups, slope(1.0));
    let line = found.line;
    let mut doubts = Vec::new();
    if !found.is_line() {
        doubts.push(Doubt::NoLine);
    }
    let levels = [groups[0].level, groups[groups.len() - 1].level];
    let told = Seen {
        line,
        steepest: line.slope + 2.0 * line.slope_error,
        levels,
        darkest: darkest(&all),
        brightest: brightest * unit,
        blocks: groups.iter().map(|g| g.count).sum(),
        rounding: ends.rounding(),
        saturation: full,
        correlation,
        correlation_error,
        points: groups.iter().map(Group::point).collect(),
    };
    let mut fit = told.resolve(known, doubts);
    let single = singly(&all, shape, known);
    let moves = |single: &BlindFit| quiet_share < FEW_QUIET || exceeds(&fit, single);
    if let Some(mut single) = single.filter(moves) {
        single.doubts.push(Doubt::Moving);
        fit = single;
    }
    let differences: Vec<&[f32]> = steps.iter().map(|s| &s.noise[..]).collect();
    Ok(CameraMeasurement {
        source: Source::Movie,
        frames: all.len(),
        pixels: all.len() * pixels,
        fit,
        ends,
        changing_stripes: lines(&differences, shape, 1.0, [0.0; 2]).map(|lines| lines.times(unit)),
        fixed_stripes: None,
        stripes: None,
        pattern: None,
    })
}

/// Groups of which there is one at least.
fn seen(groups: Vec<Group>) -> Result<Vec<Group>, PhysicsError> {
    match groups.is_empty() {
        false => Ok(groups),
        true => Err(PhysicsError::TooFew { what: "blocks of 8 x 8 pixels with noise", got: 0, needed: 1 }),
    }
}

/// The quietest blocks of like brightness; nothing where none is quiet, as where their squares are zero or infinite.
fn quietest(like: &[Block], power: &[f64; COEFFICIENTS]) -> Option<Group> {
    let are_there = [0, 1].iter().all(|&half| !quiet(like, half, power).is_empty());
    are_there.then(|| Group::of_correlated(like, power, power, &IN_DIFFERENCES))
}

/// Frames that are looked at as single images, and by what factor their noise must be below that of differences.
const SINGLES: usize = 16;
const LESS: f64 = 1.5;

/// What some of the frames say as single images.
pub(super) fn singly(frames: &[Adu<&[f32]>], shape: [usize; 2], known: &Known) -> Option<BlindFit> {
    let some: Vec<Adu<&[f32]>> = frames.iter().step_by(frames.len().div_ceil(SINGLES)).copied().collect();
    blind::estimate(&some, shape, known).ok()
}

/// Whether differences show clearly more noise than single images do: what moves can only add.
pub(super) fn exceeds(fit: &BlindFit, single: &BlindFit) -> bool {
    fit.levels.iter().any(|&l| fit.line.variance(l) > LESS * single.line.variance(l).max(0.0))
}

/// A group whose blocks are compared as if all had the same brightness, by what is known of the line already.
fn evened(like: &[Block], power: &[f64; COEFFICIENTS], line: &NoiseLine) -> Option<Group> {
    let level = like.iter().map(|b| b.level).sum::<f64>() / like.len() as f64;
    let floor = 0.1 * line.variance(level).abs();
    let at = |level: f64| line.variance(level).max(floor).max(f64::MIN_POSITIVE);
    let mut even = like.to_vec();
    for block in &mut even {
        let scale = (at(level) / at(block.level)) as f32;
        block.squares.iter_mut().for_each(|s| *s *= scale);
    }
    let mut group = quietest(&even, power)?;
    group.variance *= at(group.level) / at(level);
    Some(group)
}

/// How three neighbouring frames, or two, are subtracted: what changes evenly in time cancels in three.
const THREE: [f32; 3] = [-1.0, 2.0, -1.0];
const TWO: [f32; 2] = [-1.0, 1.0];

impl Step {
    fn of(frames: &[Adu<&[f32]>], usable: &impl Fn(f32) -> bool, unit: f64) -> Step {
        let factors: &[f32] = if frames.len() == 3 { &THREE } else { &TWO };
        let power: f32 = factors.iter().map(|f| f * f).sum();
        let sum = |i: usize, of: fn(f32) -> f32| -> f32 {
            let sum: f32 = frames.iter().zip(factors).map(|(x, &f)| of(f) * x.0[i]).sum();
            sum / unit as f32
        };
        let pixels = 0..frames[0].0.len();
        let holds = |i: usize| frames.iter().all(|x| usable(x.0[i]));
        // Each frame counts as its noise does.
        let level = |i: usize| if holds(i) { sum(i, |f| f * f) / power } else { f32::NAN };
        let mean: Vec<f32> = pixels.clone().map(level).collect();
        let mut noise: Vec<f32> = pixels.map(|i| sum(i, |f| f)).collect();
        // A change of brightness goes with a level whose own noise says nothing of the difference: all frames count alike in it.
        let plain: Vec<f32> = (0..mean.len())
            .map(|i| if holds(i) { sum(i, |_| 1.0) / frames.len() as f32 } else { f32::NAN })
            .collect();
        let bins = Bins::of(&plain);
        let (level, slope) = bins.line(&noise);
        for (d, m) in noise.iter_mut().zip(&plain) {
            *d = (*d - level - slope * (m - bins.middle)) / power.sqrt();
        }
        Step { mean, noise }
    }
}

/// Blocks of all differences with the brightness of their place, half of a side apart or farther.
fn cut(steps: &[Step], [height, width]: [usize; 2]) -> (Vec<Block>, Vec<Place>) {
    let (mut blocks, mut places) = (Vec::new(), Vec::new());
    if height < SIDE || width < SIDE {
        return (blocks, places);
    }
    let each = (steps.len() * height * width) as f64 / MOST_BLOCKS as f64;
    let pace = (each.sqrt().ceil() as usize).max(SIDE / 2);
    for (number, step) in steps.iter().enumerate() {
        for y in (0..=height - SIDE).step_by(pace) {
            for x in (0..=width - SIDE).step_by(pace) {
                let origin = y * width + x;
                let copy = |of: &[f32]| -> [f32; COEFFICIENTS] {
                    std::array::from_fn(|i| of[origin + i / SIDE * width + i % SIDE])
                };
                let Some(mut block) = collect(&[&copy(&step.noise)], [SIDE; 2], f64::INFINITY).pop() else {
                    continue;
                };
                block.level =
                    copy(&step.mean).iter().map(|&v| f64::from(v)).sum::<f64>() / COEFFICIENTS as f64;
                blocks.push(block);
                places.push(Place { step: number, origin });
            }
        }
    }
    (blocks, places)
}

/// The correlation of the quietest blocks of each brightness, its error, and the share of blocks that is quiet.
fn correlation(blocks: &[Block], places: &[Place], steps: &[Step], width: usize) -> (Correlation, f64, f64) {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by(|&a, &b| blocks[a].level.total_cmp(&blocks[b].level));
    let mut found = (Correlation::WHITE, 1.0, 0.0);
    for _ in 0..TURNS {
        let shape = mean_squares(&found.0).map(|s| s.max(LEAST_POWER));
        let mut lags = Lags::new();
        let mut kept = 0;
        for like in order.chunks(LIKE.max(order.len() / STEPS)) {
            let group: Vec<Block> = like.iter().map(|&i| blocks[i].clone()).collect();
            let chosen = [0, 1].map(|half| {
                quiet(&group, half, &shape).into_iter().map(std::ptr::from_ref).collect::<HashSet<_>>()
            });
            let calm: Vec<usize> = (0..group.len())
                .filter(|&i| chosen.iter().all(|c| c.contains(&std::ptr::from_ref(&group[i]))))
                .collect();
            kept += calm.len();
            let energy = |i: usize| group[i].squares.iter().map(|&s| f64::from(s)).sum::<f64>();
            let variance = calm.iter().map(|&i| energy(i)).sum::<f64>() / (calm.len() * COEFFICIENTS) as f64;
            let scale = variance.max(f64::MIN_POSITIVE).sqrt().recip() as f32;
            for i in calm {
                let Place { step, origin } = places[like[i]];
                let noise: [f32; COEFFICIENTS] =
                    std::array::from_fn(|p| scale * steps[step].noise[origin + p / SIDE * width + p % SIDE]);
                lags.add(&noise, [SIDE; 2]);
            }
        }
        // Blocks overlap by half along each axis, and a frame is in three differences.
        let (correlation, error) = lags.correlation(1.0 / 12.0);
        let more = |dy, dx| Some(correlation.at(dy, dx)).filter(|c| !(-OF_CHOOSING..0.0).contains(c));
        let correlation = Correlation::from_lags(|dy, dx| more(dy, dx).unwrap_or(0.0));
        found = (correlation, error, kept as f64 / blocks.len() as f64);
    }
    found
}
