//! The graph itself: nodes in running order, what it gives out, and what it writes back.

use crate::ops::Op;
use clearshot_tensor::{DType, Shape};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// One output of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    pub node: u32,
    pub port: u8,
}

impl Value {
    /// What a [`crate::Builder`] gives after its first error; it is in no finished graph.
    pub(crate) const POISON: Value = Value { node: u32::MAX, port: 0 };

    pub fn new(node: usize, port: usize) -> Value {
        Value { node: node as u32, port: port as u8 }
    }

    /// The index of the node that makes it.
    pub fn at(self) -> usize {
        self.node as usize
    }

    pub fn port(self) -> usize {
        self.port as usize
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port == 0 { write!(f, "%{}", self.node) } else { write!(f, "%{}.{}", self.node, self.port) }
    }
}

/// Element type and shape of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type {
    pub dtype: DType,
    pub shape: Shape,
}

impl Type {
    pub fn f32(shape: impl Into<Shape>) -> Type {
        Type { dtype: DType::F32, shape: shape.into() }
    }

    pub fn i32(shape: impl Into<Shape>) -> Type {
        Type { dtype: DType::I32, shape: shape.into() }
    }

    pub fn bytes(&self) -> usize {
        self.shape.len() * self.dtype.bytes()
    }

    /// Whether the two differ in nothing but the width of a float.
    pub fn stands_for(&self, other: &Type) -> bool {
        self.shape == other.shape
            && (self.dtype == other.dtype || self.dtype.is_float() && other.dtype.is_float())
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An operation, where its operands come from and what it makes.
#[derive(Clone, Debug)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<Value>,
    pub outs: Vec<Type>,
    /// The layer it was built for, as a path; for people.
    pub scope: Arc<str>,
}

/// A value that is given to the caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: String,
    pub value: Value,
}

/// A state that holds `value` after a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Node index of the [`Op::State`].
    pub state: u32,
    pub value: Value,
}

/// What a state holds before anyone sets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateInit {
    /// The caller must set it: a parameter.
    Given,
    /// Every element is this: optimiser moments, counters.
    Constant(f32),
}

impl Hash for StateInit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bits = match self {
            StateInit::Given => None,
            StateInit::Constant(x) => Some(x.to_bits()),
        };
        bits.hash(state);
    }
}

/// Nodes in an order in which they can run.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
    pub outputs: Vec<Output>,
    pub updates: Vec<Update>,
}

impl Graph {
    pub fn ty(&self, v: Value) -> Type {
        self.nodes[v.at()].outs[v.port()]
    }

    pub fn shape(&self, v: Value) -> Shape {
        self.ty(v).shape
    }

    /// The op that makes a value.
    pub fn op(&self, v: Value) -> &Op {
        &self.nodes[v.at()].op
    }

    /// What a view, or a view of a view, shows; other values are themselves.
    pub fn behind_views(&self, mut v: Value) -> Value {
        while self.op(v).is_view() {
            v = self.nodes[v.at()].inputs[0];
        }
        v
    }

    /// Whether a node is a narrower copy of a state, or a part of one: it changes only when the state does, so it is kept
    /// from run to run beside it.
    pub fn is_state_copy(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        let is_state = |v: Value| matches!(self.op(v), Op::State(_));
        let to = match n.op {
            Op::Cast(to) => to,
            Op::Float8(_) => return is_state(n.inputs[0]),
            Op::Whole(_) => return is_state(n.inputs[0]) && matches!(self.op(n.inputs[1]), Op::Const(_)),
            _ => return false,
        };
        let from = self.ty(n.inputs[0]).dtype;
        let narrower = from.is_float() && to.is_float() && to.bytes() < from.bytes();
        narrower && is_state(n.inputs[0])
    }

