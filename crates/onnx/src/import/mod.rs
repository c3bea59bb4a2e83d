//! ONNX networks as graphs.
//!
//! Nodes are processed in the order of the file, which is an execution order. A value is known ([`host`]) or computed
//! ([`view`]); each family of operators has a file in [`ops`]. Sizes are known when a graph is made, so a network is
//! imported for one size of its inputs, which takes milliseconds. Operations that exporters decompose are fused again while
//! nodes are read: group norm, attention, SiLU, GELU, biases, batch norm into convolutions.

mod host;
mod node;
mod ops;
mod prune;
mod values;
mod view;

pub use ops::names as operators;

use crate::error::{ImportError, ReadError};
use crate::file::{OnnxGraph, OnnxModel, OnnxTensor, ValueInfo, is_onnx};
use crate::values::{element, element_name, tensor};
use clearshot_graph::ops::int8::Grid;
use clearshot_graph::{Builder, Graph, Type, Value};
use clearshot_nn::Weights;
use clearshot_tensor::{DType, MAX_RANK, Shape};
use host::Host;
use node::Call;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use view::{View, channels_last};

/// The versions of ONNX's operators that are read.
pub const OPSETS: std::ops::RangeInclusive<i64> = 9..=21;

/// A network that can be compiled and run.
#[derive(Debug)]
pub struct Imported {
    pub graph: Graph,
    /// The graph's states.
    pub weights: Weights,
    pub inputs: Vec<ImportedPort>,
    pub outputs: Vec<ImportedPort>,
}

/// An input or output. In the graph what has four or five axes has its channels last.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedPort {
    pub name: String,
    pub dtype: DType,
    /// As the file has them.
    pub sizes: Vec<usize>,
}

impl ImportedPort {
    /// Whether the graph has the channels last and the file second.
    pub fn is_image(&self) -> bool {
        is_image(self.sizes.len())
    }
}

fn is_image(rank: usize) -> bool {
    rank == 4 || rank == 5
}

/// A value of the file.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Host(Host),
    View(View),
}

/// What a value was made of, where a later node may want to know.
#[derive(Clone, Debug)]
enum Origin {
    /// A reshape of this view.
    Reshape(View),
    /// Normalised groups of the channels of this view, which has these sizes: an instance norm of a reshape.
    Groups { x: View, groups: usize, eps: f64, gamma: Vec<f32>, beta: Vec<f32> },
    /// `scale q k`, with k transposed.
    Product { q: View, k: View, scale: f64 },
    /// The softmax of such a product.
    Shares { q: View, k: View, scale: f64 },
    /// Whole numbers on these grids, one for each channel.
    Whole(Vec<Grid>),
    /// The values that they stand for.
    Rounded(Vec<Grid>),
    /// The error function of this value, which stands for nothing our graph has alone.
    Erf(Value),
}

pub(crate) struct Importer<'m, 'a> {
    b: Builder,
    weights: Weights,
    items: HashMap<&'a str, Item>,
    initializers: HashMap<&'a str, &'m OnnxTensor<'a>>,
    /// Parameters that were made, by what they were made of.
    params: HashMap<String, Value>,
    origins: HashMap<Value, Origin>,
    folder: Option<&'m Path>,
    opset: i64,
    /// Elements of values made ahead so far, and the most that there may be.
    made: usize,
    most: usize,
}

/// Elements that may be made ahead beside as many as the file's own weights have, four times over.
const MOST_MADE: usize = 1 << 26;

/// The sizes of a file's inputs: those that it leaves open are `batch` along the first axis, `spatial` along the last ones of
/// what has four or five axes, and 1 elsewhere.
///
/// # Errors
/// If an input does not say how many axes it has.
pub fn input_sizes(
    model: &OnnxModel<'_>,
    batch: usize,
    spatial: &[usize],
) -> Result<BTreeMap<String, Vec<usize>>, ImportError> {
    let mut all = BTreeMap::new();
    for input in inputs(&model.graph) {
        let Some(dims) = &input.dims else {
            return Err(ImportError::Graph(format!(
                "input `{}` does not say how many axes it has",
                input.name
            )));
        };
        let rank = dims.len();
        let open = |axis: usize| match axis {
            0 => batch,
            _ if is_image(rank) && axis >= 2 => {
                let from_end = rank - 1 - axis;
                spatial.iter().rev().nth(from_end).or(spatial.first()).copied().unwrap_or(1)
            }
            _ => 1,
        };
        let sizes = dims
            .iter()
            .enumerate()
            .map(|(axis, d)| d.fixed().filter(|n| *n > 0).unwrap_or_else(|| open(axis)));
        all.insert(input.name.to_string(), sizes.collect());
    }
    Ok(all)
}

