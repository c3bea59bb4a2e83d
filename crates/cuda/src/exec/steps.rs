//! From a plan to launches: which kernel runs on which addresses, and what is launched for many nodes at once.

use super::exchange::Buckets;
use super::squares::{self, is_silent, is_sum_of_squares};
use crate::backend::CudaBackend;
use crate::branches::Access;
use crate::context::Context;
use crate::error::CudaError;
use crate::lower::update::{Clipping, Entry, Joint, Rule, Scalars, Squares, type_number};
use crate::lower::{Io, Kernel};
use crate::memory::Buffer;
use clearshot_graph::plan::{DEVICE_REGIONS, Place, Plan, Region};
use clearshot_graph::{Graph, Op, Value};
use clearshot_tensor::DType;
use cudarc::driver::result;
use std::collections::HashMap;
use std::sync::Arc;

/// What is launched for one node, or for several at once.
enum Work {
    Node {
        kernel: Arc<Kernel>,
        inputs: Vec<u64>,
        outputs: Vec<u64>,
        workspace: u64,
    },
    Joint(Joint),
    Squares(Squares),
    Clip(Clipping),
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// A bucket leaves for the other ranks.
    Begin(u32),
    /// The mean of one value of a bucket is there.
    End {
        bucket: u32,
        at: usize,
    },
}

/// One launch, or a few that belong together.
pub(super) struct Step {
    /// The node that it is counted for.
    pub node: usize,
    work: Work,
    pub access: Access,
}

impl Step {
    pub fn launch(&self, cx: &Context, buckets: &Buckets) -> Result<(), CudaError> {
        // SAFETY: `Builder` makes steps, of addresses in the executor's regions that the plan gives to the node's values, and of
        // tables that the step owns; the executor waits for the stream before it lets its regions go.
        unsafe {
            match &self.work {
                Work::Node { kernel, inputs, outputs, workspace } => {
                    kernel.launch(cx, &Io { inputs, outputs, workspace: *workspace })
                }
                Work::Joint(j) => j.launch(cx),
                Work::Squares(s) => s.launch(cx),
                Work::Clip(c) => c.launch(cx),
                Work::Copy { from, to, bytes } => {
                    Ok(result::memcpy_dtod_async(*to, *from, *bytes, cx.stream)?)
                }
                Work::Begin(bucket) => buckets.begin(cx, *bucket),
                Work::End { bucket, at } => buckets.end(cx, *bucket, *at),
            }
        }
    }

    /// The bucket that must be there before this is launched.
    pub fn awaited(&self) -> Option<u32> {
        match self.work {
            Work::End { bucket, .. } => Some(bucket),
            _ => None,
        }
    }

    /// Whether it is a part of an exchange between ranks, and takes no time by itself.
    pub fn is_exchange(&self) -> bool {
        matches!(self.work, Work::Begin(_) | Work::End { .. })
    }
}

/// Addresses of a plan's values.
pub(super) struct Addresses<'a> {
    pub plan: &'a Plan,
    pub regions: &'a [Buffer; DEVICE_REGIONS],
}

impl Addresses<'_> {
    pub fn at(&self, place: Place) -> u64 {
        self.regions[place.region.index()].at(place.offset, place.bytes)
    }

    pub fn of(&self, v: Value) -> u64 {
        self.at(self.plan.place(v))
    }

    fn inputs(&self, node: usize) -> Vec<u64> {
        self.plan.graph.nodes[node].inputs.iter().map(|v| self.of(*v)).collect()
    }

    fn outputs(&self, node: usize) -> Vec<u64> {
        self.plan.places[node].iter().map(|p| self.at(*p)).collect()
    }

    /// The copy of the state that node `update` updates, for the update to write to; nothing where the copy is
    /// read behind it.
    fn copy_of(&self, state: Value, update: usize) -> Option<(u64, DType)> {
        let graph = &self.plan.graph;
        let found =
            (0..graph.nodes.len()).find(|&i| graph.is_state_copy(i) && graph.nodes[i].inputs[0] == state)?;
        let copy = Value::new(found, 0);
        let late =
            graph.nodes[update..].iter().any(|n| n.inputs.iter().any(|v| graph.behind_views(*v) == copy));
        (!late).then(|| (self.of(copy), graph.nodes[found].outs[0].dtype))
    }
}

