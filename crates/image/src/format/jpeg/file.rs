//! JPEG files: 8-bit photographs that have lost detail already. They are read, with a warning, and not written.

use super::decode;
use crate::bytes::{Bytes, check_expansion};
use crate::dtype::DType;
use crate::error::{Parsed, Result, request, unsupported};
use crate::grid::Grid;
use crate::image::{Axis, Description, Dim, Image, Source};
use crate::writer::{Target, WriteOptions};
use std::fs::File;
use std::path::Path;

pub(crate) const NAME: &str = "JPEG";

pub(in crate::format) fn recognise(_: &Path, head: &[u8]) -> bool {
    head.starts_with(&[0xFF, 0xD8, 0xFF])
}

/// The whole image, decoded.
struct Decoded {
    grid: Grid,
    data: Vec<u8>,
}

impl Source for Decoded {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, _: &[usize]) -> Result<Vec<u8>> {
        Ok(self.data.clone())
    }
}

pub(in crate::format) fn open(path: &Path, _: Option<&str>) -> Result<Image> {
    open_image(path).map_err(|f| f.at(path, NAME))
}

fn open_image(path: &Path) -> Parsed<Image> {
    let bytes = Bytes::from_file(File::open(path)?)?;
    let (width, height) = super::check_frame(&bytes.head(1 << 20)?)?;
    check_expansion(bytes.len(), (width * height) as u64 * 4)?;
    let mut packed = vec![0; bytes.len() as usize];
    bytes.read_into(0, &mut packed)?;
    let jpeg = decode(&packed, None, !is_rgb(&packed))?;
    let dtype = if jpeg.bytes == 2 { DType::U16 } else { DType::U8 };
    let mut dims = vec![Dim::new(Axis::Y, jpeg.height), Dim::new(Axis::X, jpeg.width)];
    match jpeg.samples {
        1 => {}
        3 => dims.push(Dim::new(Axis::S, 3)),
        n => return unsupported(format!("an image of {n} colours")),
    }
    let mut description = Description::new(NAME, path, dims, dtype);
    let bits = 8 * jpeg.bytes;
    description.warnings.push(format!("{bits} bits, packed with losses: fine steps of intensity are lost"));
    let shape = description.shape();
    let grid = Grid::new(shape.clone(), shape);
    Ok(Image::new(description, Box::new(Decoded { grid, data: jpeg.data })))
}

/// Whether three components are red, green and blue: by Adobe's mark, or by their names.
fn is_rgb(stream: &[u8]) -> bool {
    let mut at = 2;
    while at + 4 <= stream.len() && stream[at] == 0xFF {
        let marker = stream[at + 1];
        let len = usize::from(u16::from_be_bytes([stream[at + 2], stream[at + 3]]));
        let Some(body) = stream.get(at + 4..at + 2 + len.max(2)) else { return false };
        match marker {
            0xEE if body.starts_with(b"Adobe") && body.len() >= 12 => return body[11] == 0,
            0xC0..=0xC3 if body.len() >= 15 => return [body[6], body[9], body[12]] == *b"RGB",
            0xDA => return false,
            _ => at += 2 + len,
        }
    }
    false
}

pub(in crate::format) fn create(path: &Path, _: &Description, _: &WriteOptions) -> Result<Box<dyn Target>> {
    request(format!(
        "{}: JPEG files are not written: they hold 8 bits and lose detail; give an output that ends in .tif or .png",
        path.display()
    ))
}
