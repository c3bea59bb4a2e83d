//! Convolutions in 8 bits: which are, and that none is where a backend has no such products.

use super::Target;
use crate::graph::{Graph, Value};
use crate::ops::int8::{Rounding, Table, check};
use crate::ops::{Binary, Int8, Op, PoolKind, ResizeMode, Unary};
use crate::{Builder, OpError};
use clearshot_tensor::{Shape, Tensor};
use std::collections::BTreeMap;

/// Without 8-bit products the same weights are multiplied in f32. With them, rounding to a grid is one operation, which can end a convolution; it is
/// not done twice; and what was rounded to a convolution's own grid before is read as it was.
pub(super) fn settle(graph: Graph, target: &Target) -> Graph {
    match target {
        Target { int8: true, .. } => absorb(once(snap(graph))),
        Target { whole: true, .. } => graph,
        _ => drop(graph),
    }
}

/// The graph without convolutions that round; those of whole numbers stay.
pub(super) fn drop(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        if let Op::Conv(conv) = &mut node.op
            && conv.int8 != Some(Int8::Whole)
        {
            let steps = conv.operands().steps;
            conv.int8 = None;
            steps.map(|at| node.inputs.remove(at));
        }
    }
    graph.tidy()
}

/// Values rounded to the one grid of an image, `(clamp(round(x / s) + z) - z) s`, by one operation.
fn snap(mut graph: Graph) -> Graph {
    for i in 0..graph.nodes.len() {
        if let Some((x, f)) = snapped(&graph, Value::new(i, 0)) {
            graph.nodes[i].op = Op::Unary(f);
            graph.nodes[i].inputs = vec![x];
        }
    }
    graph.tidy()
}

/// x and the operation, where a value is x rounded to one grid.
fn snapped(graph: &Graph, rounded: Value) -> Option<(Value, Unary)> {
    let inputs = |v: Value| &graph.nodes[v.at()].inputs;
    // The first operand and the constant that is the second.
    let by = |v: Value, f: Binary| {
        let (Op::Binary(found), [a, b]) = (graph.op(v), &inputs(v)[..]) else { return None };
        let Op::Const(c) = graph.op(*b) else { return None };
        let list = c.0.to_f64();
        let same = *found == f && graph.ty(*a) == graph.ty(v) && list.windows(2).all(|w| w[0] == w[1]);
        list.first().filter(|_| same).map(|c| (*a, *c))
    };
    let (whole, step) = by(rounded, Binary::Mul)?;
    // A zero point of zero is not spelled out.
    let (clamped, zero) = by(whole, Binary::Sub).unwrap_or((whole, 0.0));
    let Op::Unary(Unary::Clamp(low, high)) = *graph.op(clamped) else { return None };
    let moved = inputs(clamped)[0];
    let divided = match by(moved, Binary::Add) {
        Some((divided, z)) if z == zero => divided,
        None if zero == 0.0 => moved,
        _ => return None,
    };
    let Op::Unary(Unary::Round) = graph.op(divided) else { return None };
    let (x, s) = by(inputs(divided)[0], Binary::Div)?;
    (s == step && step > 0.0 && high - low == 255.0)
        .then_some((x, Unary::Snap(step, low - zero, high - zero)))
}

/// What moves values, or takes the largest of some, leaves them on their grid: rounding them to the same one again changes nothing. Nor does a
/// rectifier before a grid that begins at zero.
fn once(mut graph: Graph) -> Graph {
    let mut grids: Vec<Option<Unary>> = vec![];
    let mut map = BTreeMap::new();
    for (i, node) in graph.nodes.iter_mut().enumerate() {
        let of = |v: &Value| grids[v.at()];
        let first = node.inputs.first().and_then(of);
        let grid = match &node.op {
            Op::Unary(f @ Unary::Snap(..)) => {
                if first == Some(*f) {
                    map.insert(Value::new(i, 0), node.inputs[0]);
                }
                Some(*f)
            }
            Op::Pool(p) if p.kind == PoolKind::Max => first,
            Op::Resize(r) if r.mode == ResizeMode::Nearest => first,
            Op::Unary(Unary::Relu) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) => first,
            Op::Concat(_) => first.filter(|_| node.inputs.iter().all(|v| of(v) == first)),
            _ => None,
        };
        grids.push(grid);
    }
    graph.redirect(&map);
    for i in 0..graph.nodes.len() {
        let Op::Unary(Unary::Snap(_, low, _)) = graph.nodes[i].op else { continue };
        let x = graph.nodes[i].inputs[0];
        if low >= 0.0 && matches!(graph.op(x), Op::Unary(Unary::Relu)) {
            graph.nodes[i].inputs = graph.nodes[x.at()].inputs.clone();
        }
    }
    graph.tidy()
}

