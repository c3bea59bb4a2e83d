//! A phantom after Shepp and Logan: a bright ring, and ellipses that add to or subtract from its contents.

use crate::canvas::Canvas;
use crate::dice::Dice;

/// An ellipse (ellipsoid) with a centre, half axes and a rotation.
struct Ellipse {
    centre: [f64; 3],
    radii: [f64; 3],
    turn: [[f64; 3]; 3],
}

impl Ellipse {
    fn contains(&self, p: [f64; 3]) -> bool {
        let d = [0, 1, 2].map(|a| p[a] - self.centre[a]);
        let term = |a: usize| (0..3).map(|b| self.turn[a][b] * d[b]).sum::<f64>() / self.radii[a];
        (0..3).map(|a| term(a) * term(a)).sum::<f64>() <= 1.0
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let mut canvas = Canvas::new(size);
    let volume = canvas.is_volume();
    let upright = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    // In units of half the size; a plane has no depth, and any radius will do there.
    let centre = size.map(|n| 0.5 * (n as f64 - 1.0));
    let half = size.map(|n| if n > 1 { 0.5 * n as f64 } else { 1.0 });
    let skull = [0.9, dice.between(0.84, 0.94), dice.between(0.64, 0.76)];
    let thickness = dice.between(0.04, 0.08);
    let of =
        |radii: [f64; 3]| Ellipse { centre, radii: [0, 1, 2].map(|a| radii[a] * half[a]), turn: upright };
    let (outer, inner) = (of(skull), of(skull.map(|r| r - thickness)));
    let bone = dice.between(0.6, 0.9);
    let tissue = dice.between(0.25, 0.4);
    let organs: Vec<(Ellipse, f64)> = (0..dice.count(6, 14))
        .map(|_| {
            // Uniform within the part of the inside that keeps most organs clear of the bone.
            let [angle, lift] = [dice.angle(), dice.between(-0.5, 0.5)];
            let r = 0.7 * dice.between(0.0, 1.0).sqrt();
            let offset = [if volume { lift } else { 0.0 }, r * libm::sin(angle), r * libm::cos(angle)];
            let centre = [0, 1, 2].map(|a| centre[a] + offset[a] * skull[a] * half[a]);
            let scale = half[1].min(half[2]);
            let radii = [0; 3].map(|_| dice.between(0.1, 0.35) * scale);
            let turn = dice.rotation(volume);
            (Ellipse { centre, radii, turn }, dice.between(-0.15, 0.25))
        })
        .collect();
    let mut i = 0;
    for z in 0..size[0] {
        for y in 0..size[1] {
            for x in 0..size[2] {
                let p = [z as f64, y as f64, x as f64];
                if inner.contains(p) {
                    let added: f64 = organs.iter().filter(|(e, _)| e.contains(p)).map(|(_, v)| v).sum();
                    canvas.values[i] = (tissue + added).clamp(0.0, 1.0);
                } else if outer.contains(p) {
                    canvas.values[i] = bone;
                }
                i += 1;
            }
        }
    }
    canvas.blur(0.6);
    canvas.values.iter_mut().for_each(|v| *v = v.clamp(0.0, 1.0));
    canvas
}
