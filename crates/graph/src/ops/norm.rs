//! Group norm, which is every norm here: with as many groups as channels it is instance norm, and on
//! `[rows, C]` with one group it is layer norm.
//!
//! x is seen as `[N, S, C]` (first axis, middle axes, last axis) and may come in parts that lie side by
//! side along C. `xhat = (x - mean) rstd` over each (sample, group); with gamma and beta `[C]` and, for
//! feature-wise modulation, scale and shift `[N, C]`:
//!
//! ```text
//! y = act((xhat gamma + beta) (1 + scale) + shift)
//! ```
//!
//! A bias of each sample and channel `[N, C]`, the last operand where there is one, is added to x before
//! everything else: what a convolution would have had to add.
//!
//! Statistics are a second output, `[N, G, 2]` = (mean, rstd), so that the gradient need not compute
//! them again and a convolution can normalise while it reads ([`Prologue`]).

use super::conv::source_type;
use super::int8::whole;
use super::movement::concat_channels;
use super::{GradNode, Grads, OpError, floats, operands, want};
use crate::array::{Array, rows};
use crate::builder::Builder;
use crate::graph::Type;
use crate::ops::Unary;
use clearshot_tensor::{DType, Shape};

/// Operands of `Norm`: x parts, gamma, beta, (scale, shift), (grid), (bias). Of `NormStats`: x parts, (bias).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub groups: usize,
    pub eps: f64,
    pub parts: usize,
    pub film: bool,
    pub act: Option<Unary>,
    /// The result is the whole numbers 0 to 255 that stand for it, on a grid `[2, C]`: what values are multiplied by, and zeros
    /// ([`super::int8::whole`]).
    pub rounded: bool,
    pub bias: bool,
}

hash_by_bits!(Norm { groups, parts, film, act, rounded, bias } eps);

/// A norm done by whoever reads x. Operands: statistics, gamma, beta, (scale, shift).
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct Prologue {
    pub groups: usize,
    pub film: bool,
    pub act: Option<Unary>,
}

impl Prologue {
    pub fn operands(&self) -> usize {
        if self.film { 5 } else { 3 }
    }

    pub(super) fn check(&self, source: Type, x: &[Type]) -> Result<(), OpError> {
        let [n, _, c] = rows(source.shape);
        check_groups(self.groups, source.shape)?;
        want("statistics", x[0], [n, self.groups, 2])?;
        check_affine(&x[1..], n, c)
    }

    pub(super) fn eval(&self, x: &Array, operands: &[&Array]) -> Array {
        let coefficients = Affine::new(x.shape, self.groups, operands[0], &operands[1..]);
        let value = |u: f64| self.act.map_or(u, |a| a.value(u));
        let [_, s, c] = x.rows();
        let data = x.data.iter().enumerate().map(|(i, &v)| {
            let (_, _, u) = coefficients.at(i / (s * c), i % c, v);
            value(u)
        });
        Array::new(x.shape, data.collect())
    }
}

fn check_groups(groups: usize, x: Shape) -> Result<(), OpError> {
    if groups == 0 || !x.channels().is_multiple_of(groups) {
        return Err(OpError::Attribute(format!(
            "{} channels of {x} do not split into {groups} groups",
            x.channels()
        )));
    }
    if x.rank() < 2 {
        return Err(OpError::Rank { what: "input", expected: "2 or more", got: x });
    }
    Ok(())
}

fn check_affine(x: &[Type], n: usize, c: usize) -> Result<(), OpError> {
    want("gamma", x[0], [c])?;
    want("beta", x[1], [c])?;
    if let [_, _, scale, shift] = x {
        want("scale", *scale, [n, c])?;
        want("shift", *shift, [n, c])?;
    }
    Ok(())
}

/// Everything that turns x into the activation's argument.
struct Affine<'a> {
    stats: &'a Array,
    operands: &'a [&'a Array],
    groups: usize,
    c: usize,
}

impl<'a> Affine<'a> {
    fn new(x: Shape, groups: usize, stats: &'a Array, operands: &'a [&'a Array]) -> Self {
        Affine { stats, operands, groups, c: x.channels() }
    }

    fn stats(&self, n: usize, c: usize) -> (f64, f64) {
        let g = n * self.groups + c / (self.c / self.groups);
        (self.stats.data[2 * g], self.stats.data[2 * g + 1])
    }

    /// 1 + scale.
    fn gain(&self, n: usize, c: usize) -> f64 {
        self.operands.get(2).map_or(1.0, |s| 1.0 + s.data[n * self.c + c])
    }

    /// xhat, xhat gamma + beta, and the activation's argument.
    fn at(&self, n: usize, c: usize, x: f64) -> (f64, f64, f64) {
        let (mean, rstd) = self.stats(n, c);
        let xhat = (x - mean) * rstd;
        let affine = xhat * self.operands[0].data[c] + self.operands[1].data[c];
        let shift = self.operands.get(3).map_or(0.0, |s| s.data[n * self.c + c]);
        (xhat, affine, affine * self.gain(n, c) + shift)
    }
}

impl Norm {
    /// The number of operands behind the parts: gamma, beta, (scale, shift).
    pub fn affine(&self) -> usize {
        if self.film { 4 } else { 2 }
    }

