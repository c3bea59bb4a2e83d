//! Fibres: bundles of nearly parallel filaments that follow a smooth field of directions within cells, like actin stress
//! fibres, or start from a centre, like microtubules; with bright knots, beads, a rim along the edge and dim cytoplasm.

use crate::canvas::Canvas;
use crate::cells::Cells;
use crate::dice::Dice;
use crate::optics;
use crate::plane::Plane;

/// Widths that fibres are painted with, in pixels at magnification 1.
const WIDTHS: [f64; 3] = [0.25, 0.8, 1.8];

/// Parameters shared by the fibres of a scene.
#[derive(Clone, Copy)]
struct Style {
    magnification: f64,
    /// Pixels between neighbouring fibres, about.
    spacing: f64,
    /// Fibres in a bundle, at the most.
    bundle: usize,
    length: f64,
    /// How much directions wander, in radians, and over which distance.
    bend: f64,
    scale: f64,
    /// Angle between two families that cross; zero if there is one only.
    crossing: f64,
    /// Fibres leave a centre of the cell.
    radial: bool,
    /// Fine fibres between the others: how bright they are, pixels between them, and the angle at which they cross.
    ground: f64,
    ground_spacing: f64,
    mesh: f64,
    /// The spread of brightness, and that along a fibre.
    spread: f64,
    beads: f64,
    /// The share of fibres of each width.
    wide: [f64; 2],
    rim: f64,
    cytoplasm: f64,
    knots: f64,
}

impl Style {
    fn draw(magnification: f64, dice: &mut Dice) -> Style {
        let m = magnification;
        let radial = dice.chance(0.25);
        Style {
            magnification,
            spacing: (dice.log_between(1.3, 7.0) * libm::pow(m, 0.8)).max(1.2),
            bundle: dice.count(1, 7),
            length: dice.log_between(25.0, 200.0) * m,
            bend: if radial { dice.between(0.05, 0.35) } else { dice.log_between(0.06, 0.7) },
            scale: dice.log_between(20.0, 120.0) * m,
            crossing: if dice.chance(0.5) { 0.0 } else { dice.between(0.3, 1.5) },
            radial,
            ground: if dice.chance(0.4) { 0.0 } else { dice.log_between(0.1, 0.8) },
            ground_spacing: (dice.log_between(1.0, 3.0) * libm::pow(m, 0.7)).max(1.2),
            mesh: if dice.chance(0.5) { 0.0 } else { dice.between(0.3, 1.5) },
            spread: dice.between(0.3, 0.9),
            beads: if dice.chance(0.4) { 0.0 } else { dice.between(0.2, 1.1) },
            wide: [dice.between(0.0, 0.8), dice.between(0.0, 0.3)],
            rim: if dice.chance(0.5) { 0.0 } else { dice.log_between(0.1, 3.0) },
            cytoplasm: dice.log_between(0.03, 0.6),
            knots: if dice.chance(0.5) { 0.0 } else { dice.between(0.0, 0.1) },
        }
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice);
    let diameter = dice.log_between(90.0, 260.0) * m.min(2.5);
    let cells = Cells::draw(size[1], size[2], diameter, dice);
    let style = Style::draw(m, dice);
    optics::image(size, m, dice, |dice| layer(&cells, &style, dice))
}

fn layer(cells: &Cells, style: &Style, dice: &mut Dice) -> Plane {
    let (height, width) = (cells.height, cells.width);
    let mut direction = Plane::smooth(height, width, dice, style.scale);
    direction.values.iter_mut().for_each(|v| *v *= style.bend);
    let strength = Plane::smooth(height, width, dice, style.scale);
    let mut walk =
        Walk { cells, style: *style, direction, planes: WIDTHS.map(|_| Plane::new(height, width)) };
    walk.populate(style.spacing, 1.0, &strength, dice);
    if style.ground > 0.0 {
        let fine = Style {
            bundle: 1,
            length: 0.3 * style.length + 6.0,
            wide: [0.0; 2],
            knots: 0.0,
            crossing: style.crossing.max(style.mesh),
            ..*style
        };
        walk.style = fine;
        walk.populate(style.ground_spacing, style.ground, &strength, dice);
    }
    let mut sum = Plane::new(height, width);
    for (plane, sigma) in walk.planes.iter().zip(WIDTHS) {
        sum.add(&plane.blurred(sigma * style.magnification), 1.0);
    }
    dress(cells, style, &mut sum, dice);
    sum
}

