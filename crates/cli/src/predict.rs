//! `clearshot predict`: runs a network on images, like `restore --model`: labels, classes or probabilities of
//! segmentation models, images of restoration models and networks of other projects, tables of embeddings of encoders;
//! or outputs of such networks for tensors of any shape.

use crate::network::ComputeArgs;
use crate::outputs::{self, Walk};
use crate::part::PartArgs;
use crate::voice::{Style, Voice};
use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clearshot::{Embedder, Restorer, Segments, Settings, restore_file};
use clearshot_onnx::OnnxNetwork;
use clearshot_onnx::import::ImportedPort;
use clearshot_runtime::{Device, Options};
use clearshot_tensor::store::Store;
use clearshot_tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Predict {
    /// Read these images: files, folders, glob patterns or Zarr addresses; or one safetensors file with a tensor for each input of an ONNX network.
    /// Without --model, the first is the model.
    #[arg(required = true, value_name = "IMAGES")]
    inputs: Vec<String>,
    /// Run this model: a file NAME.clearshot, a folder or checkpoint (of `train experiment=segmentation`, `instances` or `superres`, for example),
    /// an ONNX file, a BioImage Model Zoo package as folder or zip, or `default`, the built-in model.
    #[arg(long, short)]
    model: Option<PathBuf>,
    /// Write to this file, whose extension sets the format; for several images, to this folder; tensors to a safetensors file. NAME.csv is a table of
    /// the embeddings of an encoder, one row for each plane or volume.
    #[arg(long, short, alias = "output", value_name = "OUT")]
    out: PathBuf,
    /// Write a segmentation as `labels`, objects numbered from 1; `classes`, the class of each pixel; or `probabilities`, as 32-bit floats, one
    /// channel for each class if there are several. Default: labels.
    #[arg(long, value_parser = PossibleValuesParser::new(Segments::ALL.map(|(name, _)| name)))]
    segments: Option<String>,
    /// Use this image of files that contain several, by name or number. Default: all images.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Set what the axes of the files are, one letter each in the file's order: TYX for a movie, ZYX for a stack. Default: as stated in the file.
    #[arg(long, value_name = "LETTERS")]
    axes: Option<String>,
    /// Set the side of the part of a tile that is kept, in pixels; for networks that use whole tiles, the side of the tiles. Default: chosen by
    /// memory, or as the network was trained.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    tile: Option<u32>,
    /// Run this many tiles at once. Default: enough to keep the device busy.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Write images as 32-bit floats. Default: the input's pixel type; networks of ONNX and probabilities are always floats.
    #[arg(long)]
    float: bool,
    /// Replace existing files. Default: results of the same image and the same model are kept as they are; any other existing file is an error.
    #[arg(long, alias = "replace")]
    force: bool,
    #[command(flatten)]
    part: PartArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print one line of JSON for each file. Default: text.
    #[arg(long)]
    json: bool,
}

impl Predict {
    pub fn run(self) -> Result<()> {
        let (model, inputs) = match (&self.model, &self.inputs[..]) {
            (Some(model), inputs) => (model.clone(), inputs),
            (None, [model, inputs @ ..]) if !inputs.is_empty() => (PathBuf::from(model), inputs),
            _ => bail!("no model is given: use --model M, as in `clearshot predict IMAGES -o OUT --model M`"),
        };
        let device = self.compute.device()?;
        if self.out.extension().is_some_and(|ending| ending == "csv") {
            return self.table(&model, inputs, device);
        }
        match inputs {
            [one] if one.ends_with(".safetensors") => self.tensors(&model, Path::new(one), &device),
            _ => self.images(&model, inputs, device),
        }
    }

    fn tensors(&self, model: &Path, input: &Path, device: &Device) -> Result<()> {
        if self.out.exists() && !self.force {
            bail!("{}: exists already; --force replaces it", self.out.display());
        }
        let given = Store::read(input).with_context(|| input.display().to_string())?.tensors;
        let sizes = given.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
        let imported = OnnxNetwork::open(model)?.import(&sizes)?;
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

    /// Embeddings of images, a row for each plane or volume.
    fn table(&self, model: &Path, inputs: &[String], device: Device) -> Result<()> {
        if self.out.exists() && !self.force {
            bail!("{}: exists already; --force replaces it", self.out.display());
        }
        let mut embedder = Embedder::load_on(model, device)?;
        let settings = Settings { item: self.item.clone(), axes: self.axes.clone(), ..Settings::default() };
        let numbers: Vec<String> = (0..embedder.width()).map(|i| format!("e{i}")).collect();
        let mut text = format!("file,image,part,{}\n", numbers.join(","));
        let mut count = 0;
        for source in inputs {
            for path in outputs::listed(source)? {
                for row in embedder.file(&path, &settings)? {
                    let values: Vec<String> = row.numbers.iter().map(f32::to_string).collect();
                    let file = quoted(&path.display().to_string());
                    text += &format!("{file},{},{},{}\n", quoted(&row.item), row.part, values.join(","));
                    count += 1;
                }
            }
        }
        clearshot_tensor::store::write_whole(&self.out, text.as_bytes())
            .with_context(|| self.out.display().to_string())?;
        match self.json {
            true => println!(
                "{}",
                serde_json::json!({ "output": self.out, "rows": count, "numbers": numbers.len() })
            ),
            false => println!("{}: {count} rows of {} numbers", self.out.display(), numbers.len()),
        }
        Ok(())
    }

    fn images(&self, model: &Path, inputs: &[String], device: Device) -> Result<()> {
        let mut restorer = Restorer::load_on(model, device)?;
        let named = |name: &String| Segments::ALL.iter().find(|(n, _)| n == name).map(|(_, s)| *s);
        if let Some(segments) = self.segments.as_ref().and_then(named) {
            restorer = restorer.giving(segments)?;
        }
        let settings = Settings {
            item: self.item.clone(),
            axes: self.axes.clone(),
            tile: self.tile.map(|side| side as usize),
            batch: self.batch.map(|b| b as usize),
            precision: self.compute.precision,
            float: self.float,
            replace: self.force,
            ..Settings::default()
        };
        restorer.check(&settings)?;
        let pairs = outputs::pairs(inputs, &self.out, None)?;
        let jobs = self.part.open(&pairs, &self.out, &restorer.work(&settings)?)?;
        let mut voice = Voice::new(Style::Streamed, self.json, false);
        let walk = Walk { jobs, pairs: &pairs, replace: self.force, json: self.json, done: "predicted" };
        walk.each(|turn| {
            voice.begin(turn.name, turn.input);
            let settings = Settings { replace: turn.replace, ..settings.clone() };
            let outcome = restore_file(turn.input, turn.output, &restorer, &settings, &mut voice);
            voice.end(outcome).map(|_| ())
        })
    }
}

/// A field of a table, in quotes where it holds what tells fields apart.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.into(),
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
