//! Pictures of estimates for validation images, as PNG: a row for each image, with columns side by side.

use crate::error::{Result, io};
use clearshot_tensor::store::write_whole;
use std::path::Path;

/// Grey pixels.
pub struct Picture {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

/// Pixels between panels.
const GAP: usize = 2;

impl Picture {
    /// Panels of one size, `height` by `width`, with values in [-1, 1]; a list for each row.
    pub fn of(rows: &[Vec<Vec<f32>>], height: usize, width: usize) -> Picture {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let whole = |count: usize, each: usize| (count * (each + GAP)).saturating_sub(GAP);
        let (across, down) = (whole(columns, width), whole(rows.len(), height));
        let mut pixels = vec![255; across * down];
        for (r, row) in rows.iter().enumerate() {
            for (c, panel) in row.iter().enumerate() {
                for (i, v) in panel.iter().take(height * width).enumerate() {
                    let (y, x) = (r * (height + GAP) + i / width, c * (width + GAP) + i % width);
                    pixels[y * across + x] = ((v + 1.0) * 127.5).clamp(0.0, 255.0) as u8;
                }
            }
        }
        Picture { width: across, height: down, pixels }
    }

    pub fn png(&self) -> Vec<u8> {
        let mut out = vec![];
        let mut encoder = png::Encoder::new(&mut out, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::Eight);
        let written = encoder.write_header().and_then(|mut w| w.write_image_data(&self.pixels));
        // Writing to memory fails only for sizes that do not fit the pixels.
        written.map_or_else(|_| vec![], |()| out)
    }

    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<Vec<u8>> {
        let png = self.png();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io(folder))?;
        }
        write_whole(path, &png).map_err(io(path))?;
        Ok(png)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_stand_side_by_side() {
        let picture = Picture::of(&[vec![vec![-1.0; 6], vec![1.0; 6]], vec![vec![0.0; 6]]], 2, 3);
        assert_eq!((picture.width, picture.height), (8, 6));
        assert_eq!(&picture.pixels[..8], &[0, 0, 0, 255, 255, 255, 255, 255]);
        assert_eq!(picture.pixels[4 * 8], 127);
        let decoder = png::Decoder::new(std::io::Cursor::new(picture.png()));
        let mut reader = decoder.read_info().unwrap();
        let mut back = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut back).unwrap();
        assert_eq!(back, picture.pixels);
    }
}
