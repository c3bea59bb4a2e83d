//! Structures along paths in space: fibres, such as microtubules and actin, and the tubules of mitochondria.
//!
//! The heading of a path turns by a varying curvature; cells are flat, so headings are pulled back to the plane.

use super::solid::{Lattice, Solid, Stroke};
use crate::dice::Dice;

/// A place and a direction that walk on.
struct Path {
    at: [f64; 3],
    /// In the plane, and out of it.
    angles: [f64; 2],
    turns: [f64; 2],
    bend: f64,
}

impl Path {
    fn new(at: [f64; 3], heading: f64, bend: f64, dice: &mut Dice) -> Path {
        Path { at, angles: [heading, dice.between(-0.5, 0.5)], turns: [0.0; 2], bend }
    }

    fn walk(&mut self, step: f64, dice: &mut Dice) {
        let kicks = dice.normals();
        for a in 0..2 {
            self.turns[a] = 0.9 * self.turns[a] + 0.4 * self.bend * kicks[a];
            self.angles[a] += step * self.turns[a];
        }
        self.angles[1] *= 0.99;
        let flat = step * libm::cos(self.angles[1]);
        self.at[0] += step * libm::sin(self.angles[1]);
        self.at[1] += flat * libm::sin(self.angles[0]);
        self.at[2] += flat * libm::cos(self.angles[0]);
    }
}

/// Thin fibres, all over or from a centre, along one direction or any.
pub(super) fn fibres(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    const STEP: f64 = 0.7;
    let extent = solid.extent();
    let length = dice.log_between(30.0, 200.0) * magnification;
    let spacing = dice.log_between(5.0, 18.0) * magnification;
    let count = (extent.iter().product::<f64>() / (spacing * spacing * length)).ceil() as usize + 1;
    let centre = dice.chance(0.3).then(|| solid.place(dice));
    let along = dice.chance(0.5).then(|| (dice.angle(), dice.between(0.05, 0.6)));
    let (bend, spread, beads) =
        (dice.log_between(0.01, 0.12), dice.between(0.2, 0.8), dice.between(0.0, 0.6));
    // Thicker fibres are bundles of several.
    let bundle = if dice.chance(0.5) { 0.0 } else { dice.between(0.3, 1.0) * magnification };
    for number in 0..count.min(4000) {
        let start = centre.filter(|_| number > 0).unwrap_or_else(|| solid.place_of(number, dice));
        let heading = match along {
            Some((angle, wide)) => angle + wide * dice.normals()[0],
            None => dice.angle(),
        };
        let mut path = Path::new(start, heading, bend, dice);
        let light = dice.lognormal(spread);
        let strands = if bundle > 0.0 { dice.count(1, 4) } else { 1 };
        let offsets: Vec<[f64; 3]> = (0..strands)
            .map(|_| {
                let ([z, y], [x, _]) = (dice.normals(), dice.normals());
                [z, y, x].map(|v| bundle * v)
            })
            .collect();
        let (mut done, mut bead) = (0.0, 0.0);
        while done < length && solid.holds(path.at) {
            bead = 0.9 * bead + 0.44 * dice.normals()[0];
            let here = light * libm::exp(beads * bead);
            offsets.iter().for_each(|o| solid.dot([0, 1, 2].map(|a| path.at[a] + o[a]), here));
            path.walk(STEP, dice);
            done += STEP;
        }
    }
}

/// Tubules, filled or hollow, dense in some places and scarce in others.
pub(super) fn mitochondria(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    let extent = solid.extent();
    let radius = dice.log_between(1.0, 2.2) * magnification;
    let length = dice.log_between(4.0, 60.0) * magnification;
    let cover = dice.log_between(0.01, 0.08);
    let body = std::f64::consts::PI * radius * radius * (length + radius);
    let count = (cover * extent.iter().product::<f64>() / body).ceil() as usize + 1;
    let crowd = Lattice::draw(extent, dice.log_between(15.0, 50.0) * magnification, dice);
    let (crowded, bend) = (dice.between(0.0, 1.5), dice.log_between(0.03, 0.2) / magnification);
    let hollow = if dice.chance(0.5) { 0.0 } else { dice.between(0.3, 1.0) };
    let (spread, beads) = (dice.between(0.1, 0.6), dice.between(0.0, 0.3));
    let mut stroke = Stroke::new(solid);
    let step = radius.clamp(1.0, 3.0);
    for number in 0..(3 * count).min(6000) {
        let start = solid.place_of(number, dice);
        if number > 0 && !dice.chance(libm::exp(crowded * (crowd.at(start) - 1.0)).min(1.0) / 2.0) {
            continue;
        }
        let mut path = Path::new(start, dice.angle(), bend, dice);
        let own = length * dice.lognormal(0.5);
        let mut done = 0.0;
        while done < own && solid.holds(path.at) {
            let from = path.at;
            path.walk(step, dice);
            let thick = radius * (1.0 + beads * dice.normals()[0]).clamp(0.5, 1.6);
            stroke.rod(solid, from, path.at, thick);
            done += step;
        }
        let light = dice.lognormal(spread);
        stroke.paint(solid, light * (1.0 - 0.75 * hollow), light * hollow, 0.7 * radius);
    }
}
