//! Convolutions in 8 bits: which are, and that none is where a backend has no such products.

use super::Target;
use crate::graph::{Graph, Value};
use crate::ops::int8::{Rounding, Table, check};
use crate::ops::{Int8, Op};
use crate::{Builder, OpError};
use clearshot_tensor::Tensor;
use std::collections::BTreeMap;

/// Without 8-bit products the same weights are multiplied in f32.
pub(super) fn drop(mut graph: Graph, target: &Target) -> Graph {
    if target.int8 {
        return graph;
    }
    for node in &mut graph.nodes {
        if let Op::Conv(conv) = &mut node.op {
            let steps = conv.operands().steps;
            conv.int8 = None;
            steps.map(|at| node.inputs.remove(at));
        }
    }
    graph.tidy()
}

/// Fewer channels than a vector holds are multiplied faster in f32.
const LEAST_CHANNELS: usize = 16;

/// A convolution that is worth having in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its weight.
    pub name: String,
    /// What it reads: the whole image, before any pass.
    pub input: Value,
    pub channels: usize,
}

/// The convolutions of a graph, as built, that are worth having in 8 bits, in running order; a weight that several share is there once.
pub fn candidates(graph: &Graph) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = vec![];
    for node in &graph.nodes {
        let Op::Conv(conv) = &node.op else { continue };
        let weight = node.inputs[conv.operands().weight];
        let (Op::State(state), shape) = (graph.op(weight), graph.shape(weight)) else { continue };
        let worth = shape[0] >= LEAST_CHANNELS && shape.channels() >= LEAST_CHANNELS;
        if worth && check(conv.geometry.groups, shape).is_ok() && found.iter().all(|c| c.name != *state.name)
        {
            let name = state.name.to_string();
            found.push(Candidate { name, input: node.inputs[0], channels: shape.channels() });
        }
    }
    found
}

/// A graph as built, with the convolutions of a table in 8 bits.
///
/// # Errors
/// As [`apply`].
pub fn round(graph: Graph, table: &Table) -> Result<Graph, (String, OpError)> {
    let mut b = Builder::extend(graph);
    let steps = steps(&mut b, table);
    let mut graph = b.finish().map_err(|e| (String::new(), e.reason))?;
    apply(&mut graph, 0, &steps)?;
    Ok(graph.tidy())
}

/// The operands that the convolutions of a table read, as constants. A constant runs before who reads it, so
/// these are added before the network and [`apply`] is called behind it.
pub fn steps(b: &mut Builder, table: &Table) -> BTreeMap<String, Option<Value>> {
    let constant = |(name, rounding): (&String, &Rounding)| {
        let steps = match rounding {
            Rounding::Dynamic => None,
            Rounding::Static(grids) => {
                let steps = grids.iter().map(|g| g.step);
                let values = steps.chain(grids.iter().map(|g| f32::from(g.zero))).collect();
                Some(b.constant(Tensor::f32([2, grids.len()], values)))
            }
        };
        (name.clone(), steps)
    };
    table.iter().map(constant).collect()
}

/// Puts the convolutions from node `first` on into 8 bits whose weights have steps.
///
/// # Errors
/// If a weight is not that of a convolution, or the convolution cannot be in 8 bits.
pub fn apply(
    graph: &mut Graph,
    first: usize,
    steps: &BTreeMap<String, Option<Value>>,
) -> Result<(), (String, OpError)> {
    let mut left: Vec<&String> = steps.keys().collect();
    for i in first..graph.nodes.len() {
        let Op::Conv(mut conv) = graph.nodes[i].op else { continue };
        let weight = graph.nodes[i].inputs[conv.operands().weight];
        let Op::State(state) = graph.op(weight) else { continue };
        let Some((name, steps)) = steps.get_key_value(&*state.name) else { continue };
        let wrong = |e| (name.clone(), e);
        check(conv.geometry.groups, graph.shape(weight)).map_err(wrong)?;
        conv.int8 = Some(if steps.is_some() { Int8::Static } else { Int8::Dynamic });
        let mut inputs = graph.nodes[i].inputs.clone();
        conv.operands().steps.zip(*steps).into_iter().for_each(|(at, v)| inputs.insert(at, v));
        let types: Vec<_> = inputs.iter().map(|v| graph.ty(*v)).collect();
        Op::Conv(conv).infer(&types).map_err(wrong)?;
        graph.nodes[i].op = Op::Conv(conv);
        graph.nodes[i].inputs = inputs;
        left.retain(|n| *n != name);
    }
    match left.first() {
        Some(name) => Err(((*name).clone(), OpError::Attribute("no convolution reads it".into()))),
        None => Ok(()),
    }
}
