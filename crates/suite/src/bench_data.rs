//! Random weights and data for a network's session, the same for the same names and shapes.

use crate::Result;
use clearshot_graph::Graph;
use clearshot_nn::Param;
use clearshot_runtime::Session;
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;

/// Sets every parameter and every input of `graph`.
///
/// # Errors
/// If the session is of another graph.
pub fn fill(session: &mut Session, graph: &Graph, params: &[Param]) -> Result<()> {
    for p in params {
        session.set(&p.name, &p.initial(0))?;
    }
    for (stream, (name, v)) in graph.inputs().enumerate() {
        let shape = graph.shape(v);
        let mut values = vec![0.0; shape.len()];
        Key { seed: 1, step: 0, stream: stream as u32 }.fill_normal(0, &mut values);
        match name {
            "rate" => values.fill(1e-3),
            "t" => values.iter_mut().for_each(|t| *t = (t.abs() * 300.0).floor()),
            _ => {}
        }
        session.set(name, &Tensor::f32(shape, values))?;
    }
    Ok(())
}
