//! Uncompressed pixels in a file: row-major in one block, in either byte order. NPY, NIfTI, FITS and plain DICOM use this
//! for reading and writing.

use crate::aside::AsideFile;
use crate::bytes::{Bytes, write_all_at};
use crate::dtype::{DType, Order, swap_bytes};
use crate::error::{Error, Fault, Parsed, Result, damaged};
use crate::grid::{Grid, strides, volume};
use crate::image::Source;
use crate::writer::Target;
use std::fs::File;
use std::path::PathBuf;

pub(crate) struct RawSource {
    pub path: PathBuf,
    pub format: &'static str,
    pub bytes: Bytes,
    pub offset: u64,
    pub order: Order,
    pub dtype: DType,
    pub grid: Grid,
    /// The first axis lies closest together, as in Fortran.
    pub reversed: bool,
    /// A highest bit to turn over: how FITS stores unsigned integers.
    pub flip: Option<u8>,
    /// Values of so many bits with a sign, above which a writer may have left zeros.
    pub signed_bits: Option<u32>,
}

impl RawSource {
    /// Checks that the block is in the file.
    pub fn new(
        path: PathBuf,
        format: &'static str,
        bytes: Bytes,
        offset: u64,
        order: Order,
        dtype: DType,
        shape: &[usize],
    ) -> Parsed<RawSource> {
        let size = volume(shape).and_then(|n| n.checked_mul(dtype.bytes())).filter(|n| *n < 1 << 60);
        let Some(size) = size else { return damaged(format!("an image of shape {shape:?}")) };
        if size == 0 || shape.is_empty() {
            return crate::error::unsupported(format!("an image without pixels, of shape {shape:?},"));
        }
        if offset.checked_add(size as u64).is_none_or(|end| end > bytes.len()) {
            return damaged(format!(
                "{size} bytes of pixels at {offset} are needed, and the file has {} bytes",
                bytes.len()
            ));
        }
        let grid = Grid::rows(shape, dtype.bytes());
        Ok(RawSource {
            path,
            format,
            bytes,
            offset,
            order,
            dtype,
            grid,
            reversed: false,
            flip: None,
            signed_bits: None,
        })
    }

    /// The same block with its axes the other way round.
    pub fn reversed(mut self) -> RawSource {
        self.grid.shape.reverse();
        self.grid.chunk.reverse();
        self.reversed = true;
        self
    }

    fn read(&self, index: &[usize]) -> Parsed<Vec<u8>> {
        let width = self.dtype.bytes();
        let turn = |v: &[usize]| -> Vec<usize> {
            if self.reversed { v.iter().rev().copied().collect() } else { v.to_vec() }
        };
        let (shape, chunk, index) = (turn(&self.grid.shape), turn(&self.grid.chunk), turn(index));
        // Chunks are runs: whole trailing axes, a part of one axis, and one of each before it.
        let start: usize = index.iter().zip(&chunk).zip(strides(&shape)).map(|((i, c), s)| i * c * s).sum();
        let total: usize = shape.iter().product();
        let full: usize = chunk.iter().product();
        let axis = (0..shape.len()).find(|&a| chunk[a] != 1).unwrap_or(shape.len() - 1);
        let left = shape[axis].saturating_sub(index[axis] * chunk[axis]).min(chunk[axis]);
        let count = (full / chunk[axis] * left).min(total - start);
        let mut out = vec![0; full * width];
        self.bytes.read_into(self.offset + (start * width) as u64, &mut out[..count * width])?;
        if self.order != Order::NATIVE {
            swap_bytes(&mut out, width);
        }
        if let Some(bit) = self.flip {
            let top = if Order::NATIVE == Order::Little { width - 1 } else { 0 };
            out.chunks_exact_mut(width).for_each(|v| v[top] ^= bit);
        }
        if let Some(bits) = self.signed_bits {
            carry_signs(&mut out, width, bits);
        }
        if self.reversed {
            let order: Vec<usize> = (0..chunk.len()).rev().collect();
            return Ok(crate::grid::permute(&out, &chunk, &order, width));
        }
        Ok(out)
    }
}

