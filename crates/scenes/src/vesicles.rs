//! Vesicles: spots of very different size and brightness, alone or in clusters, filled or as rings, sparse or dense, inside
//! cells or in the open.

use crate::brush::{Brush, Fill};
use crate::canvas::Canvas;
use crate::cells::Cells;
use crate::dice::Dice;
use crate::optics;
use crate::plane::Plane;

/// Spots below this radius in pixels are points.
const POINT: f64 = 0.6;

/// Parameters shared by the vesicles of a scene.
struct Style {
    magnification: f64,
    /// Spots per pixel of a cell.
    density: f64,
    radius: f64,
    sizes: f64,
    /// Pareto's exponent of their brightness.
    tail: f64,
    clustered: f64,
    cluster: f64,
    rings: f64,
    /// Share of spots outside of cells.
    outside: f64,
    cytoplasm: f64,
    gather: f64,
}

impl Style {
    fn draw(magnification: f64, dice: &mut Dice) -> Style {
        let m = magnification;
        Style {
            magnification,
            density: dice.log_between(0.003, 0.2) / libm::pow(m, 1.5),
            radius: dice.log_between(0.3, 1.8) * m,
            sizes: dice.between(0.05, 0.6),
            tail: dice.between(1.8, 8.0),
            clustered: if dice.chance(0.4) { 0.0 } else { dice.between(0.2, 0.9) },
            cluster: dice.log_between(4.0, 25.0) * m,
            rings: if dice.chance(0.6) { 0.0 } else { dice.between(0.1, 1.0) },
            outside: dice.between(-0.3, 0.3).max(0.0),
            cytoplasm: dice.log_between(0.01, 0.5),
            gather: dice.between(0.0, 1.0),
        }
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice);
    let diameter = dice.log_between(70.0, 250.0) * m.min(2.5);
    let cells = Cells::draw(size[1], size[2], diameter, dice);
    let style = Style::draw(m, dice);
    optics::image(size, m, dice, |dice| layer(&cells, &style, dice))
}

fn layer(cells: &Cells, style: &Style, dice: &mut Dice) -> Plane {
    let (height, width) = (cells.height, cells.width);
    let mut plane = Plane::new(height, width);
    let mut brush = Brush::new(height, width);
    let area = (height * width) as f64 * cells.cover();
    let mut centre = [0.5 * height as f64, 0.5 * width as f64];
    for _ in 0..(style.density * area) as usize + 3 {
        if dice.chance(0.1) {
            centre = cells.inside(dice).map_or(centre, |(_, p)| p);
        }
        let Some((at, light)) = place(cells, style, centre, dice) else { continue };
        let radius = style.radius * dice.lognormal(style.sizes);
        let light = light * (1.0 + dice.pareto(style.tail)).min(12.0) * dice.lognormal(0.3);
        if radius < POINT {
            // As bright as a dot of the smallest radius.
            plane.splat(at, light * 4.0 * radius * radius);
            continue;
        }
        let ring = radius > 1.5 && dice.chance(style.rings);
        let off = radius * 0.3;
        let to = if dice.chance(0.3) {
            [at[0] + off * dice.normals()[0], at[1] + off * dice.normals()[1]]
        } else {
            at
        };
        brush.rod(at, to, radius);
        let surface = if ring { light } else { 0.0 };
        let skin = (0.5 * radius).max(1.2);
        brush.paint(&mut plane, Fill { solid: light - 0.8 * surface, surface, skin });
    }
    let haze = Plane::cloud(height, width, dice, 10.0 * style.magnification);
    let rough = dice.between(0.1, 0.7);
    let cytoplasm = cells.fill(|i, p, cell, edge| {
        let r = cell.nucleus.radius(p);
        let thick = (edge / (15.0 * style.magnification)).min(1.0);
        let hole = if r < 1.0 { 0.5 } else { 1.0 };
        cell.brightness * style.cytoplasm * thick * hole * libm::exp(rough * haze.values[i])
    });
    plane.add(&cytoplasm, 1.0);
    plane
}

/// Where the next spot lies and how bright spots are there.
fn place(cells: &Cells, style: &Style, centre: [f64; 2], dice: &mut Dice) -> Option<([f64; 2], f64)> {
    if dice.chance(style.outside) {
        let y = dice.between(0.0, cells.height as f64 - 1.0);
        let x = dice.between(0.0, cells.width as f64 - 1.0);
        return Some(([y, x], dice.between(0.1, 0.7)));
    }
    let at = if dice.chance(style.clustered) {
        let [dy, dx] = dice.normals();
        [centre[0] + style.cluster * dy, centre[1] + style.cluster * dx]
    } else {
        cells.inside(dice)?.1
    };
    let cell = cells.at(cells.edge.index(at)?)?;
    let r = cell.nucleus.radius(at);
    let far = if r.is_finite() { (r - 1.0).max(0.0) } else { 0.5 };
    (r > 1.0 && dice.chance(libm::exp(-style.gather * far))).then_some((at, cell.brightness))
}
