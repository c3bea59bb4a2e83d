//! Classical restorers, which need no training.
//!
//! [`METHODS`] lists the denoisers with their default settings; each takes an image with uniform Gaussian [`Noise`],
//! white or correlated. For camera noise, [`stabilised`] transforms electrons to unit noise with the generalised
//! Anscombe transform, denoises, and applies the exact unbiased inverse. The transform acts on each pixel separately
//! and is nearly linear over the width of its noise, so it leaves the correlation unchanged. Deconvolution is
//! [`richardson_lucy`] and [`wiener::deconvolve`].

pub mod bm3d;
pub mod gaussian;
pub mod median;
pub mod nlm;
mod noise;
pub mod richardson_lucy;
mod settings;
mod stopping;
pub mod tv;
pub mod wiener;

pub use crate::convolve::Edges;
pub use noise::Noise;
pub use settings::Setting;

use crate::RestoreError;
use crate::error::{require_not_negative, require_positive};
use crate::frame::{Frame, LARGEST};
use clearshot_physics::anscombe;
use clearshot_physics::{Correlation, Electrons};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// A denoiser with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    Gaussian(gaussian::Gaussian),
    Median(median::Median),
    Wiener(wiener::LocalWiener),
    NonLocalMeans(nlm::NonLocalMeans),
    TotalVariation(tv::TotalVariation),
    Bm3d(bm3d::Bm3d),
}

/// The support of a method: the surroundings that tiles need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing beyond `halo` pixels matters. Inside a tile whose first pixel is a multiple of `align` along Y and X,
    /// and that includes the halo, the result is bit-identical to that of the whole image.
    Within { halo: usize, align: usize },
    /// All pixels matter, less with increasing distance: tiles overlap by this many pixels and are blended.
    Fading { overlap: usize },
}

/// A row of [`METHODS`].
pub struct Row {
    pub name: &'static str,
    pub about: &'static str,
    pub method: Method,
}

/// Every denoiser, with its default settings.
pub const METHODS: [Row; 6] = [
    Row { name: "gaussian", about: "a Gaussian blur", method: Method::Gaussian(gaussian::Gaussian::USUAL) },
    Row { name: "median", about: "the median of a small box", method: Method::Median(median::Median::USUAL) },
    Row {
        name: "wiener",
        about: "the local mean, and as much of the rest as exceeds the noise",
        method: Method::Wiener(wiener::LocalWiener::USUAL),
    },
    Row {
        name: "nlm",
        about: "non-local means: the mean of similar patches",
        method: Method::NonLocalMeans(nlm::NonLocalMeans::USUAL),
    },
    Row {
        name: "tv",
        about: "the flattest image near the measured one (total variation)",
        method: Method::TotalVariation(tv::TotalVariation::USUAL),
    },
    Row {
        name: "bm3d",
        about: "similar blocks, filtered together; both stages",
        method: Method::Bm3d(bm3d::Bm3d::USUAL),
    },
];

impl Method {
    /// # Errors
    /// If the name is not that of a method.
    pub fn by_name(name: &str) -> Result<Method, RestoreError> {
        METHODS.iter().find(|r| r.name == name).map(|r| r.method).ok_or_else(|| RestoreError::Method {
            name: name.into(),
            known: METHODS.map(|r| r.name).join(", "),
        })
    }

