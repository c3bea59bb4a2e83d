//! Cameras measured from image files: frames along an axis or in several files, read so that they fit in memory, and
//! measured by [`clearshot_physics::calibration`]. [`file`] saves a camera.

pub mod file;

use crate::estimate::{EstimateError, check_largest};
use crate::stream::StreamError;
use clearshot_image::grid::indices;
use clearshot_image::{Axis, Description, Image};
use clearshot_physics::Adu;
use clearshot_physics::calibration::blind::Known;
use clearshot_physics::calibration::flats::{Darkness, from_flat_fields};
use clearshot_physics::calibration::measurement::CameraMeasurement;
use clearshot_physics::calibration::repeats::Series;
use clearshot_physics::calibration::{movie, repeats};
use std::ops::Range;
use std::path::PathBuf;

/// Pixels of a frame along a side, at most, and values of all frames together.
const SIDE: usize = 1024;
const MOST_VALUES: usize = 1 << 24;

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum CameraError {
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    #[error("{}: axes {axes}: {needed}", path.display())]
    Axes { path: PathBuf, axes: String, needed: String },
    #[error("{what}: {source}")]
    Physics { what: &'static str, source: clearshot_physics::PhysicsError },
}

impl From<StreamError> for CameraError {
    fn from(e: StreamError) -> CameraError {
        CameraError::Estimate(e.into())
    }
}

/// Frames in memory: series (one for each plane of a file with several), frames, pixels.
pub struct Stack {
    series: Vec<Vec<Vec<f32>>>,
    shape: [usize; 2],
}

/// How the frames of files are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// All frames of all files show one scene.
    All,
    /// Each file is a series, unless it has one frame: then all files are one series.
    EachFile,
}

impl Stack {
    /// Reads the frames of files along an axis. Default: T, or the unnamed axis.
    ///
    /// # Errors
    /// If a file cannot be read, lacks a required axis, has another size, or has values that 32-bit floats cannot
    /// represent.
    pub fn read(images: &[Image], axis: Option<Axis>, together: Together) -> Result<Stack, CameraError> {
        let cuts: Vec<Cut> =
            images.iter().map(|i| Cut::of(&i.description, axis)).collect::<Result<_, _>>()?;
        let Some(first) = cuts.first() else { return Ok(Stack { series: vec![], shape: [0; 2] }) };
        let (size, planes) = (first.size, first.planes.len());
        for (cut, image) in cuts.iter().zip(images) {
            if cut.size != size || cut.planes.len() != planes {
                let path = image.description.path.clone();
                let needed = format!(
                    "frames of {} x {} pixels are needed, as in {}",
                    size[0],
                    size[1],
                    images[0].description.path.display()
                );
                return Err(CameraError::Axes { path, axes: image.description.axes(), needed });
            }
        }
        let frames: usize = cuts.iter().map(|c| c.frames).sum();
        if frames < 2 {
            let path = images[0].description.path.clone();
            let letters = axis.map_or("T".into(), |a| a.letter().to_string());
            let needed = format!(
                "two frames are needed; name several files, or the axis along which the frames lie by --axis (looked for: {letters})"
            );
            return Err(CameraError::Axes { path, axes: images[0].description.axes(), needed });
        }
        images.iter().try_for_each(Image::check_single)?;
        let side = size.map(|n| n.min(SIDE));
        let most = (MOST_VALUES / (side[0] * side[1] * planes)).max(2);
        let apart = together == Together::EachFile && cuts.iter().all(|c| c.frames > 1);
        let mut series: Vec<Vec<Vec<f32>>> = Vec::new();
        if !apart {
            series.resize(planes, vec![]);
        }
        let each = if apart { (most / images.len()).max(2) } else { most };
        let mut number = 0;
        for (cut, image) in cuts.iter().zip(images) {
            if apart {
                series.extend(vec![vec![]; planes]);
            }
            let start = series.len() - planes;
            for frame in 0..cut.frames {
                // Of too many frames, neighbouring ones from the middle where their order counts, else evenly spread ones.
                let total = if apart { cut.frames } else { frames };
                let at = if apart { frame } else { number };
                number += 1;
                let taken = match together {
                    _ if total <= each => true,
                    Together::EachFile => ((total - each) / 2..(total + each) / 2).contains(&at),
                    Together::All => (at + 1) * each / total > at * each / total,
                };
                if taken {
                    for (plane, place) in cut.planes.iter().enumerate() {
                        let values = image.read_f32(&cut.region(frame, place, side))?;
                        check_largest(&values)?;
                        series[start + plane].push(values);
                    }
                }
            }
        }
        Ok(Stack { series, shape: side })
    }

