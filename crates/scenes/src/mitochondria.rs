//! Mitochondria: rods, long bent tubules, rings and networks, filled or hollow, dense around a nucleus and
//! scarce towards the edge of the cell, over the haze of the cytoplasm.

use crate::brush::{Brush, Fill};
use crate::canvas::Canvas;
use crate::cells::{Cell, Cells};
use crate::dice::Dice;
use crate::optics;
use crate::plane::Plane;

/// Parameters shared by the mitochondria of a scene.
struct Style {
    magnification: f64,
    /// Pixels squared of cytoplasm for each pixel of tubule, about.
    spacing: f64,
    length: f64,
    radius: f64,
    /// How much a heading turns per radius.
    bend: f64,
    /// Share of tubules that start on another one; of rings.
    branches: f64,
    rings: f64,
    hollow: f64,
    /// The spread of brightness, and of the radius along a tubule.
    spread: f64,
    beads: f64,
    /// How fast the density falls with the distance from the nucleus.
    gather: f64,
    /// Whether tubules run away from the nucleus: 0 to 1.
    radial: f64,
    cytoplasm: f64,
    nucleus: f64,
}

impl Style {
    fn draw(magnification: f64, dice: &mut Dice) -> Style {
        let m = magnification;
        let many_short = dice.chance(0.4);
        Style {
            magnification,
            spacing: dice.log_between(3.0, 14.0) * m,
            length: if many_short { dice.log_between(3.0, 12.0) } else { dice.log_between(12.0, 90.0) } * m,
            radius: dice.log_between(0.7, 1.7) * m,
            bend: dice.log_between(0.05, 0.35),
            branches: if dice.chance(0.5) { 0.0 } else { dice.between(0.1, 0.7) },
            rings: if dice.chance(0.5) { 0.0 } else { dice.between(0.0, 0.3) },
            hollow: if dice.chance(0.5) { 0.0 } else { dice.between(0.3, 1.0) },
            spread: dice.between(0.15, 0.6),
            beads: if dice.chance(0.4) { 0.0 } else { dice.between(0.1, 0.4) },
            gather: dice.between(0.0, 2.0),
            radial: dice.between(0.0, 1.0),
            cytoplasm: dice.log_between(0.02, 0.5),
            nucleus: dice.log_between(0.02, 0.4),
        }
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice).min(3.0);
    let diameter = dice.log_between(70.0, 200.0) * m.min(2.5);
    let cells = Cells::draw(size[1], size[2], diameter, dice);
    let style = Style::draw(m, dice);
    optics::image(size, m, dice, |dice| layer(&cells, &style, dice))
}

fn layer(cells: &Cells, style: &Style, dice: &mut Dice) -> Plane {
    let (height, width) = (cells.height, cells.width);
    let mut tubules = Tubules {
        cells,
        style,
        brush: Brush::new(height, width),
        plane: Plane::new(height, width),
        last: vec![],
    };
    let total = (height * width) as f64 * cells.cover() / style.spacing;
    let mut painted = 0.0;
    for _ in 0..(12.0 * total / style.length) as usize + 60 {
        painted += tubules.tubule(dice);
        if painted > total {
            break;
        }
    }
    let mut sum = tubules.plane;
    let haze = Plane::cloud(height, width, dice, 10.0 * style.magnification);
    let grain = Plane::grain(height, width, dice, 3.0 * style.magnification);
    let rest = cells.fill(|i, p, cell, edge| {
        let r = cell.nucleus.radius(p);
        let thick = (edge / (15.0 * style.magnification)).min(1.0);
        let near = 0.3 + 0.7 / (1.0 + (r - 1.0).max(0.0));
        let cytoplasm = style.cytoplasm * thick * near.min(1.0) * libm::exp(0.4 * haze.values[i]);
        let inside = ((1.0 - r) * cell.nucleus.radii[0].min(1e3)).clamp(0.0, 1.0);
        let nucleus = style.nucleus * (1.0 + 0.25 * grain.values[i]).max(0.0);
        cell.brightness * if r < 1.0 { inside * nucleus + (1.0 - inside) * cytoplasm } else { cytoplasm }
    });
    sum.add(&rest, 1.0);
    sum
}

