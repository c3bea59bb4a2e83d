//! Errors of the library as exceptions of the package, which has a class for each kind (`clearshot/errors.py`).

use clearshot::Error;
use clearshot_restore::learned;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// An exception of Python code that the library called, kept until the library has come to its end.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Keeps an exception and gives what the library is told of it. The first one counts.
    pub fn keep(&self, raised: PyErr) -> clearshot_image::Error {
        let what = raised.to_string();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
        clearshot_image::Error::Request { what }
    }

    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The exception for an error: that of Python code if there was one.
    pub fn or(&self, error: Error) -> PyErr {
        self.take().unwrap_or_else(|| exception(&error))
    }
}

/// The class of the package's exceptions for an error.
fn class(error: &Error) -> &'static str {
    match error {
        Error::Image(_) | Error::Io { .. } | Error::Other { .. } | Error::SameFile => "FileError",
        Error::Model(_) => "ModelError",
        Error::Physics(_) | Error::CameraFile(_) | Error::Setting { .. } => "SettingError",
        Error::Config(_) | Error::Refused(_) | Error::Missing { .. } | Error::Value { .. } => "SettingError",
        Error::Learned(learned::Error::Number { .. }) => "SettingError",
        Error::Unsuited(_) | Error::Array(_) => "ImageError",
        Error::Estimate(_) | Error::Camera(_) => "EstimateError",
        Error::Device(_) => "DeviceError",
        Error::Stopped => "Cancelled",
        Error::At { source, .. } => class(source),
        _ => "ClearshotError",
    }
}

/// An error as an exception.
pub fn exception(error: &Error) -> PyErr {
    named(class(error), error.to_string())
}

/// An exception of the package by the name of its class.
pub fn named(class: &str, text: String) -> PyErr {
    Python::attach(|py| {
        let made = || py.import("clearshot.errors")?.getattr(class)?.call1((text,));
        made().map_or_else(|e| e, PyErr::from_value)
    })
}

/// Errors of the crates below the library.
pub fn of<E: Into<Error>>(error: E) -> PyErr {
    exception(&error.into())
}