/// Launches of copies of the device's states: those to refresh every run, and all.
pub(super) fn copies_of_states(
    cx: &Arc<Context>,
    at: &Addresses<'_>,
) -> Result<(Option<Joint>, Option<Joint>), CudaError> {
    let graph = &at.plan.graph;
    let (mut changing, mut all) = (vec![], vec![]);
    for i in (0..graph.nodes.len()).filter(|&i| graph.is_state_copy(i)) {
        let (state, ty) = (graph.nodes[i].inputs[0], graph.nodes[i].outs[0]);
        if at.plan.place(state).region == Region::Host {
            continue;
        }
        let entry = Entry {
            param_in: at.of(state),
            narrow: at.of(Value::new(i, 0)),
            narrow_type: type_number(ty.dtype),
            count: ty.shape.len() as i64,
            ..Entry::default()
        };
        all.push(entry);
        let update = graph.updates.iter().find(|u| u.state == state.node);
        // An optimiser that updates this very state writes the copy too.
        let optimised = |v: Value| {
            matches!(graph.op(v), Op::Adam(_) | Op::Sgd(_))
                && graph.nodes[v.at()].inputs[0] == state
                && v.port() == 0
                && at.copy_of(state, v.at()).is_some()
        };
        if update.is_some_and(|u| !optimised(u.value)) {
            changing.push(entry);
        }
    }
    let none = Scalars { rate: 0, step: 0, factor: 0, decay: 0 };
    let joint = |entries: &[Entry]| {
        if entries.is_empty() { Ok(None) } else { Joint::new(cx, Rule::Narrow, entries, none).map(Some) }
    };
    Ok((joint(&changing)?, joint(&all)?))
}

/// Nothing runs beside it: launches over tables touch what the tables list, and some kernels take the whole card.
fn alone() -> Access {
    Access { alone: true, ..Access::default() }
}

/// A run's launches, in their order.
pub(super) struct Launches {
    /// Copies of states that change without an optimiser, at the start of every run.
    refresh: Option<Joint>,
    pub steps: Vec<Step>,
}

impl Launches {
    pub fn new(refresh: Option<Joint>, steps: Vec<Step>) -> Launches {
        Launches { refresh, steps }
    }

    pub fn launch(&self, cx: &Context, buckets: &Buckets) -> Result<(), CudaError> {
        self.refresh(cx)?;
        self.steps.iter().try_for_each(|s| s.launch(cx, buckets))
    }

    pub fn refresh(&self, cx: &Context) -> Result<(), CudaError> {
        // SAFETY: as of a step.
        self.refresh.as_ref().map_or(Ok(()), |r| unsafe { r.launch(cx) })
    }
}

/// Makes the launches of a plan.
pub(super) struct Builder<'a> {
    pub cx: &'a Arc<Context>,
    pub backend: &'a CudaBackend,
    pub at: &'a Addresses<'a>,
    pub buckets: &'a Buckets,
}