    /// Inputs by name.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, Value)> {
        self.nodes.iter().enumerate().filter_map(|(i, n)| match &n.op {
            Op::Input(name) => Some((&**name, Value::new(i, 0))),
            _ => None,
        })
    }

    /// States by name.
    pub fn states(&self) -> impl Iterator<Item = (&str, StateInit, Value)> {
        self.nodes.iter().enumerate().filter_map(|(i, n)| match &n.op {
            Op::State(s) => Some((&*s.name, s.init, Value::new(i, 0))),
            _ => None,
        })
    }

    pub fn output(&self, name: &str) -> Option<Value> {
        self.outputs.iter().find(|o| o.name == name).map(|o| o.value)
    }

    /// The values that must exist when the run ends.
    pub fn roots(&self) -> impl Iterator<Item = Value> + '_ {
        self.outputs.iter().map(|o| o.value).chain(self.updates.iter().map(|u| u.value))
    }

    /// How many times each node's outputs are read, by nodes, outputs and updates; per value.
    pub fn use_counts(&self) -> Vec<Vec<u32>> {
        let mut counts: Vec<Vec<u32>> = self.nodes.iter().map(|n| vec![0; n.outs.len()]).collect();
        for v in self.nodes.iter().flat_map(|n| n.inputs.iter().copied()).chain(self.roots()) {
            counts[v.at()][v.port()] += 1;
        }
        counts
    }

    /// The nodes that read each node, by index, in order.
    pub fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for v in &node.inputs {
                if users[v.at()].last() != Some(&i) {
                    users[v.at()].push(i);
                }
            }
        }
        users
    }

    /// Makes every reader of a key of `map` read its value instead.
    pub fn redirect(&mut self, map: &BTreeMap<Value, Value>) {
        if map.is_empty() {
            return;
        }
        let resolve = |mut v: Value| {
            while let Some(&to) = map.get(&v) {
                v = to;
            }
            v
        };
        self.nodes.iter_mut().flat_map(|n| &mut n.inputs).for_each(|v| *v = resolve(*v));
        self.outputs.iter_mut().for_each(|o| o.value = resolve(o.value));
        self.updates.iter_mut().for_each(|u| u.value = resolve(u.value));
    }

    /// Drops the nodes that nothing needs and puts the rest into running order again, as near to the
    /// present order as can be. Inputs and states stay: they are the graph's signature.
    pub fn tidy(self) -> Graph {
        let priority = (0..self.nodes.len()).map(|i| i as f64).collect::<Vec<_>>();
        self.tidy_by(&priority)
    }

    /// As [`Graph::tidy`], nodes of smaller priority first where the edges allow it.
    pub fn tidy_by(self, priority: &[f64]) -> Graph {
        self.tidied(priority).0
    }

    /// As [`Graph::tidy_by`]; also gives, for each node of the result, its former index.
    pub(crate) fn tidied(self, priority: &[f64]) -> (Graph, Vec<usize>) {
        let needed = self.needed();
        let mut waiting: Vec<usize> = vec![0; self.nodes.len()];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        let mut ready = BinaryHeap::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
            waiting[i] = node.inputs.len();
            node.inputs.iter().for_each(|v| readers[v.at()].push(i as u32));
            if waiting[i] == 0 {
                ready.push(Ready(priority[i], i));
            }
        }
        let mut place = vec![u32::MAX; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Ready(_, i)) = ready.pop() {
            place[i] = order.len() as u32;
            order.push(i);
            for &reader in &readers[i] {
                let reader = reader as usize;
                waiting[reader] -= 1;
                if waiting[reader] == 0 {
                    ready.push(Ready(priority[reader], reader));
                }
            }
        }
        assert_eq!(order.len(), needed.iter().filter(|n| **n).count(), "the graph has a cycle");
        let moved = |v: Value| Value { node: place[v.at()], port: v.port };
        let mut nodes: Vec<Option<Node>> = self.nodes.into_iter().map(Some).collect();
        let graph = Graph {
            nodes: order
                .iter()
                .map(|&i| {
                    let mut node = nodes[i].take().expect("each node is placed once");
                    node.inputs.iter_mut().for_each(|v| *v = moved(*v));
                    node
                })
                .collect(),
            outputs: self.outputs.into_iter().map(|o| Output { value: moved(o.value), ..o }).collect(),
            updates: self
                .updates
                .into_iter()
                .map(|u| Update { state: place[u.state as usize], value: moved(u.value) })
                .collect(),
        };
        (graph, order)
    }

    fn needed(&self) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        let mut stack: Vec<usize> = self.roots().map(Value::at).collect();
        for (i, n) in self.nodes.iter().enumerate() {
            if matches!(n.op, Op::Input(_) | Op::State(_)) {
                stack.push(i);
            }
        }
        while let Some(i) = stack.pop() {
            if !std::mem::replace(&mut needed[i], true) {
                stack.extend(self.nodes[i].inputs.iter().map(|v| v.at()));
            }
        }
        needed
    }
}

/// Smallest priority first, then smallest index.
struct Ready(f64, usize);

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}
