//! Invalid pixels: NaN, infinite, saturated, or marked in a mask.
//!
//! They are filled in from their neighbours before a restorer runs, so that they do not affect other pixels, and keep
//! their restored values. A saturated pixel still gives a lower bound ([`crate::saturated`]); the others contain no
//! information. Only NaN and infinite pixels become NaN again, in files that can represent NaN, because nothing was
//! measured there and readers of the file must know.

use crate::saturated::{Least, NoiseLevel, Saturated, around};

/// Why a pixel is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NotFinite,
    /// At or above saturation.
    Full,
    Marked,
}

impl Reason {
    /// The reason's number in a mask, where 0 is a valid pixel.
    pub fn code(self) -> u8 {
        match self {
            Reason::NotFinite => 1,
            Reason::Full => 2,
            Reason::Marked => 3,
        }
    }
}

/// The invalid pixels of one plane or volume, in order of position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Invalid {
    pixels: Vec<(usize, Reason)>,
    /// Where pixels are saturated.
    limit: f32,
}

/// An image without invalid pixels.
pub struct Filled {
    pub values: Vec<f32>,
    /// The lower bounds of restored saturated pixels.
    pub least: Least,
}

impl Invalid {
    /// Finds pixels that are NaN or infinite, at or above `full`, or marked.
    ///
    /// # Panics
    /// If the number of marks differs from that of the values.
    pub fn find(values: &[f32], full: Option<f32>, marked: Option<&[bool]>) -> Invalid {
        if let Some(marks) = marked {
            assert_eq!(marks.len(), values.len(), "one mark a pixel");
        }
        let full = full.unwrap_or(f32::INFINITY);
        let reason = |(i, &v): (usize, &f32)| {
            if !v.is_finite() {
                Some((i, Reason::NotFinite))
            } else if marked.is_some_and(|m| m[i]) {
                Some((i, Reason::Marked))
            } else if v >= full {
                Some((i, Reason::Full))
            } else {
                None
            }
        };
        Invalid { pixels: values.iter().enumerate().filter_map(reason).collect(), limit: full }
    }

    pub fn is_empty(&self) -> bool {
        self.pixels.is_empty()
    }

    pub fn count(&self) -> usize {
        self.pixels.len()
    }

    /// The image with its invalid pixels filled in: saturated ones with their expected measurement, the others with the
    /// mean of their valid neighbours (8 in a plane, 26 in a volume), from the edge of a hole to its middle. An image
    /// without a valid pixel becomes zero.
    pub fn filled(&self, values: &[f32], shape: &[usize], noise: NoiseLevel) -> Filled {
        let mut out = values.to_vec();
        let size = match *shape {
            [z, y, x] => [z, y, x],
            [y, x] => [1, y, x],
            _ => [1, 1, values.len()],
        };
        let mut valid = vec![true; out.len()];
        let (mut full, mut rim) = (Vec::new(), Vec::new());
        for &(i, reason) in &self.pixels {
            match reason {
                Reason::Full => full.push(i),
                _ => rim.push(i),
            }
            valid[i] = reason == Reason::Full;
        }
        let mut least = Least::new();
        if !full.is_empty() {
            let saturated = Saturated { size, limit: self.limit, noise, pixels: &full, known: &valid };
            let (defects, found) = saturated.estimate(&mut out);
            least = found;
            defects.iter().for_each(|&i| valid[i] = false);
            rim.extend(defects);
        }
        rim.iter().for_each(|&i| out[i] = 0.0);
        // The rims of the holes, and after each turn what lies behind them.
        let mut waits = valid.iter().map(|v| !v).collect::<Vec<bool>>();
        rim.retain(|&i| around(size, i, 1).any(|j| valid[j]));
        while !rim.is_empty() {
            // What one turn fills serves the next, so that the order of the pixels does not count.
            let found: Vec<f32> = rim.iter().map(|&i| mean_around(&out, &valid, size, i)).collect();
            for (&i, value) in rim.iter().zip(found) {
                (out[i], valid[i], waits[i]) = (value, true, false);
            }
            let mut behind = Vec::new();
            for j in rim.iter().flat_map(|&i| around(size, i, 1)) {
                if std::mem::take(&mut waits[j]) {
                    behind.push(j);
                }
            }
            rim = behind;
        }
        Filled { values: out, least }
    }

