//! A whole training iteration as one graph: loss, gradients, clipping, optimiser, average.
//!
//! States are named after the parameter: `NAME` itself, `adam.m.NAME`, `adam.v.NAME`,
//! `sgd.momentum.NAME`, `ema.NAME`, `sum.NAME`, and the scalars `train.step`, `train.loss_scale`,
//! `train.good_steps`. The learning rate is the input `rate`, so that it changes without a new graph.
//!
//! Several runs can make one iteration: gradients are then summed in the states `sum.NAME`. Two inputs say
//! where a run stands: `carry` is 0 in the first and 1 in the others, `gate` is 0 in the last and infinite in
//! the others. The gate counts as one more square of a gradient, so all but the last are iterations that are
//! skipped for a norm that is not finite: no update of its own is needed. [`Guard`] shuts the same gate.
//!
//! A graph may end with several optimisers, each of which has parameters and a loss of its own: all read the values that states had when the run began. The second
//! one has a name, which stands in the names of its states and outputs: `train.NAME.step`, `NAME.loss`.
//!
//! Over several ranks, gradients and the loss are replaced by their means over ranks before anything looks at them, so that norm, guard and
//! updates are the same everywhere. Gradients travel in buckets, in the order in which the backward makes them.

mod encoder;
mod guard;

pub use encoder::EncoderRates;
pub use guard::Guard;

use crate::builder::Builder;
use crate::grad::{GradError, grad};
use crate::graph::{StateInit, Type, Value};
use crate::ops::{Adam, Binary, Clip, LossScale, Op, ReduceKind, Sgd};
use crate::ops::{AllReduceBegin, AllReduceEnd};
use clearshot_tensor::Shape;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    Adam(Adam),
    Sgd(Sgd),
}

impl Optimizer {
    /// PyTorch's defaults for AdamW.
    pub const ADAMW: Optimizer =
        Optimizer::Adam(Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2, decoupled: true });
}

/// How an iteration ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    pub optimizer: Optimizer,
    /// The largest norm of all gradients together; infinite for none.
    pub clip_norm: f64,
    /// The share of the old average that is kept each step; none for no average.
    pub ema_decay: Option<f64>,
    /// The average's share is the input `ema_decay`, set for each run, and `ema_decay` here only says that there
    /// is an average.
    pub ema_input: bool,
    /// Dynamic loss scaling, for 16-bit floats without bfloat's range. It cannot be told from an iteration whether
    /// its runs are skipped for their norm or for the gate, so it does not go with several runs.
    pub loss_scale: Option<(f32, LossScale)>,
    /// How many runs make an iteration; the loss of each counts by its share.
    pub runs: usize,
    /// Iterations whose loss or gradients are far from what they were lately are skipped.
    pub guard: Option<Guard>,
    /// A weight whose results sum over more values than this learns at a rate that is smaller by as much; none for one rate. See
    /// [`rate_share`].
    pub base_fan_in: Option<usize>,
    /// The rates of an encoder's layers; none for those of all others.
    pub encoder: Option<EncoderRates>,
    /// Over several ranks: the bytes of gradients that travel together, at least; none for one rank.
    pub bucket: Option<usize>,
    /// What tells this optimiser's states and outputs from those of another one in the same graph; none for the only or the first one.
    pub name: Option<&'static str>,
    /// How many ranks there are, for layers that look at the images of all.
    pub ranks: usize,
}

impl Default for Training {
    fn default() -> Training {
        Training {
            optimizer: Optimizer::ADAMW,
            clip_norm: f64::INFINITY,
            ema_decay: None,
            ema_input: false,
            loss_scale: None,
            runs: 1,
            guard: None,
            base_fan_in: None,
            encoder: None,
            bucket: None,
            name: None,
            ranks: 1,
        }
    }
}

/// The share of the rate that a weight of this shape, results first, learns at.
///
/// Adam changes every entry by about the rate, whatever the size of its gradient. A result that sums over `n` values changes
/// by `n` times that, while it is of size one when training begins: in a wide layer a rate that suits a narrow one multiplies what
/// comes out, layer after layer, and networks without norms fall apart. With rates that fall as one over `n`, one rate suits all widths
/// (Yang and Hu, "Tensor programs V", 2021). Biases have one value a result, and the whole rate.
pub fn rate_share(shape: Shape, base_fan_in: Option<usize>) -> f64 {
    let fan_in = if shape.rank() < 2 { 1 } else { shape.len() / shape[0].max(1) };
    base_fan_in.map_or(1.0, |base| (base as f64 / fan_in.max(1) as f64).min(1.0))
}

/// The bytes of gradients that travel together where nothing else is asked for: between processors few, for each wait is short, and between GPUs many, for each
/// bucket costs a GPU some microseconds however small it is.
pub const BUCKET_OF_PROCESSORS: usize = 1 << 20;
pub const BUCKET_OF_GPUS: usize = 25 << 20;

