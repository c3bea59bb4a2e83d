//! Convolution and its two gradients, in 2-D and 3-D, channels last.
//!
//! x is `[N, (Z,) Y, X, C]`, the weight `[K, (kz,) ky, kx, C / groups]`, y `[N, (Z,) Y, X, K]`. The
//! three ops are closed under differentiation: each is bilinear, and its gradients are the two others.
//! `ConvInputGrad` is also what networks call transposed convolution.
//!
//! The fuse pass gives them more to do while the data passes by: read x as parts concatenated along
//! channels, double it along every spatial axis (nearest upsampling), normalise and activate it
//! ([`Prologue`]), add a bias, activate, add a residual.

mod gradients;

pub use gradients::{ConvInputGrad, ConvWeightGrad};

use super::int8::{self, Int8};
use super::norm::Prologue;
use super::{GradNode, Grads, OpError, floats, operands, want};
use crate::array::{Array, for_each_index};
use crate::builder::Builder;
use crate::graph::Type;
use crate::ops::Unary;
use clearshot_tensor::{DType, Shape};

/// Steps and padding along Z, Y, X. In 2-D the first entry is neutral: stride 1, padding 0, dilation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    pub stride: [usize; 3],
    /// Zeros before the first and behind the last pixel of each axis.
    pub pad: [[usize; 2]; 3],
    pub dilation: [usize; 3],
    pub groups: usize,
}

impl Geometry {
    /// The same stride and padding along all of `dims` (2 or 3) axes.
    pub fn new(dims: usize, stride: usize, pad: usize) -> Geometry {
        let axis = |neutral: usize, x: usize| if dims == 2 { [neutral, x, x] } else { [x; 3] };
        Geometry { stride: axis(1, stride), pad: axis(0, pad).map(|p| [p, p]), dilation: [1; 3], groups: 1 }
    }

    pub fn with_groups(self, groups: usize) -> Geometry {
        Geometry { groups, ..self }
    }

    /// Dilates every axis that is there (those of a 2-D convolution: the last two).
    pub fn with_dilation(self, dilation: [usize; 3]) -> Geometry {
        Geometry { dilation, ..self }
    }

    pub fn with_padding(self, pad: [[usize; 2]; 3]) -> Geometry {
        Geometry { pad, ..self }
    }

    /// The output's spatial sizes.
    ///
    /// # Errors
    /// If the padded input is smaller than the dilated kernel, or a stride, dilation or size is 0.
    pub fn output(&self, input: [usize; 3], kernel: [usize; 3]) -> Result<[usize; 3], OpError> {
        let mut out = [0; 3];
        for a in 0..3 {
            if self.stride[a] == 0 || self.dilation[a] == 0 || kernel[a] == 0 || input[a] == 0 {
                return Err(OpError::Attribute(format!(
                    "a stride, dilation or size is 0: {self:?}, input {input:?}, kernel {kernel:?}"
                )));
            }
            let too_large =
                || OpError::Attribute(format!("sizes beyond any memory: {self:?}, input {input:?}"));
            let [low, high] = self.pad[a];
            let padded = input[a].checked_add(low).and_then(|x| x.checked_add(high)).ok_or_else(too_large)?;
            let reach = self.dilation[a].checked_mul(kernel[a] - 1).and_then(|x| x.checked_add(1));
            let reach = reach.ok_or_else(too_large)?;
            if padded < reach {
                return Err(OpError::Attribute(format!(
                    "a kernel that reaches over {reach} pixels does not fit {padded} (input {input:?}, kernel {kernel:?})"
                )));
            }
            out[a] = (padded - reach) / self.stride[a] + 1;
        }
        Ok(out)
    }

    /// A plane has no Z: there the geometry must be neutral along it.
    fn check_planar(&self, rank: usize) -> Result<(), OpError> {
        let neutral = self.stride[0] == 1 && self.pad[0] == [0, 0] && self.dilation[0] == 1;
        if rank == 4 && !neutral {
            return Err(OpError::Attribute(format!("{self:?} moves along Z, and the image is a plane")));
        }
        Ok(())
    }