/// The inputs that are not weights.
fn inputs<'g, 'a>(graph: &'g OnnxGraph<'a>) -> impl Iterator<Item = &'g ValueInfo<'a>> {
    let weights: std::collections::HashSet<&str> = graph.initializers.iter().map(|t| t.name).collect();
    graph.inputs.iter().filter(move |i| !weights.contains(i.name))
}

/// The input of a network that takes one image, and its first output.
///
/// # Errors
/// If it takes more, or gives nothing.
pub fn single_input<'m, 'a>(
    model: &'m OnnxModel<'a>,
) -> Result<(&'m ValueInfo<'a>, &'m ValueInfo<'a>), String> {
    let all: Vec<&ValueInfo<'a>> = inputs(&model.graph).collect();
    match (&all[..], model.graph.outputs.first()) {
        ([input], Some(output)) => Ok((input, output)),
        (_, None) => Err("it has no output".into()),
        _ => {
            let names: Vec<&str> = all.iter().map(|i| i.name).collect();
            Err(format!(
                "takes {}; an image is enough for networks of one input only: give `clearshot predict` a safetensors file",
                names.join(", ")
            ))
        }
    }
}

/// The network for inputs of these sizes, each as the file has them. `folder` is where the file lies, for weights in files beside it.
///
/// # Errors
/// If an operator is not supported, sizes do not fit, or the file is damaged: which node, and why.
pub fn import(
    model: &OnnxModel<'_>,
    folder: Option<&Path>,
    sizes: &BTreeMap<String, Vec<usize>>,
) -> Result<Imported, ImportError> {
    let opset = model
        .opset()
        .ok_or_else(|| ImportError::Graph("the file names no version of ONNX's operators".into()))?;
    if !OPSETS.contains(&opset) {
        return Err(ImportError::Graph(format!(
            "opset {opset}; {} to {} are read: export it again with one of these",
            OPSETS.start(),
            OPSETS.end()
        )));
    }
    if model.functions > 0 || model.graph.sparse > 0 {
        return Err(ImportError::Graph(
            "functions and sparse tensors are not read: export it without".into(),
        ));
    }
    let graph = &model.graph;
    let mut importer = Importer {
        b: Builder::new(),
        weights: Weights::new(),
        items: HashMap::new(),
        initializers: graph.initializers.iter().map(|t| (t.name, t)).collect(),
        params: HashMap::new(),
        origins: HashMap::new(),
        folder,
        opset,
        made: 0,
        most: MOST_MADE + graph.initializers.iter().map(|t| t.raw.map_or(0, <[u8]>::len)).sum::<usize>(),
    };
    let inputs = inputs(graph).map(|i| importer.input(i, sizes)).collect::<Result<Vec<_>, _>>()?;
    for node in &graph.nodes {
        importer.node(Call { node, opset })?;
    }
    let outputs = graph.outputs.iter().map(|o| importer.output(o.name)).collect::<Result<Vec<_>, _>>()?;
    importer.check_placeholders()?;
    let (graph, weights) = prune::prune(importer.b.finish()?, importer.weights);
    Ok(Imported { graph, weights, inputs, outputs })
}

