//! Structures between random centres in space: the walls of cells, and a network of tubules and sheets.
//!
//! There is one centre in each box of a grid, at a random position. A point between two centres is on a wall, and one
//! between three is on an edge; its distance from either follows from its distances to the nearest three centres.

use super::solid::{Lattice, Solid};
use crate::dice::Dice;
use crate::plane::bell;

/// See the module.
struct Centres {
    spacing: f64,
    size: [usize; 3],
    at: Vec<[f64; 3]>,
}

impl Centres {
    fn draw(extent: [f64; 3], spacing: f64, dice: &mut Dice) -> Centres {
        // One box more on each side.
        let size = extent.map(|n| (n / spacing).ceil() as usize + 2);
        let mut at = Vec::with_capacity(size.iter().product());
        for i in 0..size.iter().product::<usize>() {
            let corner = [i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]];
            at.push(corner.map(|c| (c as f64 - 1.0 + dice.between(0.0, 1.0)) * spacing));
        }
        Centres { spacing, size, at }
    }

    /// The distances of the nearest three, and which is the nearest.
    fn nearest(&self, p: [f64; 3]) -> ([f64; 3], usize) {
        let home = [0, 1, 2].map(|a| ((p[a] / self.spacing) as usize + 1).min(self.size[a] - 1));
        let range = |a: usize| home[a] - 1..(home[a] + 2).min(self.size[a]);
        let (mut least, mut own) = ([f64::INFINITY; 3], 0);
        for z in range(0) {
            for y in range(1) {
                for x in range(2) {
                    let i = (z * self.size[1] + y) * self.size[2] + x;
                    let d = [0, 1, 2].map(|a| p[a] - self.at[i][a]);
                    let d2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
                    if d2 < least[0] {
                        (least, own) = ([d2, least[0], least[1]], i);
                    } else if d2 < least[1] {
                        least = [least[0], d2, least[1]];
                    } else if d2 < least[2] {
                        least[2] = d2;
                    }
                }
            }
        }
        (least.map(f64::sqrt), own)
    }
}

/// The places moved a little, so that walls are not flat.
struct Bent {
    fields: [Lattice; 3],
    by: f64,
}

impl Bent {
    fn draw(extent: [f64; 3], scale: f64, by: f64, dice: &mut Dice) -> Bent {
        Bent { fields: [0; 3].map(|_| Lattice::draw(extent, scale, dice)), by }
    }

    fn at(&self, p: [f64; 3]) -> [f64; 3] {
        [0, 1, 2].map(|a| (p[a] + self.by * self.fields[a].at(p)).max(0.0))
    }
}

/// The walls of cells in a tissue that ends somewhere, brighter where cells meet.
pub(super) fn membranes(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    let extent = solid.extent();
    let spacing = dice.log_between(16.0, 40.0) * magnification;
    let centres = Centres::draw(extent, spacing, dice);
    let bent = Bent::draw(extent, 0.6 * spacing, spacing * dice.between(0.02, 0.12), dice);
    let patchy = Lattice::draw(extent, 0.5 * spacing, dice);
    let tissue = Lattice::draw(extent, 3.0 * spacing, dice);
    // The middle is tissue.
    let limit =
        if dice.chance(0.4) { -9.0 } else { dice.between(-1.0, 0.2).min(tissue.at(solid.middle()) - 0.3) };
    let thickness = dice.log_between(0.7, 1.6) * magnification.sqrt().max(solid.step / 1.2);
    let (uneven, junction, inside) =
        (dice.between(0.1, 0.7), dice.between(0.0, 2.0), dice.log_between(0.005, 0.2));
    let levels: Vec<f64> = (0..61).map(|_| dice.lognormal(0.5)).collect();
    solid.fill(|_, p| {
        let edge = ((tissue.at(p) - limit) * 4.0).clamp(0.0, 1.0);
        if edge == 0.0 {
            return 0.0;
        }
        let ([first, second, third], own) = centres.nearest(bent.at(p));
        let wall = bell(0.5 * (second - first) / thickness);
        let corner = bell(0.25 * (third - first) / thickness);
        let light = libm::exp(uneven * patchy.at(p));
        edge * (wall * light * (1.0 + junction * corner) + inside * levels[own % 61])
    });
}

/// Tubules along the edges between three centres, and sheets where walls are kept.
pub(super) fn reticulum(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    let extent = solid.extent();
    let spacing = dice.log_between(7.0, 16.0) * magnification;
    let centres = Centres::draw(extent, spacing, dice);
    let bent = Bent::draw(extent, 0.7 * spacing, spacing * dice.between(0.05, 0.2), dice);
    let dense = Lattice::draw(extent, dice.log_between(2.0, 6.0) * spacing, dice);
    let sheets = dice.between(0.3, 2.0);
    let thickness = dice.log_between(0.8, 1.4) * magnification.sqrt().max(solid.step / 1.2);
    let uneven = dice.between(0.2, 0.8);
    solid.fill(|_, p| {
        let here = dense.at(p);
        let ([first, second, third], _) = centres.nearest(bent.at(p));
        let (wall, edge) = (0.5 * (second - first) / thickness, 0.5 * (third - first) / thickness);
        let sheet = bell(wall) * (2.0 * (here - sheets)).clamp(0.0, 0.6);
        libm::exp(uneven * here) * bell((wall * wall + edge * edge).sqrt()).max(sheet)
    });
}