    /// The smallest input size that gives `output`: what a transposed convolution makes.
    pub fn smallest_input(&self, output: [usize; 3], kernel: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|a| {
            // What is too large stays so, and what is 0 is refused by the shape rule.
            let reach = self.dilation[a].saturating_mul(kernel[a].saturating_sub(1)).saturating_add(1);
            let steps = output[a].saturating_sub(1).saturating_mul(self.stride[a]);
            steps.saturating_add(reach).saturating_sub(self.pad[a][0].saturating_add(self.pad[a][1]))
        })
    }

    fn channels(&self, c_per_group: usize, k: usize) -> Result<usize, OpError> {
        if k == 0 || c_per_group == 0 {
            return Err(OpError::Attribute("a weight without channels".into()));
        }
        if self.groups == 0 || !k.is_multiple_of(self.groups) {
            return Err(OpError::Attribute(format!(
                "{k} output channels do not split into {} groups",
                self.groups
            )));
        }
        Ok(c_per_group * self.groups)
    }

    /// Calls `f(input pixel, output pixel, tap)` for every product of one sample.
    fn for_each_tap(
        &self,
        input: [usize; 3],
        output: [usize; 3],
        kernel: [usize; 3],
        mut f: impl FnMut(usize, usize, usize),
    ) {
        for_each_index(Shape::from(output), |o| {
            for_each_index(Shape::from(kernel), |t| {
                let mut at = [0; 3];
                for a in 0..3 {
                    let p = o[a] * self.stride[a] + t[a] * self.dilation[a];
                    if p < self.pad[a][0] || p - self.pad[a][0] >= input[a] {
                        return;
                    }
                    at[a] = p - self.pad[a][0];
                }
                let flat = |i: &[usize], n: [usize; 3]| (i[0] * n[1] + i[1]) * n[2] + i[2];
                f(flat(&at, input), flat(o, output), flat(t, kernel));
            });
        });
    }
}

/// The spatial sizes of a channels-last tensor as Z, Y, X; the axis that a plane lacks is 1.
///
/// # Errors
/// If the tensor has neither 4 nor 5 axes.
pub fn spatial(what: &'static str, shape: Shape) -> Result<[usize; 3], OpError> {
    match shape.rank() {
        4 => Ok([1, shape[1], shape[2]]),
        5 => Ok([shape[1], shape[2], shape[3]]),
        _ => Err(OpError::Rank { what, expected: "4 (N,Y,X,C) or 5 (N,Z,Y,X,C)", got: shape }),
    }
}

/// A channels-last shape of `rank` axes.
pub fn image(rank: usize, n: usize, at: [usize; 3], c: usize) -> Shape {
    if rank == 4 { Shape::from([n, at[1], at[2], c]) } else { Shape::from([n, at[0], at[1], at[2], c]) }
}

/// Where a bias comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bias {
    None,
    /// `[K]`.
    Channel,
    /// `[N, K]`: a bias with the time embedding added.
    Sample,
}

/// y = act(scale conv(z) + side + bias) + residual, where z is x, or the parts of x side by side, normalised and
/// activated if there is a prologue, every pixel repeated if it is upsampled. Where `int8` says so, z and the weight are
/// rounded to 8 bits first and multiplied as whole numbers ([`super::int8`]), or are such and offsets are taken off their sums. The scale, 1 unless `scaled`, is a number for each
/// output channel: that of a weight in floats of 8 bits ([`super::float8`]). The side is a 1 x 1 convolution of other images of
/// the size of y, concatenated: the shortcut of a residual block. Operands: x parts, prologue's, steps of a static quantisation, weight, scales,
/// offsets, bias, residual, the side's images, weight and bias.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct Conv {
    pub geometry: Geometry,
    /// z has each pixel of x twice along every spatial axis.
    pub upsample: bool,
    pub parts: usize,
    pub prologue: Option<Prologue>,
    pub bias: Bias,
    pub act: Option<Unary>,
    pub residual: bool,
    pub int8: Option<Int8>,
    pub scaled: bool,
    pub side: Option<Side>,
}