impl<'m, 'a> Importer<'m, 'a> {
    fn input(
        &mut self,
        info: &ValueInfo<'a>,
        sizes: &BTreeMap<String, Vec<usize>>,
    ) -> Result<ImportedPort, ImportError> {
        let wrong = |reason: String| ImportError::Graph(format!("input `{}`: {reason}", info.name));
        let sizes = sizes.get(info.name).ok_or_else(|| wrong("its sizes were not given".into()))?.clone();
        let rank = sizes.len();
        if rank > MAX_RANK || sizes.contains(&0) {
            return Err(wrong(format!("sizes {sizes:?}: one to {MAX_RANK}, none of them 0, are possible")));
        }
        for (axis, dim) in info.dims.iter().flatten().enumerate() {
            if dim.fixed().is_some_and(|n| n > 0 && sizes.get(axis) != Some(&n)) {
                return Err(wrong(format!("sizes {sizes:?} where the file has {:?}", info.dims)));
            }
        }
        let dtype = match info.element {
            element::FLOAT => DType::F32,
            element::INT32 | element::INT64 => DType::I32,
            other => return Err(wrong(format!("values of {} are not taken", element_name(other)))),
        };
        let order = if is_image(rank) { channels_last(rank) } else { view::plain(rank) };
        let memory: Vec<usize> = order.iter().map(|&a| sizes[a]).collect();
        let value = self.b.input(info.name, Type { dtype, shape: Shape::new(&memory) });
        self.items.insert(info.name, Item::View(View { value, order }));
        self.fine("input", info.name)?;
        Ok(ImportedPort { name: info.name.into(), dtype, sizes })
    }

    fn output(&mut self, name: &'a str) -> Result<ImportedPort, ImportError> {
        let item = self.find(name).map_err(|reason| ImportError::Graph(format!("output: {reason}")))?;
        let view = self.computed(&item);
        let sizes = self.sizes(&Item::View(view.clone()));
        let order = if is_image(sizes.len()) { channels_last(sizes.len()) } else { view::plain(sizes.len()) };
        let value = self.arranged(&view, &order);
        let dtype = self.b.ty(value).dtype;
        self.b.output(name, value);
        self.fine("output", name)?;
        Ok(ImportedPort { name: name.into(), dtype, sizes })
    }

    fn node(&mut self, call: Call<'_, 'a>) -> Result<(), ImportError> {
        if !is_onnx(call.node.domain) {
            let op = format!("{}.{}", call.node.domain, call.node.op);
            return Err(ImportError::Unsupported { op, node: call.label(), opset: call.opset });
        }
        self.b.set_scope(if call.node.name.is_empty() { call.node.op } else { call.node.name });
        ops::import(self, call)?;
        if self.made > self.most {
            return call.fail(format!(
                "{} elements of constants are made ahead in all; {} are the most",
                self.made, self.most
            ));
        }
        match self.b.error() {
            Some(e) => call.fail(e.reason.to_string()),
            None => Ok(()),
        }
    }

    fn fine(&self, what: &str, name: &str) -> Result<(), ImportError> {
        match self.b.error() {
            Some(e) => Err(ImportError::Graph(format!("{what} `{name}`: {}", e.reason))),
            None => Ok(()),
        }
    }

    /// A value by the file's name; weights are read when they are first asked for.
    fn find(&mut self, name: &'a str) -> Result<Item, String> {
        if let Some(item) = self.items.get(name) {
            return Ok(item.clone());
        }
        let Some(t) = self.initializers.get(name) else {
            return Err(format!(
                "`{name}` is made by no node before it; the graph has a cycle or its nodes are out of order"
            ));
        };
        let tensor = tensor(t, self.folder).map_err(|e: ReadError| e.to_string())?;
        let item = Item::Host(Host::new(name, tensor));
        self.items.insert(name, item.clone());
        Ok(item)
    }

    /// What stands for an operation that there is not must not be left in the graph.
    fn check_placeholders(&self) -> Result<(), ImportError> {
        let graph = self.b.graph();
        let needed = prune::needed(graph);
        let left = self.origins.iter().find(|(v, o)| matches!(o, Origin::Erf(_)) && needed[v.at()]);
        match left {
            None => Ok(()),
            Some((v, _)) => Err(ImportError::Unsupported {
                op: "Erf outside of GELU".into(),
                node: format!("node `{}`", graph.nodes[v.at()].scope),
                opset: self.opset,
            }),
        }
    }
}
