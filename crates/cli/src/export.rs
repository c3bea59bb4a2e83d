//! `clearshot export`: writes a model as an ONNX file, or as a package of the BioImage Model Zoo.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_model::Model;
use clearshot_onnx::export::{self, Dim, Exported, Port, Settings};
use clearshot_onnx::package::{self, Card};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Export {
    /// Export this model: a file NAME.clearshot, a folder saved by diffusers, or `default`, the built-in model.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Write this ONNX file. Default: none, if --bioimageio is given.
    #[arg(long, short, alias = "output", value_name = "FILE.onnx", required_unless_present = "bioimageio")]
    out: Option<PathBuf>,
    /// Write a BioImage Model Zoo package to this folder, which must be new or empty; every camera number must be given with --set. Default: none.
    #[arg(long, value_name = "FOLDER", requires = "author")]
    bioimageio: Option<PathBuf>,
    /// Name an author of the package; may be given several times. Default: none.
    #[arg(long, value_name = "NAME")]
    author: Vec<String>,
    /// Set the package's licence, as an SPDX identifier.
    #[arg(long, value_name = "LICENCE", default_value = "MIT")]
    licence: String,
    /// Fix the size of images, (Z,) Y, X, for example 256,256. Default: any size that the network accepts.
    #[arg(long, value_delimiter = ',', value_name = "SIZES", value_parser = clap::value_parser!(u32).range(1..))]
    size: Vec<u32>,
    /// Make a camera number a constant instead of an input, for example gain=0.46, for gain, offset, read_noise, background, peak and
    /// noise_correlation (four values). May be given several times. Default: every number is an input.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = number)]
    fixed: Vec<(String, Vec<f32>)>,
    /// Export a diffusion model as a single evaluation of the measurement alone, at its highest noise level with x = 0. Default: x and its noise
    /// level are inputs, and the file is one step of a sampler.
    #[arg(long)]
    direct: bool,
    /// Print one JSON object. Default: a table.
    #[arg(long)]
    json: bool,
}

/// `name=1,2,3`.
fn number(text: &str) -> Result<(String, Vec<f32>), String> {
    let (name, values) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let value = |v: &str| v.trim().parse().map_err(|_| format!("{name}: `{v}` is not a number"));
    Ok((name.trim().into(), values.split(',').map(value).collect::<Result<_, _>>()?))
}

impl Export {
    pub fn run(self) -> Result<()> {
        let model = Model::load(&self.model)?;
        let size: Vec<usize> = self.size.iter().map(|&n| n as usize).collect();
        if !size.is_empty() && size.len() != model.about.dims {
            bail!("--size {size:?}: this model takes images of {} axes", model.about.dims);
        }
        let settings = Settings {
            size: (!size.is_empty()).then_some(size),
            fixed: self.fixed.iter().cloned().collect(),
            direct: self.direct,
        };
        if let Some(folder) = &self.bioimageio {
            let card = Card { authors: self.author.clone(), licence: self.licence.clone() };
            package::write(&model, &settings, &card, folder).with_context(|| folder.display().to_string())?;
            println!("{}: a package of the BioImage Model Zoo", folder.display());
        }
        match &self.out {
            Some(path) => self.file(&model, &settings, path),
            None => Ok(()),
        }
    }

    /// Writes an ONNX file and says what it takes and gives.
    fn file(&self, model: &Model, settings: &Settings, path: &Path) -> Result<()> {
        let exported = write(model, settings, path)?;
        let bytes = std::fs::metadata(path)?.len();
        let mut out = std::io::stdout().lock();
        if self.json {
            let ports = |list: &[Port]| list.iter().map(described).collect::<Vec<_>>();
            let record = serde_json::json!({
                "file": path, "bytes": bytes, "opset": clearshot_onnx::OPSET, "model": model.about.name, "hash": model.hash(),
                "multiples": exported.multiples, "inputs": ports(&exported.inputs), "outputs": ports(&exported.outputs),
            });
            return Ok(writeln!(out, "{record}")?);
        }
        writeln!(out, "{}: {bytes} bytes, opset {}", path.display(), clearshot_onnx::OPSET)?;
        match &exported.multiples {
            Some(m) if m.iter().any(|&n| n > 1) => writeln!(out, "  sizes are multiples of {m:?}")?,
            Some(_) => writeln!(out, "  images of any size")?,
            None => writeln!(out, "  images of one size")?,
        }
        let lists = [("in ", &exported.inputs), ("out", &exported.outputs)];
        for (way, port) in lists.into_iter().flat_map(|(way, list)| list.iter().map(move |p| (way, p))) {
            let name = format!("{} {}", port.name, sizes(port));
            writeln!(out, "  {way} {name:<40} {}", port.about)?;
        }
        Ok(())
    }
}

/// Writes aside and renames, so that the file is whole or absent.
fn write(model: &Model, settings: &Settings, path: &Path) -> Result<Exported> {
    let shown = || path.display().to_string();
    let aside = path.with_extension(format!("{}.part", std::process::id()));
    let file = File::create_new(&aside).with_context(shown)?;
    let mut out = BufWriter::new(file);
    let written = export::write(model, settings, &mut out).map_err(anyhow::Error::from);
    let kept = written.and_then(|exported| {
        out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        std::fs::rename(&aside, path)?;
        Ok(exported)
    });
    if kept.is_err() {
        // What is left of a file that failed is of no use; the failure itself is what matters.
        let _ = std::fs::remove_file(&aside);
    }
    kept.with_context(shown)
}

fn sizes(port: &Port) -> String {
    let shown = |d: &Dim| match d {
        Dim::Fixed(n) => n.to_string(),
        Dim::Any(name) => name.clone(),
    };
    format!("[{}]", port.dims.iter().map(shown).collect::<Vec<_>>().join(", "))
}

fn described(port: &Port) -> serde_json::Value {
    serde_json::json!({
        "name": port.name, "type": port.dtype.to_string(), "sizes": sizes(port), "about": port.about,
    })
}
