//! Cells on a cover slip: positions, outlines and nuclei. Kinds of scenes fill them with structure.
//!
//! Outlines are those of bent Voronoi cells, some of which are left out, so that there is background beyond the edge of a
//! cell; the rest is confluent in some scenes and sparse in others. A nucleus is at the widest place of its cell.

use crate::dice::Dice;
use crate::plane::Plane;
use crate::voronoi::{Shape, Voronoi};

/// A cell of [`Cells`].
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    /// Zero where there is no cell.
    pub brightness: f64,
    /// The direction in which it is polarised.
    pub angle: f64,
    pub nucleus: Nucleus,
}

/// An ellipse.
#[derive(Clone, Copy, Default)]
pub(crate) struct Nucleus {
    pub centre: [f64; 2],
    /// Half axes; zero if there is none.
    pub radii: [f64; 2],
    /// The sine and cosine of its turn.
    pub turn: [f64; 2],
}

impl Nucleus {
    /// The distance from the centre in radii: 1 on the outline.
    pub fn radius(&self, [y, x]: [f64; 2]) -> f64 {
        if self.radii[0] == 0.0 {
            return f64::INFINITY;
        }
        let (dy, dx) = (y - self.centre[0], x - self.centre[1]);
        let [sin, cos] = self.turn;
        let u = [(cos * dy + sin * dx) / self.radii[0], (cos * dx - sin * dy) / self.radii[1]];
        (u[0] * u[0] + u[1] * u[1]).sqrt()
    }
}

/// See the module.
pub(crate) struct Cells {
    pub height: usize,
    pub width: usize,
    /// The cell of each pixel.
    id: Vec<u32>,
    /// Pixels to the cell's edge, negative outside of cells.
    pub edge: Plane,
    list: Vec<Cell>,
}

impl Cells {
    /// Cells of a mean diameter in pixels.
    pub fn draw(height: usize, width: usize, diameter: f64, dice: &mut Dice) -> Cells {
        let shape = Shape {
            spacing: diameter,
            jitter: dice.between(0.5, 1.0),
            warp: [dice.between(0.05, 0.2), dice.between(0.3, 1.0)],
            stretch: dice.between(1.0, 3.0),
            weights: dice.between(0.0, 0.5),
        };
        let voronoi = Voronoi::draw(height, width, &shape, dice);
        let share = if dice.chance(0.35) { 1.0 } else { dice.between(0.2, 0.9) };
        let (turn, spread) = (dice.angle(), dice.between(0.1, 1.0));
        let dim = dice.between(0.1, 0.8);
        let mut list: Vec<Cell> = (0..voronoi.seeds)
            .map(|_| Cell {
                brightness: if dice.chance(share) { dice.lognormal(dim) } else { 0.0 },
                angle: turn + spread * dice.normals()[0],
                nucleus: Nucleus::default(),
            })
            .collect();
        let widest = widest(&voronoi, list.len());
        // A scene needs light: the largest cell is always kept.
        let largest = (0..list.len()).max_by(|&a, &b| widest[a].0.total_cmp(&widest[b].0)).unwrap_or(0);
        list[largest].brightness = list[largest].brightness.max(0.5);
        for (cell, (wide, at)) in list.iter_mut().zip(widest) {
            let angle = cell.angle + 0.3 * dice.normals()[0];
            let radius = 0.16 * diameter * dice.between(0.8, 1.25);
            let flat = dice.between(1.0, 1.6).sqrt();
            if wide > 0.6 * radius {
                let turn = [libm::sin(angle), libm::cos(angle)];
                let centre = [(at / width) as f64, (at % width) as f64];
                cell.nucleus = Nucleus { centre, radii: [radius / flat, radius * flat], turn };
            }
        }
        let edge = edges(&voronoi, &list, diameter, dice);
        Cells { height, width, id: voronoi.ids.iter().map(|i| i[0]).collect(), edge, list }
    }

    /// The cell that a pixel lies in, if one.
    pub fn at(&self, i: usize) -> Option<&Cell> {
        (self.edge.values[i] > 0.0).then(|| &self.list[self.id[i] as usize])
    }

    /// Whether two pixels are in the same cell.
    pub fn same(&self, i: usize, j: usize) -> bool {
        self.edge.values[j] > 0.0 && self.id[i] == self.id[j]
    }

    /// A pixel inside a cell, or none after a few trials.
    pub fn inside(&self, dice: &mut Dice) -> Option<(usize, [f64; 2])> {
        for _ in 0..8 {
            let y = dice.between(0.0, self.height as f64 - 1.0);
            let x = dice.between(0.0, self.width as f64 - 1.0);
            let i = (y + 0.5) as usize * self.width + (x + 0.5) as usize;
            if self.edge.values[i] > 0.0 {
                return Some((i, [y, x]));
            }
        }
        None
    }

    /// The share of pixels inside cells.
    pub fn cover(&self) -> f64 {
        let inside = self.edge.values.iter().filter(|e| **e > 0.0).count();
        inside as f64 / self.edge.values.len() as f64
    }

    /// A plane of what a function of (pixel, position, cell, pixels to the edge) says inside cells.
    pub fn fill(&self, mut f: impl FnMut(usize, [f64; 2], &Cell, f64) -> f64) -> Plane {
        Plane::from_fn(self.height, self.width, |y, x| {
            let i = y * self.width + x;
            self.at(i).map_or(0.0, |cell| f(i, [y as f64, x as f64], cell, self.edge.values[i]))
        })
    }
}

/// For each cell how far its innermost pixel is from its wall, and which that is.
fn widest(voronoi: &Voronoi, cells: usize) -> Vec<(f64, usize)> {
    let mut widest = vec![(0.0, 0); cells];
    for (i, (ids, &wall)) in voronoi.ids.iter().zip(&voronoi.wall.values).enumerate() {
        let best = &mut widest[ids[0] as usize];
        if wall > best.0 {
            *best = (wall, i);
        }
    }
    widest
}

/// Pixels to the edges of cells: ragged where a cell ends in the open.
fn edges(voronoi: &Voronoi, list: &[Cell], diameter: f64, dice: &mut Dice) -> Plane {
    let (height, width) = (voronoi.wall.height, voronoi.wall.width);
    let ragged = Plane::smooth(height, width, dice, 0.06 * diameter);
    let gap = if dice.chance(0.5) { 0.0 } else { 0.04 * diameter * dice.between(0.0, 1.0) };
    let amount = diameter * dice.between(0.0, 0.03);
    Plane::from_fn(height, width, |y, x| {
        let i = y * width + x;
        let [own, next] = voronoi.ids[i].map(|id| list[id as usize].brightness > 0.0);
        let wall = voronoi.wall.values[i];
        match (own, next) {
            (true, true) => wall - gap,
            (true, false) => wall - gap + amount * (ragged.values[i] - 1.0),
            (false, true) => -wall - gap + amount * (ragged.values[i] - 1.0),
            (false, false) => -wall,
        }
        .min(if own { f64::INFINITY } else { 0.0 })
    })
}
