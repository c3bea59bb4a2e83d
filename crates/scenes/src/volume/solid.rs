//! The grid for painting specimens in three dimensions, and the tools for it.
//!
//! Positions are in pixels along Z, Y and X, independent of the distance of the grid's planes. [`Solid::dot`] adds the
//! light of a point, [`Stroke`] paints rods and balls, and [`Lattice`] is a smooth random field.

use crate::canvas::Canvas;
use crate::dice::Dice;

/// See the module.
pub(super) struct Solid {
    pub canvas: Canvas,
    /// Pixels between neighbouring planes.
    pub step: f64,
}

impl Solid {
    pub fn new(size: [usize; 3], step: f64) -> Solid {
        Solid { canvas: Canvas::new(size), step }
    }

    /// Lengths along Z, Y, X in pixels.
    pub fn extent(&self) -> [f64; 3] {
        let [z, y, x] = self.canvas.size.map(|n| n as f64);
        [z * self.step, y, x]
    }

    /// A place inside.
    pub fn place(&self, dice: &mut Dice) -> [f64; 3] {
        self.extent().map(|n| dice.between(0.0, n))
    }

    /// A place for object `number`: the first is in the middle, so that there is something to see.
    pub fn place_of(&self, number: usize, dice: &mut Dice) -> [f64; 3] {
        let place = self.place(dice);
        if number > 0 { place } else { self.middle().map(|m| m * dice.between(0.9, 1.1)) }
    }

    pub fn middle(&self) -> [f64; 3] {
        self.extent().map(|n| 0.5 * n)
    }

    pub fn holds(&self, at: [f64; 3]) -> bool {
        at.iter().zip(self.extent()).all(|(p, n)| (0.0..n).contains(p))
    }

    /// Adds the light of a point.
    pub fn dot(&mut self, at: [f64; 3], light: f64) {
        self.canvas.splat([at[0] / self.step, at[1], at[2]], light / self.step);
    }

    /// Calls with the index and the place of each voxel within `reach` pixels of the box between two corners.
    pub fn near(&self, low: [f64; 3], high: [f64; 3], reach: f64, mut f: impl FnMut(usize, [f64; 3])) {
        let steps = [self.step, 1.0, 1.0];
        let range = |a: usize| {
            let first = ((low[a] - reach) / steps[a]).ceil().max(0.0) as usize;
            let last = ((high[a] + reach) / steps[a]).floor() + 1.0;
            first..last.clamp(0.0, self.canvas.size[a] as f64) as usize
        };
        let [_, height, width] = self.canvas.size;
        for z in range(0) {
            for y in range(1) {
                for x in range(2) {
                    f((z * height + y) * width + x, [z as f64 * self.step, y as f64, x as f64]);
                }
            }
        }
    }

    /// Adds a function of the index and the place of every voxel.
    pub fn fill(&mut self, mut f: impl FnMut(usize, [f64; 3]) -> f64) {
        let [_, height, width] = self.canvas.size;
        for (i, v) in self.canvas.values.iter_mut().enumerate() {
            let (x, rest) = (i % width, i / width);
            let (y, z) = (rest % height, rest / height);
            *v += f(i, [z as f64 * self.step, y as f64, x as f64]);
        }
    }
}

/// Rods and balls that are painted together: joints are not brighter than the rest. Kept from stroke to stroke.
pub(super) struct Stroke {
    /// Distance from the surface in pixels, negative inside; infinite where the stroke is not.
    depth: Vec<f32>,
    touched: Vec<usize>,
}

impl Stroke {
    pub fn new(solid: &Solid) -> Stroke {
        Stroke { depth: vec![f32::INFINITY; solid.canvas.values.len()], touched: Vec::new() }
    }

    /// A rod with round ends, or a ball where both are the same place.
    pub fn rod(&mut self, solid: &Solid, a: [f64; 3], b: [f64; 3], radius: f64) {
        let d = [0, 1, 2].map(|i| b[i] - a[i]);
        let over = 1.0 / d.iter().map(|v| v * v).sum::<f64>().max(1e-9);
        let reach = radius + solid.step.max(1.0);
        let (low, high) = ([0, 1, 2].map(|i| a[i].min(b[i])), [0, 1, 2].map(|i| a[i].max(b[i])));
        solid.near(low, high, reach, |i, p| {
            let q = [0, 1, 2].map(|k| p[k] - a[k]);
            let t = ((q[0] * d[0] + q[1] * d[1] + q[2] * d[2]) * over).clamp(0.0, 1.0);
            let r2: f64 = (0..3).map(|k| (q[k] - t * d[k]) * (q[k] - t * d[k])).sum();
            if r2 < reach * reach {
                let outside = (r2.sqrt() - radius) as f32;
                if self.depth[i] == f32::INFINITY {
                    self.touched.push(i);
                }
                self.depth[i] = self.depth[i].min(outside);
            }
        });
    }

