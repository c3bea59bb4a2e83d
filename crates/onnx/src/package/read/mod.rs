//! Packages of the BioImage Model Zoo made by others, as folders or zip archives, formats 0.4 and 0.5; and plain ONNX
//! files.
//!
//! The description of a package defines how pixels are converted to the input of its network and back ([`Step`]), which
//! axes and sizes it takes, and has a test: an input and the expected output. Only the operators of the network are ever
//! run, and no file outside the package is read. Networks are read from ONNX, or built from the architecture that PyTorch
//! weights belong to ([`architecture`]).

mod architecture;
mod description;
mod step;
mod store;

pub use architecture::StateNetwork;
pub use description::{AxisKind, AxisSize, DescribedAxis, DescribedTensor};
pub use step::Step;

use crate::error::{ImportError, PackageError};
use crate::file::OnnxDim;
use crate::import::single_input;
use crate::network::OnnxNetwork;
use clearshot_config::Tree;
use clearshot_image::archive::npy_array;
use clearshot_tensor::{MAX_RANK, Shape, Tensor};
use description::{DescribedWeights, Description, TestFile};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use store::Store;

/// Bytes of a description, of a test's array and of weights, at most.
const MOST_TEXT: u64 = 4 << 20;
const MOST_TEST: u64 = 1 << 30;
const MOST_WEIGHTS: u64 = 2 << 30;

/// Where a package's network comes from.
pub enum PackageNetwork {
    Onnx(OnnxNetwork),
    State(StateNetwork),
}

/// A network with what a program has to know to run it on images.
pub struct Package {
    pub path: PathBuf,
    pub name: String,
    pub network: PackageNetwork,
    pub input: DescribedTensor,
    pub output: DescribedTensor,
    /// An input and the output that belongs to it, as the file has their axes.
    pub test: Option<[Tensor; 2]>,
    /// SHA-256 of the network's file.
    pub hash: String,
}

impl Package {
    /// Whether a path is one that [`Package::open`] is for: an ONNX file, or a package as folder, archive or description.
    pub fn is_one(path: &Path) -> bool {
        Store::find(path).is_some() || is_onnx_file(path)
    }

    /// # Errors
    /// If it cannot be read, is damaged, or needs what is not supported: what, and where.
    pub fn open(path: &Path) -> Result<Package, PackageError> {
        let wrong = |why: String| {
            // Some errors name the file already.
            let own = format!("{}: ", path.display());
            let why = why.strip_prefix(&own).map_or(why.clone(), str::to_string);
            PackageError::Wrong { path: path.into(), why }
        };
        let Some(store) = Store::find(path) else { return Package::bare(path) };
        let store = store.map_err(wrong)?;
        let text = store.read(&store.description, MOST_TEXT).map_err(wrong)?;
        let text = String::from_utf8(text).map_err(|_| wrong("the description is not text".into()))?;
        let tree = Tree::parse(&text, &store.description).map_err(|e| wrong(e.to_string()))?;
        let tree = tree.read().map_err(|e| wrong(e.to_string()))?;
        let Description { name, weights, input, output, test } =
            Description::of(&tree).map_err(|why| wrong(format!("{}: {why}", store.description)))?;
        let DescribedWeights { source, hash, architecture } = weights;
        let bytes = store.read(&source, MOST_WEIGHTS).map_err(wrong)?;
        let found = hex(&Sha256::digest(&bytes));
        if let Some(hash) = hash.filter(|h| *h != found) {
            return Err(wrong(format!(
                "{source} has the SHA-256 {found}, and the description says {hash}: it was changed or is damaged"
            )));
        }
        let network = match &architecture {
            None => PackageNetwork::Onnx(store.network(&source, bytes).map_err(wrong)?),
            Some(architecture) => {
                if architecture.is_in_a_file() && test.is_none() {
                    return Err(wrong(format!(
                        "its architecture is {}, of which nothing but the name is known, and it has no test that could show that the network is the one of this name",
                        architecture.name()
                    )));
                }
                let network = StateNetwork::of(architecture, &source, &bytes).map_err(wrong)?;
                fits(&network, &input).map_err(wrong)?;
                PackageNetwork::State(network)
            }
        };
        let array = |file: &TestFile| -> Result<Tensor, PackageError> {
            let bytes = store.read(&file.source, MOST_TEST).map_err(wrong)?;
            let image = npy_array(Path::new(&file.source), bytes)?;
            let shape = image.shape();
            if shape.len() > MAX_RANK {
                return Err(wrong(format!("{} has {} axes", file.source, shape.len())));
            }
            Ok(Tensor::f32(Shape::new(&shape), image.read_f32(&image.whole())?))
        };
        let test = match &test {
            Some([given, made]) => Some([array(given)?, array(made)?]),
            None => None,
        };
        Ok(Package { path: path.into(), name, network, input, output, test, hash: found })
    }

