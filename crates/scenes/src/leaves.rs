//! Dead leaves: disks (balls in a volume) that occlude each other, with radii of density r^-3, a grey value and a linear
//! gradient each, and a texture whose amplitude falls as one over the frequency.

use crate::canvas::Canvas;
use crate::dice::Dice;

const SMALLEST: f64 = 1.5;
/// The share of texture in a leaf.
const TEXTURE: f64 = 0.06;

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let mut canvas = Canvas::new(size);
    let texture = one_over_f(size, dice);
    let volume = canvas.is_volume();
    let longest = size.into_iter().max().unwrap_or(1) as f64;
    let largest = 0.4 * longest;
    // Front to back: the first leaf at a pixel is the one that is seen. Leaves are centred beyond the edges too, so that
    // edges look like the inside; what stays bare after many leaves is filled by one behind all others.
    let mut bare = vec![true; canvas.values.len()];
    let mut left = bare.len();
    let most = 40 * canvas.values.len();
    let axis = |n: usize| if n > 1 { largest } else { 0.0 };
    for leaf in 0.. {
        let u = dice.between(0.0, 1.0);
        let (a, b) = (1.0 / (SMALLEST * SMALLEST), 1.0 / (largest * largest));
        let radius = 1.0 / (a + u * (b - a)).sqrt();
        let at = size.map(|n| dice.between(-axis(n), n as f64 - 1.0 + axis(n)));
        let grey = dice.between(0.05, 0.95);
        let slope = [0; 3].map(|_| dice.between(-0.15, 0.15));
        let last = leaf >= most;
        let reach = if last { longest } else { radius };
        let mut painted = Vec::new();
        canvas.near(if last { [0.0; 3] } else { at }, reach, |i, p| {
            let d = [0, 1, 2].map(|a| p[a] - at[a]);
            let r2 = d[1] * d[1] + d[2] * d[2] + if volume { d[0] * d[0] } else { 0.0 };
            if bare[i] && (last || r2 <= radius * radius) {
                let gradient: f64 = (0..3).map(|a| slope[a] * d[a] / longest.max(radius)).sum();
                painted.push((i, grey + gradient));
            }
        });
        left -= painted.len();
        for (i, v) in painted {
            bare[i] = false;
            canvas.values[i] = (v + TEXTURE * texture[i]).clamp(0.0, 1.0);
        }
        if left == 0 || last {
            break;
        }
    }
    canvas
}

/// Noise in octaves of equal variance, which is an amplitude of one over the frequency in a plane.
fn one_over_f(size: [usize; 3], dice: &mut Dice) -> Vec<f64> {
    let pixels = size.iter().product();
    let mut sum = Canvas { size, values: dice.field(pixels) };
    sum.standardise();
    let mut sigma = 1.0;
    while sigma < 0.125 * size[1].max(size[2]) as f64 && sigma <= 32.0 {
        let mut octave = Canvas { size, values: dice.field(pixels) };
        octave.blur(sigma);
        octave.standardise();
        sum.values.iter_mut().zip(octave.values).for_each(|(s, v)| *s += v);
        sigma *= 2.0;
    }
    sum.standardise();
    sum.values
}
