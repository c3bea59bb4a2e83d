//! Arrays of Python as images that the library reads by region: numpy's memory as it lies, whatever its strides, and objects that
//! are sliced when a region is needed (dask, Zarr, HDF5).

use crate::errors::{Raised, named};
use clearshot_image::grid::Grid;
use clearshot_image::{Axis, DType, Description, Dim, Image, Source};
use numpy::npyffi::_PyArray_GET_ITEM_DATA;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use std::path::Path;

/// What an array is beside its values: letters of its axes, and the distance of pixels along each with its unit.
#[derive(FromPyObject)]
pub struct About {
    axes: String,
    steps: Vec<Option<f64>>,
    unit: String,
    name: String,
}

impl About {
    fn description(&self, shape: &[usize], dtype: DType) -> PyResult<Description> {
        let letters: Vec<char> = self.axes.chars().collect();
        let refuse = |why: String| Err(named("ImageError", why));
        if letters.len() != shape.len() {
            return refuse(format!(
                "axes {:?} for an array of shape {shape:?}: one letter for each axis",
                self.axes
            ));
        }
        let mut dims: Vec<Dim> = Vec::new();
        for ((&letter, &len), &step) in letters.iter().zip(shape).zip(&self.steps) {
            let Some(axis) = Axis::from_letter(letter).filter(|a| dims.iter().all(|d| d.axis != *a)) else {
                return refuse(format!(
                    "axes {:?}: each of T, C, Z, Y, X and S (colours of a pixel) may be there once",
                    self.axes
                ));
            };
            dims.push(Dim::stepped(axis, len, step, &self.unit));
        }
        if ![Axis::Y, Axis::X].iter().all(|a| dims.iter().any(|d| d.axis == *a)) {
            return refuse(format!("axes {:?}: Y and X (rows and columns) must be among them", self.axes));
        }
        Ok(Description::new("array", Path::new(&self.name), dims, dtype))
    }
}

/// An array of Python that the library can read.
pub trait Readable {
    /// The image, and where exceptions of Python code go that reading it raises.
    fn image(&self, py: Python<'_>, about: &About) -> PyResult<(Image, Raised)>;
}

/// numpy's memory, in the machine's byte order. It is not copied, and must not be written to while it is read.
#[pyclass(frozen)]
pub struct MemoryArray {
    array: Py<PyUntypedArray>,
    dtype: DType,
}

#[pymethods]
impl MemoryArray {
    #[new]
    fn new(array: Bound<'_, PyUntypedArray>) -> PyResult<MemoryArray> {
        let found = array.dtype();
        let dtype = dtype(&found.getattr("name")?.extract::<String>()?)?;
        if found.is_native_byteorder() == Some(false) {
            return Err(named("ImageError", format!("{found}: not in this machine's byte order")));
        }
        Ok(MemoryArray { array: array.unbind(), dtype })
    }
}

impl Readable for MemoryArray {
    fn image(&self, py: Python<'_>, about: &About) -> PyResult<(Image, Raised)> {
        let array = self.array.bind(py);
        let (shape, width) = (array.shape().to_vec(), self.dtype.bytes());
        let description = about.description(&shape, self.dtype)?;
        let (first, strides) = (first(array), array.strides().to_vec());
        let grid = Grid::rows(&shape, width);
        let memory = Memory { grid, width, first, strides, _owner: self.array.clone_ref(py) };
        Ok((Image::new(description, Box::new(memory)), Raised::default()))
    }
}

struct Memory {
    grid: Grid,
    width: usize,
    first: *const u8,
    /// Bytes from one element to the next along each axis.
    strides: Vec<isize>,
    _owner: Py<PyUntypedArray>,
}

// SAFETY: the memory is only read, and lives as long as its owner, which is held.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Source for Memory {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, index: &[usize]) -> clearshot_image::Result<Vec<u8>> {
        let (region, chunk, width) = (self.grid.region(index), &self.grid.chunk, self.width);
        let mut out = vec![0; chunk.iter().product::<usize>() * width];
        let Some(last) = region.len().checked_sub(1) else { return Ok(out) };
        let columns = region[last].len();
        let rows: Vec<_> = region[..last].to_vec();
        for row in clearshot_image::grid::indices(&rows) {
            let place = row.iter().zip(&region).zip(chunk).fold(0, |n, ((&i, r), &c)| n * c + i - r.start);
            let to = &mut out[place * chunk[last] * width..][..columns * width];
            let from: isize = row
                .iter()
                .chain([&region[last].start])
                .zip(&self.strides)
                .map(|(&i, s)| i as isize * s)
                .sum();
            // SAFETY: the indices lie within the array's shape, so that its strides lead to elements of it.
            unsafe {
                let from = self.first.offset(from);
                if self.strides[last] == width as isize {
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), columns * width);
                } else {
                    for (x, value) in to.chunks_exact_mut(width).enumerate() {
                        let from = from.offset(x as isize * self.strides[last]);
                        std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), width);
                    }
                }
            }
        }
        Ok(out)
    }
}

