//! Convolutions of the graph on the convolution kernels.
//!
//! A prologue becomes coefficients a, b of each sample and channel, computed into the workspace just
//! before the kernel that applies them. A convolution in 8 bits is the same node on another kernel.

use super::norm::{NormOperands, affine};
use super::operands::{Ending, Packing, Pieces, padded, read};
use super::{Machine, act};
use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::conv::{ConvDims, ConvPlan, Int8Plan, Part, Pre, Reading, Source, WeightGradPlan};
use crate::kernels::norm::{self, NormDims};
use clearshot_graph::Type;
use clearshot_graph::ops::conv::{seen_size, spatial};
use clearshot_graph::ops::{self, Bias, Geometry, Int8, Prologue};
use clearshot_tensor::Shape;

fn dims(g: &Geometry, n: usize, input: [usize; 3], c: usize, output: [usize; 3], weight: Shape) -> ConvDims {
    ConvDims {
        n,
        input,
        c,
        output,
        k: weight[0],
        kernel: spatial("weight", weight).expect("checked when the node was built"),
        stride: g.stride,
        pad: g.pad.map(|p| p[0]),
        dilation: g.dilation,
        groups: g.groups,
    }
}

fn sizes(shape: Shape) -> [usize; 3] {
    spatial("image", shape).expect("checked when the node was built")
}

/// What a convolution reads: parts and, with a prologue, a norm.
struct Reader {
    /// Channels of each part.
    parts: Vec<usize>,
    norm: Option<(NormDims, Prologue)>,
}

impl Reader {
    fn new(parts: &[Type], prologue: Option<Prologue>) -> Reader {
        let channels: Vec<usize> = parts.iter().map(|t| t.shape.channels()).collect();
        let [n, s, _] = clearshot_graph::array::rows(parts[0].shape);
        let c = channels.iter().sum();
        let norm = prologue.map(|p| (NormDims { n, s, c, groups: p.groups }, p));
        Reader { parts: channels, norm }
    }

    fn channels(&self) -> usize {
        self.parts.iter().sum()
    }

    fn workspace_len(&self) -> usize {
        self.norm.map_or(0, |(d, _)| padded(d.n * 2 * d.c))
    }

    /// # Safety
    /// `inputs` are the node's, the first of them the parts; `pieces` has this reader's workspace.
    unsafe fn source(&self, cpu: &Cpu, inputs: &[*const f32], pieces: &mut Pieces) -> Source {
        let empty = Part { data: std::ptr::null(), channels: 0, stride: 0 };
        let mut parts = [empty; crate::kernels::conv::MAX_PARTS];
        for (i, &channels) in self.parts.iter().enumerate() {
            parts[i] = Part { data: inputs[i], channels, stride: channels };
        }
        let pre = self.norm.map(|(dims, prologue)| {
            let operands = &inputs[self.parts.len()..];
            // SAFETY: the prologue's operands have the shapes that the graph checked.
            unsafe {
                let coef = pieces.take(dims.n * 2 * dims.c);
                let stats = read(operands[0], dims.n * dims.groups * 2);
                let operands = NormOperands { pointers: &operands[1..], film: prologue.film };
                norm::coefficients(cpu, &dims, stats, &affine(&dims, operands), coef);
                Pre { coef: coef.as_ptr(), act: act(prologue.act) }
            }
        });
        Source::new(&parts[..self.parts.len()], pre)
    }
}

/// What computes a convolution.
enum Plan {
    F32(ConvPlan),
    Int8(Int8Plan),
}

impl Plan {
    fn workspace_len(&self) -> usize {
        match self {
            Plan::F32(p) => p.workspace_len,
            Plan::Int8(p) => p.workspace_len,
        }
    }

    fn packed_len(&self) -> usize {
        match self {
            Plan::F32(p) => p.packed_len,
            Plan::Int8(p) => p.packed_len,
        }
    }
}

pub(super) struct Forward {
    plan: Plan,
    reader: Reader,
    at: ops::conv::ConvOperands,
    packing: Packing,
    ending: Ending,
    k: usize,
}

impl Forward {
    pub(super) fn new(op: &ops::Conv, x: &[Type], constant: bool, m: Machine) -> Forward {
        let at = op.operands();
        let reader = Reader::new(&x[..op.parts], op.prologue);
        let weight = x[at.weight].shape;
        let input = seen_size(sizes(x[0].shape), weight.rank(), op.upsample);
        let output = op.geometry.output(input, sizes(weight)).expect("checked when the node was built");
        let dims = dims(&op.geometry, x[0].shape[0], input, reader.channels(), output, weight);
        let plan = match op.int8 {
            None => Plan::F32(ConvPlan::forward(&dims, m.level, m.threads)),
            Some(steps) => {
                let how = Reading { dynamic: steps == Int8::Dynamic, upsample: op.upsample };
                Plan::Int8(Int8Plan::new(&dims, how, m.level))
            }
        };
        let packing = Packing::new(plan.packed_len(), constant, at.count);
        let ending = Ending::new(at.bias, at.residual, op.act).per_sample(op.bias == Bias::Sample);
        Forward { plan, reader, at, packing, ending, k: dims.k }
    }
}

impl Prepared for Forward {
    fn workspace_len(&self, _: usize) -> usize {
        self.reader.workspace_len() + self.packing.workspace_len() + self.plan.workspace_len()
    }

    fn packed_len(&self) -> usize {
        self.packing.prepared_len()
    }

