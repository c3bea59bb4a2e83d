//! Chains of elementwise operations as one pass over memory.
//!
//! A node is absorbed by the one that reads it if nothing else does and its result has the reader's
//! full shape: a smaller one, broadcast by the reader, would be computed again and again.

use super::super::Target;
use super::Uses;
use crate::graph::{Graph, Value};
use crate::ops::{Op, Program, Scalar, Step};
use std::sync::Arc;

pub(in super::super) fn fuse(mut graph: Graph, _: &Target) -> Graph {
    let uses = Uses::of(&graph);
    for i in 0..graph.nodes.len() {
        let Some(mut program) = program(&graph.nodes[i].op) else { continue };
        let mut operands = graph.nodes[i].inputs.clone();
        let mut absorbed = false;
        let mut next = 0;
        while next < operands.len() {
            let v = operands[next];
            let inner = program_of(&graph, &uses, v, graph.nodes[i].outs[0]);
            match inner.and_then(|(inner, inputs)| join(&program, &operands, next, &inner, &inputs)) {
                Some((joined, inputs)) => {
                    (program, operands) = (joined, inputs);
                    absorbed = true;
                }
                None => next += 1,
            }
        }
        if absorbed {
            graph.nodes[i].op = Op::Pointwise(Arc::new(program));
            graph.nodes[i].inputs = operands;
        }
    }
    graph.tidy()
}

/// An elementwise op as a program.
pub fn program(op: &Op) -> Option<Program> {
    let one = |operands: usize, scalar: Scalar| Program {
        operands,
        steps: vec![Step { scalar, a: 0, b: operands as u8 - 1 }],
    };
    match op {
        Op::Unary(u) => Some(one(1, Scalar::Unary(*u))),
        Op::UnaryGrad(u) => Some(one(2, Scalar::UnaryGrad(*u))),
        Op::Binary(b) => Some(one(2, Scalar::Binary(*b))),
        Op::Pointwise(p) => Some((**p).clone()),
        _ => None,
    }
}

fn program_of(graph: &Graph, uses: &Uses, v: Value, ty: crate::Type) -> Option<(Program, Vec<Value>)> {
    if !uses.once(v) || graph.ty(v) != ty {
        return None;
    }
    Some((program(graph.op(v))?, graph.nodes[v.at()].inputs.clone()))
}

/// `outer` with its operand `at` computed by `inner`. Operands that both read are read once.
fn join(
    outer: &Program,
    outer_inputs: &[Value],
    at: usize,
    inner: &Program,
    inner_inputs: &[Value],
) -> Option<(Program, Vec<Value>)> {
    let mut inputs: Vec<Value> = vec![];
    let place = |inputs: &mut Vec<Value>, v: Value| {
        inputs.iter().position(|i| *i == v).unwrap_or_else(|| {
            inputs.push(v);
            inputs.len() - 1
        })
    };
    let outer_at: Vec<usize> = outer_inputs
        .iter()
        .enumerate()
        .map(|(i, v)| if i == at { usize::MAX } else { place(&mut inputs, *v) })
        .collect();
    let inner_at: Vec<usize> = inner_inputs.iter().map(|v| place(&mut inputs, *v)).collect();
    let count = inputs.len();
    if count + inner.steps.len() + outer.steps.len() > Program::MAX_REGISTERS {
        return None;
    }
    let inner_register = |r: u8| {
        let r = r as usize;
        if r < inner.operands { inner_at[r] } else { count + r - inner.operands }
    };
    let result = count + inner.steps.len() - 1;
    let outer_register = |r: u8| {
        let r = r as usize;
        match r {
            _ if r == at => result,
            _ if r < outer.operands => outer_at[r],
            _ => result + 1 + r - outer.operands,
        }
    };
    let step =
        |s: &Step, to: &dyn Fn(u8) -> usize| Step { scalar: s.scalar, a: to(s.a) as u8, b: to(s.b) as u8 };
    let mut steps: Vec<Step> = inner.steps.iter().map(|s| step(s, &inner_register)).collect();
    steps.extend(outer.steps.iter().map(|s| step(s, &outer_register)));
    Some((Program { operands: count, steps }, inputs))
}
