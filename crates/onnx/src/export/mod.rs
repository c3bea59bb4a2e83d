//! Writing models as ONNX.
//!
//! The file contains one evaluation of the model ([`evaluation`]): camera pixels and camera parameters go in, and restored
//! pixels come out in the same unit. The graph is that of the network before any pass. Sizes of images and the batch are
//! left open if the network allows it ([`sizes`]).

mod document;
mod elementwise;
mod emit;
mod evaluation;
mod layers;
mod layout;
mod level;
mod ops;
mod settings;
mod signal;
mod sizes;

pub use document::{Dim, Port};
pub use evaluation::graph;
pub use settings::Settings;
pub use signal::{NUMBERS, Number};

use crate::error::ExportError;
use clearshot_graph::{Graph, Value};
use clearshot_model::Model;
use clearshot_nn::Weights;
use document::Document;
use emit::Emitter;
use sizes::Sizes;
use std::io::Write;

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// What the spatial sizes are multiples of, (Z,) Y, X; none where they are fixed.
    pub multiples: Option<Vec<usize>>,
}

/// Batches and factors of the smallest size that a network is built for, to see what follows from the image's size: all
/// different, so that no size is taken for another.
const PROBES: [(usize, [usize; 3]); 3] = [(2, [3, 4, 5]), (3, [6, 8, 9]), (5, [7, 10, 11])];

/// Writes a model.
///
/// # Errors
/// If the settings do not fit the model, or `out` fails.
pub fn write(model: &Model, settings: &Settings, out: &mut dyn Write) -> Result<Exported, ExportError> {
    settings.check()?;
    let (document, multiples) = document(model, settings)?;
    document.write(&model.weights, out)?;
    Ok(Exported { inputs: document.inputs, outputs: document.outputs, multiples })
}

/// Writes a graph of known sizes with its weights, for example an imported network. `name` is its name in the file.
///
/// # Errors
/// If a node has no form in ONNX, or `out` fails.
pub fn write_graph(
    name: &str,
    graph: &Graph,
    weights: &Weights,
    out: &mut dyn Write,
) -> Result<Exported, ExportError> {
    let mut document = of_graphs(std::slice::from_ref(graph), &|_| String::new())?;
    document.name = name.into();
    document.write(weights, out)?;
    Ok(Exported { inputs: document.inputs, outputs: document.outputs, multiples: None })
}

fn document(model: &Model, settings: &Settings) -> Result<(Document, Option<Vec<usize>>), ExportError> {
    let at = |batch: usize, size: &[usize]| evaluation::graph(model, settings, batch, size);
    if let Some(size) = &settings.size {
        return Ok((of_model(model, &[at(1, size)?])?, None));
    }
    let least = model.network.example_size();
    let probe = |&(batch, factors): &(usize, [usize; 3])| {
        let size: Vec<usize> = least.iter().zip(factors).map(|(n, f)| n * f).collect();
        at(batch, &size)
    };
    // Networks for one size, and those that make something of the size itself, are written for the size of their training.
    let open = PROBES.iter().map(probe).collect::<Result<Vec<Graph>, _>>();
    match open.and_then(|graphs| of_model(model, &graphs)) {
        Ok(document) => Ok((document, Some(least))),
        Err(ExportError::Op { .. } | ExportError::Build(_)) => {
            Ok((of_model(model, &[at(1, &model.about.crop)?])?, None))
        }
        Err(other) => Err(other),
    }
}

/// A model's file, of its graphs at several sizes.
fn of_model(model: &Model, graphs: &[Graph]) -> Result<Document, ExportError> {
    let document = of_graphs(graphs, &|name| evaluation::meaning(model, name))?;
    Ok(Document {
        name: model.about.name.clone(),
        about: format!("One evaluation of the model {}: {}.", model.about.name, model.about.task.name()),
        metadata: metadata(model),
        ..document
    })
}

/// A file of one network's graphs at several sizes; `meaning` is what its inputs and outputs are.
fn of_graphs(graphs: &[Graph], meaning: &dyn Fn(&str) -> String) -> Result<Document, ExportError> {
    let Some(sizes) = Sizes::new(graphs) else {
        let (op, scope) = ("network", String::new());
        return Err(ExportError::Op { op, scope, reason: "it changes with the image's size".into() });
    };
    let mut e = Emitter::new(sizes);
    let graph = &graphs[0];
    for index in 0..graph.nodes.len() {
        e.begin(index);
        ops::emit(&mut e, index)?;
    }
    let mut outputs = vec![];
    for output in &graph.outputs {
        let name = e.name(output.value)?;
        e.identity(&name, &output.name);
        outputs.push(port(meaning, &e.sizes, &output.name, output.value));
    }
    let inputs = graph.inputs().map(|(name, v)| port(meaning, &e.sizes, name, v)).collect();
    Ok(Document {
        name: String::new(),
        about: String::new(),
        nodes: e.nodes,
        initializers: e.initializers,
        inputs,
        outputs,
        metadata: vec![],
    })
}

/// What axes of images are called where their sizes are open.
const AXES: [&str; 3] = ["depth", "height", "width"];

fn port(meaning: &dyn Fn(&str) -> String, sizes: &Sizes<'_>, name: &str, v: Value) -> Port {
    let rank = sizes.rank(v);
    let graph = sizes.graph();
    // Sizes that are the image's have its axes' names.
    let images = graph.inputs().filter(|(_, v)| layout::is_image(sizes.rank(*v)));
    let (_, image) = images.min_by_key(|(_, v)| v.at()).unwrap_or(("", v));
    let called = |axis: usize| {
        let image_rank = sizes.rank(image);
        match (0..image_rank).find(|&a| sizes.same(v, axis, image, a)) {
            Some(0) => "batch".to_string(),
            Some(a) => AXES[a + 4 - image_rank].to_string(),
            None => format!("{name}_{axis}"),
        }
    };
    let dim = |axis: usize| sizes.fixed(v, axis).map_or_else(|| Dim::Any(called(axis)), Dim::Fixed);
    Port {
        name: name.into(),
        dtype: graph.ty(v).dtype,
        dims: layout::order(rank).into_iter().map(dim).collect(),
        about: meaning(name),
    }
}

fn metadata(model: &Model) -> Vec<(String, String)> {
    let about = &model.about;
    let pairs = [
        ("clearshot.model", about.name.clone()),
        ("clearshot.hash", model.hash()),
        ("clearshot.task", about.task.name().into()),
        ("clearshot.config", model.config.clone()),
        ("clearshot.limits", about.limits.clone()),
    ];
    pairs.into_iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.into(), v)).collect()
}
