//! The pixels of a picture for viewing: red, green and blue, 8 bits each, with text and boxes.

use super::font;
use crate::aside::AsideFile;
use crate::error::{Error, Result};
use std::path::Path;

pub type Rgb = [u8; 3];

pub const BLACK: Rgb = [0; 3];
pub const WHITE: Rgb = [255; 3];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Rgb>,
}

impl Canvas {
    /// A canvas of one colour.
    pub fn new(width: usize, height: usize, colour: Rgb) -> Canvas {
        Canvas { width, height, pixels: vec![colour; width * height] }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn height(&self) -> usize {
        self.height
    }

    pub fn pixel(&self, x: usize, y: usize) -> Rgb {
        self.pixels[y * self.width + x]
    }

    /// Pixels outside are not there to be set.
    pub fn set(&mut self, x: usize, y: usize, colour: Rgb) {
        if x < self.width && y < self.height {
            self.pixels[y * self.width + x] = colour;
        }
    }

    pub fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, colour: Rgb) {
        for row in y..(y + height).min(self.height) {
            for column in x..(x + width).min(self.width) {
                self.pixels[row * self.width + column] = colour;
            }
        }
    }

    /// Puts another canvas here, as far as there is room.
    pub fn place(&mut self, x: usize, y: usize, other: &Canvas) {
        for row in 0..other.height {
            for column in 0..other.width {
                self.set(x + column, y + row, other.pixel(column, row));
            }
        }
    }

    /// Text with its upper left corner here; a pixel of a letter is `size` pixels wide.
    pub fn text(&mut self, x: usize, y: usize, size: usize, colour: Rgb, text: &str) {
        for (i, character) in text.chars().enumerate() {
            let left = x + i * (font::WIDTH + 1) * size;
            for row in 0..font::HEIGHT {
                for column in (0..font::WIDTH).filter(|&c| font::is_set(character, c, row)) {
                    self.fill(left + column * size, y + row * size, size, size, colour);
                }
            }
        }
    }

    /// Text that is read on any ground: its letters have an outline of the other colour.
    pub fn outlined_text(&mut self, x: usize, y: usize, size: usize, colour: Rgb, outline: Rgb, text: &str) {
        for dy in 0..3 {
            for dx in 0..3 {
                self.text((x + dx).saturating_sub(1), (y + dy).saturating_sub(1), size, outline, text);
            }
        }
        self.text(x, y, size, colour, text);
    }

    /// As a PNG file's bytes.
    ///
    /// # Errors
    /// If a side is zero or beyond what PNG can say.
    pub fn png(&self) -> Result<Vec<u8>> {
        let size = |n: usize| u32::try_from(n).unwrap_or(0);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, size(self.width), size(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let refused = |e: png::EncodingError| Error::Request {
            what: format!("a picture of {} x {} pixels: {e}", self.width, self.height),
        };
        let mut writer = encoder.write_header().map_err(refused)?;
        writer.write_image_data(self.pixels.as_flattened()).map_err(refused)?;
        writer.finish().map_err(refused)?;
        Ok(bytes)
    }

    /// Writes a PNG file, whole or not at all.
    ///
    /// # Errors
    /// If the file is there already and may not be replaced, or cannot be written.
    pub fn save(&self, path: &Path, replace: bool) -> Result<()> {
        let bytes = self.png()?;
        let mut file = AsideFile::create(path, replace)?;
        file.append(&bytes).map_err(|e| Error::io(path, e))?;
        file.commit()
    }
}

/// How wide a text is.
pub fn text_width(text: &str, size: usize) -> usize {
    (text.chars().count() * (font::WIDTH + 1)).saturating_sub(1) * size
}

pub fn text_height(size: usize) -> usize {
    font::HEIGHT * size
}