    unsafe fn pack(&self, cpu: &Cpu, inputs: &[*const f32], packed: &mut [f32]) {
        let weight = inputs[self.at.weight];
        // SAFETY: the caller's promise.
        unsafe {
            match &self.plan {
                Plan::F32(p) => p.pack(cpu, weight, packed),
                Plan::Int8(p) => p.pack(cpu, weight, self.at.steps.map(|i| inputs[i]), packed),
            }
        }
    }

    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let mut pieces = Pieces(workspace);
        // SAFETY: the caller's promise; the pieces are those that `workspace_len` counts.
        unsafe {
            let source = self.reader.source(cpu, inputs, &mut pieces);
            let packed = self.packing.packed(inputs, &mut pieces, |to| self.pack(cpu, inputs, to));
            let epilogue = self.ending.of(inputs);
            let scratch = pieces.take(self.plan.workspace_len());
            match &self.plan {
                Plan::F32(p) => p.run(cpu, &source, packed, &epilogue, outputs[0], self.k, scratch),
                Plan::Int8(p) => p.run(cpu, &source, packed, &epilogue, outputs[0], scratch),
            }
        }
    }
}

pub(super) struct InputGrad {
    plan: ConvPlan,
    k: usize,
    /// First channel, channels, and channels of the whole weight.
    channels: [usize; 3],
    /// Rows of the weight: outputs times taps.
    rows: usize,
    packing: Packing,
    ending: Ending,
}

impl InputGrad {
    pub(super) fn new(op: &ops::ConvInputGrad, x: &[Type], constant: bool, m: Machine) -> InputGrad {
        let (bias, residual, operands) = op.operands();
        let weight = x[1].shape;
        let [first, len] = op.channels;
        let dims = dims(&op.geometry, x[0].shape[0], op.input, len, sizes(x[0].shape), weight);
        let plan = ConvPlan::input_grad(&dims, m.level, m.threads);
        // A slice of the weight is copied together on every run, and so packed then.
        let packing = Packing::new(plan.packed_len, constant && len >= weight.channels(), operands);
        InputGrad {
            plan,
            k: dims.k,
            channels: [first, len, weight.channels()],
            rows: weight.len() / weight.channels().max(1),
            packing,
            ending: Ending::new(bias, residual, op.act),
        }
    }

    /// Values of the weight's own channels where only some are used: those are copied together first.
    /// With groups the result has more channels than the weight, and all are used.
    fn slice_len(&self) -> usize {
        let [_, len, whole] = self.channels;
        if len < whole { self.rows * len } else { 0 }
    }

    /// # Safety
    /// `weight` is the node's; the pieces have `slice_len` values.
    unsafe fn weight(&self, weight: *const f32, pieces: &mut Pieces) -> *const f32 {
        if self.slice_len() == 0 {
            return weight;
        }
        let [first, len, whole] = self.channels;
        // SAFETY: the caller's promise.
        unsafe {
            let slice = pieces.take(self.slice_len());
            for (row, to) in slice.chunks_exact_mut(len).enumerate() {
                to.copy_from_slice(read(weight.add(row * whole + first), len));
            }
            slice.as_ptr()
        }
    }
}

impl Prepared for InputGrad {
    fn workspace_len(&self, _: usize) -> usize {
        padded(self.slice_len()) + self.packing.workspace_len() + self.plan.workspace_len
    }

    fn packed_len(&self) -> usize {
        self.packing.prepared_len()
    }

    unsafe fn pack(&self, cpu: &Cpu, inputs: &[*const f32], packed: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.plan.pack(cpu, inputs[1], packed) }
    }

    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let mut pieces = Pieces(workspace);
        // SAFETY: the caller's promise; the pieces are those that `workspace_len` counts.
        unsafe {
            let weight = self.weight(inputs[1], &mut pieces);
            let packed = self.packing.packed(inputs, &mut pieces, |to| self.plan.pack(cpu, weight, to));
            let epilogue = self.ending.of(inputs);
            let source = Source::plain(inputs[0], self.k);
            let scratch = pieces.take(self.plan.workspace_len);
            self.plan.run(cpu, &source, packed, &epilogue, outputs[0], self.channels[1], scratch);
        }
    }
}

pub(super) struct WeightGrad {
    plan: WeightGradPlan,
    reader: Reader,
    dy: usize,
}

impl WeightGrad {
    pub(super) fn new(op: &ops::ConvWeightGrad, x: &[Type], m: Machine) -> WeightGrad {
        let reader = Reader::new(&x[..op.parts], op.prologue);
        let dy = x[op.dy()].shape;
        let g = &op.geometry;
        let dims = ConvDims {
            n: dy[0],
            input: sizes(x[0].shape),
            c: reader.channels(),
            output: sizes(dy),
            k: dy.channels(),
            kernel: op.kernel,
            stride: g.stride,
            pad: g.pad.map(|p| p[0]),
            dilation: g.dilation,
            groups: g.groups,
        };
        let plan = WeightGradPlan::new(&dims, m.level, m.threads);
        WeightGrad { plan, reader, dy: op.dy() }
    }
}

impl Prepared for WeightGrad {
    fn workspace_len(&self, _: usize) -> usize {
        self.reader.workspace_len() + self.plan.workspace_len
    }

    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let mut pieces = Pieces(workspace);
        // SAFETY: the caller's promise; the pieces are those that `workspace_len` counts.
        unsafe {
            let source = self.reader.source(cpu, inputs, &mut pieces);
            let scratch = pieces.take(self.plan.workspace_len);
            self.plan.run(cpu, &source, inputs[self.dy], outputs[0], scratch);
        }
    }
}
