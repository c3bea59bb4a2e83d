//! The physics of a measurement: units, cameras, point-spread functions, operators, noise, likelihoods.
//!
//! A measurement is `y = Poisson(A x + background) + N(0, read noise^2)` in electrons. [`model::Forward`] combines the
//! parts, which can also be used separately. Everything that guidance needs exists twice: as functions on the host in
//! f64, and as nodes of a [`clearshot_graph`] graph. The two are tested against each other.

pub mod anscombe;
pub mod calibration;
pub mod correlation;
mod error;
mod grid;
pub mod likelihood;
mod map;
pub mod model;
pub mod noise;
pub mod operator;
pub mod poisson;
pub mod psf;
pub mod tomography;
pub mod units;

pub use correlation::Correlation;
pub use error::PhysicsError;
pub use likelihood::{Likelihood, Measured};
pub use map::Map;
pub use model::{Evidence, Forward, MapValues, MeasuredValues};
pub use operator::{Boundary, Operator, Pooling, Whitening};
pub use psf::Psf;
pub use units::{Adu, Electrons, Normalised, Scale};
