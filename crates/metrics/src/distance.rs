//! Distance from each pixel to the nearest pixel of a mask: exact and Euclidean, in the unit of the pixel spacing.
//!
//! Squared distances by the lower envelope of parabolas, one axis after the other (Felzenszwalb and Huttenlocher, 2012), in
//! time linear in the number of pixels. If several pixels are equally near, the first one along the last axis in which they
//! differ is chosen, so that results depend only on the mask.

/// Where the nearest pixels of a mask are.
#[derive(Clone, Debug, PartialEq)]
pub struct Nearest {
    /// Squared distances; infinite where the mask is empty.
    pub squared: Vec<f64>,
    /// The index of the nearest pixel; its own for every pixel where the mask is empty.
    pub pixel: Vec<u32>,
}

impl Nearest {
    /// Of a mask of this shape, with the distance between pixels along each axis.
    ///
    /// # Panics
    /// If shape, mask and spacing do not fit together.
    pub fn of(mask: &[bool], shape: &[usize], spacing: &[f64]) -> Nearest {
        assert!(shape.iter().product::<usize>() == mask.len() && shape.len() == spacing.len());
        let mut squared: Vec<f64> = mask.iter().map(|&m| if m { 0.0 } else { f64::INFINITY }).collect();
        let mut pixel: Vec<u32> = (0..mask.len() as u32).collect();
        for (axis, &n) in shape.iter().enumerate() {
            let stride: usize = shape[axis + 1..].iter().product();
            let mut line = Line::new(n, spacing[axis]);
            for start in (0..mask.len() / n.max(1)).map(|i| i / stride * stride * n + i % stride) {
                let at = |i: usize| start + i * stride;
                (0..n).for_each(|i| (line.squared[i], line.pixel[i]) = (squared[at(i)], pixel[at(i)]));
                line.each_nearest(|i, far, from| (squared[at(i)], pixel[at(i)]) = (far, from));
            }
        }
        Nearest { squared, pixel }
    }
}

/// One line of pixels and the parabolas above it.
struct Line {
    spacing: f64,
    squared: Vec<f64>,
    pixel: Vec<u32>,
    /// Parabolas of the lower envelope, each with where it begins.
    hull: Vec<(usize, f64)>,
}

impl Line {
    fn new(n: usize, spacing: f64) -> Line {
        Line { spacing, squared: vec![0.0; n], pixel: vec![0; n], hull: Vec::with_capacity(n) }
    }

    /// Gives for each place i the least of squared[j] + (spacing (i - j))^2 over j, and that j's pixel.
    fn each_nearest(&mut self, mut give: impl FnMut(usize, f64, u32)) {
        let Line { spacing, squared, pixel, hull } = self;
        let x = |i: usize| i as f64 * *spacing;
        // Where parabola j becomes lower than an earlier parabola i.
        let crossing = |i: usize, j: usize| 0.5 * ((squared[j] - squared[i]) / (x(j) - x(i)) + x(j) + x(i));
        hull.clear();
        for j in (0..squared.len()).filter(|&j| squared[j].is_finite()) {
            let mut begin = f64::NEG_INFINITY;
            while let Some(&(i, from)) = hull.last() {
                begin = crossing(i, j);
                if begin > from {
                    break;
                }
                hull.pop();
                begin = f64::NEG_INFINITY;
            }
            hull.push((j, begin));
        }
        if hull.is_empty() {
            return;
        }
        let mut at = 0;
        for i in 0..squared.len() {
            while at + 1 < hull.len() && hull[at + 1].1 < x(i) {
                at += 1;
            }
            let (j, _) = hull[at];
            give(i, squared[j] + (x(i) - x(j)).powi(2), pixel[j]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    fn place(i: usize, shape: &[usize], spacing: &[f64]) -> Vec<f64> {
        let mut at = vec![0; shape.len()];
        crate::fourier::unravel(i, shape, &mut at);
        at.iter().zip(spacing).map(|(&k, s)| k as f64 * s).collect()
    }

    #[test]
    fn distances_are_exact_and_pixels_are_those_at_that_distance() {
        let cases: [(&[usize], &[f64]); 3] =
            [(&[13, 9], &[1.0, 1.0]), (&[11, 14], &[0.3, 1.7]), (&[5, 6, 7], &[2.0, 1.0, 0.5])];
        for (shape, spacing) in cases {
            let n: usize = shape.iter().product();
            for (share, stream) in [(0.02, 1), (0.2, 2), (0.9, 3)] {
                let key = Key { seed: 4, step: 0, stream };
                let mut mask: Vec<bool> = (0..n as u64).map(|i| key.uniform(i) < share).collect();
                mask[n / 2] = true;
                let found = Nearest::of(&mask, shape, spacing);
                let between = |i: usize, j: usize| -> f64 {
                    place(i, shape, spacing)
                        .iter()
                        .zip(place(j, shape, spacing))
                        .map(|(a, b)| (a - b).powi(2))
                        .sum()
                };
                for i in 0..n {
                    let truth =
                        (0..n).filter(|&j| mask[j]).map(|j| between(i, j)).fold(f64::INFINITY, f64::min);
                    assert!((found.squared[i] - truth).abs() < 1e-9, "{shape:?} {i}");
                    let j = found.pixel[i] as usize;
                    assert!(mask[j] && (between(i, j) - truth).abs() < 1e-9, "{shape:?} {i}");
                }
            }
        }
        let none = Nearest::of(&[false; 6], &[2, 3], &[1.0, 1.0]);
        assert!(none.squared.iter().all(|d| d.is_infinite()) && none.pixel == [0, 1, 2, 3, 4, 5]);
    }
}
