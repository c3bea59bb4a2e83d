//! Closed bodies: nuclei with chromatin, and vesicles from points to shells.

use super::solid::{Lattice, Solid, Stroke};
use crate::dice::Dice;

/// Ellipsoids with wavy outlines, chromatin of two scales and dark nucleoli.
pub(super) fn nuclei(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    let extent = solid.extent();
    let radius = dice.log_between(7.0, 18.0) * magnification;
    let cover = dice.log_between(0.05, 0.45);
    let volume = 4.0 / 3.0 * std::f64::consts::PI * radius.powi(3);
    let count = (cover * extent.iter().product::<f64>() / volume).ceil() as usize + 1;
    let [outline, coarse, grain] = [0.8, 0.4, 0.15].map(|share| Lattice::draw(extent, share * radius, dice));
    let (mottle, wavy, long) = (dice.between(0.0, 0.5), dice.between(0.0, 0.12), dice.between(0.0, 0.35));
    let (spread, flat) = (dice.between(0.1, 0.8), dice.between(0.5, 1.0));
    for number in 0..count.min(500) {
        let centre = solid.place_of(number, dice);
        let turn = dice.rotation(true);
        let radii = [0; 3].map(|_| radius * dice.lognormal(long));
        let light = dice.lognormal(spread);
        let holes: Vec<([f64; 3], f64)> = (0..dice.count(0, 3))
            .map(|_| {
                let offset = [0; 3].map(|_| 0.4 * radius * dice.between(-1.0, 1.0));
                ([0, 1, 2].map(|a| centre[a] + offset[a]), radius * dice.between(0.12, 0.3))
            })
            .collect();
        let reach = 1.3 * radii.iter().copied().fold(0.0, f64::max);
        let mut painted = Vec::new();
        solid.near(centre, centre, reach, |i, p| {
            // Cells lie on a surface: nuclei are flatter along Z.
            let d = [(p[0] - centre[0]) / flat, p[1] - centre[1], p[2] - centre[2]];
            let u = [0, 1, 2].map(|a| (0..3).map(|b| turn[a][b] * d[b]).sum::<f64>() / radii[a]);
            let r = (u[0] * u[0] + u[1] * u[1] + u[2] * u[2]).sqrt();
            let inside = (1.0 + wavy * outline.at(p) - r) * radius;
            if inside > -0.5 {
                let mut chromatin = (1.0 + mottle * (0.7 * coarse.at(p) + 0.7 * grain.at(p))).max(0.05);
                for (at, size) in &holes {
                    let d2: f64 = (0..3).map(|a| (p[a] - at[a]) * (p[a] - at[a])).sum();
                    chromatin *= 1.0 - 0.7 * (1.5 - 1.5 * d2 / (size * size)).clamp(0.0, 1.0);
                }
                painted.push((i, light * chromatin * (0.5 + inside).clamp(0.0, 1.0)));
            }
        });
        // Nuclei do not share their place.
        for (i, value) in painted {
            solid.canvas.values[i] = solid.canvas.values[i].max(value);
        }
    }
}

/// Spots of very different brightness, alone or in clusters, points, balls or shells.
pub(super) fn vesicles(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    let extent = solid.extent();
    let radius = dice.log_between(0.3, 3.0) * magnification;
    let density = dice.log_between(1e-4, 3e-3) / magnification.powi(2);
    let count = (density * extent.iter().product::<f64>()).ceil() as usize + 3;
    let clustered = if dice.chance(0.4) { 0.0 } else { dice.between(0.2, 0.9) };
    let cluster = dice.log_between(4.0, 20.0) * magnification;
    let (tail, sizes) = (dice.between(1.8, 8.0), dice.between(0.05, 0.5));
    let shells = if dice.chance(0.6) { 0.0 } else { dice.between(0.1, 1.0) };
    let mut centre = solid.place(dice);
    let mut stroke = Stroke::new(solid);
    for number in 0..count.min(8000) {
        if dice.chance(0.1) {
            centre = solid.place(dice);
        }
        let at = match number > 0 && dice.chance(clustered) {
            true => {
                let ([z, y], [x, _]) = (dice.normals(), dice.normals());
                [centre[0] + cluster * z, centre[1] + cluster * y, centre[2] + cluster * x]
            }
            false => solid.place_of(number, dice),
        };
        let own = radius * dice.lognormal(sizes);
        let light = (1.0 + dice.pareto(tail)).min(12.0) * dice.lognormal(0.3);
        if own < 1.0 {
            // As much light as a ball of this radius.
            solid.dot(at, light * 4.2 * own.powi(3).max(0.1));
            continue;
        }
        stroke.rod(solid, at, at, own);
        let surface = if own > 1.8 && dice.chance(shells) { light } else { 0.0 };
        stroke.paint(solid, light - 0.85 * surface, surface, (0.4 * own).max(1.0));
    }
}