/// A 1 x 1 convolution of `parts` concatenated images, whose result is added to that of another convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    pub parts: usize,
    pub bias: bool,
}

/// Where the operands of a convolution lie among the node's inputs.
pub struct ConvOperands {
    pub prologue: usize,
    /// The steps and zeros of a static quantisation.
    pub steps: Option<usize>,
    pub weight: usize,
    /// What the sums of each output channel are multiplied by.
    pub scales: Option<usize>,
    /// What is taken off the sums of whole numbers.
    pub offsets: Option<usize>,
    pub bias: Option<usize>,
    pub residual: Option<usize>,
    pub side: Option<SideOperands>,
    pub count: usize,
}

/// The operands of a convolution's side: its first image, and the weight after the last image.
#[derive(Clone, Copy)]
pub struct SideOperands {
    pub first: usize,
    pub weight: usize,
    pub bias: Option<usize>,
}

impl Conv {
    pub fn plain(geometry: Geometry, bias: bool) -> Conv {
        let bias = if bias { Bias::Channel } else { Bias::None };
        Conv {
            geometry,
            upsample: false,
            parts: 1,
            prologue: None,
            bias,
            act: None,
            residual: false,
            int8: None,
            scaled: false,
            side: None,
        }
    }

    pub fn operands(&self) -> ConvOperands {
        let read = self.parts + self.prologue.map_or(0, |p| p.operands());
        let steps = (self.int8 == Some(Int8::Static)).then_some(read);
        let weight = read + usize::from(steps.is_some());
        let scales = self.scaled.then_some(weight + 1);
        let next = weight + 1 + usize::from(self.scaled);
        let offsets = (self.int8 == Some(Int8::Whole)).then_some(next);
        let next = next + usize::from(offsets.is_some());
        let bias = (self.bias != Bias::None).then_some(next);
        let next = next + usize::from(bias.is_some());
        let residual = self.residual.then_some(next);
        let next = next + usize::from(self.residual);
        let side = self.side.map(|s| {
            let weight = next + s.parts;
            SideOperands { first: next, weight, bias: s.bias.then_some(weight + 1) }
        });
        ConvOperands {
            prologue: self.parts,
            steps,
            weight,
            scales,
            offsets,
            bias,
            residual,
            side,
            count: next + self.side.map_or(0, |s| s.parts + 1 + usize::from(s.bias)),
        }
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        let at = self.operands();
        operands(x, at.count)?;
        let dtype = if at.offsets.is_some() { self.check_whole(x)? } else { floats(x)? };
        let source = source_type(&x[..self.parts])?;
        let w = x[at.weight].shape;
        if w.rank() != source.shape.rank() {
            return Err(OpError::Mismatch { what: "input and weight", left: source.shape, right: w });
        }
        let c = self.geometry.channels(w.channels(), w[0])?;
        if c != source.shape.channels() {
            return Err(OpError::Mismatch {
                what: "channels of input and weight",
                left: source.shape,
                right: w,
            });
        }
        if let Some(p) = self.prologue {
            p.check(source, &x[at.prologue..at.prologue + p.operands()])?;
        }
        if self.int8.is_some() {
            int8::check(self.geometry.groups, w)?;
        }
        if let Some(i) = at.steps {
            want("steps and zeros of the input's channels", x[i], [2, c])?;
        }
        if let Some(i) = at.scales {
            want("scales of the output channels", x[i], [w[0]])?;
        }
        self.geometry.check_planar(w.rank())?;
        let seen = seen_size(spatial("input", source.shape)?, w.rank(), self.upsample);
        let out = self.geometry.output(seen, spatial("weight", w)?)?;
        let y = Type { dtype, shape: image(w.rank(), source.shape[0], out, w[0]) };
        match (self.bias, at.bias) {
            (Bias::Channel, Some(i)) => want("bias", x[i], [w[0]])?,
            (Bias::Sample, Some(i)) => want("bias of each sample", x[i], [source.shape[0], w[0]])?,
            _ => {}
        }
        if let Some(i) = at.residual {
            want("residual", x[i], y.shape)?;
        }
        if let Some(side) = at.side {
            let beside = source_type(&x[side.first..side.weight])?.shape;
            let c = beside.channels();
            if beside != y.shape.with(y.shape.rank() - 1, c) {
                return Err(OpError::Mismatch {
                    what: "result and image beside it",
                    left: y.shape,
                    right: beside,
                });
            }
            want("weight of the image beside it", x[side.weight], image(w.rank(), w[0], [1; 3], c))?;
            if let Some(i) = side.bias {
                want("bias of the image beside it", x[i], [w[0]])?;
            }
        }
        Ok(vec![y])
    }

