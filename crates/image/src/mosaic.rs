//! Camera mosaics: one value per pixel behind a repeating pattern of colour filters, 2 x 2 (Bayer) or 6 x 6 (X-Trans).
//! Packing puts the pixels of each position in the pattern into a plane of its own, and unpacking reverses this; black and
//! white levels become 0 and 1.

use crate::error::{Result, request};
use crate::image::{Axis, Channel, Description, Dim, Image};
use crate::planes::{are_last, leading, write};
use crate::provenance::Provenance;
use crate::writer::{WriteOptions, Writer};
use crate::{DType, lengths};
use serde_json::json;
use std::path::Path;

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
                "a mosaic of {height} x {width} ({} values) is not a whole number of patterns of {rows} x {columns}",
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

/// The names of colours, as patterns number them.
const COLOURS: [&str; 3] = ["red", "green", "blue"];

impl Mosaic {
    /// Its pattern in letters, row after row: `RG GB`.
    pub fn letters(&self) -> String {
        let row = |row: &[u8]| row.iter().map(|&c| ['R', 'G', 'B'][usize::from(c)]).collect::<String>();
        self.pattern.chunks(self.size[1].max(1)).map(row).collect::<Vec<_>>().join(" ")
    }

    /// Writes every plane of an image packed: one channel for each place of the pattern, black at 0 and white at 1, as 32-bit floats.
    ///
    /// # Errors
    /// If the image has channels, its planes are not whole patterns, or a file cannot be read or written.
    pub fn pack_image(&self, image: &Image, output: &Path, replace: bool) -> Result<()> {
        self.check()?;
        let d = &image.description;
        let [rows, columns] = self.size;
        let places = rows * columns;
        if d.dims.iter().any(|dim| [Axis::C, Axis::S].contains(&dim.axis)) || !are_last(d) {
            return request(format!("axes {}; a mosaic is planes of Y and X without channels", d.axes()));
        }
        let n = d.dims.len();
        let mut dims = d.dims.clone();
        for (dim, by) in dims[n - 2..].iter_mut().zip(self.size) {
            (dim.len, dim.step) = (dim.len / by, dim.step.map(|s| s * by as f64));
        }
        dims.insert(n - 2, Dim::new(Axis::C, places));
        let mut made = d.clone();
        (made.dims, made.dtype, made.bits, made.rescale, made.native, made.mosaic) =
            (dims, DType::F32, 32, None, None, None);
        made.levels = vec![made.shape()];
        made.channels = (0..places).map(|p| self.channel(p)).collect();
        let (height, width) = (d.dims[n - 2].len, d.dims[n - 1].len);
        let mut writer = self.writer("pack", d, &made, output, replace)?;
        for lead in leading(&d.shape()[..n - 2]) {
            let region: Vec<_> = lead.iter().map(|&i| i..i + 1).chain([0..height, 0..width]).collect();
            let packed = self.pack(&image.read_f64(&region)?, height, width)?;
            // From a place for each pixel to a plane for each place.
            let pixels = packed.len() / places;
            let planes: Vec<f64> =
                (0..packed.len()).map(|i| packed[i % pixels * places + i / pixels]).collect();
            let to: Vec<_> = lead
                .iter()
                .map(|&i| i..i + 1)
                .chain([0..places, 0..height / rows, 0..width / columns])
                .collect();
            write(&mut writer, DType::F32, &to, &planes)?;
        }
        writer.finish()
    }

    /// What [`Mosaic::pack_image`] gives, back to the sensor's values, rounded to 16 bits.
    ///
    /// # Errors
    /// If the image does not end in as many channels as the pattern has places, Y and X, or a file cannot be read or written.
    pub fn unpack_image(&self, image: &Image, output: &Path, replace: bool) -> Result<()> {
        self.check()?;
        let d = &image.description;
        let (n, places) = (d.dims.len(), self.size[0] * self.size[1]);
        let channels = n.checked_sub(3).map(|a| &d.dims[a]).filter(|dim| dim.axis == Axis::C);
        if !are_last(d) || channels.is_none_or(|c| c.len != places) {
            let (axes, shape) = (d.axes(), lengths(&d.shape()));
            return request(format!("axes {axes} of {shape}; {places} channels, then Y and X, are needed"));
        }
        let mut dims = d.dims.clone();
        dims.remove(n - 3);
        for (dim, by) in dims[n - 3..].iter_mut().zip(self.size) {
            (dim.len, dim.step) = (dim.len * by, dim.step.map(|s| s / by as f64));
        }
        let mut made = d.clone();
        (made.dims, made.dtype, made.bits, made.rescale, made.native, made.mosaic) =
            (dims, DType::U16, 16, None, None, None);
        made.levels = vec![made.shape()];
        made.channels = vec![];
        let shape = made.shape();
        let (height, width) = (shape[n - 3], shape[n - 2]);
        let mut writer = self.writer("unpack", d, &made, output, replace)?;
        for lead in leading(&shape[..n - 3]) {
            let small = [0..places, 0..height / self.size[0], 0..width / self.size[1]];
            let region: Vec<_> = lead.iter().map(|&i| i..i + 1).chain(small).collect();
            let planes = image.read_f64(&region)?;
            let pixels = planes.len() / places;
            let packed: Vec<f64> =
                (0..planes.len()).map(|i| planes[i % places * pixels + i / places]).collect();
            let values: Vec<f64> = self.unpack(&packed, height, width)?.iter().map(|v| v.round()).collect();
            let to: Vec<_> = lead.iter().map(|&i| i..i + 1).chain([0..height, 0..width]).collect();
            write(&mut writer, DType::U16, &to, &values)?;
        }
        writer.finish()
    }

    fn channel(&self, place: usize) -> Channel {
        let colour = COLOURS[usize::from(self.pattern[place])];
        let (row, column) = (place / self.size[1], place % self.size[1]);
        Channel { name: Some(format!("{colour} {row},{column}")), ..Channel::default() }
    }

    fn writer(
        &self,
        what: &str,
        from: &Description,
        made: &Description,
        output: &Path,
        replace: bool,
    ) -> Result<Writer> {
        let parameters = json!({
            "mosaic": what, "size": self.size, "pattern": self.letters(), "black": self.black, "white": self.white,
        });
        let provenance = Some(Provenance::new("convert", from, parameters).value());
        Writer::create(output, made, &WriteOptions { replace, provenance })
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