/// The bucket of the loss, the first of gradients and the first of layers. Between the first two callers may have buckets of their own for numbers that each run of an
/// iteration averages, as layers have; gradients are averaged in the last run alone.
pub const LOSS_BUCKET: u32 = 0;
const FIRST_GRADIENTS: u32 = 16;
const FIRST_OF_LAYERS: u32 = 1 << 24;

/// Whether a bucket is one of gradients.
pub fn is_of_gradients(bucket: u32) -> bool {
    (FIRST_GRADIENTS..FIRST_OF_LAYERS).contains(&bucket)
}

/// The mean over ranks of a value within a network, or of its gradient.
pub fn mean_of_layer(b: &mut Builder, value: Value) -> Value {
    let before = b.graph().nodes.iter().filter(|n| matches!(n.op, Op::AllReduceBegin(_))).count();
    mean_over_ranks(b, FIRST_OF_LAYERS + before as u32, &[value])[0]
}

/// The means of values over ranks, as one bucket.
pub fn mean_over_ranks(b: &mut Builder, bucket: u32, values: &[Value]) -> Vec<Value> {
    let token = b.push_one(Op::AllReduceBegin(AllReduceBegin { bucket }), values.to_vec());
    let mut at = 0;
    let mut end = |v: &Value| {
        let made = b.push_one(Op::AllReduceEnd(AllReduceEnd { bucket, at }), vec![token, *v]);
        at += b.shape(*v).len();
        made
    };
    values.iter().map(&mut end).collect()
}

/// Gradients averaged over ranks, in buckets of at least so many bytes, those that are made first in the first.
fn average_gradients(b: &mut Builder, grads: &mut [Value], made: &[usize], bytes: usize) {
    let mut order: Vec<usize> = (0..grads.len()).collect();
    order.sort_by_key(|&i| (made[i], i));
    let (mut bucket, mut from, mut filled) = (FIRST_GRADIENTS, 0, 0);
    for to in 1..=order.len() {
        filled += b.ty(grads[order[to - 1]]).bytes();
        if filled < bytes && to < order.len() {
            continue;
        }
        let values: Vec<Value> = order[from..to].iter().map(|&i| grads[i]).collect();
        let averaged = mean_over_ranks(b, bucket, &values);
        order[from..to].iter().zip(averaged).for_each(|(&i, v)| grads[i] = v);
        (bucket, from, filled) = (bucket + 1, to, 0);
    }
}

/// A scalar input, which several optimisers share.
fn shared_input(b: &mut Builder, name: &str) -> Value {
    let there = b.graph().inputs().find(|(n, _)| *n == name).map(|(_, value)| value);
    there.unwrap_or_else(|| b.input(name, Type::f32(Shape::SCALAR)))
}

/// The rate of each parameter.
fn rates_of(b: &mut Builder, rate: Value, params: &[Value], names: &[String], t: &Training) -> Vec<Value> {
    let mut made: BTreeMap<u64, Value> = BTreeMap::from([(1f64.to_bits(), rate)]);
    let mut of = |(p, name): (&Value, &String)| {
        let of_layer = t.encoder.map_or(1.0, |e| e.share_of(name));
        let share = of_layer * rate_share(b.shape(*p), t.base_fan_in);
        *made.entry(share.to_bits()).or_insert_with(|| b.mul_scalar(rate, share))
    };
    params.iter().zip(names).map(&mut of).collect()
}

