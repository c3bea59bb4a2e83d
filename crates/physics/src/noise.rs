//! Camera noise, sampled voxel by voxel.
//!
//! Every sample is a pure function of (key, absolute voxel): a tile gets exactly the noise that the whole image has
//! there. [`Window`] gives the voxels that a tile covers.

use crate::error::{PhysicsError, require, require_length};
use crate::map::Map;
use crate::poisson;
use crate::units::Electrons;
use clearshot_tensor::noise::Key;

/// A box of voxels within a whole image; sizes are Z, Y, X with Z = 1 for a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub whole: [usize; 3],
    pub origin: [usize; 3],
    pub size: [usize; 3],
}

impl Window {
    /// All of an image.
    pub fn all(whole: [usize; 3]) -> Window {
        Window { whole, origin: [0; 3], size: whole }
    }

    pub fn pixels(&self) -> usize {
        self.size.iter().product()
    }

    /// The index in the whole image of the window's voxel `i`.
    pub fn absolute(&self, i: usize) -> u64 {
        let (x, rest) = (i % self.size[2], i / self.size[2]);
        let (y, z) = (rest % self.size[1], rest / self.size[1]);
        let [z, y, x] = [z + self.origin[0], y + self.origin[1], x + self.origin[2]].map(|p| p as u64);
        let [_, height, width] = self.whole.map(|n| n as u64);
        (z * height + y) * width + x
    }

    fn check(&self, values: usize) -> Result<(), PhysicsError> {
        let inside = (0..3).all(|a| self.origin[a] + self.size[a] <= self.whole[a]);
        let end = self.origin.iter().zip(&self.size).map(|(o, s)| o + s).max().unwrap_or(0);
        require(inside, "the end of a window", end as f64, "a window inside its image")?;
        require_length("the image of a window", values, self.pixels())
    }
}

/// `Poisson(mean) + N(0, read noise^2)` for each pixel of a window, in electrons. The map of the read noise
/// has the window's pixels.
///
/// # Errors
/// If a mean is negative or not finite, or sizes differ.
pub fn poisson_gaussian(
    mean: Electrons<&[f64]>,
    read_noise: &Map,
    window: &Window,
    key: Key,
) -> Result<Electrons<Vec<f64>>, PhysicsError> {
    window.check(mean.0.len())?;
    read_noise.check("read noise", mean.0.len(), |x| x >= 0.0, "a finite number not below zero")?;
    let draw = |(i, &m): (usize, &f64)| {
        let voxel = window.absolute(i);
        let shot = poisson::draw(m, key, voxel);
        if shot.is_nan() {
            let needed = "a finite mean not below zero";
            return Err(PhysicsError::Pixel { name: "the mean of a Poisson draw", index: i, got: m, needed });
        }
        let sigma = read_noise.at(i);
        Ok(if sigma == 0.0 { shot } else { shot + sigma * f64::from(key.normal(voxel)) })
    };
    mean.0.iter().enumerate().map(draw).collect::<Result<_, _>>().map(Electrons)
}

/// Adds `N(0, sigma^2)` to each value of a window, in the unit of the values.
///
/// # Errors
/// If `sigma` is negative or sizes differ.
pub fn gaussian(x: &[f64], sigma: f64, window: &Window, key: Key) -> Result<Vec<f64>, PhysicsError> {
    window.check(x.len())?;
    require(sigma.is_finite() && sigma >= 0.0, "sigma", sigma, "a finite number not below zero")?;
    Ok(x.iter().enumerate().map(|(i, v)| v + sigma * f64::from(key.normal(window.absolute(i)))).collect())
}

/// Multiplies each value of a window by `N(1, sigma^2)`.
///
/// # Errors
/// If `sigma` is negative or sizes differ.
pub fn speckle(x: &[f64], sigma: f64, window: &Window, key: Key) -> Result<Vec<f64>, PhysicsError> {
    window.check(x.len())?;
    require(sigma.is_finite() && sigma >= 0.0, "sigma", sigma, "a finite number not below zero")?;
    let one = |(i, v): (usize, &f64)| v * (1.0 + sigma * f64::from(key.normal(window.absolute(i))));
    Ok(x.iter().enumerate().map(one).collect())
}

