//! What every graph satisfies, checked after each pass:
//!
//! 1. a node reads only nodes before it;
//! 2. every value that is read exists;
//! 3. outputs' types are what the op's shape rule says, but for the width of floats, which a node chooses;
//! 4. updates write values of a state's type into a state, each state once;
//! 5. the old value of an updated state is neither an output nor another state's new value: it is gone
//!    by the time that these are read;
//! 6. no two inputs or states share a name, and no two outputs.

use crate::graph::{Graph, Value};
use crate::ops::Op;
use std::collections::BTreeSet;

/// The condition that does not hold, with the neighbourhood of the node.
#[derive(Debug, thiserror::Error)]
#[error("{stage}: node {node}: {reason}\n{neighbourhood}")]
pub struct VerifyError {
    /// The pass after which it was found.
    pub stage: String,
    pub node: usize,
    pub reason: String,
    pub neighbourhood: String,
}

impl Graph {
    /// # Errors
    /// The first condition that does not hold; `stage` names who made the graph.
    pub fn verify(&self, stage: &str) -> Result<(), VerifyError> {
        let fail = |node: usize, reason: String| VerifyError {
            stage: stage.into(),
            node,
            reason,
            neighbourhood: self.neighbourhood(node),
        };
        let exists = |v: Value| v.at() < self.nodes.len() && v.port() < self.nodes[v.at()].outs.len();
        for (i, node) in self.nodes.iter().enumerate() {
            for v in &node.inputs {
                if !exists(*v) {
                    return Err(fail(i, format!("reads {v:?}, which does not exist")));
                }
                if v.at() >= i {
                    return Err(fail(i, format!("reads {v:?}, which does not run before it")));
                }
            }
            if matches!(node.op, Op::Input(_) | Op::State(_)) {
                continue;
            }
            let types: Vec<_> = node.inputs.iter().map(|v| self.ty(*v)).collect();
            let outs = node.op.infer(&types).map_err(|e| fail(i, e.to_string()))?;
            if outs.len() != node.outs.len() || !outs.iter().zip(&node.outs).all(|(a, b)| a.stands_for(b)) {
                return Err(fail(i, format!("makes {outs:?} and claims {:?}", node.outs)));
            }
        }
        let mut written = BTreeSet::new();
        for u in &self.updates {
            let state = Value { node: u.state, port: 0 };
            if !exists(state) || !exists(u.value) || !matches!(self.op(state), Op::State(_)) {
                return Err(fail(
                    u.state as usize,
                    "an update of what is no state, or by what does not exist".into(),
                ));
            }
            if self.ty(state) != self.ty(u.value) {
                return Err(fail(u.state as usize, format!("updated by {}", self.ty(u.value))));
            }
            if !written.insert(u.state) {
                return Err(fail(u.state as usize, "updated twice".into()));
            }
        }
        if let Some(o) = self.outputs.iter().find(|o| !exists(o.value)) {
            return Err(fail(o.value.at(), format!("output `{}` does not exist", o.name)));
        }
        let lost = |v: Value| {
            let root = self.behind_views(v);
            matches!(self.op(root), Op::State(_)) && written.contains(&root.node)
        };
        if let Some(v) = self.roots().find(|v| lost(*v)) {
            return Err(fail(v.at(), "an output or update by a state that is itself updated".into()));
        }
        for (i, o) in self.outputs.iter().enumerate() {
            if self.outputs[..i].iter().any(|other| other.name == o.name) {
                return Err(fail(o.value.at(), format!("two outputs are called `{}`", o.name)));
            }
        }
        let names = self.inputs().map(|(n, v)| (n, v.at())).chain(self.states().map(|(n, _, v)| (n, v.at())));
        let mut seen = BTreeSet::new();
        for (name, node) in names {
            if !seen.insert(name) {
                return Err(fail(node, format!("`{name}` is declared twice")));
            }
        }
        Ok(())
    }

    fn neighbourhood(&self, node: usize) -> String {
        let from = node.saturating_sub(3);
        let to = (node + 3).min(self.nodes.len());
        (from..to).map(|i| format!("{} {}\n", if i == node { ">" } else { " " }, self.line(i))).collect()
    }
}