    /// The types of a convolution whose operands are whole numbers: that of its result.
    fn check_whole(&self, x: &[Type]) -> Result<DType, OpError> {
        let at = self.operands();
        let w = x[at.weight].shape;
        let usual = self.geometry == Geometry::new(2, 1, 1) && w.rank() == 4 && w[1..3] == [3, 3];
        if !usual || self.parts != 1 || self.upsample || self.prologue.is_some() || !self.scaled {
            let what = "whole numbers are multiplied by weights of 3 x 3 pixels with scales, which see one image as it is";
            return Err(OpError::Attribute(what.into()));
        }
        let numbers = [(0, DType::U8), (at.weight, DType::I8), (at.weight + 2, DType::I32)];
        for (i, t) in x.iter().enumerate() {
            let found = numbers.iter().find(|n| n.0 == i).map(|n| n.1);
            let right = found.map_or(t.dtype.is_float(), |expected| t.dtype == expected);
            if !right {
                return Err(OpError::Kind {
                    what: "operand",
                    expected: found.unwrap_or(DType::F32),
                    got: t.dtype,
                });
            }
        }
        want("offsets of the output channels", x[at.weight + 2], [int8::SIDES, w[0]])?;
        Ok(DType::F32)
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        if self.parts != 1
            || self.upsample
            || self.prologue.is_some()
            || self.act.is_some()
            || self.residual
            || self.scaled
            || self.side.is_some()
            || self.bias == Bias::Sample
        {
            return None;
        }
        let at = self.operands();
        let (x, w, dy) = (n.inputs[0], n.inputs[at.weight], n.dy());
        let like_x = b.shape(x);
        let like_w = b.shape(w);
        // Rounding to 8 bits is passed straight through.
        let mut grads = vec![n.wanted[0].then(|| b.conv_input_grad(dy, w, self.geometry, like_x))];
        grads.extend(at.steps.map(|_| None));
        grads.push(n.wanted[at.weight].then(|| b.conv_weight_grad(x, dy, self.geometry, like_w)));
        if let Some(bias) = at.bias {
            let k = like_w[0];
            grads.push(n.wanted[bias].then(|| b.sum_to(dy, Shape::from([k]))));
        }
        Some(grads)
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let at = self.operands();
        let operands = &x[at.prologue..at.steps.unwrap_or(at.weight)];
        let z = read_source(&x[..self.parts], self.prologue, operands);
        let z = if self.upsample { doubled(&z) } else { z };
        let to_round = self.int8.filter(|i| *i != Int8::Whole);
        let rounded = to_round.map(|_| int8::rounded(&z, x[at.weight], at.steps.map(|i| x[i])));
        let (z, w) = rounded.as_ref().map_or((&z, x[at.weight]), |r| (&r.z, &r.w));
        let (input, kernel) = (spatial("x", z.shape).unwrap(), spatial("w", w.shape).unwrap());
        let output = self.geometry.output(input, kernel).unwrap();
        let k = w.shape[0];
        let mut y = Array::zeros(image(z.shape.rank(), z.shape[0], output, k));
        for_each_product(&self.geometry, z.shape, w.shape, |from, to, weight| {
            y.data[to] += z.data[from] * w.data[weight];
        });
        let pixels: usize = output.iter().product();
        let beside = at.side.map(|side| read_source(&x[side.first..side.weight], None, &[]));
        for (i, v) in y.data.iter_mut().enumerate() {
            let sample = i / (pixels * k);
            if let Some(r) = &rounded {
                *v *= r.worth.data[sample * k + i % k];
            }
            if let Some(o) = at.offsets {
                let pixel = i / k % pixels;
                let side = int8::sides([pixel / output[2], pixel % output[2]], [output[1], output[2]]);
                *v -= x[o].data[side * k + i % k];
            }
            if let Some(s) = at.scales {
                *v *= x[s].data[i % k];
            }
            if let (Some(side), Some(images)) = (at.side, &beside) {
                let c = images.shape.channels();
                let row = &x[side.weight].data[i % k * c..][..c];
                *v += row.iter().zip(&images.data[i / k * c..][..c]).map(|(w, x)| w * x).sum::<f64>();
                *v += side.bias.map_or(0.0, |b| x[b].data[i % k]);
            }
            *v += match (self.bias, at.bias) {
                (Bias::Channel, Some(b)) => x[b].data[i % k],
                (Bias::Sample, Some(b)) => x[b].data[sample * k + i % k],
                _ => 0.0,
            };
            if let Some(act) = self.act {
                *v = act.value(*v);
            }
            if let Some(r) = at.residual {
                *v += x[r].data[i];
            }
        }
        vec![y]
    }
}

