//! Movies and stacks: frames are averaged with their neighbours in time where nothing moves, and planes with their
//! neighbours along Z where they agree, before they are restored.
//!
//! Static objects are measured several times, and so are objects that the PSF of a microscope spreads over neighbouring
//! planes. Each frame is compared with the nearest ones pixel by pixel ([`agree`]): a neighbour is used where its
//! difference is explained by the noise of the camera, in squares from one pixel up to large parts of the image, and
//! not where something has moved, appeared or changed its brightness. Bleaching (along Z: absorption) is corrected
//! first. The weighted mean has the noise of `n` exposures, with `n` known for each pixel ([`Pooled::count`]).
//!
//! Restorers assume one noise level for an image, so the mean is restored at a few [`levels`] of n, and each pixel is
//! interpolated between them at its own n. Level 1 is the frame restored alone: where nothing agrees, the result is
//! bit-identical to it. A frame only depends on the measurements of its neighbours, so movies of any length need the
//! memory of a few frames.

pub mod agree;
mod bleaching;
pub mod repeat;
mod squares;

use crate::learned::Camera;
use agree::{Agreement, Plane};
use rayon::prelude::*;

/// The largest number of neighbours of a frame in a movie.
pub const IN_TIME: usize = 6;
/// The same for a plane of a stack: planes at a distance of three differ more often than they help.
pub const ALONG_Z: usize = 4;
/// The numbers of exposures at which averaged frames are restored, besides the frame alone: about the geometric mean,
/// and all of at most `most` neighbours together.
pub fn levels(most: usize) -> [f64; 2] {
    let all = (most + 1) as f64;
    [all.sqrt().round(), all]
}

/// Counts below this are one: the frame alone.
const LEAST_COUNT: f32 = 1.05;

/// The neighbours of a frame in a series: the nearest ones, at most `most`, on both sides if possible.
pub fn neighbours(frame: usize, frames: usize, most: usize) -> Vec<usize> {
    let first = frame.saturating_sub(most / 2).min(frames.saturating_sub(most + 1));
    (first..frames.min(first + most + 1)).filter(|&i| i != frame).collect()
}

/// A frame averaged with its neighbours.
pub struct Pooled {
    /// The weighted mean, in the unit of the file.
    pub values: Vec<f32>,
    /// The variance of a single exposure divided by that of the mean: 1 where no neighbour agrees.
    pub count: Vec<f32>,
}

/// Averages a frame, which consists of one or more planes (`[.., y, x]`, one channel), with its neighbours. Pixels with
/// `valid` false are unchanged.
pub fn pool(
    frame: &[f32],
    others: &[&[f32]],
    [height, width]: [usize; 2],
    camera: &Camera,
    valid: Option<&[bool]>,
) -> Pooled {
    let plane = height * width;
    let each = |z: usize| {
        let own = Plane::new(&frame[z * plane..(z + 1) * plane], [height, width], camera);
        let matched: Vec<Agreement> = others
            .par_iter()
            .map(|other| Agreement::between(&own, &other[z * plane..(z + 1) * plane], camera))
            .collect();
        let mut pooled = mean(&own, &matched, camera);
        if let Some(valid) = valid {
            for i in (0..plane).filter(|&i| !valid[z * plane + i]) {
                (pooled.values[i], pooled.count[i]) = (own.values[i], 1.0);
            }
        }
        pooled
    };
    let mut all = Pooled { values: Vec::with_capacity(frame.len()), count: Vec::with_capacity(frame.len()) };
    for z in 0..frame.len() / plane {
        let Pooled { values, count } = each(z);
        all.values.extend(values);
        all.count.extend(count);
    }
    all
}

/// The mean of what agrees. All neighbours together are compared with the frame once more: their mean has less noise than each.
fn mean(own: &Plane<'_>, others: &[Agreement], camera: &Camera) -> Pooled {
    let n = own.values.len();
    let (mut weight, mut sum, mut squares) = (vec![0f32; n], vec![0f32; n], vec![0f32; n]);
    for a in others {
        let scale = (a.gain * a.gain) as f32;
        for i in 0..n {
            weight[i] += a.weight[i];
            sum[i] += a.weight[i] * a.values[i];
            squares[i] += a.weight[i] * a.weight[i] * scale;
        }
    }
    let together: Vec<f32> =
        (0..n).map(|i| if weight[i] > 0.0 { sum[i] / weight[i] } else { own.values[i] }).collect();
    // The variance of their mean over that of one exposure; where there is none, nothing is compared.
    let share: Vec<f32> =
        (0..n).map(|i| if weight[i] > 0.0 { squares[i] / (weight[i] * weight[i]) } else { -1.0 }).collect();
    let agrees = agree::weights(own, &together, &share, camera);
    let mut pooled = Pooled { values: Vec::with_capacity(n), count: Vec::with_capacity(n) };
    for i in 0..n {
        let w = agrees[i] * weight[i];
        let count = (1.0 + w) * (1.0 + w) / (1.0 + agrees[i] * agrees[i] * squares[i]);
        let alone = count < LEAST_COUNT;
        pooled.values.push(if alone { own.values[i] } else { (own.values[i] + w * together[i]) / (1.0 + w) });
        pooled.count.push(if alone { 1.0 } else { count });
    }
    pooled
}

