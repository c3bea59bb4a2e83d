//! Common subexpressions: nodes with the same op, attributes and operands are one.

use super::Target;
use crate::graph::{Graph, Value};
use crate::key::KernelKey;
use crate::ops::Op;
use std::collections::{BTreeMap, HashMap};

pub(super) fn cse(mut graph: Graph, _: &Target) -> Graph {
    let mut seen: HashMap<(KernelKey, Vec<Value>), usize> = HashMap::new();
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    for i in 0..graph.nodes.len() {
        for v in &mut graph.nodes[i].inputs {
            *v = map.get(v).copied().unwrap_or(*v);
        }
        let node = &graph.nodes[i];
        if matches!(node.op, Op::Input(_) | Op::State(_)) {
            continue;
        }
        let key = (KernelKey::of(&graph, i), node.inputs.clone());
        if let Some(&first) = seen.get(&key) {
            for port in 0..node.outs.len() {
                map.insert(Value::new(i, port), Value::new(first, port));
            }
        } else {
            seen.insert(key, i);
        }
    }
    graph.redirect(&map);
    graph.tidy()
}
