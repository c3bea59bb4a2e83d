//! Random weights and data for a network's session, the same for the same names and shapes.

use crate::Result;
use clearshot_graph::Graph;
use clearshot_nn::Param;
use clearshot_nn::init::example;
use clearshot_runtime::Session;

/// Sets every parameter and every input of `graph`.
///
/// # Errors
/// If the session is of another graph.
pub fn fill(session: &mut Session, graph: &Graph, params: &[Param]) -> Result<()> {
    for p in params {
        session.set(&p.name, &p.initial(0))?;
    }
    for (name, v) in graph.inputs() {
        session.set(name, &example(name, graph.ty(v), 1))?;
    }
    Ok(())
}
