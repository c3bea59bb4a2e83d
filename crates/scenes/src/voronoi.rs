//! Warped Voronoi cells, for tissue, honeycombs of membranes and tubular networks.
//!
//! Seeds are on a jittered grid; space is stretched, rotated and warped by a smooth field, and each seed has a weight that
//! is added to its distance, so that walls are curved. For each pixel the nearest seeds and its distance from their walls
//! are known.

use crate::dice::Dice;
use crate::plane::Plane;

/// Pixels of the blocks that share a list of seeds, for cells that are larger than this many of them and for smaller ones.
const BLOCKS: [usize; 2] = [8, 4];
const LARGE: f64 = 12.0;

/// See the module.
pub(crate) struct Voronoi {
    /// The nearest and the second nearest seed of each pixel.
    pub ids: Vec<[u32; 2]>,
    /// Pixels to the wall between the two.
    pub wall: Plane,
    /// Pixels to the wall between the first and the third: small at junctions only.
    pub junction: Plane,
    /// Number of seeds.
    pub seeds: usize,
}

/// How cells are shaped.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Pixels between seeds.
    pub spacing: f64,
    /// How far seeds are from their grid, from 0 to 1.
    pub jitter: f64,
    /// Displacements, and the scale of the field that gives them, over the spacing.
    pub warp: [f64; 2],
    /// How much longer than wide.
    pub stretch: f64,
    /// The spread of weights over the spacing.
    pub weights: f64,
}

struct Seeds {
    spacing: f64,
    origin: [f64; 2],
    size: [usize; 2],
    /// y, x and weight.
    at: Vec<[f64; 3]>,
}

impl Seeds {
    fn draw(low: [f64; 2], high: [f64; 2], shape: &Shape, dice: &mut Dice) -> Seeds {
        let s = shape.spacing;
        let origin = low.map(|v| v - 3.0 * s);
        let size = [0, 1].map(|a| ((high[a] - low[a]) / s).ceil() as usize + 6);
        let offset = |dice: &mut Dice| 0.5 + shape.jitter * dice.between(-0.5, 0.5);
        let at = (0..size[0] * size[1])
            .map(|i| {
                // Every other row is half a seed further: hexagons rather than squares.
                let shift = if (i / size[1]).is_multiple_of(2) { 0.0 } else { 0.5 };
                let y = origin[0] + s * ((i / size[1]) as f64 + offset(dice));
                let x = origin[1] + s * ((i % size[1]) as f64 + shift - 0.25 + offset(dice));
                [y, x, shape.weights * s * dice.between(0.0, 1.0)]
            })
            .collect();
        Seeds { spacing: s, origin, size, at }
    }

    /// The seeds that can be among the three nearest of a point within `radius` of `centre`.
    fn near(&self, centre: [f64; 2], radius: f64, found: &mut Vec<([f64; 3], u32)>) {
        let reach = 2.0 + (radius / self.spacing).ceil();
        let range = |a: usize| {
            let cell = ((centre[a] - self.origin[a]) / self.spacing).floor();
            let low = (cell - reach).max(0.0) as usize;
            low..((cell + reach + 1.0).max(0.0) as usize).min(self.size[a])
        };
        found.clear();
        for row in range(0) {
            for column in range(1) {
                let id = row * self.size[1] + column;
                found.push((self.at[id], id as u32));
            }
        }
        let limit = three_nearest(found, centre)[2].0 + 2.0 * radius;
        found.retain(|(seed, _)| distance(seed, centre) <= limit);
    }
}

impl Voronoi {
    pub fn draw(height: usize, width: usize, shape: &Shape, dice: &mut Dice) -> Voronoi {
        let grid = Warped::draw(height, width, shape, dice);
        let seeds = Seeds::draw(grid.low, grid.high, shape, dice);
        let pixels = height * width;
        let mut it = Voronoi {
            ids: vec![[0; 2]; pixels],
            wall: Plane::new(height, width),
            junction: Plane::new(height, width),
            seeds: seeds.at.len(),
        };
        let mut found = Vec::new();
        let side = grid.side;
        for top in (0..height).step_by(side) {
            for left in (0..width).step_by(side) {
                let block = grid.block(top / side, left / side);
                let (centre, radius) = block.ball();
                seeds.near(centre, radius, &mut found);
                for y in top..(top + side).min(height) {
                    for x in left..(left + side).min(width) {
                        let p = block.at((y - top) as f64 / side as f64, (x - left) as f64 / side as f64);
                        it.set(y * width + x, three_nearest(&found, p));
                    }
                }
            }
        }
        it
    }

    fn set(&mut self, i: usize, three: [(f64, u32); 3]) {
        self.ids[i] = [three[0].1, three[1].1];
        self.wall.values[i] = 0.5 * (three[1].0 - three[0].0);
        self.junction.values[i] = 0.5 * (three[2].0 - three[0].0);
    }

    /// A number for the wall next to a pixel, the same on both sides, below `n`.
    pub fn wall_number(&self, i: usize, n: usize) -> usize {
        let [a, b] = self.ids[i];
        let (a, b) = (a.min(b), a.max(b));
        let mixed = a.wrapping_mul(0x9E37_79B1) ^ b.wrapping_mul(0x85EB_CA77);
        (mixed ^ (mixed >> 15)) as usize % n
    }
}