/// Adds gradients of `loss`, and the updates of all `params`, to the graph. Gives the outputs `loss` (over several ranks, its mean)
/// and `grad_norm`, with a guard also `admitted_norm`, which is infinite where it refuses, and takes the input `rate`,
/// `ema_decay` if asked to, and `carry` and `gate` where several runs make an iteration.
///
/// # Errors
/// If an op on the way from the parameters to the loss cannot be differentiated.
pub fn finish_iteration(
    b: &mut Builder,
    loss: Value,
    params: &[Value],
    t: &Training,
) -> Result<(), GradError> {
    let scalar = Type::f32(Shape::SCALAR);
    let prefix = t.name.map_or(String::new(), |name| format!("{name}."));
    let names: Vec<String> = params
        .iter()
        .map(|&v| match b.graph().nodes.get(v.at()).map(|n| &n.op) {
            Some(Op::State(s)) => s.name.to_string(),
            _ => String::new(),
        })
        .collect();
    let scale = match t.loss_scale {
        Some((initial, _)) => {
            b.state(&format!("train.{prefix}loss_scale"), scalar, StateInit::Constant(initial))
        }
        None => b.scalar(1.0),
    };
    let share = match t.runs {
        0 | 1 => scale,
        runs => b.mul_scalar(scale, 1.0 / runs as f64),
    };
    let mut grads = grad(b, loss, Some(share), params)?;
    let made: Vec<usize> = grads.iter().map(|g| g.at()).collect();
    b.set_scope("update");
    let loss = match t.bucket {
        Some(_) => mean_over_ranks(b, LOSS_BUCKET, &[loss])[0],
        None => loss,
    };
    let rate = shared_input(b, "rate");
    let step = b.state(&format!("train.{prefix}step"), scalar, StateInit::Constant(0.0));
    let mut operands = vec![scale];
    let mut gate = None;
    if t.runs > 1 {
        if t.loss_scale.is_some() {
            b.refuse("training", format!("loss scaling over iterations of {} runs", t.runs));
        }
        let carry = shared_input(b, "carry");
        for (g, name) in grads.iter_mut().zip(&names) {
            let ty = b.ty(*g);
            let before = b.state(&format!("sum.{name}"), ty, StateInit::Constant(0.0));
            let kept = b.mul(before, carry);
            *g = b.add(kept, *g);
            b.update(before, *g);
        }
        let shut = shared_input(b, "gate");
        operands.push(shut);
        gate = Some(shut);
    }
    if let Some(bytes) = t.bucket {
        average_gradients(b, &mut grads, &made, bytes);
    }
    for &g in &grads {
        operands.push(b.reduce_all(ReduceKind::SumSquares, g));
    }
    let clip = Op::Clip(Clip { max_norm: t.clip_norm });
    let mut clipped = b.push(clip.clone(), operands.clone());
    let norm = clipped[0];
    if let Some(guard) = t.guard {
        let counts = gate.map(|gate| {
            let open = b.scalar(1.0);
            b.binary(Binary::Greater, open, gate)
        });
        // A clipped step is as long as any: its norm alone says little, and rises tenfold while a network finds its output's mean.
        let of_norm = if t.clip_norm.is_finite() { guard.ratio * guard.ratio } else { guard.ratio };
        operands.push(guard.watch(
            b,
            &prefix,
            &[("norm", norm, of_norm), ("loss", loss, guard.ratio)],
            counts,
        ));
        clipped = b.push(clip, operands);
        b.output(&format!("{prefix}admitted_norm"), clipped[0]);
    }
    let factor = clipped[1];
    let decay = t.ema_decay.map(|d| match t.ema_input {
        true => shared_input(b, "ema_decay"),
        false => b.scalar(d as f32),
    });
    // Each once and before all updates, which are then launched together.
    let rates = rates_of(b, rate, params, &names, t);
    for (((&p, &g), name), rate) in params.iter().zip(&grads).zip(&names).zip(rates) {
        let ty = b.ty(p);
        let moment =
            |b: &mut Builder, kind: &str| b.state(&format!("{kind}.{name}"), ty, StateInit::Constant(0.0));
        let updated = match t.optimizer {
            Optimizer::Adam(adam) => {
                let (m, v) = (moment(b, "adam.m"), moment(b, "adam.v"));
                let outs = b.push(Op::Adam(adam), vec![p, g, m, v, rate, step, factor]);
                b.update(m, outs[1]);
                b.update(v, outs[2]);
                outs[0]
            }
            Optimizer::Sgd(sgd) => {
                let buffer = moment(b, "sgd.momentum");
                let outs = b.push(Op::Sgd(sgd), vec![p, g, buffer, rate, factor]);
                b.update(buffer, outs[1]);
                outs[0]
            }
        };
        b.update(p, updated);
        if let Some(decay) = decay {
            let average = b.state(&format!("ema.{name}"), ty, StateInit::Given);
            let next = b.push_one(Op::Ema, vec![average, updated, decay, factor]);
            b.update(average, next);
        }
    }
    let counted = b.push_one(Op::CountStep, vec![step, factor]);
    b.update(step, counted);
    if let Some((_, rule)) = t.loss_scale {
        let good = b.state(&format!("train.{prefix}good_steps"), scalar, StateInit::Constant(0.0));
        let outs = b.push(Op::LossScale(rule), vec![scale, good, norm]);
        b.update(scale, outs[0]);
        b.update(good, outs[1]);
    }
    b.output(&format!("{prefix}loss"), loss);
    b.output(&format!("{prefix}grad_norm"), norm);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fall_as_one_over_the_values_that_a_result_sums_over() {
        let share = |sizes: &[usize], base| rate_share(Shape::new(sizes), base);
        assert_eq!(share(&[64, 3, 3, 192], Some(288)), 288.0 / 1728.0);
        assert_eq!(share(&[10, 1000], Some(288)), 0.288);
        // Narrow weights, biases and scalars have the whole rate, and all have it where there is no rule.
        assert_eq!(share(&[64, 3, 3, 32], Some(288)), 1.0);
        assert_eq!(share(&[4096], Some(288)), 1.0);
        assert_eq!(share(&[], Some(288)), 1.0);
        assert_eq!(share(&[64, 3, 3, 192], None), 1.0);
    }
}
