//! Passes: functions from graph to graph, in one visible list.
//!
//! Besides these only [`precision`], [`eighths`] and [`recompute`] change a graph, when narrow floats or a budget are
//! asked for, and [`mod@delay`] its order. The verifier runs after each pass: it costs milliseconds, and a wrong graph
//! would cost more. A [`Target`] says what a backend's kernels can do, so that fusing makes only what can be run.

mod cse;
pub mod delay;
pub mod eighths;
mod fold;
pub mod fuse;
pub mod int8;
mod overlap;
pub mod precision;
pub mod recompute;
mod simplify;

use crate::graph::Graph;
use crate::ops::{Bias, Conv, Norm, Op, Unary};
use crate::verify::VerifyError;

/// What a backend's kernels take on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The largest number of tensors that a norm or convolution reads as one, side by side.
    pub parts: usize,
    /// Convolutions and their weight gradients normalise and activate what they read.
    pub conv_prologue: bool,
    /// Convolutions and products add residuals, and activate what they write.
    pub epilogue: bool,
    /// Norm gradients add another gradient to what they write.
    pub norm_addend: bool,
    /// Norms add a bias of each sample to what they read.
    pub norm_bias: bool,
    /// Convolutions of 3 x 3 pixels upsample what they read.
    pub upsample: bool,
    /// Convolutions multiply in 8 bits; those upsample what they read.
    pub int8: bool,
    /// Convolutions multiply floats of 8 bits.
    pub fp8: bool,
    /// Convolutions behind norms multiply whole numbers: those of known ranges are left for [`eighths`] to choose from.
    pub whole: bool,
}

impl Target {
    /// Nothing but what every backend must do.
    pub const PLAIN: Target = Target {
        parts: 1,
        conv_prologue: false,
        epilogue: false,
        norm_addend: false,
        norm_bias: false,
        upsample: false,
        int8: false,
        fp8: false,
        whole: false,
    };
    /// Everything that a fused op can express.
    pub const ALL: Target = Target {
        parts: 4,
        conv_prologue: true,
        epilogue: true,
        norm_addend: true,
        norm_bias: true,
        upsample: true,
        int8: true,
        fp8: true,
        whole: true,
    };

    /// Whether this convolution may upsample what it reads.
    pub fn upsamples(&self, conv: &Conv) -> bool {
        self.upsample || (self.int8 && conv.int8.is_some())
    }

    /// What an operation has fused into it that the backend's kernels do not do.
    pub fn lacks(&self, op: &Op) -> Option<&'static str> {
        let ended = |act: Option<Unary>, residual: bool| act.is_some() || residual;
        let norm = |n: &Norm| (n.parts, None, n.bias, false, false);
        let (parts, prologue, norm_bias, epilogue, upsample) = match op {
            Op::Conv(c) if c.int8.is_some() && !self.int8 && !self.whole => {
                return Some("products in 8 bits");
            }
            Op::Whole(_) if !self.whole => return Some("weights of whole numbers"),
            Op::Norm(n) if n.rounded && !self.whole => return Some("norms to whole numbers"),
            Op::Float8(_) if !self.fp8 => return Some("floats of 8 bits"),
            Op::Conv(c) if (c.scaled || c.side.is_some()) && !self.fp8 && !self.whole => {
                return Some("products of floats of 8 bits");
            }
            Op::Conv(c) => {
                let epilogue = ended(c.act, c.residual) || c.bias == Bias::Sample;
                (c.parts, c.prologue, false, epilogue, c.upsample && !self.upsamples(c))
            }
            Op::ConvInputGrad(c) => {
                let epilogue = ended(c.act, c.residual) || c.bias;
                if c.upsample && epilogue {
                    return Some("additions behind the gradient of what was upsampled");
                }
                (1, None, false, epilogue, c.upsample)
            }
            Op::ConvWeightGrad(c) => (c.parts, c.prologue, false, false, c.upsample),
            Op::MatMul(m) => (1, None, false, ended(m.act, m.residual), false),
            Op::Norm(n) | Op::NormStats(n) => norm(n),
            Op::NormGrad(g) if g.addends != 0 && !self.norm_addend => {
                return Some("addends of a norm's gradient");
            }
            Op::NormGrad(g) => norm(&g.norm),
            _ => return None,
        };
        let lacking = [
            (parts > self.parts, "so many parts"),
            (prologue.is_some() && !self.conv_prologue, "norms inside of convolutions"),
            (norm_bias && !self.norm_bias, "biases inside of norms"),
            (epilogue && !self.epilogue, "activations and additions behind products"),
            (upsample && !self.upsample, "upsampling inside of convolutions"),
        ];
        lacking.into_iter().find(|(lacks, _)| *lacks).map(|(_, what)| what)
    }
}

/// A pass and its name.
#[derive(Clone, Copy)]
pub struct Pass {
    pub name: &'static str,
    pub run: fn(Graph, &Target) -> Graph,
}

const fn pass(name: &'static str, run: fn(Graph, &Target) -> Graph) -> Pass {
    Pass { name, run }
}

/// The passes in their order.
pub const PASSES: &[Pass] = &[
    pass("dead", |g, _| g.tidy()),
    pass("8 bits", int8::settle),
    pass("fold", fold::fold),
    pass("simplify", simplify::simplify),
    pass("cse", cse::cse),
    pass("share reductions", fuse::reduce::share),
    pass("norm + activation", fuse::norm::activate),
    pass("upsampling into convolution", fuse::upsample::into_convolution),
    pass("concat in parts", fuse::concat::split),
    pass("norm gradient + addend", fuse::norm::add_into_gradient),
    pass("norm into convolution", fuse::norm::into_convolution),
    pass("epilogues", fuse::epilogue::absorb),
    pass("bias into norm", fuse::norm::take_bias),
    pass("elementwise chains", fuse::chain::fuse),
    pass("dead again", |g, _| g.tidy()),
    pass("all-reduces overlap the backward", overlap::overlap),
];

/// Runs every pass with the verifier after each.
///
/// # Errors
/// What the verifier found, and after which pass.
pub fn optimise(graph: Graph, target: &Target) -> Result<Graph, VerifyError> {
    graph.verify("as built")?;
    PASSES.iter().try_fold(graph, |g, p| {
        let g = (p.run)(g, target);
        g.verify(p.name)?;
        Ok(g)
    })
}