    /// Adds the light of the inside, and that of a surface `skin` pixels thick, and forgets the stroke.
    pub fn paint(&mut self, solid: &mut Solid, inside: f64, surface: f64, skin: f64) {
        // Edges as soft as the grid is coarse.
        let soft = solid.step.max(1.0);
        for i in self.touched.drain(..) {
            let outside = f64::from(self.depth[i]);
            self.depth[i] = f32::INFINITY;
            let u = (outside + 0.5 * skin) / skin.max(0.7 * soft);
            let light = inside * (0.5 - outside / soft).clamp(0.0, 1.0) + surface * (1.0 - u * u).max(0.0);
            solid.canvas.values[i] += light;
        }
    }
}

/// A smooth random field of about unit variance: normal numbers on a lattice, smoothly between.
pub(super) struct Lattice {
    size: [usize; 3],
    spacing: f64,
    values: Vec<f64>,
}

impl Lattice {
    /// Structure of `scale` pixels over a box of `extent` pixels.
    pub fn draw(extent: [f64; 3], scale: f64, dice: &mut Dice) -> Lattice {
        let spacing = scale.max(1.5);
        let size = extent.map(|n| (n / spacing) as usize + 2);
        Lattice { size, spacing, values: dice.field(size.iter().product()) }
    }

    pub fn at(&self, place: [f64; 3]) -> f64 {
        let mut low = [0; 3];
        let mut part = [0.0; 3];
        for a in 0..3 {
            let p = (place[a] / self.spacing).clamp(0.0, self.size[a] as f64 - 1.001);
            low[a] = p as usize;
            let t = p - low[a] as f64;
            part[a] = t * t * (3.0 - 2.0 * t);
        }
        let (mut sum, mut squares) = (0.0, 0.0);
        for corner in 0..8 {
            let step = [corner >> 2, (corner >> 1) & 1, corner & 1];
            let weight: f64 = (0..3).map(|a| if step[a] == 1 { part[a] } else { 1.0 - part[a] }).product();
            let i = ((low[0] + step[0]) * self.size[1] + low[1] + step[1]) * self.size[2] + low[2] + step[2];
            sum += weight * self.values[i];
            squares += weight * weight;
        }
        sum / squares.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// A ball's light is its volume, whatever the distance of the planes.
    #[test]
    fn balls_hold_their_volume_and_dots_their_light() {
        for step in [1.0, 1.5] {
            let mut solid = Solid::new([40, 48, 48], step);
            let mut stroke = Stroke::new(&solid);
            let centre = solid.extent().map(|n| 0.5 * n + 0.2);
            stroke.rod(&solid, centre, centre, 9.0);
            stroke.paint(&mut solid, 1.0, 0.0, 1.0);
            let volume = solid.canvas.values.iter().sum::<f64>() * step;
            let expected = 4.0 / 3.0 * std::f64::consts::PI * 729.0;
            assert!((volume / expected - 1.0).abs() < 0.02, "{step}: {volume} for {expected}");
            let mut solid = Solid::new([8, 8, 8], step);
            solid.dot([3.3, 4.6, 2.1], 2.0);
            assert!((solid.canvas.values.iter().sum::<f64>() * step - 2.0).abs() < 1e-12);
        }
    }

    #[test]
    fn fields_are_smooth_and_of_unit_variance() {
        let mut dice = Dice::new(Key { seed: 1, step: 0, stream: 0 });
        let field = Lattice::draw([60.0; 3], 4.0, &mut dice);
        let (mut squares, mut steps, mut count) = (0.0, 0.0f64, 0.0);
        for i in 0..50 * 50 * 50 {
            let at = [i / 2500, i / 50 % 50, i % 50].map(|v| v as f64);
            let v = field.at(at);
            squares += v * v;
            steps = steps.max((field.at([at[0], at[1], at[2] + 0.1]) - v).abs());
            count += 1.0;
        }
        assert!((squares / count - 1.0).abs() < 0.1 && steps < 0.5, "{} {steps}", squares / count);
    }
}
