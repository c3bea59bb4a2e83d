//! Image files: read by region, with everything that they say of themselves, and written.

use crate::errors::{named, of};
use crate::restorer::Subject;
use crate::source::About;
use clearshot_image::{Description, Image, Provenance, Statistics, WriteOptions, Writer};
use numpy::PyArray1;
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::PathBuf;

/// One image of a file, or of a Zarr at an address.
#[pyclass(frozen)]
pub struct File {
    path: PathBuf,
    image: Image,
}

impl File {
    /// The same image with a cache of its own, for work that goes on by itself.
    pub fn opened(&self) -> PyResult<Image> {
        Image::open_number(&self.path, self.image.description.item).map_err(of)
    }
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, item))]
    fn new(py: Python<'_>, path: PathBuf, item: Option<String>) -> PyResult<File> {
        let image = py.detach(|| Image::open_named(&path, item.as_deref())).map_err(of)?;
        Ok(File { path, image })
    }

    /// What the file says of the image, as JSON.
    fn about(&self) -> String {
        about(&self.image.description).to_string()
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.image.shape()
    }

    /// Sizes of what is read at once.
    #[getter]
    fn chunk(&self) -> Vec<usize> {
        self.image.grid(0).chunk.clone()
    }

    /// Values of a region as they are stored (bytes of the image's type), or as they are meant (64-bit floats) where the file scales them.
    fn read<'py>(
        &self,
        py: Python<'py>,
        from: Vec<usize>,
        to: Vec<usize>,
        level: usize,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let region: Vec<_> = from.into_iter().zip(to).map(|(a, b)| a..b).collect();
        let read = || -> clearshot_image::Result<Vec<u8>> {
            let bytes = self.image.read_level(level, &region)?;
            Ok(match self.image.description.rescale {
                None => bytes,
                Some(_) => self.image.decode(&bytes).iter().flat_map(|v| v.to_ne_bytes()).collect(),
            })
        };
        Ok(PyArray1::from_vec(py, py.detach(read).map_err(of)?))
    }

    /// Least, greatest, mean and standard deviation of the values.
    fn statistics(&self, py: Python<'_>) -> PyResult<String> {
        let s = py.detach(|| Statistics::of(&self.image)).map_err(of)?;
        let (min, max, mean, std) = (s.least, s.greatest, s.mean, s.deviation);
        Ok(json!({ "min": min, "max": max, "mean": mean, "std": std, "not_finite": s.not_finite })
            .to_string())
    }
}

fn about(d: &Description) -> Value {
    let dims: Vec<Value> = (d.dims.iter())
        .map(|dim| json!({ "axis": dim.axis.letter().to_string(), "step": dim.step, "unit": dim.unit }))
        .collect();
    let channels: Vec<Value> = (d.channels.iter())
        .map(|c| json!({ "name": c.name, "color": c.color, "emission_nm": c.emission_nm }))
        .collect();
    json!({
        "format": d.format, "dims": dims, "dtype": d.dtype.name(), "bits": d.bits, "channels": channels,
        "scaled": d.rescale.is_some(), "levels": d.levels, "items": d.items, "item": d.item, "tags": d.tags,
        "warnings": d.warnings, "provenance": d.provenance,
    })
}

/// Writes an array as a file whose ending says the format, with what another image's file says of its pixels and channels.
#[pyfunction]
#[pyo3(signature = (path, subject, about, channels, like, replace, hear))]
pub fn write(
    py: Python<'_>,
    path: PathBuf,
    subject: Subject<'_>,
    about: About,
    channels: Vec<String>,
    like: Option<Bound<'_, File>>,
    replace: bool,
    hear: Py<PyAny>,
) -> PyResult<()> {
    let (mut image, raised) = subject.image(py, &about)?;
    if let Some(like) = like {
        image.description = alike(&like.get().image.description, &image.description)?;
    }
    if !channels.is_empty() {
        let named = |name: String| clearshot_image::Channel { name: Some(name), ..Default::default() };
        image.description.channels = channels.into_iter().map(named).collect();
    }
    let provenance = Some(Provenance::new("write", &image.description, Value::Null).value());
    let options = WriteOptions { replace, provenance };
    let tell = |done: usize, total: usize| {
        Python::attach(|py| {
            py.check_signals()?;
            hear.call1(py, ("progress", json!([done, total]).to_string()))
        })
        .map_err(|e| raised.keep(e))
    };
    let copy = || -> clearshot_image::Result<()> {
        let mut writer = Writer::create(&path, &image.description, &options)?;
        let bands = image.bands()?;
        for (done, band) in bands.iter().enumerate() {
            writer.write(band, &image.read(band)?)?;
            tell(done + 1, bands.len())?;
        }
        writer.finish()
    };
    py.detach(copy).map_err(|e| raised.or(e.into()))
}

/// What an array is written as so that its file says what another one does.
fn alike(like: &Description, array: &Description) -> PyResult<Description> {
    if (like.axes(), like.shape()) != (array.axes(), array.shape()) {
        return Err(named(
            "ImageError",
            format!(
                "an array of axes {} {:?} cannot be written like an image of {} {:?}; leave `like` out",
                array.axes(),
                array.shape(),
                like.axes(),
                like.shape()
            ),
        ));
    }
    let mut d = like.clone();
    (d.dtype, d.bits, d.path) = (array.dtype, array.dtype.bits(), array.path.clone());
    if d.rescale.take().is_some() {
        d.native = None;
    }
    Ok(d)
}
