//! Augmentation: the eight symmetries of the square, the same for an input and its target, and small changes of intensity.

use clearshot_tensor::noise::Key;

/// One of the eight: a flip of X first if `flip`, then `turns` quarter turns from Y towards X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symmetry {
    pub flip: bool,
    pub turns: u8,
}

impl Symmetry {
    pub const NONE: Symmetry = Symmetry { flip: false, turns: 0 };

    /// All eight, or the four that keep the lengths of the axes.
    pub fn from_number(number: u32, square: bool) -> Symmetry {
        let turns = if square { number >> 1 & 3 } else { (number >> 1 & 1) * 2 };
        Symmetry { flip: number & 1 == 1, turns: turns as u8 }
    }

    /// Applies it to values of shape `[.., Y, X, C]`; `outer` is how many planes there are. A quarter turn wants
    /// `y == x`.
    pub fn apply(self, values: &[f32], outer: usize, y: usize, x: usize, channels: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(values.len());
        for plane in 0..outer {
            for row in 0..y {
                for column in 0..x {
                    let (r, c) = match self.turns & 3 {
                        0 => (row, column),
                        1 => (column, x - 1 - row),
                        2 => (y - 1 - row, x - 1 - column),
                        _ => (y - 1 - column, row),
                    };
                    let c = if self.flip { x - 1 - c } else { c };
                    let at = ((plane * y + r) * x + c) * channels;
                    out.extend_from_slice(&values[at..at + channels]);
                }
            }
        }
        out
    }
}

/// Multiplies by a factor within `scale` of one and adds normal noise of standard deviation `noise`, both
/// functions of the key alone. The factor is the same for everything that gets the same key.
pub fn intensity(values: &mut [f32], key: Key, scale: f32, noise: f32) {
    let factor = 1.0 + scale * (2.0 * key.uniform(0) - 1.0);
    values.iter_mut().for_each(|v| *v *= factor);
    if noise > 0.0 {
        let mut drawn = vec![0.0; values.len()];
        key.fill_normal(4, &mut drawn);
        values.iter_mut().zip(drawn).for_each(|(v, n)| *v += noise * n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetries_are_a_group_of_eight() {
        let (n, channels) = (5, 2);
        let values: Vec<f32> = (0..3 * n * n * channels).map(|i| i as f32).collect();
        let turn = Symmetry { flip: false, turns: 1 };
        let mut turned = values.clone();
        for _ in 0..4 {
            turned = turn.apply(&turned, 3, n, n, channels);
        }
        assert_eq!(turned, values);
        let flip = Symmetry { flip: true, turns: 0 };
        let once = flip.apply(&values, 3, n, n, channels);
        assert_ne!(once, values);
        assert_eq!(flip.apply(&once, 3, n, n, channels), values);
        let all: Vec<Vec<f32>> =
            (0..8).map(|i| Symmetry::from_number(i, true).apply(&values, 3, n, n, channels)).collect();
        for a in 0..8 {
            for b in 0..a {
                assert_ne!(all[a], all[b]);
            }
        }
    }

    #[test]
    fn a_quarter_turn_is_numpys() {
        // numpy.rot90([[0, 1], [2, 3]])
        let turned = Symmetry { flip: false, turns: 1 }.apply(&[0.0, 1.0, 2.0, 3.0], 1, 2, 2, 1);
        assert_eq!(turned, [1.0, 3.0, 0.0, 2.0]);
    }

    #[test]
    fn intensity_keeps_within_its_scale() {
        for step in 0..50 {
            let mut values = [100.0f32; 4];
            intensity(&mut values, Key { seed: 1, step, stream: 2 }, 0.02, 0.0);
            assert!(values.iter().all(|&v| (98.0..=102.0).contains(&v) && v == values[0]));
        }
    }
}
