//! Images in memory: arrays of any numeric type with named axes, and restored arrays.

use crate::error::{Error, Result};
use crate::report::ImageReport;
use clearshot_image::{Axis, DType, Description, Dim, Image};
use std::path::Path;

/// A numeric type of pixels.
pub trait Sample: Copy + sealed::Sealed {
    /// Its name in files.
    const DTYPE: DType;
    #[doc(hidden)]
    fn put(self, bytes: &mut Vec<u8>);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! samples {
    ($($type:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Sample for $type {
            const DTYPE: DType = DType::$dtype;
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

samples!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64);

/// An image in memory, row-major. Each axis is named by a letter, in the order of the shape: `T` frames, `C` channels,
/// `Z` planes, `Y` rows, `X` columns, `S` colour samples of a pixel.
///
/// ```
/// let counts: Vec<u16> = (0..3 * 20 * 30).map(|i| 100 + i % 7).collect();
/// let stack = clearshot::Array::new(&counts, &[3, 20, 30], "ZYX")?;
/// assert_eq!((stack.axes(), stack.shape()), ("ZYX".to_string(), vec![3, 20, 30]));
/// assert!(clearshot::Array::new(&counts, &[20, 30], "YX").is_err());
/// # Ok::<(), clearshot::Error>(())
/// ```
pub struct Array {
    pub(crate) image: Image,
    pub(crate) mask: Option<Image>,
}

impl Array {
    /// # Errors
    /// If the shape, the axes and the number of values do not match, or Y or X is missing.
    pub fn new<T: Sample>(values: &[T], shape: &[usize], axes: &str) -> Result<Array> {
        let mut bytes = Vec::with_capacity(std::mem::size_of_val(values));
        values.iter().for_each(|v| v.put(&mut bytes));
        Array::from_bytes(bytes, T::DTYPE, shape, axes)
    }

    /// The same from bytes in native byte order.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn from_bytes(bytes: Vec<u8>, dtype: DType, shape: &[usize], axes: &str) -> Result<Array> {
        let image = in_memory(bytes, dtype, shape, axes)?;
        Ok(Array { image, mask: None })
    }

    /// The same from an image in a file, or from a custom source, which is read region by region on demand.
    pub fn from_image(image: Image) -> Array {
        Array { image, mask: None }
    }

    /// Sets the pixel size along an axis, which is needed for PSFs in units of length.
    ///
    /// # Errors
    /// If the array does not have this axis.
    pub fn with_pixel_size(mut self, axis: char, size: f64, unit: &str) -> Result<Array> {
        let found = Axis::from_letter(axis).and_then(|a| self.image.description.position(a));
        let Some(place) = found else {
            return Err(Error::Array(format!("an image of axes {} has no axis {axis}", self.axes())));
        };
        let dim = &mut self.image.description.dims[place];
        *dim = Dim::stepped(dim.axis, dim.len, Some(size), unit);
        Ok(self)
    }

    /// Marks invalid pixels (dead, hot), with one mark for each value of the array.
    ///
    /// # Errors
    /// If the number of marks differs from the number of values.
    pub fn with_mask(mut self, marked: &[bool]) -> Result<Array> {
        let bytes = marked.iter().map(|&m| u8::from(m)).collect();
        self.mask = Some(in_memory(bytes, DType::U8, &self.shape(), &self.axes())?);
        Ok(self)
    }

    /// Lengths of the axes.
    pub fn shape(&self) -> Vec<usize> {
        self.image.shape()
    }

    /// Letters of the axes.
    pub fn axes(&self) -> String {
        self.image.description.axes()
    }
}

fn in_memory(bytes: Vec<u8>, dtype: DType, shape: &[usize], axes: &str) -> Result<Image> {
    let refuse = |why: String| Err(Error::Array(why));
    let mut dims: Vec<Dim> = Vec::new();
    for (letter, &len) in axes.chars().zip(shape) {
        match Axis::from_letter(letter) {
            Some(axis) if dims.iter().all(|d| d.axis != axis) => dims.push(Dim::new(axis, len)),
            _ => return refuse(format!("axes `{axes}`: each of T, C, Z, Y, X and S may be there once")),
        }
    }
    let has = |axis: Axis| dims.iter().any(|d| d.axis == axis);
    if axes.chars().count() != shape.len() || !has(Axis::Y) || !has(Axis::X) {
        return refuse(format!(
            "axes `{axes}` for a shape of {shape:?}: one letter for each length, Y and X among them"
        ));
    }
    let (got, width) = (bytes.len() / dtype.bytes(), dtype.bytes());
    let description = Description::new("array", Path::new("array"), dims, dtype);
    match Image::in_memory(description, bytes) {
        Ok(image) => Ok(image),
        Err(_) => refuse(format!("{got} values of {width} bytes for a shape of {shape:?}")),
    }
}

/// A restored [`Array`]. Every map is row-major, in the unit of the input.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// The restored image. A pixel that was NaN or infinite is NaN.
    pub image: Vec<f32>,
    /// The posterior's standard deviation, see [`crate::Settings::std`].
    pub std: Option<Vec<f32>>,
    /// The map of chi2, see [`crate::Settings::chi2`].
    pub chi2: Option<Vec<f32>>,
    /// The posterior samples, see [`crate::Settings::save_samples`].
    pub samples: Vec<Vec<f32>>,
    /// Lengths of the axes: those of the input, except for a model with other output channels.
    pub shape: Vec<usize>,
    /// Letters of the axes.
    pub axes: String,
    /// Camera, chi2, counts and the method used.
    pub report: ImageReport,
}
