//! Stars: points with a heavy-tailed distribution of fluxes, convolved with a Gaussian, and a few galaxies with exponential
//! discs.

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::{population, position};

const PSF_SIGMA: f64 = 1.2;

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let mut canvas = Canvas::new(size);
    let volume = canvas.is_volume();
    let mut largest: f64 = 0.0;
    for _ in 0..population(dice, size, 60, 140) {
        let flux = dice.pareto(1.1);
        largest = largest.max(flux);
        let at = position(dice, &canvas);
        let mut light = Vec::new();
        canvas.near(at, 6.0 * PSF_SIGMA, |i, p| {
            let r2: f64 = (0..3).map(|a| (p[a] - at[a]) * (p[a] - at[a])).sum();
            light.push((i, flux * libm::exp(-0.5 * r2 / (PSF_SIGMA * PSF_SIGMA))));
        });
        light.into_iter().for_each(|(i, v)| canvas.values[i] += v);
    }
    for _ in 0..population(dice, size, 1, 4) {
        let at = position(dice, &canvas);
        let scale = dice.between(2.0, 6.0);
        let flat = dice.between(0.3, 1.0);
        let turn = dice.rotation(volume);
        let brightness = largest * dice.between(0.02, 0.15);
        let mut light = Vec::new();
        canvas.near(at, 8.0 * scale, |i, p| {
            let d = [0, 1, 2].map(|a| p[a] - at[a]);
            let u = [0, 1, 2].map(|a| (0..3).map(|b| turn[a][b] * d[b]).sum::<f64>());
            let thick = u[1] / flat;
            let r = (u[0] * u[0] + thick * thick + u[2] * u[2]).sqrt();
            light.push((i, brightness * libm::exp(-r / scale)));
        });
        light.into_iter().for_each(|(i, v)| canvas.values[i] += v);
    }
    canvas.normalise(0.9997);
    canvas
}