/// Replaces a share `salt` of the values of a window by `high` and a share `pepper` by `low`.
///
/// # Errors
/// If a share is negative or both exceed 1, or sizes differ.
pub fn salt_and_pepper(
    x: &[f64],
    [salt, pepper]: [f64; 2],
    [low, high]: [f64; 2],
    window: &Window,
    key: Key,
) -> Result<Vec<f64>, PhysicsError> {
    window.check(x.len())?;
    let share = |s: f64| (0.0..=1.0).contains(&s);
    require(share(salt), "the share of salt", salt, "a number from 0 to 1")?;
    require(
        share(pepper) && salt + pepper <= 1.0,
        "the share of pepper",
        pepper,
        "at most what salt leaves",
    )?;
    let one = |(i, &v): (usize, &f64)| {
        let u = f64::from(key.uniform(window.absolute(i)));
        if u < salt {
            high
        } else if u < salt + pepper {
            low
        } else {
            v
        }
    };
    Ok(x.iter().enumerate().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { seed: 21, step: 0, stream: 0 };

    #[test]
    fn moments_are_those_of_the_model() {
        let n = 200_000;
        let window = Window::all([1, 1, n]);
        let (mean, sigma) = (6.0, 2.0);
        let y = poisson_gaussian(Electrons(&vec![mean; n]), &Map::Uniform(sigma), &window, KEY).unwrap().0;
        let moment = |p: i32| y.iter().map(|v| (v - mean).powi(p)).sum::<f64>() / n as f64;
        let variance: f64 = mean + sigma * sigma;
        // Central moments of the sum: variance m + s^2, third m, fourth 3 V^2 + m. Five standard errors.
        let error = |of_square: f64| 5.0 * (of_square / n as f64).sqrt();
        assert!(moment(1).abs() < error(variance));
        assert!((moment(2) - variance).abs() < error(2.0 * variance * variance + mean));
        assert!((moment(3) - mean).abs() < error(15.0 * variance.powi(3) + 100.0 * mean * variance));
    }

    #[test]
    fn a_tile_has_the_noise_of_the_whole() {
        let whole = Window::all([3, 11, 9]);
        let mean: Vec<f64> = (0..whole.pixels()).map(|i| (i % 40) as f64).collect();
        let all = poisson_gaussian(Electrons(&mean), &Map::Uniform(1.5), &whole, KEY).unwrap().0;
        let tile = Window { whole: [3, 11, 9], origin: [1, 4, 3], size: [2, 5, 6] };
        let cut: Vec<f64> = (0..tile.pixels()).map(|i| mean[tile.absolute(i) as usize]).collect();
        let part = poisson_gaussian(Electrons(&cut), &Map::Uniform(1.5), &tile, KEY).unwrap().0;
        assert!(part.iter().enumerate().all(|(i, v)| *v == all[tile.absolute(i) as usize]));
        let others = [
            |x: &[f64], w: &Window| gaussian(x, 0.3, w, KEY).unwrap(),
            |x: &[f64], w: &Window| speckle(x, 0.3, w, KEY).unwrap(),
            |x: &[f64], w: &Window| salt_and_pepper(x, [0.1, 0.2], [0.0, 99.0], w, KEY).unwrap(),
        ];
        for draw in others {
            let (all, part) = (draw(&mean, &whole), draw(&cut, &tile));
            assert!(part.iter().enumerate().all(|(i, v)| *v == all[tile.absolute(i) as usize]));
            assert_ne!(all, mean);
        }
    }

    #[test]
    fn impossible_draws_are_refused() {
        let window = Window::all([1, 1, 2]);
        let e = poisson_gaussian(Electrons(&[1.0, -2.0]), &Map::Uniform(0.0), &window, KEY).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the mean of a Poisson draw is -2 at pixel 1, and a finite mean not below zero is needed"
        );
        assert!(poisson_gaussian(Electrons(&[1.0, 2.0]), &Map::Uniform(-1.0), &window, KEY).is_err());
        assert!(poisson_gaussian(Electrons(&[1.0]), &Map::Uniform(1.0), &window, KEY).is_err());
        let outside = Window { whole: [1, 2, 2], origin: [0, 1, 1], size: [1, 2, 1] };
        assert!(gaussian(&[0.0, 0.0], 1.0, &outside, KEY).is_err());
        assert!(salt_and_pepper(&[0.0, 0.0], [0.7, 0.7], [0.0, 1.0], &window, KEY).is_err());
        assert!(speckle(&[0.0, 0.0], -0.1, &window, KEY).is_err());
    }

    /// Speckle is in proportion to the light and keeps its mean, below zero too; read noise is the same everywhere.
    #[test]
    fn speckle_grows_with_the_light() {
        let n = 100_000;
        let window = Window::all([1, 1, n]);
        for level in [-40.0, 0.0, 3.0, 5e4] {
            let x = vec![level; n];
            let moments = |y: Vec<f64>| {
                let mean = y.iter().sum::<f64>() / n as f64;
                (mean, (y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64).sqrt())
            };
            let (mean, deviation) = moments(speckle(&x, 0.2, &window, KEY).unwrap());
            let spread = 0.2 * f64::abs(level);
            assert!((mean - level).abs() <= 5.0 * spread / (n as f64).sqrt(), "{level}: {mean}");
            assert!((deviation - spread).abs() <= 0.015 * spread, "{level}: {deviation}");
            let (mean, deviation) = moments(gaussian(&x, 3.0, &window, KEY).unwrap());
            assert!(
                (mean - level).abs() <= 0.05 && (deviation - 3.0).abs() <= 0.045,
                "{level}: {mean} {deviation}"
            );
        }
    }

    #[test]
    fn shares_of_salt_and_pepper() {
        let n = 100_000;
        let y = salt_and_pepper(&vec![5.0; n], [0.1, 0.2], [0.0, 9.0], &Window::all([1, 1, n]), KEY).unwrap();
        let share = |v: f64| y.iter().filter(|&&x| x == v).count() as f64 / n as f64;
        assert!((share(9.0) - 0.1).abs() < 0.005 && (share(0.0) - 0.2).abs() < 0.007);
    }
}