/// An array that is read by a function of the first and the last index along each axis, which gives a numpy array.
#[pyclass(frozen)]
pub struct LazyArray {
    read: Py<PyAny>,
    shape: Vec<usize>,
    chunk: Vec<usize>,
    dtype: DType,
}

#[pymethods]
impl LazyArray {
    #[new]
    fn new(read: Py<PyAny>, shape: Vec<usize>, chunk: Vec<usize>, dtype: &str) -> PyResult<LazyArray> {
        let chunk = chunk.into_iter().map(|n| n.max(1)).collect();
        Ok(LazyArray { read, shape, chunk, dtype: self::dtype(dtype)? })
    }
}

impl Readable for LazyArray {
    fn image(&self, py: Python<'_>, about: &About) -> PyResult<(Image, Raised)> {
        let description = about.description(&self.shape, self.dtype)?;
        let grid = Grid::new(self.shape.clone(), self.chunk.clone());
        let (width, raised) = (self.dtype.bytes(), Raised::default());
        let lazy = Lazy { grid, width, read: self.read.clone_ref(py), raised: raised.clone() };
        Ok((Image::new(description, Box::new(lazy)), raised))
    }
}

struct Lazy {
    grid: Grid,
    width: usize,
    read: Py<PyAny>,
    raised: Raised,
}

impl Source for Lazy {
    fn grid(&self, _: usize) -> &Grid {
        &self.grid
    }

    fn chunk(&self, _: usize, index: &[usize]) -> clearshot_image::Result<Vec<u8>> {
        let region = self.grid.region(index);
        let size: Vec<usize> = region.iter().map(|r| r.len()).collect();
        let read = |py: Python<'_>| -> PyResult<Vec<u8>> {
            let (from, to): (Vec<usize>, Vec<usize>) = region.iter().map(|r| (r.start, r.end)).unzip();
            let array = self.read.bind(py).call1((from, to))?.cast_into::<PyUntypedArray>()?;
            if array.shape() != size || array.dtype().itemsize() != self.width || !array.is_c_contiguous() {
                let got = array.shape();
                return Err(named(
                    "ImageError",
                    format!("a region of shape {size:?} was read as one of {got:?}"),
                ));
            }
            let mut out = vec![0; self.grid.chunk.iter().product::<usize>() * self.width];
            // SAFETY: a contiguous array has its values behind each other.
            let values = unsafe {
                std::slice::from_raw_parts(first(&array), size.iter().product::<usize>() * self.width)
            };
            let whole: Vec<_> =
                region.iter().zip(&self.grid.chunk).map(|(r, c)| r.start..r.start + c).collect();
            let start: Vec<usize> = region.iter().map(|r| r.start).collect();
            clearshot_image::grid::copy_common(self.width, values, &size, &start, &mut out, &whole);
            Ok(out)
        };
        Python::attach(read).map_err(|e| self.raised.keep(e))
    }
}

/// Where the first element of a numpy array lies.
fn first(array: &Bound<'_, PyUntypedArray>) -> *const u8 {
    // SAFETY: the object is a numpy array, and the interpreter is attached.
    unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr().cast_const())).data.cast_const().cast() }
}

/// A type of numbers by numpy's name.
pub fn dtype(name: &str) -> PyResult<DType> {
    let found = DType::ALL.into_iter().find(|d| d.name() == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
        let why = format!("images of type {name} are not supported; convert to one of {}", known.join(", "));
        named("ImageError", why)
    })
}
