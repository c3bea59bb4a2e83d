//! From layers of a specimen to a microscope image.
//!
//! A specimen is one or two thin layers at different depths. A plane is the sum of the layers, each blurred by its distance
//! from focus: a confocal microscope dims out-of-focus light, a wide-field one keeps it as haze. The first layer is in
//! focus, blurred by a PSF that is wider than a pixel, as is usual for microscopes. Stacks have their own optics
//! (`volume`).

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::plane::Plane;

/// What an instrument does to layers.
struct Optics {
    /// Of the layer in focus, in pixels.
    sigma: f64,
    /// Pixels by which blur grows with each plane out of focus.
    slope: f64,
    /// Planes out of focus after which light falls off; infinite in a wide-field microscope.
    section: f64,
    /// Haze: the PSF's wide tails, each a share of the light and how far it goes in pixels.
    halos: [[f64; 2]; 2],
    /// How much bright structures are compressed, as by labels that saturate.
    compressed: f64,
    /// The limit of dark pixels, as a share of the bright end.
    background: f64,
    /// How uneven the light is.
    uneven: f64,
    /// The share of pixels below the bright end.
    bright: f64,
}

/// How large structures are against their usual size: the objective's magnification.
pub(crate) fn magnification(dice: &mut Dice) -> f64 {
    dice.log_between(0.5, 4.0)
}

impl Optics {
    fn draw(magnification: f64, dice: &mut Dice) -> Optics {
        let wide_field = dice.chance(0.55);
        let usual = if wide_field { 1.0 } else { 0.7 } * libm::pow(magnification, 0.55);
        let sigma = match dice.between(0.0, 1.0) {
            // Barely sampled, or a specimen that is a little out of focus.
            u if u < 0.15 => dice.between(0.35, 0.7),
            u if u > 0.92 => dice.between(2.0, 5.0),
            _ => (usual * dice.lognormal(0.35)).clamp(0.55, 3.5),
        };
        let mut haze = |low| {
            let share = if wide_field { dice.between(0.1, 1.0) } else { dice.between(-0.2, 0.2).max(0.0) };
            [share, dice.log_between(low, 4.0 * low)]
        };
        let halos = [haze(3.0), haze(10.0)];
        Optics {
            sigma,
            slope: dice.log_between(0.4, 1.5),
            section: if wide_field { f64::INFINITY } else { dice.log_between(1.0, 4.0) },
            halos,
            compressed: if dice.chance(0.35) { 0.0 } else { dice.log_between(0.2, 4.0) },
            background: if dice.chance(0.3) { 0.0 } else { dice.log_between(0.003, 0.2) },
            uneven: dice.between(0.0, 0.25),
            bright: 1.0 - dice.log_between(3e-5, 4e-3),
        }
    }

    /// The image of layers at their depths in the focal plane at 0.
    fn focus(&self, layers: &[(f64, Plane)]) -> Plane {
        let mut sum = Plane::new(layers[0].1.height, layers[0].1.width);
        for (depth, layer) in layers {
            let away = depth / self.section;
            let light = libm::exp(-0.5 * away * away);
            if light > 1e-3 {
                let out = self.slope * depth;
                sum.add(&layer.blurred((self.sigma * self.sigma + out * out).sqrt()), light);
            }
        }
        let sharp = sum.clone();
        for [share, sigma] in self.halos.into_iter().filter(|h| h[0] > 0.0) {
            sum.add(&sharp.blurred(sigma), share);
        }
        sum
    }
}

/// A picture of layers that `paint` makes one after another.
pub(crate) fn image(
    size: [usize; 3],
    magnification: f64,
    dice: &mut Dice,
    mut paint: impl FnMut(&mut Dice) -> Plane,
) -> Canvas {
    let optics = Optics::draw(magnification, dice);
    let mut canvas = Canvas::new(size);
    let mut layers = vec![];
    for depth in depths(&optics, dice) {
        layers.push((depth, paint(dice)));
    }
    let [_, height, width] = size;
    let light = Plane::smooth(height, width, dice, 0.6 * height.max(width) as f64);
    let seen = optics.focus(&layers);
    for ((out, v), l) in canvas.values.iter_mut().zip(seen.values).zip(&light.values) {
        *out = (v * (1.0 + optics.uneven * l).max(0.1)).max(0.0);
    }
    canvas.normalise(optics.bright);
    let (b, c) = (optics.background, optics.compressed);
    // Stray light is uneven, too.
    for (v, l) in canvas.values.iter_mut().zip(&light.values) {
        let seen = *v * (1.0 + c) / (1.0 + c * *v);
        *v = (seen + b * (1.0 + 0.3 * l).max(0.0) * (1.0 - seen)).clamp(0.0, 1.0);
    }
    canvas
}

/// Where layers lie: one in focus, and at times one far from it.
fn depths(optics: &Optics, dice: &mut Dice) -> Vec<f64> {
    let wide_field = optics.section.is_infinite();
    let mut found = vec![0.0];
    if dice.chance(if wide_field { 0.5 } else { 0.15 }) {
        // Far enough for a blur of 4 to 30 pixels in a wide-field microscope, closer in a confocal one.
        let blur = dice.log_between(4.0, 30.0) / optics.slope;
        found.push(if wide_field { blur } else { dice.between(0.5, 2.0) * optics.section });
    }
    found
}
