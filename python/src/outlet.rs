//! Places of Python for restored values as they come: whatever takes `place[region] = values`.

use crate::errors::Raised;
use clearshot::{Outlet, Sink};
use clearshot_image::Description;
use clearshot_image::grid::Region;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// By the name of an output (`image`, `std`, ...): a function of its shape and axes that gives chunks, and a function that takes
/// the first and the last index along each axis and the values between them.
pub struct Places {
    given: Py<PyDict>,
    raised: Raised,
}

impl Places {
    pub fn new(given: Py<PyDict>, raised: &Raised) -> Places {
        Places { given, raised: raised.clone() }
    }
}

impl Outlet for Places {
    fn sink(&self, name: &str, d: &Description) -> clearshot::Result<Option<Box<dyn Sink>>> {
        let open = |py: Python<'_>| -> PyResult<Option<Box<dyn Sink>>> {
            let Some(place) = self.given.bind(py).get_item(name)? else { return Ok(None) };
            let chunk: Vec<usize> = place.call_method1("open", (d.shape(), d.axes()))?.extract()?;
            let put = place.getattr("put")?.unbind();
            Ok(Some(Box::new(Place { put, chunk, raised: self.raised.clone() })))
        };
        Ok(Python::attach(open).map_err(|e| self.raised.keep(e))?)
    }
}

struct Place {
    put: Py<PyAny>,
    chunk: Vec<usize>,
    raised: Raised,
}

impl Sink for Place {
    fn chunk(&self) -> Vec<usize> {
        self.chunk.clone()
    }

    fn put(&mut self, place: &Region, bytes: &[u8]) -> clearshot_image::Result<()> {
        let put = |py: Python<'_>| -> PyResult<()> {
            let (from, to): (Vec<usize>, Vec<usize>) = place.iter().map(|r| (r.start, r.end)).unzip();
            self.put.call1(py, (from, to, PyArray1::from_slice(py, bytes)))?;
            Ok(())
        };
        Python::attach(put).map_err(|e| self.raised.keep(e))
    }
}
