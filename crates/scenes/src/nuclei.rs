//! Nuclei: ellipses with wavy outlines, soft edges and a texture of two scales.

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::{population, position};

const EDGE_SLOPE: f64 = 14.0;

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    paint_labelled(size, dice).0
}

/// The picture, and the number of the nucleus that each pixel belongs to: the brightest one whose outline holds it, 0 for none.
pub(crate) fn paint_labelled(size: [usize; 3], dice: &mut Dice) -> (Canvas, Vec<u16>) {
    let mut canvas = Canvas::new(size);
    let mut labels = vec![0; canvas.values.len()];
    let volume = canvas.is_volume();
    let mut texture = |sigma| {
        let mut field = Canvas { size, values: dice.field(size.iter().product()) };
        field.blur(sigma);
        field.standardise();
        field.values
    };
    let (fine, coarse) = (texture(1.6), texture(4.0));
    for number in 0..population(dice, size, 6, 14) {
        let centre = position(dice, &canvas);
        let radii = [0; 3].map(|_| dice.between(7.0, 15.0));
        let turn = dice.rotation(volume);
        let (three, five) = (dice.angle(), dice.angle());
        let brightness = dice.between(0.2, 0.56);
        let largest = radii.into_iter().fold(0.0, f64::max);
        let mut painted = Vec::new();
        canvas.near(centre, 1.6 * largest, |i, p| {
            let d = [0, 1, 2].map(|a| p[a] - centre[a]);
            let u = [0, 1, 2].map(|a| {
                let along: f64 = (0..3).map(|b| turn[a][b] * d[b]).sum();
                if volume || a > 0 { along / radii[a] } else { 0.0 }
            });
            let radius = (u[0] * u[0] + u[1] * u[1] + u[2] * u[2]).sqrt();
            let angle = libm::atan2(u[1], u[2]);
            let outline = 1.0 + 0.08 * libm::cos(3.0 * angle + three) + 0.05 * libm::cos(5.0 * angle + five);
            let inside = 1.0 / (1.0 + libm::exp(EDGE_SLOPE * (radius / outline - 1.0)));
            painted.push((i, inside));
        });
        for (i, inside) in painted {
            let texture = (1.0 + 0.12 * fine[i] + 0.25 * coarse[i]).max(0.0);
            let value = (brightness * inside * texture).min(1.0);
            if inside >= 0.5 && (labels[i] == 0 || value > canvas.values[i]) {
                labels[i] = (number + 1).min(usize::from(u16::MAX)) as u16;
            }
            canvas.values[i] = canvas.values[i].max(value);
        }
    }
    (canvas, labels)
}
