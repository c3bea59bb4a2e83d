//! Reverse-mode differentiation: one walk from the last node to the first that adds ordinary nodes.
//!
//! Each op's rule says what its inputs' gradients are; summing the contributions of several readers
//! is done here and nowhere else. The walk visits only nodes between what is differentiated and what
//! it is differentiated by.

use crate::builder::{BuildError, Builder};
use crate::graph::Value;
use crate::ops::{GradNode, Op};
use std::collections::BTreeMap;

/// Why a gradient cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum GradError {
    #[error(
        "a gradient needs a scalar to start from or an upstream gradient of the same shape; got {value} for {of}"
    )]
    Seed { of: String, value: String },
    #[error("node {node} ({op}{scope}) has no gradient rule: differentiate before fusing, and only once")]
    NoRule { node: usize, op: &'static str, scope: String },
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Adds to `b` the gradients of `y` with respect to each of `by`, given `dy`, the gradient of y
/// (default: 1, for a scalar). Where y does not depend on one of them, its gradient is zeros.
///
/// # Errors
/// If y is not a scalar and `dy` is missing or of another shape, or an op on the way has no rule.
pub fn grad(b: &mut Builder, y: Value, dy: Option<Value>, by: &[Value]) -> Result<Vec<Value>, GradError> {
    if y == Value::POISON || by.contains(&Value::POISON) {
        return Ok(vec![Value::POISON; by.len()]);
    }
    let seed = match dy {
        Some(dy) => dy,
        None => b.scalar(1.0),
    };
    if b.shape(seed) != b.shape(y) {
        return Err(GradError::Seed { of: b.ty(y).to_string(), value: b.ty(seed).to_string() });
    }
    let reached = reached(b, y, by);
    let mut grads: BTreeMap<Value, Value> = BTreeMap::from([(y, seed)]);
    for i in (0..=y.at()).rev() {
        if !reached[i] || is_source(b, i) {
            continue;
        }
        let node = b.graph().nodes[i].clone();
        let outs: Vec<Value> = (0..node.outs.len()).map(|p| Value::new(i, p)).collect();
        let douts: Vec<Option<Value>> = outs.iter().map(|v| grads.get(v).copied()).collect();
        if douts.iter().all(Option::is_none) {
            continue;
        }
        let wanted: Vec<bool> =
            node.inputs.iter().map(|v| reached[v.at()] && b.ty(*v).dtype.is_float()).collect();
        let scope = b.set_scope(&node.scope);
        let view = GradNode { inputs: &node.inputs, outs: &outs, douts: &douts, wanted: &wanted };
        let no_rule = || GradError::NoRule {
            node: i,
            op: node.op.name(),
            scope: if node.scope.is_empty() { String::new() } else { format!(" in {}", node.scope) },
        };
        // A second output alone (statistics, log-sum-exp) is nothing that the rules know.
        let contributions = match douts[0] {
            Some(_) => node.op.grad(b, &view).ok_or_else(no_rule)?,
            None => return Err(no_rule()),
        };
        for ((&input, contribution), wanted) in node.inputs.iter().zip(contributions).zip(&wanted) {
            if let (Some(g), true) = (contribution, wanted) {
                accumulate(b, &mut grads, input, g);
            }
        }
        b.set_scope(&scope);
    }
    let zeros = |b: &mut Builder, v: Value| {
        let shape = b.shape(v);
        let zero = b.scalar(0.0);
        b.broadcast(zero, shape)
    };
    Ok(by.iter().map(|v| grads.get(v).copied().unwrap_or_else(|| zeros(b, *v))).collect())
}

fn accumulate(b: &mut Builder, grads: &mut BTreeMap<Value, Value>, of: Value, g: Value) {
    let sum = match grads.get(&of) {
        Some(&before) => b.add(before, g),
        None => g,
    };
    grads.insert(of, sum);
}

fn is_source(b: &Builder, i: usize) -> bool {
    matches!(b.graph().nodes[i].op, Op::Input(_) | Op::State(_) | Op::Const(_))
}

/// Nodes that depend on one of `by`. Nodes behind y are of no interest.
fn reached(b: &Builder, y: Value, by: &[Value]) -> Vec<bool> {
    let nodes = &b.graph().nodes;
    let mut reached = vec![false; nodes.len()];
    by.iter().for_each(|v| reached[v.at()] = true);
    for i in 0..=y.at() {
        if nodes[i].inputs.iter().any(|v| reached[v.at()]) {
            reached[i] = true;
        }
    }
    reached
}
