//! Networks of other projects on whole images: an ONNX file, or a package of the BioImage Model Zoo.
//!
//! The preprocessing and postprocessing of a package are applied to whole images. The network runs on tiles, which are
//! laid out as for Clearshot models ([`crate::learned::layout`]): with a halo as wide as the package specifies or as
//! the receptive field, so that the result is that of one huge tile; or blended, if the receptive field is global.
//! Beyond the image border the padding of the network applies, as in its training; the image is continued by reflection
//! only if the network does not accept its size.

mod axes;
mod check;
mod cut;

pub use check::Checked;

use crate::learned::layout::Layout;
use axes::Axes;
use clearshot_graph::reach::{Reach, reach};
use clearshot_onnx::PackageError;
use clearshot_onnx::import::Imported;
use clearshot_onnx::package::read::Package;
use clearshot_runtime::{Arithmetic, CompileError, Device, Options, Precision, Session, ValueError};
use std::ops::ControlFlow;

/// Why such a network gives no result.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Value(#[from] ValueError),
    /// Its input or output is not an image, or it does not accept the image.
    #[error("{0}")]
    Unsuited(String),
    /// The test of the package fails.
    #[error("{0}")]
    Test(String),
    #[error("stopped")]
    Stopped,
}

fn unsuited<T>(why: impl Into<String>) -> Result<T, ForeignError> {
    Err(ForeignError::Unsuited(why.into()))
}

/// How a network is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The side of the core of a tile in pixels. Default: chosen by memory.
    pub tile: Option<usize>,
    /// Memory limit of the network in bytes. Default: 1 GiB.
    pub memory: Option<usize>,
    pub precision: Precision,
}

/// See the module.
pub struct Foreign {
    package: Package,
    device: Device,
    /// The axes of the network's input and output.
    axes: [Axes; 2],
    channels: usize,
    made: usize,
    /// How far it looks; none if at everything.
    reach: Option<Reach>,
    ready: Option<Ready>,
}

/// The network compiled for one size of tiles.
struct Ready {
    seen: Vec<usize>,
    precision: Precision,
    imported: Imported,
    session: Session,
}

impl Foreign {
    /// # Errors
    /// If the network does not have one image as input and one of the same size as output.
    pub fn new(package: Package, device: Device) -> Result<Foreign, ForeignError> {
        let axes = [Axes::of(&package.input)?, Axes::of(&package.output)?];
        let size = cut::probe(&package);
        let imported = cut::smallest(&package, &size)?;
        let (input, output) = (&imported.inputs[0], &imported.outputs[0]);
        let (seen, given) = (axes[0].space(&input.sizes), axes[1].space(&output.sizes));
        if output.sizes.len() != package.output.axes.len() || seen != given {
            return unsuited(format!(
                "{}: goes from sizes {:?} to {:?}; images are run through networks that keep their size: give `clearshot predict` a safetensors file",
                package.path.display(),
                input.sizes,
                output.sizes
            ));
        }
        let (channels, made) = (axes[0].channels(&input.sizes), axes[1].channels(&output.sizes));
        let reach = reach(&imported.graph, &input.name, &output.name);
        Ok(Foreign { package, device, axes, channels, made, reach, ready: None })
    }

    pub fn package(&self) -> &Package {
        &self.package
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same on another device.
    pub fn on(self, device: Device) -> Foreign {
        Foreign { device, ready: None, ..self }
    }

    /// The number of spatial axes: 2 or 3.
    pub fn dims(&self) -> usize {
        self.package.dims()
    }

    /// The number of input channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The number of output channels.
    pub fn made(&self) -> usize {
        self.made
    }

    /// Lays out tiles for images of a size and compiles the network for them.
    ///
    /// # Errors
    /// If no tiles fit.
    pub fn prepare(&mut self, size: &[usize], run: &Run) -> Result<Layout, ForeignError> {
        let (layout, imported) = self.cut(size, run)?;
        self.ready_for(layout.seen(), imported, run.precision)?;
        Ok(layout)
    }

    /// What the compiled network computes in; fp32 before it is compiled.
    pub fn computes_in(&self) -> Arithmetic {
        self.ready.as_ref().map_or(Arithmetic::F32, |r| r.session.arithmetic())
    }

    /// The memory of the compiled network in bytes.
    pub fn device_bytes(&self) -> usize {
        self.ready.as_ref().map_or(0, |r| r.session.plan().bytes())
    }

    fn ready_for(
        &mut self,
        seen: Vec<usize>,
        imported: Imported,
        precision: Precision,
    ) -> Result<(), ForeignError> {
        if self.ready.as_ref().is_some_and(|r| r.seen == seen && r.precision == precision) {
            return Ok(());
        }
        self.ready = None;
        let options = Options { precision, ..Options::default() };
        let mut session = clearshot_runtime::compile(imported.graph.clone(), &self.device, &options)?;
        imported.weights.iter().try_for_each(|(name, w)| session.set(name, w))?;
        self.ready = Some(Ready { seen, precision, imported, session });
        Ok(())
    }

    /// Runs the network on an image, channels last; `tell` receives the number of finished tiles and the total, and may
    /// stop the work.
    ///
    /// # Errors
    /// If the image is not of the layout's size, or `tell` stops it.
    pub fn run(
        &mut self,
        image: &[f32],
        layout: &Layout,
        tell: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ForeignError> {
        if image.len() != layout.pixels() * self.channels {
            return unsuited(format!("{} values for {} pixels", image.len(), layout.pixels()));
        }
        let (channels, made) = (self.channels, self.made);
        let step = |why: String| ForeignError::Unsuited(format!("{}: {why}", self.package.path.display()));
        let mut given = image.to_vec();
        for s in &self.package.input.steps {
            s.apply(&mut given, channels, None).map_err(step)?;
        }
        let mut out = vec![0.0; layout.pixels() * made];
        let (mut sees, mut tile) = (vec![], vec![]);
        let ready = self.ready.as_mut().filter(|r| r.seen == layout.seen());
        let Some(ready) = ready else { return unsuited("it was made ready for another size") };
        for number in 0..layout.count() {
            let place = layout.place(number);
            layout.sees(&place, &mut sees);
            tile.clear();
            sees.iter().for_each(|&p| tile.extend_from_slice(&given[p * channels..(p + 1) * channels]));
            let answer = ready.answer(&tile, &self.axes)?;
            layout.answers(&place, |to, from, weight| {
                let (to, from) =
                    (&mut out[to * made..(to + 1) * made], &answer[from * made..(from + 1) * made]);
                to.iter_mut().zip(from).for_each(|(t, f)| *t += weight * f);
            });
            if tell(number + 1, layout.count()).is_break() {
                return Err(ForeignError::Stopped);
            }
        }
        for s in &self.package.output.steps {
            s.apply(&mut out, made, Some((image, channels))).map_err(step)?;
        }
        Ok(out)
    }
}

impl Ready {
    /// What the network makes of tiles, or of whole images: values channels last, one after the other.
    fn answer(&mut self, values: &[f32], axes: &[Axes; 2]) -> Result<Vec<f32>, ForeignError> {
        let (input, output) = (&self.imported.inputs[0], &self.imported.outputs[0]);
        let tensor = axes[0].to_file(values, &input.sizes);
        let tensor = if input.is_image() { tensor.channels_last() } else { tensor };
        self.session.set(&input.name, &tensor)?;
        self.session.run()?;
        let made = self.session.get(&output.name)?;
        let made = if output.is_image() { made.channels_second() } else { made };
        Ok(axes[1].of_file(&made))
    }
}
