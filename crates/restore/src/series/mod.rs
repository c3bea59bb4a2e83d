//! Movies and stacks: frames restored with the help of their neighbours in time where nothing moves, planes with that of
//! their neighbours along Z where they show the same.
//!
//! What stands still was measured several times, and so was what a microscope's PSF smears over neighbouring planes. For each frame the nearest are compared with it pixel by pixel
//! ([`agree`]): a neighbour counts where its difference is explained by the noise of the camera, in squares from one pixel
//! up to large parts of the image, and not where something has moved, appeared or changed its brightness. Bleaching (along Z: absorption) is taken
//! off first. The weighted mean has the noise of `n` exposures, which is known pixel by pixel ([`Pooled::count`]).
//!
//! Restorers are told one noise for an image, so the mean is restored at a few [`levels`] of n, and each pixel takes what lies at its
//! own n between them. Level 1 is the frame restored alone: where nothing agrees, the result is that to the last bit.
//! A frame depends on its neighbours' measurements alone, so movies of any length need the memory of a few frames.

pub mod agree;
mod bleaching;
pub mod repeat;
mod squares;

use crate::learned::Camera;
use agree::{Agreement, Plane};
use rayon::prelude::*;

/// Neighbours of a frame of a movie at the most, itself apart.
pub const IN_TIME: usize = 6;
/// Those of a plane of a stack: what lies three planes away shows something else more often than it helps.
pub const ALONG_Z: usize = 4;
/// Numbers of exposures that pooled frames are restored as, beside the frame alone: with the help of at most `most` others, all of them
/// together, and about the geometric middle.
pub fn levels(most: usize) -> [f64; 2] {
    let all = (most + 1) as f64;
    [all.sqrt().round(), all]
}

/// Counts below this are one: the frame alone.
const LEAST_COUNT: f32 = 1.05;

/// The frames that help one of a series: the nearest, at most so many, on either side where there are.
pub fn neighbours(frame: usize, frames: usize, most: usize) -> Vec<usize> {
    let first = frame.saturating_sub(most / 2).min(frames.saturating_sub(most + 1));
    (first..frames.min(first + most + 1)).filter(|&i| i != frame).collect()
}

/// A frame with what its neighbours add to it.
pub struct Pooled {
    /// The weighted mean, in the unit of the file.
    pub values: Vec<f32>,
    /// The variance of a single exposure over that of the mean: 1 where no neighbour agrees.
    pub count: Vec<f32>,
}

/// Pools a frame of planes one behind the other (`[.., y, x]`, of one channel) with its neighbours. Pixels where `valid` is
/// false are left as they are.
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

/// The camera of a mean of `count` exposures: as many times the electrons, and the read noise of as many.
pub fn camera_of(camera: &Camera, count: f64) -> Camera {
    Camera {
        gain: camera.gain * count,
        read_noise: camera.read_noise * count.sqrt(),
        background: camera.background.map(|b| b * count),
        ..*camera
    }
}

/// Which of the [`levels`] some pixels need.
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

/// Brings a frame that was restored alone to what its pixels' counts allow: `restored` are the pooled frame restored at the
/// [`needed`] levels.
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

/// What restores one frame under a camera.
pub type Base<'a, E> = dyn FnMut(&[f32], &Camera) -> Result<Vec<f32>, E> + 'a;

/// A frame of a series in memory, restored by `base`, which takes a frame and its camera, with the help of at most `most` others.
///
/// # Errors
/// What the base says.
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
