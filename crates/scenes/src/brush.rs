//! Strokes of round brushes: tubes, rings and dots with a sharp outline, filled or hollow.
//!
//! A stroke collects the distance of each pixel from its surface over all of its segments, and is painted once, so that
//! joints and turns are not brighter than the rest.

use crate::plane::Plane;

/// Pixels beyond a surface that still take part in its antialiased edge.
const MARGIN: f64 = 1.0;

/// How a stroke is filled.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    /// Light of a solid rod, in proportion to its thickness.
    pub solid: f64,
    /// Light of its surface.
    pub surface: f64,
    /// The thickness of the surface in pixels.
    pub skin: f64,
}

/// See the module. Kept from stroke to stroke: its memory is that of a plane.
pub(crate) struct Brush {
    /// Signed distance from the surface in radii of the rod there, negative inside; infinite where the stroke is not.
    depth: Vec<f64>,
    radius: Vec<f64>,
    touched: Vec<usize>,
    size: [usize; 2],
}

impl Brush {
    pub fn new(height: usize, width: usize) -> Brush {
        let pixels = height * width;
        Brush {
            depth: vec![f64::INFINITY; pixels],
            radius: vec![0.0; pixels],
            touched: Vec::new(),
            size: [height, width],
        }
    }

    /// A rod from `a` to `b`, or a dot where they are the same.
    pub fn rod(&mut self, a: [f64; 2], b: [f64; 2], radius: f64) {
        let reach = radius + MARGIN;
        let range = |axis: usize| {
            let low = (a[axis].min(b[axis]) - reach).ceil().max(0.0) as usize;
            let high = (a[axis].max(b[axis]) + reach).floor() + 1.0;
            low..high.clamp(0.0, self.size[axis] as f64) as usize
        };
        let (rows, columns) = (range(0), range(1));
        let d = [b[0] - a[0], b[1] - a[1]];
        let over = 1.0 / (d[0] * d[0] + d[1] * d[1]).max(1e-9);
        for y in rows {
            for x in columns.clone() {
                let p = [y as f64 - a[0], x as f64 - a[1]];
                let t = ((p[0] * d[0] + p[1] * d[1]) * over).clamp(0.0, 1.0);
                let q = [p[0] - t * d[0], p[1] - t * d[1]];
                let r2 = q[0] * q[0] + q[1] * q[1];
                if r2 < reach * reach {
                    let i = y * self.size[1] + x;
                    let outside = r2.sqrt() - radius;
                    if self.depth[i] == f64::INFINITY {
                        self.touched.push(i);
                    }
                    if outside < self.depth[i] {
                        self.depth[i] = outside;
                        self.radius[i] = radius;
                    }
                }
            }
        }
    }

    /// Adds what was collected to a plane, and forgets it.
    pub fn paint(&mut self, plane: &mut Plane, fill: Fill) {
        for i in self.touched.drain(..) {
            let (outside, radius) = (self.depth[i], self.radius[i].max(0.5));
            self.depth[i] = f64::INFINITY;
            let inside = ((0.5 - outside) / (radius + 0.5)).clamp(0.0, 1.0);
            let solid = (inside * (2.0 - inside)).sqrt();
            let from_skin = (outside + 0.5 * fill.skin) / fill.skin;
            let surface = (1.0 - from_skin * from_skin).max(0.0);
            plane.values[i] += fill.solid * solid + fill.surface * surface;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLID: Fill = Fill { solid: 1.0, surface: 0.0, skin: 1.0 };

    /// A cylinder's thickness is a half circle: its section's mean over the diameter is pi/4.
    #[test]
    fn rods_are_as_thick_as_cylinders_and_joints_are_no_brighter() {
        let (mut brush, mut plane) = (Brush::new(64, 64), Plane::new(64, 64));
        brush.rod([32.0, -20.0], [32.0, 30.0], 8.0);
        brush.rod([32.0, 30.0], [32.0, 90.0], 8.0);
        brush.paint(&mut plane, SOLID);
        let column = |x: usize| (0..64).map(|y| plane.values[y * 64 + x]).sum::<f64>();
        let expected = std::f64::consts::PI / 4.0 * 17.0;
        assert!((column(10) / expected - 1.0).abs() < 0.02, "{} {expected}", column(10));
        assert_eq!(column(10), column(30));
        assert!(plane.values.iter().all(|v| (0.0..=1.0).contains(v)));
        // The brush forgets: a second stroke adds itself alone.
        let before = plane.values.clone();
        brush.rod([5.0, 5.0], [5.0, 5.0], 2.0);
        brush.paint(&mut plane, SOLID);
        let changed: Vec<usize> = (0..64 * 64).filter(|&i| plane.values[i] != before[i]).collect();
        assert!(changed.iter().all(|i| i / 64 <= 8 && i % 64 <= 8) && changed.len() > 9);
    }

    #[test]
    fn hollow_rods_are_dark_inside_and_strokes_outside_are_nothing() {
        let (mut brush, mut plane) = (Brush::new(40, 40), Plane::new(40, 40));
        brush.rod([20.0, 20.0], [20.0, 20.0], 10.0);
        brush.paint(&mut plane, Fill { solid: 0.2, surface: 1.0, skin: 3.0 });
        let at = |x: usize| plane.values[20 * 40 + x];
        assert!((at(20) - 0.2).abs() < 1e-9 && at(28) > 1.0 && at(33) == 0.0, "{} {}", at(20), at(28));
        let before = plane.values.clone();
        brush.rod([-50.0, 90.0], [-30.0, 95.0], 5.0);
        brush.paint(&mut plane, SOLID);
        assert_eq!(plane.values, before);
    }
}