    /// The position of the grid.
    pub fn grid(&self) -> Option<usize> {
        self.rounded.then_some(self.parts + self.affine())
    }

    /// The same norm as done by a reader.
    pub fn prologue(&self) -> Prologue {
        Prologue { groups: self.groups, film: self.film, act: self.act }
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, self.parts + self.affine() + usize::from(self.rounded) + usize::from(self.bias))?;
        let source = self.source(&x[..self.parts])?;
        let [n, _, c] = rows(source.shape);
        floats(x)?;
        check_affine(&x[self.parts..self.parts + self.affine()], n, c)?;
        self.check_bias(x, n, c)?;
        if let Some(i) = self.grid() {
            want("factors and zeros of the result's channels", x[i], [2, c])?;
        }
        let y = if self.rounded { Type { dtype: DType::U8, ..source } } else { source };
        Ok(vec![y, Type { dtype: source.dtype, shape: Shape::from([n, self.groups, 2]) }])
    }

    pub(super) fn infer_stats(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, self.parts + usize::from(self.bias))?;
        let source = self.source(&x[..self.parts])?;
        let [n, _, c] = rows(source.shape);
        self.check_bias(x, n, c)?;
        Ok(vec![Type { dtype: source.dtype, shape: Shape::from([source.shape[0], self.groups, 2]) }])
    }

    fn check_bias(&self, x: &[Type], n: usize, c: usize) -> Result<(), OpError> {
        if self.bias { want("bias of each sample", x[x.len() - 1], [n, c]) } else { Ok(()) }
    }

    /// The parts side by side, with the bias, which is the last operand.
    fn read(&self, x: &[&Array]) -> Array {
        let mut whole = concat_channels(&x[..self.parts]);
        if self.bias {
            let bias = x[x.len() - 1];
            let [_, s, c] = whole.rows();
            whole.data.iter_mut().enumerate().for_each(|(i, v)| *v += bias.data[i / (s * c) * c + i % c]);
        }
        whole
    }

    fn source(&self, parts: &[Type]) -> Result<Type, OpError> {
        floats(parts)?;
        let source = source_type(parts)?;
        check_groups(self.groups, source.shape)?;
        Ok(source)
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        if n.douts[1].is_some() || self.parts != 1 || self.bias || self.rounded {
            return None;
        }
        let mut operands = vec![n.inputs[0], n.outs[1]];
        operands.extend(&n.inputs[1..]);
        operands.push(n.dy());
        let op = NormGrad { norm: *self, addends: 0 };
        let outs = b.push(super::Op::NormGrad(op), operands);
        Some(outs.into_iter().map(Some).collect())
    }

    pub(super) fn eval_stats(&self, x: &[&Array]) -> Vec<Array> {
        let x = self.read(x);
        let [n, s, c] = x.rows();
        let width = c / self.groups;
        let mut stats = Array::zeros([n, self.groups, 2]);
        for i in 0..n {
            for g in 0..self.groups {
                let values = || {
                    let x = &x;
                    (0..s).flat_map(move |p| (0..width).map(move |k| x.data[(i * s + p) * c + g * width + k]))
                };
                let count = (s * width) as f64;
                let mean = values().sum::<f64>() / count;
                let variance = values().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count;
                stats.data[2 * (i * self.groups + g)] = mean;
                stats.data[2 * (i * self.groups + g) + 1] = 1.0 / (variance + self.eps).sqrt();
            }
        }
        vec![stats]
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let stats = self.eval_stats(x).remove(0);
        let mut operands = vec![&stats];
        operands.extend(&x[self.parts..self.parts + self.affine()]);
        let mut y = self.prologue().eval(&self.read(x), &operands);
        if let Some(grid) = self.grid().map(|i| x[i]) {
            let c = y.shape.channels();
            let at = |i: usize| [i % c, c + i % c].map(|at| grid.data[at] as f32);
            y.data.iter_mut().enumerate().for_each(|(i, v)| {
                let [times, zero] = at(i);
                *v = whole(*v as f32, times, zero).into();
            });
        }
        vec![y, stats]
    }
}