/// The camera of a mean of `count` exposures: `count` times the electrons, and the read noise of `count` exposures.
pub fn camera_of(camera: &Camera, count: f64) -> Camera {
    Camera {
        gain: camera.gain * count,
        read_noise: camera.read_noise * count.sqrt(),
        background: camera.background.map(|b| b * count),
        ..*camera
    }
}

/// The [`levels`] that some pixels need.
pub fn needed(levels: [f64; 2], pooled: &[Pooled]) -> Vec<usize> {
    let most = pooled.iter().flat_map(|p| &p.count).fold(1f32, |m, &c| m.max(c));
    match most {
        m if m <= 1.0 => vec![],
        m if f64::from(m) <= levels[0] => vec![0],
        _ => vec![0, 1],
    }
}

/// Pixels whose count is nearer to one of the [`levels`] than to the next lower or higher number.
pub fn near(levels: [f64; 2], level: usize, count: &[f32]) -> Vec<bool> {
    let low = if level == 0 { 1.0 } else { levels[level - 1] };
    let from = (0.5 * (low + levels[level])) as f32;
    let to = levels.get(level + 1).map_or(f32::INFINITY, |high| (0.5 * (levels[level] + high)) as f32);
    count.iter().map(|c| (from..to).contains(c)).collect()
}

/// Interpolates a frame between its versions restored alone and at the [`needed`] levels (`restored`), by the counts of
/// its pixels.
pub fn blend(levels: [f64; 2], alone: &mut [f32], restored: &[&[f32]], count: &[f32]) {
    for (i, value) in alone.iter_mut().enumerate().filter(|(i, _)| count[*i] > 1.0) {
        let (mut low, mut at) = (1.0, *value);
        for (level, restored) in levels.iter().zip(restored) {
            let share = ((f64::from(count[i]) - low) / (level - low)).clamp(0.0, 1.0) as f32;
            at += share * (restored[i] - at);
            low = *level;
        }
        *value = at;
    }
}

/// A function that restores one frame with a camera.
pub type Base<'a, E> = dyn FnMut(&[f32], &Camera) -> Result<Vec<f32>, E> + 'a;

/// Restores a frame of a series in memory with `base`, after averaging with at most `most` neighbours.
///
/// # Errors
/// The error of `base`.
pub fn restore<E>(
    frames: &[&[f32]],
    frame: usize,
    most: usize,
    size: [usize; 2],
    camera: &Camera,
    base: &mut Base<'_, E>,
) -> Result<Vec<f32>, E> {
    let others: Vec<&[f32]> = neighbours(frame, frames.len(), most).into_iter().map(|i| frames[i]).collect();
    let pooled = pool(frames[frame], &others, size, camera, None);
    let mut alone = base(frames[frame], camera)?;
    let (levels, mut restored) = (levels(most), Vec::new());
    for level in needed(levels, std::slice::from_ref(&pooled)) {
        restored.push(base(&pooled.values, &camera_of(camera, levels[level]))?);
    }
    let restored: Vec<&[f32]> = restored.iter().map(Vec::as_slice).collect();
    blend(levels, &mut alone, &restored, &pooled.count);
    Ok(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_the_nearest() {
        assert_eq!(neighbours(5, 20, 6), [2, 3, 4, 6, 7, 8]);
        assert_eq!(neighbours(0, 20, 6), [1, 2, 3, 4, 5, 6]);
        assert_eq!(neighbours(19, 20, 6), [13, 14, 15, 16, 17, 18]);
        assert_eq!(neighbours(19, 20, 4), [15, 16, 17, 18]);
        assert_eq!(neighbours(1, 3, 6), [0, 2]);
        assert!(neighbours(0, 1, 6).is_empty());
    }

    #[test]
    fn pixels_take_what_lies_at_their_count() {
        let mut alone = [1.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!((levels(IN_TIME), levels(ALONG_Z)), ([3.0, 7.0], [2.0, 5.0]));
        blend(levels(IN_TIME), &mut alone, &[&[3.0; 5], &[7.0; 5]], &[1.0, 2.0, 3.0, 5.0, 9.0]);
        assert_eq!(alone, [1.0, 2.0, 3.0, 5.0, 7.0]);
    }

    #[test]
    fn pixels_belong_to_the_nearest_level() {
        let count = [1.0, 1.9, 2.0, 3.0, 4.9, 5.0, 7.0];
        assert_eq!(near(levels(IN_TIME), 0, &count), [false, false, true, true, true, false, false]);
        assert_eq!(near(levels(IN_TIME), 1, &count), [false, false, false, false, false, true, true]);
    }

    /// A mean of n exposures has n times the electrons, and their noise.
    #[test]
    fn the_camera_of_a_mean() {
        let camera = Camera { gain: 0.5, offset: 100.0, read_noise: 3.0, ..Camera::default() };
        let of = camera_of(&camera, 4.0);
        let variance =
            |c: &Camera, v: f32| (f64::from(c.electrons(v)) + c.read_noise.powi(2)) / c.gain.powi(2);
        for v in [100.0, 180.0, 2000.0] {
            assert!((variance(&of, v) * 4.0 - variance(&camera, v)).abs() < 1e-9);
        }
    }
}
