//! The reference interpreter: runs a graph node by node as the ops' plain meanings say.
//!
//! Slow and obvious. In [`Precision::Stored`] each node's result is rounded to the type that it is stored
//! in, so that what is stored is what a backend stores, computed better; in [`Precision::F64`] nothing is
//! rounded, for finite differences.

use crate::array::Array;
use crate::graph::{Graph, StateInit};
use crate::ops::Op;
use clearshot_tensor::{DType, F8};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As the nodes' types say.
    Stored,
    F64,
}

/// What a run needs and does not have.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RunError {
    #[error("no value was given for `{0}`")]
    Missing(String),
    #[error("`{name}` was given as {got}, the graph has {expected}")]
    Shape { name: String, expected: String, got: String },
}

/// Runs the graph on inputs and states by name. Returns the outputs by name; states that the graph
/// updates are updated in `values`, which then also holds the initial values that were not given.
///
/// # Errors
/// If a value is missing or misshapen.
pub fn run(
    graph: &Graph,
    values: &mut BTreeMap<String, Array>,
    precision: Precision,
) -> Result<BTreeMap<String, Array>, RunError> {
    let mut results: Vec<Vec<Array>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let outs = match &node.op {
            Op::Input(name) => vec![take(values, name, None, &node.outs[0])?],
            Op::State(s) => vec![take(values, &s.name, Some(s.init), &node.outs[0])?],
            op => {
                let operands: Vec<&Array> = node.inputs.iter().map(|v| &results[v.at()][v.port()]).collect();
                op.eval(&operands)
            }
        };
        debug_assert!(outs.iter().zip(&node.outs).all(|(a, t)| a.shape == t.shape), "{}", node.op.name());
        results.push(outs.into_iter().zip(&node.outs).map(|(a, t)| round(a, t.dtype, precision)).collect());
    }
    for update in &graph.updates {
        if let Op::State(s) = &graph.nodes[update.state as usize].op {
            let value = results[update.value.at()][update.value.port()].clone();
            values.insert(s.name.to_string(), value);
        }
    }
    Ok(graph
        .outputs
        .iter()
        .map(|o| (o.name.clone(), results[o.value.at()][o.value.port()].clone()))
        .collect())
}

fn round(a: Array, dtype: DType, precision: Precision) -> Array {
    match (precision, dtype) {
        (Precision::F64, _) => a,
        (Precision::Stored, DType::BF16) => a.map(|x| half::bf16::from_f32(x as f32).to_f64()),
        (Precision::Stored, DType::F8) => a.map(|x| f64::from(F8::from_f32(x as f32).to_f32())),
        (Precision::Stored, DType::F16) => a.map(|x| half::f16::from_f32(x as f32).to_f64()),
        (Precision::Stored, _) => a.map(|x| if x.fract() == 0.0 { x } else { f64::from(x as f32) }),
    }
}

fn take(
    values: &mut BTreeMap<String, Array>,
    name: &str,
    init: Option<StateInit>,
    ty: &crate::Type,
) -> Result<Array, RunError> {
    if let (false, Some(StateInit::Constant(c))) = (values.contains_key(name), init) {
        values.insert(name.into(), Array::zeros(ty.shape).map(|_| f64::from(c)));
    }
    let value = values.get(name).ok_or_else(|| RunError::Missing(name.into()))?;
    if value.shape != ty.shape {
        return Err(RunError::Shape {
            name: name.into(),
            expected: ty.shape.to_string(),
            got: value.shape.to_string(),
        });
    }
    Ok(value.clone())
}
