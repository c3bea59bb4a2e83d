//! `clearshot predict`: a network of an ONNX file on an image, in tiles that overlap, or on tensors of any shape.

use crate::theirs::Theirs;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_graph::reach::reach;
use clearshot_image::tiles::{Edge, Stitcher, Tile, TileSpec, Tiling, Window};
use clearshot_image::{Axis, DType, Image, Provenance, WriteOptions, Writer};
use clearshot_onnx::import::Imported;
use clearshot_runtime::{Device, DeviceName, Options, Precision, Session};
use clearshot_tensor::store::Store;
use clearshot_tensor::{MAX_RANK, Shape, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Predict {
    /// Run this network.
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Read this image, or a safetensors file with a tensor for each of the network's inputs.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Write the result here: an image of 32-bit floats, or the network's outputs as a safetensors file.
    #[arg(long, short, value_name = "OUT")]
    out: PathBuf,
    /// Cut images into tiles of this many pixels along each side. Default: 256, or what the file says.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    tile: u32,
    /// Replace an existing file.
    #[arg(long)]
    replace: bool,
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
    /// Compute in fp32, tf32, bf16, fp16, or auto, which is the fastest that is safe on the device.
    #[arg(long, default_value = "auto")]
    precision: Precision,
    /// Use this many threads of the CPU. Default: as many as the machine runs at once.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// A network that is ready to run.
struct Ready {
    imported: Imported,
    session: Session,
}

impl Predict {
    pub fn run(self) -> Result<()> {
        let theirs = Theirs::read(&self.model)?;
        let device = self.device.device(self.threads.map(usize::from))?;
        match self.input.extension() {
            Some(e) if e == "safetensors" => self.tensors(&theirs, &device),
            _ => self.image(&theirs, &device),
        }
    }

    fn ready(&self, imported: Imported, device: &Device) -> Result<Ready> {
        let options = Options { precision: self.precision, ..Options::default() };
        let mut session = clearshot_runtime::compile(imported.graph.clone(), device, &options)?;
        imported.weights.iter().try_for_each(|(name, w)| session.set(name, w))?;
        Ok(Ready { imported, session })
    }

    fn tensors(&self, theirs: &Theirs, device: &Device) -> Result<()> {
        if self.out.exists() && !self.replace {
            bail!("{}: exists already; --replace replaces it", self.out.display());
        }
        let given = Store::read(&self.input).with_context(|| self.input.display().to_string())?.tensors;
        let sizes = given.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
        let mut ready = self.ready(theirs.import(&sizes)?, device)?;
        for port in &ready.imported.inputs {
            let tensor = given.get(&port.name).with_context(|| format!("no tensor `{}`", port.name))?;
            let tensor = if port.is_image() { tensor.channels_last() } else { tensor.clone() };
            let tensor = match port.dtype {
                clearshot_tensor::DType::I32 => {
                    let values = tensor.to_f64().into_iter().map(|v| v as i32).collect();
                    Tensor::i32(tensor.shape(), values)
                }
                _ => tensor.to_f32(),
            };
            ready.session.set(&port.name, &tensor)?;
        }
        ready.session.run()?;
        let mut tensors = BTreeMap::new();
        for port in &ready.imported.outputs {
            let tensor = ready.session.get(&port.name)?;
            let tensor = if port.is_image() { tensor.channels_second() } else { tensor };
            tensors.insert(port.name.clone(), tensor);
        }
        Ok(Store { tensors, metadata: BTreeMap::new() }.write(&self.out)?)
    }

    fn image(&self, theirs: &Theirs, device: &Device) -> Result<()> {
        let image = Image::open(&self.input)?;
        let side = self.tile as usize;
        let imported = theirs.import_for(1, &[side; 3])?;
        let cut = Cut::new(&imported, &image, &self.model)?;
        let mut ready = self.ready(imported, device)?;
        let mut description = image.description.clone();
        description.dtype = DType::F32;
        let settings =
            serde_json::json!({ "model": self.model, "tile": cut.spec.tile, "overlap": cut.spec.overlap });
        let provenance = Provenance::new("predict", &image.description, settings).value();
        let options = WriteOptions { replace: self.replace, provenance: Some(provenance) };
        let mut writer = Writer::create(&self.out, &description, &options)?;
        let tiling = Tiling::new(&image.shape(), &cut.spec)?;
        let mut stitcher = Stitcher::new(&tiling);
        for tile in tiling.tiles() {
            let values = cut.answer(&mut ready.session, &tiling, &image, &tile)?;
            stitcher.add(&tile, &values, &mut |region, values| {
                let bytes: Vec<u8> = values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect();
                writer.write(region, &bytes)
            })?;
        }
        Ok(writer.finish()?)
    }
}

/// How an image is cut for a network, and which of its axes are which of the network's.
struct Cut {
    spec: TileSpec,
    input: String,
    output: String,
    /// The graph's shape of the input: one image, channels last.
    shape: Shape,
    /// Where channels are among the image's axes; none where it has one channel.
    channel: Option<usize>,
}

/// The part of a tile that overlaps where a network looks at everything.
const SHARE: usize = 4;

impl Cut {
    fn new(imported: &Imported, image: &Image, model: &Path) -> Result<Cut> {
        let wrong = |what: String| anyhow::anyhow!("{}: {what}", model.display());
        let ([input], Some(output)) = (&imported.inputs[..], imported.outputs.first()) else {
            let names: Vec<&str> = imported.inputs.iter().map(|p| p.name.as_str()).collect();
            return Err(wrong(format!(
                "takes {}; an image is enough for networks of one input only: give a safetensors file",
                names.join(", ")
            )));
        };
        if !input.is_image() || input.sizes != output.sizes || input.sizes[0] != 1 {
            return Err(wrong(format!(
                "goes from sizes {:?} to {:?}; images are run through networks that keep their size and channels, one at a time: give a safetensors file",
                input.sizes, output.sizes
            )));
        }
        let dims = input.sizes.len() - 2;
        let channels = input.sizes[1];
        let axes: Vec<Axis> = image.description.dims.iter().map(|d| d.axis).collect();
        let space = if dims == 2 { vec![Axis::Y, Axis::X] } else { vec![Axis::Z, Axis::Y, Axis::X] };
        let channel = axes.iter().position(|a| *a == Axis::C);
        let here = channel.map_or(1, |at| image.shape()[at]);
        if axes.len() > MAX_RANK
            || space.iter().any(|a| !axes.contains(a))
            || (channels > 1 && here != channels)
        {
            return Err(wrong(format!(
                "takes {dims} spatial axes and {channels} channels; {} has axes {} of {:?}",
                image.description.path.display(),
                image.description.axes(),
                image.shape()
            )));
        }
        let near = reach(&imported.graph, &input.name, &output.name);
        let (mut tile, mut overlap) = (vec![1; axes.len()], vec![0; axes.len()]);
        for (i, axis) in space.iter().enumerate() {
            let at = axes.iter().position(|a| a == axis).unwrap_or(i);
            tile[at] = input.sizes[2 + i];
            let wanted = near.as_ref().map_or(tile[at] / SHARE, |r| 2 * r.radius[3 - dims + i]);
            overlap[at] = wanted.min(tile[at] / 2);
        }
        if channels > 1 {
            tile[channel.unwrap_or(0)] = channels;
        }
        let spec = TileSpec { tile, overlap, edge: Edge::Shift, window: Window::Cosine };
        let memory: Vec<usize> =
            [1].into_iter().chain(input.sizes[2..].iter().copied()).chain([channels]).collect();
        let channel = channel.filter(|_| channels > 1);
        Ok(Cut {
            spec,
            input: input.name.clone(),
            output: output.name.clone(),
            shape: Shape::new(&memory),
            channel,
        })
    }

    fn answer(&self, session: &mut Session, tiling: &Tiling, image: &Image, tile: &Tile) -> Result<Vec<f64>> {
        let values: Vec<f32> = tiling.read(image, tile)?.into_iter().map(|v| v as f32).collect();
        let stored = Shape::new(&self.spec.tile);
        // Channels go last, and come back to where they were.
        let order: Vec<usize> = match self.channel {
            Some(at) => (0..stored.rank()).filter(|a| *a != at).chain([at]).collect(),
            None => (0..stored.rank()).collect(),
        };
        let last = Tensor::f32(stored, values).permuted(&order);
        let moved = last.shape();
        session.set(&self.input, &last.reshaped(self.shape)?)?;
        session.run()?;
        let made = session.get(&self.output)?.reshaped(moved)?;
        let back: Vec<usize> =
            (0..order.len()).map(|a| order.iter().position(|o| *o == a).unwrap_or(a)).collect();
        Ok(made.permuted(&back).to_f64())
    }
}
