//! Camera mosaics: one value a pixel behind a repeating pattern of colour filters, 2 x 2 (Bayer) or 6 x 6
//! (X-Trans). Packing puts the pixels of one place in the pattern into a plane of their own, and back; levels
//! of black and white become 0 and 1.

use crate::error::{Result, request};

/// What a camera's sensor says about its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Mosaic {
    /// How many rows and columns the pattern has.
    pub size: [usize; 2],
    /// The colour at each place of the pattern, row by row: 0 red, 1 green, 2 blue.
    pub pattern: Vec<u8>,
    /// One value, or one a place of the pattern.
    pub black: Vec<f64>,
    pub white: f64,
}

impl Mosaic {
    /// A Bayer pattern by its name: RGGB, BGGR, GRBG or GBRG.
    pub fn bayer(name: &str, black: f64, white: f64) -> Result<Mosaic> {
        let colour = |c: char| match c.to_ascii_uppercase() {
            'R' => Some(0),
            'G' => Some(1),
            'B' => Some(2),
            _ => None,
        };
        let pattern: Vec<u8> = name.chars().filter_map(colour).collect();
        let sorted = {
            let mut sorted = pattern.clone();
            sorted.sort_unstable();
            sorted
        };
        // Greens lie across from each other.
        let across = pattern.len() == 4 && (pattern[0] == pattern[3] || pattern[1] == pattern[2]);
        if name.chars().count() != 4 || sorted != [0, 1, 1, 2] || !across {
            return request(format!("the Bayer pattern {name:?}; it is one of RGGB, BGGR, GRBG, GBRG"));
        }
        let mosaic = Mosaic { size: [2, 2], pattern, black: vec![black], white };
        mosaic.check()?;
        Ok(mosaic)
    }

    /// That pattern and levels make sense together.
    pub fn check(&self) -> Result<()> {
        let places = self.size[0] * self.size[1];
        if places == 0 || self.pattern.len() != places || self.pattern.iter().any(|&c| c > 2) {
            return request(format!("a pattern of {:?} places with colours {:?}", self.size, self.pattern));
        }
        if self.black.len() != 1 && self.black.len() != places {
            return request(format!("{} black levels for {places} places of the pattern", self.black.len()));
        }
        if !self.black.iter().all(|b| b.is_finite() && *b < self.white) || !self.white.is_finite() {
            return request(format!("black at {:?} and white at {}", self.black, self.white));
        }
        Ok(())
    }

    fn black_at(&self, place: usize) -> f64 {
        if self.black.len() == 1 { self.black[0] } else { self.black[place] }
    }

    /// A mosaic of `height` x `width` values as `[height / rows, width / columns, places]`, black at 0 and white
    /// at 1.
    pub fn pack(&self, values: &[f64], height: usize, width: usize) -> Result<Vec<f64>> {
        self.check()?;
        let [rows, columns] = self.size;
        if !height.is_multiple_of(rows) || !width.is_multiple_of(columns) || values.len() != height * width {
            return request(format!(
                "a mosaic of {height} x {width} ({} values) is no whole number of patterns of {rows} x {columns}",
                values.len()
            ));
        }
        let mut out = Vec::with_capacity(values.len());
        for y in (0..height).step_by(rows) {
            for x in (0..width).step_by(columns) {
                for place in 0..rows * columns {
                    let (dy, dx) = (place / columns, place % columns);
                    let black = self.black_at(place);
                    out.push((values[(y + dy) * width + x + dx] - black) / (self.white - black));
                }
            }
        }
        Ok(out)
    }

    /// What `pack` gives, back to the sensor's values.
    pub fn unpack(&self, packed: &[f64], height: usize, width: usize) -> Result<Vec<f64>> {
        self.check()?;
        let [rows, columns] = self.size;
        if !height.is_multiple_of(rows) || !width.is_multiple_of(columns) || packed.len() != height * width {
            return request(format!("{} packed values for a mosaic of {height} x {width}", packed.len()));
        }
        let mut out = vec![0.0; packed.len()];
        let mut next = packed.iter();
        for y in (0..height).step_by(rows) {
            for x in (0..width).step_by(columns) {
                for place in 0..rows * columns {
                    let black = self.black_at(place);
                    if let Some(v) = next.next() {
                        out[(y + place / columns) * width + x + place % columns] =
                            v * (self.white - black) + black;
                    }
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_and_unpacking_cancel() {
        let bayer = Mosaic::bayer("RGGB", 512.0, 16_383.0).unwrap();
        let trans = Mosaic {
            size: [6, 6],
            pattern: (0..36).map(|i| i % 3).collect(),
            black: (0..36).map(|i| 60.0 + f64::from(i)).collect(),
            white: 4095.0,
        };
        for mosaic in [bayer, trans] {
            let (height, width) = (12, 18);
            let values: Vec<f64> = (0..height * width).map(|i| (i * 37 % 4000) as f64).collect();
            let packed = mosaic.pack(&values, height, width).unwrap();
            let back = mosaic.unpack(&packed, height, width).unwrap();
            for (a, b) in values.iter().zip(&back) {
                assert!((a - b).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn a_bayer_pixel_lands_in_its_plane() {
        let mosaic = Mosaic::bayer("GRBG", 0.0, 1.0).unwrap();
        let values = [10.0, 11.0, 12.0, 13.0, 20.0, 21.0, 22.0, 23.0];
        let packed = mosaic.pack(&values, 2, 4).unwrap();
        assert_eq!(packed, [10.0, 11.0, 20.0, 21.0, 12.0, 13.0, 22.0, 23.0]);
    }

    #[test]
    fn nonsense_is_refused() {
        for name in ["RGGB", "BGGR", "GRBG", "GBRG", "grbg"] {
            assert!(Mosaic::bayer(name, 0.0, 1.0).is_ok(), "{name}");
        }
        for name in ["RGBG", "GGRB", "GRGB", "RGGBX", "RGG", ""] {
            assert!(Mosaic::bayer(name, 0.0, 1.0).is_err(), "{name}");
        }
        assert!(Mosaic::bayer("RRGB", 0.0, 1.0).is_err());
        assert!(Mosaic::bayer("RGGB", 5.0, 5.0).is_err());
        assert!(Mosaic::bayer("RGGB", 0.0, 1.0).unwrap().pack(&[0.0; 15], 3, 5).is_err());
    }
}