    /// An ONNX file by itself: images of N, C, (Z,) Y, X go in and come out, and nothing is done to pixels.
    fn bare(path: &Path) -> Result<Package, PackageError> {
        let wrong = |why: String| PackageError::Wrong { path: path.into(), why };
        let network = OnnxNetwork::open(path)?;
        let (input, output) = {
            let model = network.model()?;
            let (input, output) = single_input(&model).map_err(wrong)?;
            let kinds: &[AxisKind] = match input.dims.as_ref().map(Vec::len) {
                Some(4) => &[AxisKind::Batch, AxisKind::Channel, AxisKind::Y, AxisKind::X],
                Some(5) => &[AxisKind::Batch, AxisKind::Channel, AxisKind::Z, AxisKind::Y, AxisKind::X],
                _ => {
                    return Err(wrong(format!(
                        "input `{}` has the sizes {:?}; four (batch, channels, Y, X) or five axes are an image's: give a safetensors file to `clearshot predict`",
                        input.name, input.dims
                    )));
                }
            };
            let size = |dim: &OnnxDim<'_>| match dim.fixed() {
                Some(n) if n > 0 => AxisSize::Fixed(n),
                _ => AxisSize::Open { least: 1, step: 1 },
            };
            let dims = input.dims.as_deref().unwrap_or_default();
            let axis = |(kind, dim): (&AxisKind, &OnnxDim<'_>)| DescribedAxis {
                kind: kind.clone(),
                size: size(dim),
                halo: None,
            };
            let axes: Vec<DescribedAxis> = kinds.iter().zip(dims).map(axis).collect();
            let made = kinds.iter().map(|kind| DescribedAxis {
                kind: kind.clone(),
                size: AxisSize::Unknown,
                halo: None,
            });
            (
                DescribedTensor { name: input.name.into(), axes, steps: vec![] },
                DescribedTensor { name: output.name.into(), axes: made.collect(), steps: vec![] },
            )
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let hash = hex(&Sha256::digest(network.bytes()));
        Ok(Package {
            path: path.into(),
            name,
            network: PackageNetwork::Onnx(network),
            input,
            output,
            test: None,
            hash,
        })
    }

    /// Axes of space: 2 or 3.
    pub fn dims(&self) -> usize {
        self.input.axes.iter().filter(|a| a.kind.is_space()).count()
    }

    /// The network for one image of this size along (Z,) Y and X, `samples` of them at once.
    ///
    /// # Errors
    /// If the network does not take it.
    pub fn import(&self, samples: usize, size: &[usize]) -> Result<crate::import::Imported, ImportError> {
        let network = match &self.network {
            PackageNetwork::Onnx(network) => network,
            PackageNetwork::State(network) => {
                let wrong = |why| ImportError::Graph(format!("{}: {why}", self.path.display()));
                return network.import(samples, size).map_err(wrong);
            }
        };
        let model = network.model()?;
        let (input, _) = single_input(&model).map_err(ImportError::Graph)?;
        let dims = input.dims.as_deref().unwrap_or_default();
        let has = |kind: &&AxisKind| self.input.axes.iter().any(|a| a.kind == **kind);
        let along = |kind: &AxisKind| {
            let place = AxisKind::SPACE.iter().filter(has).position(|k| k == kind);
            place.and_then(|i| size.get(i)).copied().unwrap_or(1)
        };
        let sizes = self.input.axes.iter().enumerate().map(|(i, axis)| {
            let own = dims.get(i).and_then(OnnxDim::fixed).filter(|n| *n > 0);
            match (&axis.kind, &axis.size) {
                (AxisKind::Batch, _) => own.unwrap_or(samples),
                (kind, _) if kind.is_space() => along(kind),
                (_, AxisSize::Fixed(n)) => *n,
                _ => own.unwrap_or(1),
            }
        });
        let sizes = [(input.name.to_string(), sizes.collect())].into_iter().collect();
        network.import(&sizes)
    }
}

/// Whether a description has the axes that networks of PyTorch take.
fn fits(network: &StateNetwork, input: &DescribedTensor) -> Result<(), String> {
    use AxisKind::{Batch, Channel, X, Y, Z};
    let wanted: &[AxisKind] =
        if network.dims() == 2 { &[Batch, Channel, Y, X] } else { &[Batch, Channel, Z, Y, X] };
    let kinds: Vec<AxisKind> = input.axes.iter().map(|a| a.kind.clone()).collect();
    if kinds == wanted {
        return Ok(());
    }
    Err(format!("`{}` has the axes {kinds:?}, and its network takes {wanted:?}", input.name))
}

fn is_onnx_file(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx")) && path.is_file()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
