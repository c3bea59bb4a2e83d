//! `clearshot predict`: a network that others trained on an image, as `restore --model` runs it, or on tensors of any shape.

use crate::network::ComputeArgs;
use crate::voice::{Style, Voice};
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot::{Restorer, Settings, restore_file};
use clearshot_onnx::OnnxNetwork;
use clearshot_onnx::import::ImportedPort;
use clearshot_runtime::{Device, Options};
use clearshot_tensor::store::Store;
use clearshot_tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Args)]
pub struct Predict {
    /// Run this network: an ONNX file, or a BioImage Model Zoo package as folder or zip.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Read this image, or a safetensors file with a tensor for each of the network's inputs.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Write the result here: an image of 32-bit floats, or the network's outputs as a safetensors file.
    #[arg(long, short, value_name = "OUT")]
    out: PathBuf,
    /// Keep this many pixels of each tile of an image along each side. Default: chosen by memory.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    tile: Option<u32>,
    /// Replace an existing file.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

impl Predict {
    pub fn run(self) -> Result<()> {
        let device = self.compute.device()?;
        match self.input.extension() {
            Some(e) if e == "safetensors" => self.tensors(&device),
            _ => self.image(device),
        }
    }

    fn tensors(&self, device: &Device) -> Result<()> {
        if self.out.exists() && !self.replace {
            bail!("{}: exists already; --replace replaces it", self.out.display());
        }
        let given = Store::read(&self.input).with_context(|| self.input.display().to_string())?.tensors;
        let sizes = given.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
        let imported = OnnxNetwork::open(&self.model)?.import(&sizes)?;
        let options = Options { precision: self.compute.precision, ..Options::default() };
        let mut session = clearshot_runtime::compile(imported.graph.clone(), device, &options)?;
        imported.weights.iter().try_for_each(|(name, w)| session.set(name, w))?;
        for port in &imported.inputs {
            let tensor = given.get(&port.name).with_context(|| format!("no tensor `{}`", port.name))?;
            session.set(&port.name, &as_input(tensor, port))?;
        }
        session.run()?;
        let mut tensors = BTreeMap::new();
        for port in &imported.outputs {
            let tensor = session.get(&port.name)?;
            let tensor = if port.is_image() { tensor.channels_second() } else { tensor };
            tensors.insert(port.name.clone(), tensor);
        }
        Ok(Store { tensors, metadata: BTreeMap::new() }.write(&self.out)?)
    }

    fn image(&self, device: Device) -> Result<()> {
        let restorer = Restorer::load_on(&self.model, device)?;
        let settings = Settings {
            tile: self.tile.map(|side| side as usize),
            precision: self.compute.precision,
            replace: self.replace,
            ..Settings::default()
        };
        let mut voice = Voice::new(Style::Streamed, false, false);
        voice.begin(self.input.display().to_string(), &self.input);
        let outcome = restore_file(&self.input, &self.out, &restorer, &settings, &mut voice);
        voice.end(outcome).map(|_| ())
    }
}

/// A tensor of the file's axes as the graph has it.
fn as_input(tensor: &Tensor, port: &ImportedPort) -> Tensor {
    let tensor = if port.is_image() { tensor.channels_last() } else { tensor.clone() };
    match port.dtype {
        DType::I32 => Tensor::i32(tensor.shape(), tensor.to_f64().into_iter().map(|v| v as i32).collect()),
        _ => tensor.to_f32(),
    }
}
