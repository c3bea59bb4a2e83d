//! Restorers: a model or a classical method, on arrays and on files.

use crate::errors::{Raised, named, of};
use crate::files::File;
use crate::listener::Listener;
use crate::outlet::Places;
use crate::report;
use crate::settings::settings;
use crate::source::{About, LazyArray, MemoryArray, Readable};
use clearshot::{Array, Deconvolution, Device, DeviceName, Method};
use clearshot_image::Image;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

/// Something that restores images; see the library's type of this name.
#[pyclass(frozen)]
pub struct Restorer {
    pub inner: clearshot::Restorer,
    /// Kept apart: the library's answer waits for an image that is being restored, and that may wait for the interpreter.
    #[pyo3(get)]
    name: String,
    /// What a model says of itself, as JSON.
    #[pyo3(get)]
    about: Option<String>,
}

impl Restorer {
    pub fn new(inner: clearshot::Restorer) -> Restorer {
        let (name, about) = (inner.name(), inner.about().map(|about| about.to_string()));
        Restorer { inner, name, about }
    }
}

/// What is restored: an array with what it is, or an image of a file.
#[derive(FromPyObject)]
pub enum Subject<'py> {
    Memory(Bound<'py, MemoryArray>),
    Lazy(Bound<'py, LazyArray>),
    File(Bound<'py, File>),
}

impl Subject<'_> {
    /// # Errors
    /// If the array is not what its axes say, or the file cannot be opened.
    pub fn image(&self, py: Python<'_>, about: &About) -> PyResult<(Image, Raised)> {
        match self {
            Subject::Memory(array) => array.get().image(py, about),
            Subject::Lazy(array) => array.get().image(py, about),
            Subject::File(file) => Ok((file.get().opened()?, Raised::default())),
        }
    }
}

pub fn device(name: &str, threads: Option<usize>) -> PyResult<Device> {
    let name: DeviceName = name.parse().map_err(|e| named("DeviceError", e))?;
    name.device(threads).map_err(of)
}

/// What restoring an array gives: values by name, the shape, the axes, and the report as JSON.
type Outcome<'py> = (Bound<'py, PyDict>, Vec<usize>, String, String);

#[pymethods]
impl Restorer {
    /// The model that comes with the package, or one of a file or folder.
    #[staticmethod]
    #[pyo3(signature = (path, device_name, threads))]
    fn model(
        py: Python<'_>,
        path: Option<PathBuf>,
        device_name: &str,
        threads: Option<usize>,
    ) -> PyResult<Restorer> {
        let device = device(device_name, threads)?;
        let inner = py.detach(|| match path {
            Some(path) => clearshot::Restorer::from_model(clearshot::Model::load(&path)?, device),
            None => clearshot::Restorer::builtin_on(device),
        });
        Ok(Restorer::new(inner.map_err(of)?))
    }

    /// A classical denoiser with settings of its own.
    #[staticmethod]
    fn denoiser(name: &str, changes: Vec<(String, String)>) -> PyResult<Restorer> {
        let wrong = |e: clearshot_restore::RestoreError| named("SettingError", e.to_string());
        let mut method = Method::by_name(name).map_err(wrong)?;
        for (key, value) in changes {
            method.set(&key, &value).map_err(wrong)?;
        }
        Ok(Restorer::new(clearshot::Restorer::denoiser(method)))
    }

    #[staticmethod]
    #[pyo3(signature = (background, total_variation, steps))]
    fn richardson_lucy(background: f32, total_variation: f32, steps: Option<usize>) -> Restorer {
        let steps = Deconvolution { background, total_variation, steps };
        Restorer::new(clearshot::Restorer::richardson_lucy(steps))
    }

    #[staticmethod]
    fn wiener(balance: f32) -> Restorer {
        Restorer::new(clearshot::Restorer::wiener(balance))
    }

    /// Writes a model as one file or as a folder.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.inner.save(&path)).map_err(of)
    }

    fn restore<'py>(
        &self,
        py: Python<'py>,
        subject: Subject<'py>,
        about: About,
        mask: Option<PyReadonlyArray1<'py, bool>>,
        given: &Bound<'py, PyDict>,
        places: Bound<'py, PyDict>,
        hear: Py<PyAny>,
    ) -> PyResult<Outcome<'py>> {
        let settings = settings(given)?;
        let (image, raised) = subject.image(py, &about)?;
        let mut array = Array::from_image(image);
        if let Some(mask) = mask {
            array = array.with_mask(mask.as_slice()?).map_err(of)?;
        }
        let (mut listener, places) = (Listener::new(hear, &raised), Places::new(places.unbind(), &raised));
        let restored = py.detach(|| self.inner.restore_into(&array, &settings, &places, &mut listener));
        let restored = restored.map_err(|e| raised.or(e))?;
        let maps = PyDict::new(py);
        let put = |name: &str, values: Vec<f32>| maps.set_item(name, PyArray1::from_vec(py, values));
        if !restored.image.is_empty() {
            put("image", restored.image)?;
        }
        restored.std.map_or(Ok(()), |values| put("std", values))?;
        restored.chi2.map_or(Ok(()), |values| put("chi2", values))?;
        for (i, values) in restored.samples.into_iter().enumerate() {
            put(&format!("sample{}", i + 1), values)?;
        }
        Ok((maps, restored.shape, restored.axes, report::image(&restored.report).to_string()))
    }
}

/// Restores a file into another, and gives the report as JSON.
#[pyfunction]
pub fn restore_file(
    py: Python<'_>,
    restorer: &Bound<'_, Restorer>,
    input: PathBuf,
    output: PathBuf,
    given: &Bound<'_, PyDict>,
    hear: Py<PyAny>,
) -> PyResult<String> {
    let (settings, raised) = (settings(given)?, Raised::default());
    let (mut listener, restorer) = (Listener::new(hear, &raised), &restorer.get().inner);
    let done = py.detach(|| clearshot::restore_file(&input, &output, restorer, &settings, &mut listener));
    done.map(|report| report::file(&report).to_string()).map_err(|e| raised.or(e))
}
