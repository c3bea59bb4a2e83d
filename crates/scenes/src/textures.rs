//! Textures: random fields with a power-law spectrum, warped and passed through different curves, so that they become
//! clouds, grains, patches with edges, or veins; products of two of them, and smooth gradients.

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::optics;
use crate::plane::Plane;

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice);
    let [_, height, width] = size;
    optics::image(size, m, dice, |dice| {
        let mut plane = texture(height, width, m, dice);
        if dice.chance(0.5) {
            let other = texture(height, width, m, dice);
            plane.values.iter_mut().zip(&other.values).for_each(|(a, b)| *a *= 0.1 + b);
        }
        plane
    })
}

/// A field through a curve, not below zero.
fn texture(height: usize, width: usize, magnification: f64, dice: &mut Dice) -> Plane {
    let slope = dice.between(-0.2, 0.9);
    let finest = magnification * dice.log_between(0.5, 4.0);
    let base = Plane::field(height, width, dice, |s| {
        let below = (libm::log2(finest) - libm::log2(s)).max(0.0);
        libm::pow(s, slope) * libm::exp(-2.0 * below * below)
    });
    let bent = if dice.chance(0.5) { warped(&base, dice) } else { base };
    let curve = dice.count(0, 3);
    let (limit, contrast) = (dice.between(-0.5, 1.5), dice.between(0.3, 1.6));
    let sharp = dice.log_between(2.0, 30.0);
    let f = |v: f64| match curve {
        // Clouds with bright cores.
        0 => libm::exp(contrast * v),
        // Patches with edges, and a little of the field inside.
        1 => (sharp * (v - limit)).clamp(0.0, 1.0) * (1.0 + 0.3 * v).max(0.1),
        // Veins where the field crosses a level.
        2 => {
            let u = (v - 0.3 * limit) * (3.0 + 0.3 * sharp);
            1.0 / (1.0 + u * u)
        }
        // A gentle contrast on a bright ground.
        _ => (1.0 + 0.3 * contrast * v).max(0.0),
    };
    Plane { values: bent.values.iter().map(|&v| f(v)).collect(), ..bent }
}

/// Moved by smooth displacements.
fn warped(plane: &Plane, dice: &mut Dice) -> Plane {
    let (h, w) = (plane.height, plane.width);
    let scale = dice.log_between(16.0, 100.0);
    let amount = scale * dice.between(0.1, 0.5);
    let mut push = || Plane::smooth(h, w, dice, scale);
    let (down, right) = (push(), push());
    let fold = |p: f64, n: usize| {
        let last = n as f64 - 1.0;
        let p = p.abs();
        (if p > last { 2.0 * last - p } else { p }).clamp(0.0, last)
    };
    Plane::from_fn(h, w, |y, x| {
        let i = y * w + x;
        let (v, u) =
            (fold(y as f64 + amount * down.values[i], h), fold(x as f64 + amount * right.values[i], w));
        let (top, left) = ((v as usize).min(h - 2), (u as usize).min(w - 2));
        let (v, u) = (v - top as f64, u - left as f64);
        let at = |dy: usize, dx: usize| plane.values[(top + dy) * w + left + dx];
        (1.0 - v) * ((1.0 - u) * at(0, 0) + u * at(0, 1)) + v * ((1.0 - u) * at(1, 0) + u * at(1, 1))
    })
}