/// Convolutions round what they read while they read it, so rounding it to the same grid before can go. Values halfway between two
/// whole numbers may go to the other one: the zero is added before rounding there, and behind it here.
///
/// Where something else reads the rounded values as well they are rounded once, at the end of what computes them.
fn absorb(mut graph: Graph) -> Graph {
    let read = |graph: &Graph, i: usize| {
        let Op::Conv(conv) = graph.nodes[i].op else { return None };
        let Op::Const(steps) = graph.op(graph.nodes[i].inputs[conv.operands().steps?]) else { return None };
        unrounded(graph, graph.nodes[i].inputs[0], &steps.0.to_f64())
    };
    let (counts, found): (_, Vec<_>) =
        (graph.use_counts(), (0..graph.nodes.len()).map(|i| read(&graph, i)).collect());
    let mut absorbing: BTreeMap<Value, u32> = BTreeMap::new();
    for (node, _) in graph.nodes.iter().zip(&found).filter(|(_, found)| found.is_some()) {
        *absorbing.entry(node.inputs[0]).or_default() += 1;
    }
    for (node, x) in graph.nodes.iter_mut().zip(found) {
        let Some(x) = x else { continue };
        let rounded = node.inputs[0];
        if absorbing[&rounded] == counts[rounded.at()][rounded.port()] {
            node.inputs[0] = x;
        }
    }
    graph.tidy()
}

/// x, where a value is x rounded to the grids of these steps and zeros: `(clamp(round(x / s) + z) - z) s`.
fn unrounded(graph: &Graph, rounded: Value, steps: &[f64]) -> Option<Value> {
    let (steps, zeros) = steps.split_at(steps.len() / 2);
    if let Op::Unary(Unary::Snap(step, first, last)) = *graph.op(rounded) {
        let is_grid = steps.iter().all(|s| *s == step) && zeros.iter().all(|z| *z == -first);
        return (is_grid && last - first == 255.0).then(|| graph.nodes[rounded.at()].inputs[0]);
    }
    // One constant for all channels, or one for each.
    let constant = |v: Value| match graph.op(v) {
        Op::Const(c) => Some(c.0.to_f64()).filter(|c| c.len() == 1 || c.len() == steps.len()),
        _ => None,
    };
    let inputs = |v: Value| &graph.nodes[v.at()].inputs;
    // The first operand where the second is a constant with this value for every channel.
    let by = |v: Value, f: Binary, of: &dyn Fn(usize) -> f64| {
        let (Op::Binary(found), [a, b]) = (graph.op(v), &inputs(v)[..]) else { return None };
        let list = constant(*b).filter(|_| *found == f)?;
        (0..steps.len()).all(|c| list[if list.len() == 1 { 0 } else { c }] == of(c)).then_some(*a)
    };
    let step = |c: usize| steps[c];
    let whole = by(rounded, Binary::Mul, &step)?;
    let clamp = |v: Value| match graph.op(v) {
        Op::Unary(Unary::Clamp(low, high)) if high - low == 255.0 => Some((inputs(v)[0], *low)),
        _ => None,
    };
    // A zero point of zero is not spelled out.
    let (clamped, low) = match clamp(whole) {
        Some(found) => found,
        None => clamp(inputs(whole).first().copied()?)?,
    };
    let zero = |c: usize| zeros[c] + low;
    let divided = if clamp(whole).is_some() {
        (0..steps.len()).all(|c| zero(c) == 0.0).then_some(clamped)?
    } else {
        by(whole, Binary::Sub, &zero)?;
        by(clamped, Binary::Add, &zero)?
    };
    match graph.op(divided) {
        Op::Unary(Unary::Round) => by(inputs(divided)[0], Binary::Div, &step),
        _ => None,
    }
}

/// Fewer channels than a vector holds are multiplied faster in f32.
const LEAST_CHANNELS: usize = 16;

/// Whether a convolution of this weight can be in 8 bits and is faster so.
pub fn is_worth_it(groups: usize, weight: Shape) -> bool {
    weight[0] >= LEAST_CHANNELS && weight.channels() >= LEAST_CHANNELS && check(groups, weight).is_ok()
}

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
        if is_worth_it(conv.geometry.groups, shape) && found.iter().all(|c| c.name != *state.name) {
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