    pub fn name(&self) -> &'static str {
        let same = |r: &&Row| std::mem::discriminant(&r.method) == std::mem::discriminant(self);
        METHODS.iter().find(same).map_or("", |r| r.name)
    }

    /// What tiles of an image need.
    pub fn reach(&self) -> Reach {
        match self {
            Method::Gaussian(m) => Reach::Within { halo: m.reach(), align: 1 },
            Method::Median(m) => Reach::Within { halo: m.radius, align: 1 },
            Method::Wiener(m) => Reach::Within { halo: m.radius, align: 1 },
            Method::NonLocalMeans(m) => Reach::Within { halo: m.patch_radius + m.search_radius, align: 1 },
            Method::TotalVariation(m) => match m.steps {
                Some(halo) => Reach::Within { halo, align: 1 },
                None => Reach::Fading { overlap: 64 },
            },
            Method::Bm3d(m) => m.reach(),
        }
    }

    /// The contribution of a tile to decisions that the method makes for the whole image, or nothing if there are none.
    /// Only total variation has one: its number of steps, from the energy after each. `core` is the part of the tile to
    /// count; the rest is its surroundings.
    ///
    /// # Errors
    /// As [`Method::run`], or if the core is not inside the tile.
    pub fn says(
        &self,
        piece: &[f32],
        shape: &[usize],
        core: &[Range<usize>],
        noise: Noise,
    ) -> Result<Option<Vec<f64>>, RestoreError> {
        let inside = core.len() == shape.len() && core.iter().zip(shape).all(|(c, n)| c.end <= *n);
        if !inside {
            return Err(RestoreError::Shape { shape: shape.to_vec() });
        }
        match self {
            Method::TotalVariation(m) if m.steps.is_none() => {
                let deviation = noise.deviation;
                require_positive("the standard deviation of the noise", deviation.into())?;
                let scale = scale(Frame::new(piece, shape)?, deviation);
                let scaled = scaled(piece, scale);
                Ok(Some(m.energies(Frame::new(&scaled, shape)?, core, deviation * scale)?))
            }
            _ => Ok(None),
        }
    }

    /// The same method with the decision made from these contributions, so that every tile is processed in the same
    /// way.
    pub fn settled(self, said: &[Vec<f64>]) -> Method {
        match self {
            Method::TotalVariation(m) => Method::TotalVariation(m.settled(said)),
            other => other,
        }
    }

    /// The denoised image. The Gaussian and the median do not use the noise; BM3D and non-local means use its standard
    /// deviation and correlation, the others only its standard deviation.
    ///
    /// # Errors
    /// If the shape is not filled, a pixel is not finite, or a setting is out of its range.
    pub fn run(&self, image: &[f32], shape: &[usize], noise: Noise) -> Result<Vec<f32>, RestoreError> {
        let frame = Frame::new(image, shape)?;
        let noise = noise.simplified();
        let needs_noise = !matches!(self, Method::Gaussian(_) | Method::Median(_));
        if needs_noise {
            require_positive("the standard deviation of the noise", noise.deviation.into())?;
            let scale = scale(frame, noise.deviation);
            if scale != 1.0 {
                let denoised = self.run(&scaled(image, scale), shape, noise.scaled(scale))?;
                return Ok(scaled(&denoised, 1.0 / scale).into_owned());
            }
        }
        match self {
            Method::Gaussian(m) => m.run(frame),
            Method::Median(m) => m.run(frame),
            Method::Wiener(m) => m.run(frame, noise.deviation),
            Method::NonLocalMeans(m) => m.run(frame, &noise),
            Method::TotalVariation(m) => m.run(frame, noise.deviation),
            Method::Bm3d(m) => m.run(frame, &noise),
        }
    }
}

/// The least noise whose square, and parts of that, are ordinary numbers of 32 bits.
const LEAST_NOISE: f32 = 1e-12;

/// What to multiply an image by so that its noise can be squared: fluxes in SI units are as small as 1e-26. A power of two, so
/// that nothing is rounded; 1 where the noise is no less than 1e-12, or so much less than the image that it is lost in rounding.
fn scale(frame: Frame<'_>, noise: f32) -> f32 {
    if noise >= LEAST_NOISE {
        return 1.0;
    }
    let scale = (-noise.log2().floor()).clamp(0.0, 120.0).exp2();
    let largest = frame.values.iter().fold(0f32, |m, v| m.max(v.abs()));
    if noise * scale >= LEAST_NOISE && largest * scale <= LARGEST { scale } else { 1.0 }
}

fn scaled(image: &[f32], by: f32) -> Cow<'_, [f32]> {
    if by == 1.0 { Cow::Borrowed(image) } else { Cow::Owned(image.iter().map(|v| v * by).collect()) }
}

/// Denoises electrons: Poisson noise and read noise of a known standard deviation. The result is the mean of the
/// electrons, including the background.
///
/// # Errors
/// As [`Method::run`]; also if the read noise is negative.
pub fn stabilised(
    method: &Method,
    electrons: Electrons<&[f32]>,
    shape: &[usize],
    read_noise: Electrons<f32>,
    correlation: &Correlation,
) -> Result<Electrons<Vec<f32>>, RestoreError> {
    require_not_negative("the read noise", read_noise.0.into())?;
    let inverse = anscombe::Inverse::new(Electrons(read_noise.0.into()))?;
    Frame::new(electrons.0, shape)?;
    let noise = Noise { deviation: 1.0, correlation: *correlation };
    let denoised = method.run(&stabilise(electrons, read_noise)?, shape, noise)?;
    Ok(Electrons(denoised.par_iter().map(|&d| inverse.mean(d.into()) as f32).collect()))
}

/// The variance-stabilised electrons that [`stabilised`] passes to a method, with unit noise.
///
/// # Errors
/// If the read noise is negative.
pub fn stabilise(electrons: Electrons<&[f32]>, read_noise: Electrons<f32>) -> Result<Vec<f32>, RestoreError> {
    let sigma = f64::from(read_noise.0);
    require_not_negative("the read noise", sigma)?;
    Ok(electrons.0.par_iter().map(|&y| anscombe::forward(y.into(), sigma * sigma) as f32).collect())
}