    /// Makes NaN and infinite pixels NaN again, for outputs that can represent it.
    pub fn give_back(&self, restored: &mut [f32]) {
        for &(i, reason) in &self.pixels {
            if reason == Reason::NotFinite {
                restored[i] = f32::NAN;
            }
        }
    }

    /// The reason's number for each of `pixels` pixels, 0 for valid ones.
    pub fn codes(&self, pixels: usize) -> Vec<u8> {
        let mut out = vec![0; pixels];
        self.pixels.iter().for_each(|&(i, reason)| out[i] = reason.code());
        out
    }
}

/// The mean of a pixel's valid neighbours, of which there is one.
fn mean_around(values: &[f32], valid: &[bool], size: [usize; 3], i: usize) -> f32 {
    let (sum, count) = around(size, i, 1)
        .filter(|&j| valid[j])
        .fold((0f64, 0u32), |(sum, count), j| (sum + f64::from(values[j]), count + 1));
    (sum / f64::from(count)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled_from_their_rims() {
        let shape = [9, 11];
        let truth: Vec<f32> = (0..99).map(|i| (i / 11) as f32 * 2.0 + (i % 11) as f32).collect();
        let mut given = truth.clone();
        given[4 * 11 + 5] = f32::NAN;
        given[0] = f32::INFINITY;
        given[7 * 11 + 2] = 900.0;
        let mut marks = vec![false; 99];
        marks[2 * 11 + 8] = true;
        given[2 * 11 + 8] = -5.0;
        let invalid = Invalid::find(&given, Some(500.0), Some(&marks));
        assert_eq!(invalid.count(), 4);
        let filled = invalid.filled(&given, &shape, NoiseLevel::Unknown).values;
        // On a plane the mean of a full ring is the middle.
        for i in [4 * 11 + 5, 7 * 11 + 2, 2 * 11 + 8] {
            assert!((filled[i] - truth[i]).abs() < 1e-5, "{i}");
        }
        assert!(filled[0].is_finite());
        let mut restored = filled.clone();
        invalid.give_back(&mut restored);
        assert!(restored[4 * 11 + 5].is_nan() && restored[0].is_nan());
        assert_eq!(restored[7 * 11 + 2], filled[7 * 11 + 2]);
        assert!((restored[2 * 11 + 8] - truth[2 * 11 + 8]).abs() < 1e-5);
        let codes = invalid.codes(99);
        let found = [codes[0], codes[1], codes[4 * 11 + 5], codes[7 * 11 + 2], codes[2 * 11 + 8]];
        assert_eq!(found, [1, 0, 1, 2, 3]);
    }

    /// As many turns as a hole is wide, each over its rim alone: over all of a hole, this would take minutes.
    #[test]
    fn what_is_mostly_hole_is_filled_from_the_outside_in() {
        let n = 1500;
        let mut values = vec![f32::NAN; n * n];
        for y in 0..n {
            (values[y * n], values[y * n + n - 1]) = (2.0, 6.0);
        }
        let filled = Invalid::find(&values, None, None).filled(&values, &[n, n], NoiseLevel::Unknown).values;
        let row = &filled[700 * n..701 * n];
        assert!(row[..n / 2].iter().all(|v| *v == 2.0) && row[n / 2..].iter().all(|v| *v == 6.0));
    }

    #[test]
    fn large_holes_and_nothing_at_all() {
        let filled = |values: &[f32]| {
            Invalid::find(values, None, None).filled(values, &[3, 20, 20], NoiseLevel::Unknown).values
        };
        let mut values = vec![f32::NAN; 3 * 20 * 20];
        assert_eq!(filled(&values), vec![0.0; 1200]);
        values[777] = 4.5;
        assert_eq!(filled(&values), vec![4.5; 1200]);
        assert!(Invalid::find(&[1.0, 2.0], None, None).is_empty());
    }
}