impl Builder<'_> {
    fn graph(&self) -> &Graph {
        &self.at.plan.graph
    }

    pub fn steps(&self) -> Result<Vec<Step>, CudaError> {
        let mut steps = vec![];
        let nodes = self.graph().nodes.len();
        let squares = squares::joined(self.graph());
        let mut i = 0;
        while i < nodes {
            let end = self.run_of(i);
            for sums in (i..end.max(i + 1)).filter_map(|j| squares.get(&j)) {
                steps.push(self.squares(sums)?);
            }
            if end > i {
                self.joint(i, end, &mut steps)?;
                i = end;
                continue;
            }
            if is_sum_of_squares(self.graph(), i) {
                i += 1;
                continue;
            }
            if let Op::Clip(rule) = self.graph().nodes[i].op {
                let outputs = self.at.outputs(i);
                let clip = Clipping::new(self.cx, rule, &self.at.inputs(i), [outputs[0], outputs[1]])?;
                steps.push(Step { node: i, work: Work::Clip(clip), access: alone() });
            } else if let Op::AllReduceBegin(a) = self.graph().nodes[i].op {
                let mut access = self.access(i);
                access.writes.extend(self.buckets.written(a.bucket));
                steps.push(Step { node: i, work: Work::Begin(a.bucket), access });
            } else if let Op::AllReduceEnd(a) = self.graph().nodes[i].op {
                let work = Work::End { bucket: a.bucket, at: a.at };
                steps.push(Step { node: i, work, access: self.access(i) });
            } else if let Some(kernel) = self.backend.kernel(self.graph(), i)? {
                let place = self.at.plan.workspaces[i];
                assert!(place.bytes >= kernel.workspace, "the plan was made for another GPU");
                let access = if kernel.is_alone { alone() } else { self.access(i) };
                let work = Work::Node {
                    kernel,
                    inputs: self.at.inputs(i),
                    outputs: self.at.outputs(i),
                    workspace: self.at.at(place),
                };
                steps.push(Step { node: i, work, access });
            }
            i += 1;
        }
        if let Some(sums) = squares.get(&nodes) {
            steps.push(self.squares(sums)?);
        }
        for (v, to) in &self.at.plan.copies {
            let work = Work::Copy { from: self.at.of(*v), to: self.at.at(*to), bytes: to.bytes };
            steps.push(Step { node: v.at(), work, access: alone() });
        }
        Ok(steps)
    }

    /// What a node's kernel reads and writes.
    fn access(&self, i: usize) -> Access {
        let range = |p: Place| {
            let start = self.at.at(p);
            start..start + p.bytes as u64
        };
        let plan = self.at.plan;
        let mut writes: Vec<_> = plan.places[i].iter().copied().map(range).collect();
        writes.extend(Some(plan.workspaces[i]).filter(|w| w.bytes > 0).map(range));
        let reads = self.graph().nodes[i].inputs.iter().map(|v| range(plan.place(*v))).collect();
        Access { reads, writes, alone: false }
    }

    fn is_update(&self, i: usize) -> bool {
        matches!(self.graph().nodes[i].op, Op::Adam(_) | Op::Sgd(_) | Op::Ema)
    }

    /// The end of the longest run of updates from `i`, which are launched together; sources and views between
    /// them launch nothing.
    fn run_of(&self, i: usize) -> usize {
        if !self.is_update(i) {
            return i;
        }
        let rest = (i..self.graph().nodes.len())
            .take_while(|&j| self.is_update(j) || is_silent(self.graph(), j))
            .filter(|&j| self.is_update(j));
        rest.last().map_or(i, |last| last + 1)
    }

    fn joint(&self, from: usize, to: usize, steps: &mut Vec<Step>) -> Result<(), CudaError> {
        let members: Vec<usize> = (from..to).filter(|&i| self.is_update(i)).collect();
        // One launch for each rule and set of scalars: an optimiser, with the averages that follow it.
        let mut groups: Vec<(Rule, Scalars, Vec<Entry>, usize)> = vec![];
        let mut by_output: HashMap<Value, (usize, usize)> = HashMap::new();
        for &i in &members {
            let (rule, scalars, entry) = self.update(i);
            let averaged = self.graph().nodes[i].inputs.get(1).and_then(|v| by_output.get(v)).copied();
            if let (Rule::Ema, Some((group, at))) = (rule, averaged) {
                let (_, s, entries, _) = &mut groups[group];
                let free = entries[at].average == 0;
                if free && (s.decay == 0 || s.decay == scalars.decay) && s.factor == scalars.factor {
                    s.decay = scalars.decay;
                    entries[at].average = entry.average;
                    entries[at].average_in = entry.average_in;
                    continue;
                }
            }
            // An optimiser's decay is that of the averages that joined it.
            let same = |g: &(Rule, Scalars, Vec<Entry>, usize)| {
                let decay = if rule == Rule::Ema { g.1.decay } else { scalars.decay };
                g.0 == rule && Scalars { decay, ..g.1 } == scalars
            };
            let group = groups.iter().position(same).unwrap_or_else(|| {
                groups.push((rule, scalars, vec![], i));
                groups.len() - 1
            });
            if rule != Rule::Ema {
                by_output.insert(Value::new(i, 0), (group, groups[group].2.len()));
            }
            groups[group].2.push(entry);
        }
        // Averages that joined no optimiser read what the optimisers wrote.
        groups.sort_by_key(|g| g.0 == Rule::Ema);
        for (rule, scalars, entries, node) in groups {
            let work = Work::Joint(Joint::new(self.cx, rule, &entries, scalars)?);
            steps.push(Step { node, work, access: alone() });
        }
        Ok(())
    }

    fn squares(&self, sums: &[usize]) -> Result<Step, CudaError> {
        let entry = |&i: &usize| {
            let v = self.graph().nodes[i].inputs[0];
            let ty = self.graph().ty(v);
            Entry {
                param: self.at.outputs(i)[0],
                grad: self.at.of(v),
                grad_type: type_number(ty.dtype),
                count: ty.shape.len() as i64,
                ..Entry::default()
            }
        };
        let entries: Vec<Entry> = sums.iter().map(entry).collect();
        let work = Work::Squares(Squares::new(self.cx, &entries)?);
        Ok(Step { node: sums[0], work, access: alone() })
    }

    fn update(&self, i: usize) -> (Rule, Scalars, Entry) {
        let node = &self.graph().nodes[i];
        let (x, y) = (self.at.inputs(i), self.at.outputs(i));
        let count = node.outs[0].shape.len() as i64;
        let (narrow, narrow_type) = self
            .at
            .copy_of(node.inputs[0], i)
            .map_or((0, 0), |(address, dtype)| (address, type_number(dtype)));
        let grad_type = type_number(self.graph().ty(node.inputs[1]).dtype);
        match node.op {
            Op::Adam(rule) => (
                Rule::Adam(rule),
                Scalars { rate: x[4], step: x[5], factor: x[6], decay: 0 },
                Entry {
                    param: y[0],
                    param_in: x[0],
                    grad: x[1],
                    first: y[1],
                    first_in: x[2],
                    second: y[2],
                    second_in: x[3],
                    narrow,
                    narrow_type,
                    grad_type,
                    count,
                    ..Entry::default()
                },
            ),
            Op::Sgd(rule) => (
                Rule::Sgd(rule),
                Scalars { rate: x[3], step: 0, factor: x[4], decay: 0 },
                Entry {
                    param: y[0],
                    param_in: x[0],
                    grad: x[1],
                    first: y[1],
                    first_in: x[2],
                    narrow,
                    narrow_type,
                    grad_type,
                    count,
                    ..Entry::default()
                },
            ),
            _ => (
                Rule::Ema,
                Scalars { rate: 0, step: 0, factor: x[3], decay: x[2] },
                Entry { average: y[0], average_in: x[0], param_in: x[1], count, ..Entry::default() },
            ),
        }
    }
}