/// Calls `f(input index, output index, weight index)` for every product of a convolution.
fn for_each_product(g: &Geometry, x: Shape, w: Shape, mut f: impl FnMut(usize, usize, usize)) {
    let (input, kernel) = (spatial("x", x).unwrap(), spatial("w", w).unwrap());
    let output = g.output(input, kernel).unwrap();
    let (c, k, cg) = (x.channels(), w[0], w.channels());
    let taps: usize = kernel.iter().product();
    let (pixels, outs) = (input.iter().product::<usize>(), output.iter().product::<usize>());
    let kg = k / g.groups;
    for n in 0..x[0] {
        g.for_each_tap(input, output, kernel, |i, o, t| {
            for ko in 0..k {
                let first = ko / kg * cg;
                for ci in 0..cg {
                    f((n * pixels + i) * c + first + ci, (n * outs + o) * k + ko, (ko * taps + t) * cg + ci);
                }
            }
        });
    }
}

/// The type of parts put side by side along channels.
pub(crate) fn source_type(parts: &[Type]) -> Result<Type, OpError> {
    let first = parts[0];
    let rank = first.shape.rank();
    if rank == 0 || first.shape.is_empty() {
        return Err(OpError::Rank { what: "input", expected: "1 or more, none empty,", got: first.shape });
    }
    let mut c = 0;
    for p in parts {
        if p.shape.rank() != rank || p.shape[..rank - 1] != first.shape[..rank - 1] {
            return Err(OpError::Mismatch { what: "parts of the input", left: first.shape, right: p.shape });
        }
        c += p.shape.channels();
    }
    Ok(Type { dtype: first.dtype, shape: first.shape.with(rank - 1, c) })
}

/// The parts of x side by side, normalised and activated where there is a prologue.
pub(crate) fn read_source(parts: &[&Array], prologue: Option<Prologue>, operands: &[&Array]) -> Array {
    let x = super::movement::concat_channels(parts);
    match prologue {
        None => x,
        Some(p) => p.eval(&x, operands),
    }
}

/// The spatial sizes that a convolution sees: twice those of x along every axis that there is if it is
/// upsampled.
pub fn seen_size(input: [usize; 3], rank: usize, upsample: bool) -> [usize; 3] {
    let times = |axis: usize| if upsample && axis + rank >= 5 { 2 } else { 1 };
    std::array::from_fn(|a| input[a] * times(a))
}

/// Every pixel twice along each spatial axis.
fn doubled(x: &Array) -> Array {
    let rank = x.shape.rank();
    let shape = (1..rank - 1).fold(x.shape, |s, a| s.with(a, 2 * s[a]));
    let mut at = [0; clearshot_tensor::MAX_RANK];
    Array::from_fn(shape, |i| {
        at[..rank].copy_from_slice(i);
        at[1..rank - 1].iter_mut().for_each(|p| *p /= 2);
        x.get(&at[..rank])
    })
}
