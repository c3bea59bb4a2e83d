//! The extension module of the Python package: what Python cannot do itself, and nothing else. Arguments arrive here as plain values that
//! the Python side has checked and named; results leave as numpy arrays and JSON. The library's functions run without the interpreter's lock.

mod errors;
mod files;
mod listener;
mod measuring;
mod outlet;
mod report;
mod restorer;
mod settings;
mod source;
mod training;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the program with its name and arguments, as a shell would, and gives its exit status.
#[pyfunction]
fn program(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| clearshot_cli::run(arguments.into_iter()))
}

#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::files::{File, write};
    #[pymodule_export]
    use super::measuring::{estimate_camera, measure};
    #[pymodule_export]
    use super::program;
    #[pymodule_export]
    use super::restorer::{Restorer, restore_file};
    #[pymodule_export]
    use super::source::{LazyArray, MemoryArray};
    #[pymodule_export]
    use super::training::{adapt, train};
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Endings of the files that are read, without the dot.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let endings: Vec<_> =
            clearshot_image::format::FORMATS.iter().flat_map(|format| format.extensions).collect();
        module.add("EXTENSIONS", PyTuple::new(module.py(), endings)?)
    }
}
