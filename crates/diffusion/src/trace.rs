//! Finds the operation that produced the first value that is not finite.
//!
//! The run is repeated up to the failed call, which is possible because it is deterministic, so nothing has to be stored in
//! normal runs. The graph of the call then runs once more with the mean magnitude of every value as an output.

use crate::Error;
use crate::sampler::Program;
use crate::step_graph::{Noise, Replay, StepGraph};
use clearshot_graph::ops::{ReduceKind, Unary};
use clearshot_graph::{Builder, Graph, Op, Value};
use clearshot_runtime::{Options, Session, compile};
use clearshot_tensor::Tensor;

/// As [`StepGraph::replay`]; values that are not finite name the op that made them.
///
/// # Errors
/// As [`StepGraph::replay`].
pub fn replay(
    steps: &StepGraph,
    session: &mut Session,
    program: &Program,
    x: &Tensor,
    noise: &Noise<'_>,
    watch: impl FnMut(usize, &dyn Replay) -> Result<(), Error>,
) -> Result<(), Error> {
    match steps.replay(session, program, x, noise, watch) {
        Err(Error::NonFinite { step, steps: all, image, .. }) => {
            let origin = origin(steps, program, session, x, noise, step)
                .unwrap_or_else(|e| format!("the op could not be found: {e}"));
            Err(Error::NonFinite { step, steps: all, image, origin })
        }
        other => other,
    }
}

/// What made values that are not finite in the calls of `step`, in words.
fn origin(
    steps: &StepGraph,
    program: &Program,
    session: &mut Session,
    x: &Tensor,
    noise: &Noise<'_>,
    step: usize,
) -> Result<String, Error> {
    let mut inspected = inspection(steps.graph(), session)?;
    steps.begin(session, x)?;
    for call in program.calls() {
        if call.step == step {
            for (name, _, _) in steps.graph().states() {
                inspected.set(name, &Replay::get(session, name)?)?;
            }
            for (name, _) in steps.graph().inputs() {
                // What the call sets itself may not have been set before; it is overwritten below.
                if let Ok(value) = Replay::get(session, name) {
                    inspected.set(name, &value)?;
                }
            }
            steps.set_call(&mut inspected, call, noise, program.stochastic())?;
            inspected.run()?;
            if let Some(found) = first(steps.graph(), &inspected)? {
                return Ok(found);
            }
        }
        steps.set_call(session, call, noise, program.stochastic())?;
        session.run()?;
    }
    Ok("it did not happen again when the run was repeated".into())
}

fn output_name(node: usize) -> String {
    format!("size of %{node}")
}

/// What first made values that are not finite in the last run of a graph's session, in words; nothing where all are
/// finite. For graphs whose states the run has not changed.
///
/// # Errors
/// If the device has not the room for every value of the graph.
pub fn first_not_finite(graph: &Graph, session: &Session) -> Result<Option<String>, Error> {
    let mut inspected = inspection(graph, session)?;
    let names = graph.inputs().map(|(name, _)| name).chain(graph.states().map(|(name, ..)| name));
    for name in names {
        inspected.set(name, &session.get(name)?)?;
    }
    inspected.run()?;
    first(graph, &inspected)
}

/// A graph with the size of every value as an output.
fn inspection(graph: &Graph, session: &Session) -> Result<Session, Error> {
    let mut b = Builder::extend(graph.clone());
    for node in 0..graph.nodes.len() {
        let value = Value::new(node, 0);
        if b.ty(value).dtype.is_float() {
            let size = b.unary(Unary::Abs, value);
            let size = b.reduce_all(ReduceKind::Mean, size);
            b.output(&output_name(node), size);
        }
    }
    // In the precision of the session: in another one other values may be the first.
    let precision = session.arithmetic().precision();
    Ok(compile(b.finish()?, session.device(), &Options { optimise: false, precision, ..Options::default() })?)
}

fn first(graph: &Graph, inspected: &Session) -> Result<Option<String>, Error> {
    for (i, node) in graph.nodes.iter().enumerate() {
        if !node.outs[0].dtype.is_float() {
            continue;
        }
        let size = inspected.get(&output_name(i))?.to_f64()[0];
        if size.is_finite() {
            continue;
        }
        return Ok(Some(match &node.op {
            Op::Input(name) => format!("the input `{name}` holds them"),
            Op::State(s) => format!("the state `{}` holds them", s.name),
            _ => format!("first in {}", graph.line(i)),
        }));
    }
    Ok(None)
}
