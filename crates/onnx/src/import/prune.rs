//! Removes what fusing patterns has left over: only values that the outputs need are kept. The states of a graph survive
//! every pass, so the weights of replaced operations are removed here.

use clearshot_graph::{Graph, Op, Output, Value};
use clearshot_nn::Weights;

/// Which nodes the outputs need.
pub(super) fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut stack: Vec<usize> = graph.roots().map(Value::at).collect();
    while let Some(i) = stack.pop() {
        if !std::mem::replace(&mut needed[i], true) {
            stack.extend(graph.nodes[i].inputs.iter().map(|v| v.at()));
        }
    }
    needed
}

pub(super) fn prune(graph: Graph, mut weights: Weights) -> (Graph, Weights) {
    let needed = needed(&graph);
    let mut place = vec![0; graph.nodes.len()];
    let mut nodes = vec![];
    for (i, mut node) in graph.nodes.into_iter().enumerate() {
        match &node.op {
            Op::State(s) if !needed[i] => {
                weights.remove(&*s.name);
                continue;
            }
            Op::Input(_) => {}
            _ if !needed[i] => continue,
            _ => {}
        }
        place[i] = nodes.len();
        node.inputs.iter_mut().for_each(|v| *v = Value::new(place[v.at()], v.port()));
        nodes.push(node);
    }
    let moved = |o: Output| Output { value: Value::new(place[o.value.at()], o.value.port()), ..o };
    (Graph { nodes, outputs: graph.outputs.into_iter().map(moved).collect(), updates: vec![] }, weights)
}
