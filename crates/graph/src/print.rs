//! Graphs as text: one line a node, with the type of every value and the layer it belongs to.

use crate::graph::{Graph, Node};
use crate::ops::Op;
use std::fmt;

/// The op with its attributes, shortened to what says something.
pub(crate) fn describe(op: &Op) -> String {
    match op {
        Op::Input(name) => format!("input \"{name}\""),
        Op::State(s) => format!("state \"{}\"", s.name),
        Op::Const(c) => format!("const {c:?}"),
        Op::Unary(u) => format!("{u:?}").to_lowercase(),
        Op::UnaryGrad(u) => format!("{}_grad", format!("{u:?}").to_lowercase()),
        Op::Binary(b) => format!("{b:?}").to_lowercase(),
        Op::Pointwise(p) => format!("pointwise {:?}", p.steps),
        Op::Cast(d) => format!("cast {d}"),
        Op::Float8(f) => format!("float8 {}", f.name()),
        Op::Whole(w) => format!("whole {}", w.name()),
        Op::Conv(c) => {
            let g = &c.geometry;
            let mut s = format!("conv stride {:?} pad {:?}", g.stride, g.pad.map(|p| p[0]));
            if g.dilation != [1; 3] {
                s += &format!(" dilation {:?}", g.dilation);
            }
            if g.groups != 1 {
                s += &format!(" groups {}", g.groups);
            }
            if c.upsample {
                s += " upsampled";
            }
            if let Some(int8) = c.int8 {
                s += &format!(" int8 {}", int8.name());
            }
            if c.scaled {
                s += " scaled";
            }
            if c.parts > 1 {
                s += &format!(" parts {}", c.parts);
            }
            if let Some(p) = c.prologue {
                s += &format!(" norm {}{}{}", p.groups, if p.film { " film" } else { "" }, act(p.act));
            }
            s += match c.bias {
                crate::ops::Bias::None => "",
                crate::ops::Bias::Channel => " bias",
                crate::ops::Bias::Sample => " bias per sample",
            };
            s + &act(c.act)
                + if c.residual { " residual" } else { "" }
                + &c.side.map_or(String::new(), |s| format!(" beside {}", s.parts))
        }
        Op::ConvInputGrad(c) => format!(
            "conv_input_grad stride {:?} channels {:?}{}{}{}{}",
            c.geometry.stride,
            c.channels,
            if c.upsample { " upsampled" } else { "" },
            if c.bias { " bias" } else { "" },
            act(c.act),
            if c.residual { " residual" } else { "" }
        ),
        Op::ConvWeightGrad(c) => format!(
            "conv_weight_grad stride {:?} kernel {:?}{}{}{}",
            c.geometry.stride,
            c.kernel,
            if c.upsample { " upsampled" } else { "" },
            if c.parts > 1 { format!(" parts {}", c.parts) } else { String::new() },
            c.prologue.map_or(String::new(), |p| format!(" norm {}{}", p.groups, act(p.act)))
        ),
        Op::MatMul(m) => format!(
            "matmul{}{}{}{}{}",
            if m.transpose_a { " aT" } else { "" },
            if m.transpose_b { " bT" } else { "" },
            if m.bias { " bias" } else { "" },
            act(m.act),
            if m.residual { " residual" } else { "" }
        ),
        Op::Norm(n) | Op::NormStats(n) => format!(
            "{} {} groups{}{}{}{}",
            op.name(),
            n.groups,
            if n.bias { " bias" } else { "" },
            if n.parts > 1 { format!(" parts {}", n.parts) } else { String::new() },
            if n.film { " film" } else { "" },
            act(n.act)
        ),
        Op::NormGrad(n) => format!(
            "norm_grad {} groups{}{}{}{}",
            n.norm.groups,
            if n.norm.bias { " bias" } else { "" },
            if n.norm.parts > 1 { format!(" parts {}", n.norm.parts) } else { String::new() },
            act(n.norm.act),
            if n.addends != 0 { format!(" addends {:b}", n.addends) } else { String::new() }
        ),
        Op::Attention(a) | Op::AttentionGrad(a) => format!("{} {} heads", op.name(), a.heads),
        Op::Reduce(r) => format!("{:?} axes {:b}", r.kind, r.axes).to_lowercase(),
        Op::Concat(c) => format!("concat axis {}", c.axis),
        Op::Slice(s) => format!("slice axis {} {}..{}", s.axis, s.start, s.start + s.len),
        Op::Transpose(t) => format!("transpose {:?}", t.order().collect::<Vec<_>>()),
        Op::Resize(r) => format!("resize {:?}", r.mode).to_lowercase(),
        Op::ResizeGrad(r) => format!("resize_grad {:?}", r.mode).to_lowercase(),
        Op::Pool(p) => format!("pool {:?} {:?}", p.kind, p.kernel).to_lowercase(),
        Op::PoolGrad(p) => format!("pool_grad {:?} {:?}", p.pool.kind, p.pool.kernel).to_lowercase(),
        Op::CyclicConv(c) => format!("cyclic_conv{}", if c.adjoint { " adjoint" } else { "" }),
        Op::Noise(n) => format!("noise {:?}", n.kind).to_lowercase(),
        Op::Dropout(d) => format!("dropout {}", d.rate),
        Op::Clip(c) => format!("clip {}", c.max_norm),
        Op::AllReduceBegin(a) => format!("all_reduce_begin {}", a.bucket),
        Op::AllReduceEnd(a) => format!("all_reduce_end {} at {}", a.bucket, a.at),
        Op::Adam(a) => (if a.decoupled { "adamw" } else { "adam" }).into(),
        Op::Reshape(_)
        | Op::StopGradient
        | Op::Broadcast(_)
        | Op::Pad(_)
        | Op::PadGrad(_)
        | Op::Softmax
        | Op::Gather
        | Op::GatherGrad(_)
        | Op::Sgd(_)
        | Op::Ema
        | Op::LossScale(_)
        | Op::CountStep => op.name().into(),
    }
}

fn act(a: Option<crate::ops::Unary>) -> String {
    a.map_or(String::new(), |a| format!(" {a:?}").to_lowercase())
}

impl Graph {
    /// One node as a line.
    pub fn line(&self, i: usize) -> String {
        let Node { op, inputs, outs, scope } = &self.nodes[i];
        let types: Vec<String> = outs.iter().map(ToString::to_string).collect();
        let operands: Vec<String> = inputs.iter().map(|v| format!("{v:?}")).collect();
        let place = if scope.is_empty() { String::new() } else { format!("  # {scope}") };
        format!("%{i}: {} = {} ({}){place}", types.join(", "), describe(op), operands.join(", "))
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for i in 0..self.nodes.len() {
            writeln!(f, "{}", self.line(i))?;
        }
        for o in &self.outputs {
            writeln!(f, "output \"{}\" = {:?}: {}", o.name, o.value, self.ty(o.value))?;
        }
        for u in &self.updates {
            writeln!(f, "update %{} = {:?}", u.state, u.value)?;
        }
        Ok(())
    }
}