/// The distance from a seed, its weight included.
fn distance([y, x, weight]: &[f64; 3], p: [f64; 2]) -> f64 {
    ((p[0] - y) * (p[0] - y) + (p[1] - x) * (p[1] - x)).sqrt() + weight
}

fn three_nearest(seeds: &[([f64; 3], u32)], p: [f64; 2]) -> [(f64, u32); 3] {
    let none = [(f64::INFINITY, 0); 3];
    seeds.iter().fold(none, |best, (seed, id)| among(best, (distance(seed, p), *id)))
}

/// The three nearest of the three nearest so far and another.
fn among(best: [(f64, u32); 3], it: (f64, u32)) -> [(f64, u32); 3] {
    let [first, second, third] = best;
    if it.0 >= third.0 {
        best
    } else if it.0 >= second.0 {
        [first, second, it]
    } else if it.0 >= first.0 {
        [first, it, second]
    } else {
        [it, first, second]
    }
}

/// Where the corners of blocks lie once space is bent.
struct Warped {
    /// Pixels of a block.
    side: usize,
    columns: usize,
    corners: Vec<[f64; 2]>,
    low: [f64; 2],
    high: [f64; 2],
}

impl Warped {
    fn draw(height: usize, width: usize, shape: &Shape, dice: &mut Dice) -> Warped {
        let side = BLOCKS[usize::from(shape.spacing < LARGE)];
        let (rows, columns) = (height.div_ceil(side) + 1, width.div_ceil(side) + 1);
        let [amount, scale] = shape.warp.map(|w| w * shape.spacing);
        let mut push = || Plane::smooth(rows, columns, dice, scale / side as f64);
        let (down, right) = (push(), push());
        let angle = dice.angle();
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        let long = shape.stretch.sqrt();
        let corner = |i: usize| {
            let y = (i / columns * side) as f64 + amount * down.values[i];
            let x = (i % columns * side) as f64 + amount * right.values[i];
            [(cos * y + sin * x) * long, (cos * x - sin * y) / long]
        };
        let corners: Vec<[f64; 2]> = (0..rows * columns).map(corner).collect();
        let fold = |a: usize, f: fn(f64, f64) -> f64, from| corners.iter().map(|c| c[a]).fold(from, f);
        let low = [0, 1].map(|a| fold(a, f64::min, f64::INFINITY));
        let high = [0, 1].map(|a| fold(a, f64::max, f64::NEG_INFINITY));
        Warped { side, columns, corners, low, high }
    }

    fn block(&self, row: usize, column: usize) -> Block {
        let i = row * self.columns + column;
        Block([i, i + 1, i + self.columns, i + self.columns + 1].map(|c| self.corners[c]))
    }
}

/// The corners of a block: top left, top right, bottom left, bottom right.
struct Block([[f64; 2]; 4]);

impl Block {
    fn at(&self, v: f64, u: f64) -> [f64; 2] {
        let [a, b, c, d] = self.0;
        [0, 1].map(|k| (1.0 - v) * ((1.0 - u) * a[k] + u * b[k]) + v * ((1.0 - u) * c[k] + u * d[k]))
    }

    /// A ball that holds it.
    fn ball(&self) -> ([f64; 2], f64) {
        let centre = self.at(0.5, 0.5);
        let far = |c: &[f64; 2]| {
            let d = [c[0] - centre[0], c[1] - centre[1]];
            (d[0] * d[0] + d[1] * d[1]).sqrt()
        };
        (centre, self.0.iter().map(far).fold(0.0, f64::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// Beside a search of all seeds for every pixel.
    #[test]
    fn the_nearest_seeds_are_found() {
        for step in 0..24 {
            let make = || Dice::new(Key { seed: 8, step, stream: 2 });
            let mut dice = make();
            let shape = Shape {
                spacing: dice.log_between(4.0, 60.0),
                jitter: dice.between(0.0, 1.0),
                warp: [dice.between(0.0, 0.4), dice.between(0.3, 4.0)],
                stretch: dice.log_between(1.0, 3.0),
                weights: dice.between(0.0, 0.5),
            };
            let (height, width) = (41, 50);
            let it = Voronoi::draw(height, width, &shape, &mut make());
            let mut again = make();
            let grid = Warped::draw(height, width, &shape, &mut again);
            let seeds = Seeds::draw(grid.low, grid.high, &shape, &mut again);
            for i in 0..height * width {
                let (y, x, side) = (i / width, i % width, grid.side);
                let block = grid.block(y / side, x / side);
                let p = block.at((y % side) as f64 / side as f64, (x % side) as f64 / side as f64);
                let mut all: Vec<f64> = seeds.at.iter().map(|s| distance(s, p)).collect();
                all.sort_by(f64::total_cmp);
                assert_eq!(distance(&seeds.at[it.ids[i][0] as usize], p), all[0], "{step} {i}");
                assert_eq!(it.wall.values[i], 0.5 * (all[1] - all[0]), "{step} {i}");
                assert_eq!(it.junction.values[i], 0.5 * (all[2] - all[0]), "{step} {i}");
            }
        }
    }
}