/// Carries the sign of values of `bits` bits to the top of their `width` bytes, where those above are zeros. Values
/// that have other bits up there are beyond `bits` by their writer's will, and stay.
pub(crate) fn carry_signs(values: &mut [u8], width: usize, bits: u32) {
    let above = !0u64 << bits;
    for value in values.chunks_exact_mut(width) {
        let (mut wide, little) = ([0; 8], Order::NATIVE == Order::Little);
        let place = if little { 0..width } else { 8 - width..8 };
        wide[place.clone()].copy_from_slice(value);
        let v = u64::from_ne_bytes(wide);
        if v & above == 0 && v >> (bits - 1) == 1 {
            value.copy_from_slice(&(v | above).to_ne_bytes()[place]);
        }
    }
}

impl Source for RawSource {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, index: &[usize]) -> Result<Vec<u8>> {
        self.read(index).map_err(|fault| fault.at(&self.path, self.format))
    }
}

/// What remains to be done when the pixels are there: headers, packing, padding.
pub(crate) type Finish = Box<dyn FnOnce(&mut AsideFile, Option<&File>) -> Parsed<()> + Send + Sync>;

pub(crate) struct RawTarget {
    pub format: &'static str,
    pub file: AsideFile,
    /// Pixels go here, from its start, where the file itself is not the place for them.
    pub scratch: Option<File>,
    pub offset: u64,
    pub order: Order,
    pub dtype: DType,
    pub flip: Option<u8>,
    grid: Grid,
    /// Axis `i` of the file is axis `axes[i]` of the image.
    axes: Vec<usize>,
    finish: Finish,
}

impl RawTarget {
    /// `axes` is the order in which the file wants the image's axes, slowest first.
    pub fn new(
        format: &'static str,
        file: AsideFile,
        offset: u64,
        order: Order,
        dtype: DType,
        shape: &[usize],
        axes: Vec<usize>,
        finish: Finish,
    ) -> RawTarget {
        let file_shape: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
        let rows = Grid::rows(&file_shape, dtype.bytes());
        let mut chunk = vec![1; shape.len()];
        axes.iter().zip(&rows.chunk).for_each(|(&a, &c)| chunk[a] = c);
        let grid = Grid::new(shape.to_vec(), chunk);
        RawTarget { format, file, scratch: None, offset, order, dtype, flip: None, grid, axes, finish }
    }

    /// Pixels are gathered in a temporary file first.
    pub fn with_scratch(mut self) -> Result<RawTarget> {
        let scratch = tempfile::tempfile().map_err(|e| Error::io(self.file.path(), e))?;
        self.scratch = Some(scratch);
        self.offset = 0;
        Ok(self)
    }
}

impl Target for RawTarget {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn encode(&self, _: usize, _: &[usize], raw: Vec<u8>) -> Parsed<Vec<u8>> {
        let width = self.dtype.bytes();
        let sorted = self.axes.iter().enumerate().all(|(i, &a)| i == a);
        let mut raw =
            if sorted { raw } else { crate::grid::permute(&raw, &self.grid.chunk, &self.axes, width) };
        if let Some(bit) = self.flip {
            let top = if Order::NATIVE == Order::Little { width - 1 } else { 0 };
            raw.chunks_exact_mut(width).for_each(|v| v[top] ^= bit);
        }
        if self.order != Order::NATIVE {
            swap_bytes(&mut raw, width);
        }
        Ok(raw)
    }

    fn store(&mut self, _: usize, index: &[usize], encoded: Vec<u8>) -> Parsed<()> {
        let width = self.dtype.bytes();
        let turn = |v: &[usize]| -> Vec<usize> { self.axes.iter().map(|&a| v[a]).collect() };
        let (shape, chunk, index) = (turn(&self.grid.shape), turn(&self.grid.chunk), turn(index));
        let start: usize = index.iter().zip(&chunk).zip(strides(&shape)).map(|((i, c), s)| i * c * s).sum();
        let axis = (0..shape.len()).find(|&a| chunk[a] != 1).unwrap_or(shape.len() - 1);
        let left = shape[axis].saturating_sub(index[axis] * chunk[axis]).min(chunk[axis]);
        let count = chunk.iter().product::<usize>() / chunk[axis] * left;
        let data = &encoded[..count * width];
        let place = self.offset + (start * width) as u64;
        match &self.scratch {
            Some(scratch) => write_all_at(scratch, place, data)?,
            None => self.file.write_at(place, data)?,
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let RawTarget { mut file, scratch, finish, format, .. } = *self;
        let done = finish(&mut file, scratch.as_ref());
        done.map_err(|fault: Fault| fault.at(file.path(), format))?;
        file.commit()
    }
}