/// Adds cytoplasm, rims and the shadow or the glow of nuclei.
fn dress(cells: &Cells, style: &Style, sum: &mut Plane, dice: &mut Dice) {
    let m = style.magnification;
    let haze = Plane::cloud(cells.height, cells.width, dice, 12.0 * m);
    let level = sum.mean() / cells.cover().max(0.05);
    let width = m * dice.between(1.0, 3.0);
    let nucleus = dice.between(-0.6, 1.0);
    let rest = cells.fill(|i, p, cell, edge| {
        let thick = (edge / (20.0 * m)).min(1.0);
        let over = (1.0 - (cell.nucleus.radius(p) - 1.0).max(0.0) * 2.0).clamp(0.0, 1.0);
        let cytoplasm = style.cytoplasm * thick * libm::exp(0.4 * haze.values[i]) * (1.0 + nucleus * over);
        let u = (edge - width) / width;
        let rim = style.rim * (1.0 - u * u).max(0.0) * libm::exp(0.8 * haze.values[i]);
        cell.brightness * (cytoplasm + rim)
    });
    sum.add(&rest, 3.0 * level);
}

struct Walk<'a> {
    cells: &'a Cells,
    style: Style,
    /// Radians that a fibre is turned by against the direction of its cell.
    direction: Plane,
    planes: [Plane; 3],
}

impl Walk<'_> {
    /// Bundles until fibres are about `spacing` pixels apart.
    fn populate(&mut self, spacing: f64, share: f64, strength: &Plane, dice: &mut Dice) {
        let total = self.direction.values.len() as f64 * self.cells.cover() / spacing;
        let mut painted = 0.0;
        // Starts outside of cells are not fibres; a limit keeps scenes of slivers from taking long.
        for _ in 0..(6.0 * total / self.style.length) as usize + 40 {
            painted += self.bundle(strength, share, dice);
            if painted > total {
                break;
            }
        }
    }

    /// A bundle from a random place, its light times `share`; how many pixels of fibre were painted.
    fn bundle(&mut self, strength: &Plane, share: f64, dice: &mut Dice) -> f64 {
        let Some((at, middle)) = self.cells.inside(dice) else { return 0.0 };
        let Some(cell) = self.cells.at(at) else { return 0.0 };
        let style = self.style;
        let fibres = dice.count(1, style.bundle);
        let length = style.length * dice.lognormal(0.5);
        let pick = dice.between(0.0, 1.0);
        let plane = if pick < style.wide[1] { 2 } else { usize::from(pick < style.wide[0]) };
        // Wider fibres hold more light, but not so much as to be as bright as thin ones everywhere.
        let light = share
            * cell.brightness
            * [1.0, 1.8, 3.0][plane]
            * dice.lognormal(style.spread)
            * libm::exp(0.5 * strength.values[at]);
        let turn = if dice.chance(0.5) { style.crossing } else { 0.0 };
        let turn = turn + 0.08 * dice.normals()[0];
        let apart = style.magnification * dice.between(0.8, 3.0);
        let mut painted = 0.0;
        for _ in 0..fibres {
            let [dy, dx] = dice.normals();
            let spread = apart * (fibres as f64 - 1.0).sqrt();
            let start = [middle[0] + spread * dy, middle[1] + spread * dx];
            let light = light * dice.lognormal(0.3);
            for back in [false, true] {
                let reach = 0.5 * length * dice.between(0.5, 1.0);
                let fibre = Fibre { start, back, turn, reach, light, plane };
                painted += self.fibre(&fibre, dice);
            }
            if dice.chance(style.knots) {
                self.planes[2].splat(start, light * style.magnification * dice.between(4.0, 25.0));
            }
        }
        painted
    }

    fn fibre(&mut self, fibre: &Fibre, dice: &mut Dice) -> f64 {
        let Some(first) = self.direction.index(fibre.start) else { return 0.0 };
        let Some(cell) = self.cells.at(first).copied() else { return 0.0 };
        let mut at = fibre.start;
        let (mut done, mut bead) = (0.0, 0.0);
        // Beads are a pixel or two long at any magnification.
        let memory = 1.0 - 1.0 / (1.5 + self.style.magnification);
        let kick = (1.0 - memory * memory).sqrt();
        while done < fibre.reach {
            let Some(i) = self.direction.index(at) else { break };
            if !self.cells.same(first, i) {
                break;
            }
            let angle = if self.style.radial {
                let d = [at[0] - cell.nucleus.centre[0], at[1] - cell.nucleus.centre[1]];
                libm::atan2(d[0], d[1])
            } else {
                cell.angle
            };
            let angle = angle + self.direction.values[i] + fibre.turn;
            if self.style.beads > 0.0 {
                bead = memory * bead + kick * dice.normals()[0];
            }
            let fade = ((fibre.reach - done) / (0.3 * fibre.reach)).min(1.0);
            let light = fibre.light * fade * libm::exp(self.style.beads * bead);
            self.planes[fibre.plane].splat(at, light);
            let step = if fibre.back { -1.0 } else { 1.0 };
            at = [at[0] + step * libm::sin(angle), at[1] + step * libm::cos(angle)];
            done += 1.0;
        }
        done
    }
}

/// Half of a fibre, from its middle to an end.
struct Fibre {
    start: [f64; 2],
    back: bool,
    turn: f64,
    reach: f64,
    light: f64,
    plane: usize,
}
