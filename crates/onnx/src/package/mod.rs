//! Packages of the BioImage Model Zoo: a folder with a description (`bioimageio.yaml`, format 0.5), the weights as ONNX, a
//! test image with its expected output, a cover and a model card.
//!
//! Programs that run such packages pass a single image to the model, so everything else must be fixed: a model that works
//! in electrons is packaged for one camera and light level ([`Settings::fixed`]), and a diffusion model runs one evaluation
//! ([`Settings::direct`]). [`read`] is for packages of other projects.

pub mod npy;
mod rdf;
pub mod read;
mod sample;

use crate::error::ExportError;
use crate::export::{self, NUMBERS, Settings};
use clearshot_graph::reach::reach;
use clearshot_graph::{Array, Graph};
use clearshot_image::picture::{Panel, side_by_side};
use clearshot_model::{Model, Signal, Task};
use clearshot_runtime::{Device, Options, Precision};
use clearshot_tensor::{Shape, Tensor};
use sha2::{Digest, Sha256};
use std::path::Path;

/// What a package says that the model does not.
#[derive(Clone, Debug)]
pub struct Card {
    pub authors: Vec<String>,
    /// An SPDX identifier.
    pub licence: String,
}

/// How a package's images may be cut.
#[derive(Clone, Debug, PartialEq)]
struct Cut {
    /// The numbers that sizes must be multiples of, (Z,) Y, X.
    step: Vec<usize>,
    /// Pixels at a tile's edge that the network's field of view makes uncertain.
    halo: Vec<usize>,
    /// The smallest size.
    least: Vec<usize>,
}

/// Where networks that see whole images are cut: this part of the smallest size.
const HALO_SHARE: usize = 8;
/// The smallest size of images in packages, unless the network needs more.
const LEAST: usize = 64;

fn image(e: clearshot_image::Error) -> ExportError {
    ExportError::Setting(e.to_string())
}

/// Writes a package into a new or empty folder.
///
/// # Errors
/// If the model needs more than an image, or the folder cannot be written.
pub fn write(model: &Model, settings: &Settings, card: &Card, folder: &Path) -> Result<(), ExportError> {
    let settings = complete(model, settings)?;
    if card.authors.is_empty() {
        return Err(ExportError::Setting("a package names its authors".into()));
    }
    std::fs::create_dir_all(folder)?;
    if std::fs::read_dir(folder)?.next().is_some() {
        return Err(ExportError::Setting(format!("{}: the folder is not empty", folder.display())));
    }
    let mut weights = vec![];
    let exported = export::write(model, &settings, &mut weights)?;
    let Some(step) = exported.multiples.clone() else {
        return Err(ExportError::Setting("the network takes images of one size only".into()));
    };
    let cut = cut(model, &settings, step)?;
    let measured = sample::image(model, &settings, &cut.least);
    let restored = run(&export::graph(model, &settings, 1, &cut.least)?, model, &measured)?;

    let mut files: Vec<(&str, Vec<u8>)> = vec![
        (rdf::WEIGHTS, weights),
        (rdf::TEST_INPUT, npy::bytes(&measured.channels_second())),
        (rdf::TEST_OUTPUT, npy::bytes(&restored.channels_second())),
        (rdf::COVER, cover(&measured, &restored)?),
        (rdf::CARD, rdf::card(model, &settings).into_bytes()),
    ];
    let hash = |name: &str| {
        let file = files.iter().find(|(n, _)| *n == name);
        file.map_or(String::new(), |(_, bytes)| {
            Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
        })
    };
    let description = rdf::description(model, card, &cut, &hash);
    files.push((rdf::DESCRIPTION, rdf::yaml(&description).into_bytes()));
    for (name, bytes) in &files {
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// The settings with which an image is all that is needed.
fn complete(model: &Model, settings: &Settings) -> Result<Settings, ExportError> {
    let mut all = settings.clone();
    all.direct = model.about.task != Task::Regression;
    if model.about.signal == Signal::Photons {
        all.fixed
            .entry("noise_correlation".into())
            .or_insert_with(|| vec![0.0; clearshot_model::signal::LAGS]);
        let missing: Vec<&str> =
            NUMBERS.iter().map(|n| n.name).filter(|name| !all.fixed.contains_key(*name)).collect();
        if !missing.is_empty() {
            return Err(ExportError::Setting(format!(
                "programs give a package one image, so this model's numbers must be set: {} are not",
                missing.join(", ")
            )));
        }
    }
    Ok(all)
}

fn cut(model: &Model, settings: &Settings, step: Vec<usize>) -> Result<Cut, ExportError> {
    let graph = export::graph(model, settings, 1, &step)?;
    let near = reach(&graph, "image", "restored");
    let dims = step.len();
    let radius = |axis: usize| near.as_ref().map(|r| r.radius[3 - dims + axis]);
    let halo: Vec<usize> = (0..dims)
        .map(|a| radius(a).unwrap_or(LEAST.next_multiple_of(step[a]) / HALO_SHARE).next_multiple_of(step[a]))
        .collect();
    let least =
        (0..dims).map(|a| (2 * halo[a] + step[a]).max(LEAST.min(16 * step[a])).next_multiple_of(step[a]));
    Ok(Cut { least: least.collect(), step, halo })
}

/// The model's result for an image, channels last.
fn run(graph: &Graph, model: &Model, measured: &Tensor) -> Result<Tensor, ExportError> {
    let failed = |e: &dyn std::fmt::Display| ExportError::Setting(format!("the test image: {e}"));
    let extra: Vec<&str> = graph.inputs().map(|(name, _)| name).filter(|name| *name != "image").collect();
    if !extra.is_empty() {
        return Err(failed(&format!("the network also needs {}", extra.join(", "))));
    }
    let options = Options { precision: Precision::F32, ..Options::default() };
    let mut session =
        clearshot_runtime::compile(graph.clone(), &Device::cpu(None), &options).map_err(|e| failed(&e))?;
    for (name, _, _) in graph.states() {
        let weight = model.weights.get(name).ok_or_else(|| ExportError::Weight(name.into()))?;
        session.set(name, weight).map_err(|e| failed(&e))?;
    }
    session.set("image", measured).map_err(|e| failed(&e))?;
    session.run().map_err(|e| failed(&e))?;
    session.get("restored").map_err(|e| failed(&e))
}

/// The middle plane of the test image before and after, side by side.
fn cover(measured: &Tensor, restored: &Tensor) -> Result<Vec<u8>, ExportError> {
    let panel = |label: &str, t: &Tensor| {
        let array = Array::from_tensor(t);
        let s = t.shape();
        let plane = |y: usize, x: usize| match s.rank() {
            4 => array.get(&[0, y, x, 0]),
            _ => array.get(&[0, s[1] / 2, y, x, 0]),
        };
        let (height, width) = (s[s.rank() - 3], s[s.rank() - 2]);
        let values = (0..height * width).map(|i| plane(i / width, i % width) as f32).collect();
        Panel::new(label, values, [height, width]).map_err(image)
    };
    let panels = [panel("measured", measured)?, panel("restored", restored)?];
    side_by_side(&panels, 2, 256).png().map_err(image)
}

/// One image, channels last.
fn shape(size: &[usize], channels: usize) -> Shape {
    let sizes: Vec<usize> = [1].into_iter().chain(size.iter().copied()).chain([channels]).collect();
    Shape::new(&sizes)
}
