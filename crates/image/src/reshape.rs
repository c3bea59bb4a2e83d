//! Pads, crops or resizes files plane by plane, with a record by which this can be undone: a restored crop can be inserted
//! into the image that it was cut from.

use crate::DType;
use crate::error::{Result, request};
use crate::geometry::Geometry;
use crate::image::{Description, Image, lengths};
use crate::planes::{are_last, leading, write};
use crate::provenance::Provenance;
use crate::writer::{WriteOptions, Writer};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;

/// Writes every plane of an image as `geometry`, of the planes' size, makes it; what is between whole numbers is rounded to the image's type.
///
/// # Errors
/// If Y and X are not the image's last axes, the geometry does not fit, or a file cannot be read or written.
pub fn reshape(image: &Image, geometry: &Geometry, output: &Path, replace: bool) -> Result<()> {
    let d = &image.description;
    let made = shaped(d, &geometry.shape())?;
    let parameters = json!({ "geometry": geometry.to_json() });
    let mut writer = writer(d, &made, parameters, output, replace)?;
    each_plane(d, &made, |from, to| {
        write(&mut writer, made.dtype, to, &geometry.apply(&image.read_f64(from)?)?)
    })?;
    writer.finish()
}

/// Takes back what [`reshape`] did, by the record that an image carries, also below what was done since; `original` is the image that was reshaped, and fills
/// what was cut away.
///
/// # Errors
/// If there is no such record, the original is of another size, or a file cannot be read or written.
pub fn take_back(image: &Image, original: &Image, output: &Path, replace: bool) -> Result<()> {
    let d = &image.description;
    let Some(geometry) = recorded(d.provenance.as_ref()) else {
        return request("an image that carries no record of padding, cutting or resizing");
    };
    let geometry = Geometry::from_json(geometry)?;
    let plane = |d: &Description| d.shape().split_off(d.dims.len().saturating_sub(2));
    let made = shaped(d, &plane(&original.description))?;
    if original.shape() != made.shape() || plane(d) != geometry.shape() {
        let (own, theirs) = (lengths(&d.shape()), lengths(&original.shape()));
        return request(format!("an image of {own} pixels that is to go into one of {theirs}"));
    }
    let mut writer = writer(d, &made, json!({ "undone": geometry.to_json() }), output, replace)?;
    each_plane(d, &made, |from, to| {
        write(&mut writer, made.dtype, to, &geometry.undo(&image.read_f64(from)?, &original.read_f64(to)?)?)
    })?;
    writer.finish()
}

/// The newest record of a geometry that was not taken back.
fn recorded(provenance: Option<&Value>) -> Option<&Value> {
    let (mut at, mut undone) = (provenance, 0);
    while let Some(record) = at {
        let parameters = &record["parameters"];
        undone += usize::from(!parameters["undone"].is_null());
        match &parameters["geometry"] {
            Value::Null => {}
            found if undone == 0 => return Some(found),
            _ => undone -= 1,
        }
        at = record.get("earlier");
    }
    None
}

/// The description of an image with planes of another size; a resized pixel has another size too.
fn shaped(d: &Description, plane: &[usize]) -> Result<Description> {
    if !are_last(d) {
        return request(format!("axes {}; Y and X must be the last", d.axes()));
    }
    let mut made = d.clone();
    let n = made.dims.len();
    made.dims[n - 2..].iter_mut().zip(plane).for_each(|(dim, &len)| dim.len = len);
    (made.native, made.mosaic) = (None, None);
    // Physical values are read and stored.
    if made.rescale.take().is_some() {
        (made.dtype, made.bits) = (DType::F32, DType::F32.bits());
    }
    made.levels = vec![made.shape()];
    Ok(made)
}

fn writer(
    d: &Description,
    made: &Description,
    parameters: Value,
    output: &Path,
    replace: bool,
) -> Result<Writer> {
    let provenance = Some(Provenance::new("convert", d, parameters).value());
    Writer::create(output, made, &WriteOptions { replace, provenance })
}

/// Calls with where each plane is read and where it is written.
fn each_plane(
    d: &Description,
    made: &Description,
    mut f: impl FnMut(&Vec<Range<usize>>, &Vec<Range<usize>>) -> Result<()>,
) -> Result<()> {
    let (from, to) = (d.shape(), made.shape());
    let n = from.len() - 2;
    for lead in leading(&from[..n]) {
        let at = |shape: &[usize]| -> Vec<Range<usize>> {
            lead.iter().map(|&i| i..i + 1).chain(shape[n..].iter().map(|&len| 0..len)).collect()
        };
        f(&at(&from), &at(&to))?;
    }
    Ok(())
}