    fn views(&self) -> Vec<Series<'_>> {
        self.series.iter().map(|s| s.iter().map(|f| Adu(&f[..])).collect()).collect()
    }

    /// # Errors
    /// If the frames do not determine their noise.
    pub fn as_repeats(&self, known: &Known) -> Result<CameraMeasurement, CameraError> {
        let told = repeats::from_series(&self.views(), self.shape, known);
        told.map_err(|source| CameraError::Physics { what: "repeats do not determine the camera", source })
    }

    /// # Errors
    /// If the frames do not determine their noise.
    pub fn as_movie(&self, known: &Known) -> Result<CameraMeasurement, CameraError> {
        let told = movie::from_movies(&self.views(), self.shape, known);
        told.map_err(|source| CameraError::Physics {
            what: "the movie does not determine the camera",
            source,
        })
    }

    /// # Errors
    /// If the frames do not determine offset and read noise.
    pub fn as_darks(&self) -> Result<Darkness, CameraError> {
        let frames: Series<'_> = self.views().concat();
        let told = Darkness::of(&frames, self.shape);
        told.map_err(|source| CameraError::Physics { what: "darks do not determine the read noise", source })
    }

    /// # Errors
    /// If the frames do not determine the gain.
    pub fn as_flats(&self, dark: Option<&Darkness>, known: &Known) -> Result<CameraMeasurement, CameraError> {
        let frames: Series<'_> = self.views().concat();
        let told = from_flat_fields(&frames, dark, self.shape, known);
        told.map_err(|source| CameraError::Physics { what: "flats do not determine the gain", source })
    }
}

/// How one file is cut into frames.
struct Cut {
    axis: Option<usize>,
    frames: usize,
    /// The two axes of a frame, and their lengths.
    inner: [usize; 2],
    size: [usize; 2],
    /// Positions along all other axes.
    planes: Vec<Vec<usize>>,
}

impl Cut {
    fn of(d: &Description, axis: Option<Axis>) -> Result<Cut, CameraError> {
        let refused = |needed: String| CameraError::Axes { path: d.path.clone(), axes: d.axes(), needed };
        let axis = match axis {
            Some(a) => Some(d.position(a).ok_or_else(|| {
                refused(format!("there is no axis {}; --axis names one of them", a.letter()))
            })?),
            None => d.position(Axis::T).or_else(|| d.position(Axis::Other(0))),
        };
        let rest: Vec<usize> = (0..d.dims.len()).filter(|a| Some(*a) != axis).collect();
        let named = [Axis::Y, Axis::X].map(|a| d.position(a).filter(|p| Some(*p) != axis));
        let inner = match (named, &rest[..]) {
            ([Some(y), Some(x)], _) if y < x => [y, x],
            (_, [.., y, x]) => [*y, *x],
            _ => return Err(refused("a frame needs two axes beside that of the frames".into())),
        };
        let shape = d.shape();
        let others: Vec<Range<usize>> = (0..shape.len())
            .map(|a| if inner.contains(&a) || Some(a) == axis { 0..1 } else { 0..shape[a] })
            .collect();
        let frames = axis.map_or(1, |a| shape[a]);
        Ok(Cut { axis, frames, inner, size: inner.map(|a| shape[a]), planes: indices(&others) })
    }

    /// The middle of a frame.
    fn region(&self, frame: usize, plane: &[usize], side: [usize; 2]) -> Vec<Range<usize>> {
        let mut region: Vec<Range<usize>> = plane.iter().map(|&p| p..p + 1).collect();
        if let Some(axis) = self.axis {
            region[axis] = frame..frame + 1;
        }
        for (k, &axis) in self.inner.iter().enumerate() {
            let start = (self.size[k] - side[k]) / 2;
            region[axis] = start..start + side[k];
        }
        region
    }
}