/// The gradient of [`Norm`]. Operands: x parts, statistics, gamma, beta, (scale, shift), dy, then one
/// addend for each part whose bit in `addends` is set, then the norm's bias. Outputs: dx of each part (with
/// its addend added), dgamma, dbeta, (dscale, dshift), and the bias's gradient `[N, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct NormGrad {
    pub norm: Norm,
    pub addends: u8,
}

impl NormGrad {
    /// The position of dy; the addends lie behind it.
    pub fn dy(&self) -> usize {
        self.norm.parts + 1 + self.norm.affine()
    }

    /// The position of a part's addend.
    pub fn addend(&self, part: usize) -> Option<usize> {
        let bit = 1u8 << part;
        (self.addends & bit != 0).then(|| self.dy() + 1 + (self.addends & (bit - 1)).count_ones() as usize)
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        let parts = self.norm.parts;
        operands(x, self.dy() + 1 + self.addends.count_ones() as usize + usize::from(self.norm.bias))?;
        floats(x)?;
        let source = self.norm.source(&x[..parts])?;
        let [n, _, c] = rows(source.shape);
        self.norm.prologue().check(source, &x[parts..self.dy()])?;
        want("gradient of the output", x[self.dy()], source.shape)?;
        for part in 0..parts {
            if let Some(i) = self.addend(part) {
                want("addend", x[i], x[part].shape)?;
            }
        }
        let like = |shape: Shape| Type { dtype: source.dtype, shape };
        let mut outs = x[..parts].to_vec();
        outs.extend([like(Shape::from([c])); 2]);
        if self.norm.film {
            outs.extend([like(Shape::from([n, c])); 2]);
        }
        if self.norm.bias {
            self.norm.check_bias(x, n, c)?;
            outs.push(like(Shape::from([n, c])));
        }
        Ok(outs)
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let norm = &self.norm;
        let whole = norm.read(x);
        let [n, s, c] = whole.rows();
        let width = c / norm.groups;
        let affine = Affine::new(whole.shape, norm.groups, x[norm.parts], &x[norm.parts + 1..self.dy()]);
        let dy = x[self.dy()];
        let (mut dgamma, mut dbeta) = (Array::zeros([c]), Array::zeros([c]));
        let (mut dscale, mut dshift) = (Array::zeros([n, c]), Array::zeros([n, c]));
        // First the gradient of xhat, and its sums over each group.
        let mut dxhat = Array::zeros(whole.shape);
        let mut sums = vec![[0.0; 2]; n * norm.groups];
        for i in 0..whole.data.len() {
            let (sample, channel) = (i / (s * c), i % c);
            let (xhat, scaled, u) = affine.at(sample, channel, whole.data[i]);
            let du = dy.data[i] * norm.act.map_or(1.0, |a| a.derivative(u));
            dscale.data[sample * c + channel] += du * scaled;
            dshift.data[sample * c + channel] += du;
            let da = du * affine.gain(sample, channel);
            dgamma.data[channel] += da * xhat;
            dbeta.data[channel] += da;
            dxhat.data[i] = da * affine.operands[0].data[channel];
            let sum = &mut sums[sample * norm.groups + channel / width];
            sum[0] += dxhat.data[i];
            sum[1] += dxhat.data[i] * xhat;
        }
        let count = (s * width) as f64;
        for i in 0..whole.data.len() {
            let (sample, channel) = (i / (s * c), i % c);
            let (xhat, _, _) = affine.at(sample, channel, whole.data[i]);
            let (_, rstd) = affine.stats(sample, channel);
            let [a, b] = sums[sample * norm.groups + channel / width];
            dxhat.data[i] = rstd * (dxhat.data[i] - a / count - xhat * b / count);
        }
        let mut outs = self.split(&dxhat, x);
        outs.extend([dgamma, dbeta]);
        if norm.film {
            outs.extend([dscale, dshift]);
        }
        if norm.bias {
            let mut dbias = Array::zeros([n, c]);
            dxhat.data.iter().enumerate().for_each(|(i, v)| dbias.data[i / (s * c) * c + i % c] += v);
            outs.push(dbias);
        }
        outs
    }

    fn split(&self, dx: &Array, x: &[&Array]) -> Vec<Array> {
        let c = dx.shape.channels();
        let mut first = 0;
        (0..self.norm.parts)
            .map(|part| {
                let shape = x[part].shape;
                let len = shape.channels();
                let mut out = Array::zeros(shape);
                for (i, v) in out.data.iter_mut().enumerate() {
                    *v = dx.data[i / len * c + first + i % len]
                        + self.addend(part).map_or(0.0, |a| x[a].data[i]);
                }
                first += len;
                out
            })
            .collect()
    }
}