struct Tubules<'a> {
    cells: &'a Cells,
    style: &'a Style,
    brush: Brush,
    plane: Plane,
    /// Points of the last tubules, for branches.
    last: Vec<[f64; 2]>,
}

impl Tubules<'_> {
    /// Paints one; how many pixels long it is.
    fn tubule(&mut self, dice: &mut Dice) -> f64 {
        let style = self.style;
        let branch = !self.last.is_empty() && dice.chance(style.branches);
        let start = if branch {
            Some(self.last[dice.count(0, self.last.len() - 1)])
        } else {
            self.cells.inside(dice).map(|(_, p)| p)
        };
        let Some(start) = start else { return 0.0 };
        let Some(cell) = self.plane.index(start).and_then(|i| self.cells.at(i)).copied() else { return 0.0 };
        let r = cell.nucleus.radius(start);
        let far = if r.is_finite() { (r - 1.0).max(0.0) } else { 0.5 };
        if r < 1.0 || !dice.chance(libm::exp(-style.gather * far)) {
            return 0.0;
        }
        let radius = style.radius * dice.lognormal(0.15);
        let length = if dice.chance(style.rings) {
            self.ring(start, radius, dice)
        } else {
            self.walk(start, radius, &cell, dice)
        };
        let light = cell.brightness * dice.lognormal(style.spread);
        let surface = style.hollow * light;
        let skin = (0.7 * radius).max(1.0);
        self.brush.paint(&mut self.plane, Fill { solid: light - 0.75 * surface, surface, skin });
        length
    }

    fn ring(&mut self, centre: [f64; 2], radius: f64, dice: &mut Dice) -> f64 {
        let large = radius * dice.between(1.5, 3.5);
        let around = if dice.chance(0.5) { 16 } else { dice.count(8, 15) };
        let first = dice.angle();
        let flat = dice.between(0.6, 1.0);
        let at = |k: usize| {
            let a = first + std::f64::consts::TAU * k as f64 / 16.0;
            [centre[0] + large * libm::sin(a), centre[1] + flat * large * libm::cos(a)]
        };
        (0..around).for_each(|k| self.brush.rod(at(k), at(k + 1), radius));
        std::f64::consts::TAU * large
    }

    fn walk(&mut self, start: [f64; 2], radius: f64, cell: &Cell, dice: &mut Dice) -> f64 {
        let style = self.style;
        let nucleus = &cell.nucleus;
        let [dy, dx] = [start[0] - nucleus.centre[0], start[1] - nucleus.centre[1]];
        let out = if nucleus.radii[0] > 0.0 { libm::atan2(dy, dx) } else { cell.angle };
        let mut heading = out + (1.0 - style.radial) * dice.between(-3.2, 3.2) + 0.3 * dice.normals()[0];
        let length = style.length * dice.lognormal(0.6);
        let step = radius.clamp(0.8, 3.0);
        let (mut at, mut done, mut curve) = (start, 0.0, 0.0);
        self.last.truncate(200);
        let first = self.plane.index(start).unwrap_or(0);
        let mut blocked = 0;
        while done < length && blocked < 8 {
            let [kick, swell] = dice.normals();
            curve = 0.8 * curve + 0.6 * style.bend * kick;
            heading += curve;
            let next = [at[0] + step * libm::sin(heading), at[1] + step * libm::cos(heading)];
            let outside = self.plane.index(next).is_some_and(|i| !self.cells.same(first, i));
            if outside || nucleus.radius(next) < 1.0 {
                // Along the wall rather than through it.
                heading += 0.7;
                blocked += 1;
                continue;
            }
            self.brush.rod(at, next, radius * (1.0 + style.beads * swell).clamp(0.4, 1.8));
            if (done as usize).is_multiple_of(8) {
                self.last.insert(0, next);
            }
            at = next;
            done += step;
        }
        if done == 0.0 {
            self.brush.rod(at, at, radius);
        }
        done.max(radius)
    }
}
