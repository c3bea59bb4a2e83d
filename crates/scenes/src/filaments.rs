//! Filaments: worm-like chains whose curvature wanders.
//!
//! A chain is walked on a grid of twice the resolution in steps of half a grid pixel; its heading turns by the
//! curvature, and the curvature is an autoregressive process. In a volume a second angle does the same out of the plane.

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::{population, position};

const STEP: f64 = 0.5;
const MEMORY: f64 = 0.985;
const KICK: f64 = 6e-4;
const WOBBLE: f64 = 0.004;
/// Steps of a chain: from 20 to 58 pixels, less what leaves the picture.
const SHORTEST: usize = 80;
const LONGEST: usize = 230;

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let mut fine = Canvas::new(size.map(|n| if n > 1 { 2 * n } else { 1 }));
    let volume = fine.is_volume();
    for _ in 0..population(dice, size, 6, 14) {
        let amplitude = dice.between(0.4, 1.0);
        let mut at = position(dice, &fine);
        let mut angles = [dice.angle(), if volume { dice.between(-0.4, 0.4) } else { 0.0 }];
        let mut curvatures = [0.0; 2];
        for _ in 0..dice.count(SHORTEST, LONGEST) {
            fine.splat(at, amplitude);
            let (kicks, wobbles) = (dice.normals(), dice.normals());
            for a in 0..=usize::from(volume) {
                curvatures[a] = MEMORY * curvatures[a] + KICK * kicks[a];
                angles[a] += STEP * curvatures[a] + WOBBLE * wobbles[a];
            }
            let flat = if volume { libm::cos(angles[1]) } else { 1.0 };
            at[1] += STEP * flat * libm::sin(angles[0]);
            at[2] += STEP * flat * libm::cos(angles[0]);
            at[0] += if volume { STEP * libm::sin(angles[1]) } else { 0.0 };
            if (0..3).any(|a| at[a] < 0.0 || at[a] > fine.size[a] as f64 - 1.0) {
                break;
            }
        }
    }
    // 0.8 pixels of the picture.
    fine.blur(1.6);
    let mut canvas = fine.halved();
    canvas.normalise(0.998);
    canvas
}
