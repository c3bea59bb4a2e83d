//! Reads and writes images plane by plane, if Y and X are the last of their axes, for operations that change the shape of
//! planes.

use crate::DType;
use crate::error::Result;
use crate::image::{Axis, Description};
use crate::writer::Writer;
use std::ops::Range;

/// Whether planes of Y and X lie together.
pub fn are_last(d: &Description) -> bool {
    let axes: Vec<Axis> = d.dims.iter().map(|dim| dim.axis).collect();
    axes.ends_with(&[Axis::Y, Axis::X])
}

/// Every place along leading axes.
pub fn leading(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    for &len in shape {
        let longer = |place: Vec<usize>| (0..len).map(move |i| [&place[..], &[i]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// Writes values of a region in the type of the file.
///
/// # Errors
/// If they cannot be written.
pub fn write(writer: &mut Writer, dtype: DType, region: &[Range<usize>], values: &[f64]) -> Result<()> {
    let mut bytes = Vec::with_capacity(values.len() * dtype.bytes());
    dtype.encode(values, &mut bytes);
    writer.write(region, &bytes)
}
