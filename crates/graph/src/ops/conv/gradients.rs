//! The gradients of a convolution, of its input and of its weight, as operations of their own.

use super::{Geometry, doubled, for_each_product, image, read_source, seen_size, source_type, spatial};
use crate::array::{Array, for_each_index};
use crate::builder::Builder;
use crate::graph::Type;
use crate::ops::norm::Prologue;
use crate::ops::{GradNode, Grads, OpError, Unary, floats, operands, want};
use clearshot_tensor::Shape;

/// dx = act(convᵀ(dy) + bias) + residual. Operands: dy, weight, bias `[C]`, residual.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct ConvInputGrad {
    pub geometry: Geometry,
    /// The gradient of an image that the convolution upsampled: half the size along every axis.
    pub upsample: bool,
    /// Spatial sizes that the convolution saw, which the output's sizes alone do not fix.
    pub input: [usize; 3],
    /// First channel and number of channels of the result: a part of a concatenation.
    pub channels: [usize; 2],
    pub bias: bool,
    pub act: Option<Unary>,
    pub residual: bool,
}

impl ConvInputGrad {
    /// Positions of bias and residual among the operands, and the number of operands.
    pub fn operands(&self) -> (Option<usize>, Option<usize>, usize) {
        let bias = self.bias.then_some(2);
        let next = 2 + usize::from(self.bias);
        (bias, self.residual.then_some(next), next + usize::from(self.residual))
    }

    /// Whether the result has all the channels of the convolution's input.
    pub fn is_whole(&self, weight: Shape) -> bool {
        self.channels == [0, weight.channels() * self.geometry.groups]
    }

    pub(in crate::ops) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        let (bias, residual, count) = self.operands();
        operands(x, count)?;
        let dtype = floats(x)?;
        let (dy, w) = (x[0].shape, x[1].shape);
        if dy.rank() != w.rank() || dy.is_empty() {
            return Err(OpError::Mismatch { what: "gradient and weight", left: dy, right: w });
        }
        let kernel = spatial("weight", w)?;
        let c = self.geometry.channels(w.channels(), w[0])?;
        self.geometry.check_planar(w.rank())?;
        if w.rank() == 4 && self.input[0] != 1 {
            return Err(OpError::Attribute(format!("a plane of {} planes", self.input[0])));
        }
        let out = self.geometry.output(self.input, kernel)?;
        want("gradient of the output", x[0], image(w.rank(), dy[0], out, w[0]))?;
        let [first, len] = self.channels;
        if len > c || first > c - len || len == 0 || (len != c && self.geometry.groups != 1) {
            return Err(OpError::Attribute(format!("{len} channels from {first} of {c}")));
        }
        let halves = |axis: usize| if self.upsample && axis + w.rank() >= 5 { 2 } else { 1 };
        if (0..3).any(|a| !self.input[a].is_multiple_of(halves(a))) {
            return Err(OpError::Attribute(format!("{:?} pixels were not upsampled", self.input)));
        }
        let size = std::array::from_fn(|a| self.input[a] / halves(a));
        let dx = Type { dtype, shape: image(w.rank(), dy[0], size, len) };
        if let Some(i) = bias {
            want("bias", x[i], [len])?;
        }
        if let Some(i) = residual {
            want("residual", x[i], dx.shape)?;
        }
        Ok(vec![dx])
    }

    pub(in crate::ops) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let (dy, w, g) = (n.inputs[0], n.inputs[1], n.dy());
        if self.act.is_some() || self.residual || self.upsample || !self.is_whole(b.shape(w)) {
            return None;
        }
        let like_w = b.shape(w);
        let mut grads = vec![
            n.wanted[0].then(|| b.conv(g, w, None, self.geometry)),
            n.wanted[1].then(|| b.conv_weight_grad(g, dy, self.geometry, like_w)),
        ];
        if self.bias {
            let c = self.channels[1];
            grads.push(n.wanted[2].then(|| b.sum_to(g, Shape::from([c]))));
        }
        Some(grads)
    }

    pub(in crate::ops) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (bias, residual, _) = self.operands();
        let (dy, w) = (x[0], x[1]);
        let c = w.shape.channels() * self.geometry.groups;
        let mut whole = Array::zeros(image(w.shape.rank(), dy.shape[0], self.input, c));
        let shape = whole.shape;
        for_each_product(&self.geometry, shape, w.shape, |from, to, weight| {
            whole.data[from] += dy.data[to] * w.data[weight];
        });
        let whole = if self.upsample { halved(&whole) } else { whole };
        let [first, len] = self.channels;
        let dx_shape = whole.shape.with(shape.rank() - 1, len);
        let data = (0..dx_shape.len())
            .map(|i| {
                let v = whole.data[i / len * c + first + i % len] + bias.map_or(0.0, |b| x[b].data[i % len]);
                self.act.map_or(v, |a| a.value(v)) + residual.map_or(0.0, |r| x[r].data[i])
            })
            .collect();
        vec![Array::new(dx_shape, data)]
    }
}

/// dweight = sum over samples and pixels. Operands: x parts, prologue's, dy.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct ConvWeightGrad {
    pub geometry: Geometry,
    pub upsample: bool,
    pub kernel: [usize; 3],
    pub parts: usize,
    pub prologue: Option<Prologue>,
}

impl ConvWeightGrad {
    /// The position of dy, the last operand.
    pub fn dy(&self) -> usize {
        self.parts + self.prologue.map_or(0, |p| p.operands())
    }

    pub(in crate::ops) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, self.dy() + 1)?;
        let dtype = floats(x)?;
        let source = source_type(&x[..self.parts])?;
        let dy = x[self.dy()];
        if let Some(p) = self.prologue {
            p.check(source, &x[self.parts..self.dy()])?;
        }
        self.geometry.check_planar(source.shape.rank())?;
        if source.shape.rank() == 4 && self.kernel[0] != 1 {
            return Err(OpError::Attribute(format!("a kernel of {} planes on planes", self.kernel[0])));
        }
        let seen = seen_size(spatial("input", source.shape)?, source.shape.rank(), self.upsample);
        let out = self.geometry.output(seen, self.kernel)?;
        let k = dy.shape.channels();
        want("gradient of the output", dy, image(source.shape.rank(), source.shape[0], out, k))?;
        let c = source.shape.channels();
        let g = self.geometry.groups;
        if g == 0 || !c.is_multiple_of(g) || !k.is_multiple_of(g) {
            return Err(OpError::Attribute(format!("{c} and {k} channels do not split into {g} groups")));
        }
        Ok(vec![Type { dtype, shape: image(source.shape.rank(), k, self.kernel, c / g) }])
    }

    pub(in crate::ops) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        if self.parts != 1 || self.prologue.is_some() || self.upsample {
            return None;
        }
        let (x, dy, g) = (n.inputs[0], n.inputs[1], n.dy());
        let like_x = b.shape(x);
        Some(vec![
            n.wanted[0].then(|| b.conv_input_grad(dy, g, self.geometry, like_x)),
            n.wanted[1].then(|| b.conv(x, g, None, self.geometry)),
        ])
    }

    pub(in crate::ops) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let z = read_source(&x[..self.parts], self.prologue, &x[self.parts..self.dy()]);
        let z = if self.upsample { doubled(&z) } else { z };
        let dy = x[self.dy()];
        let (k, cg) = (dy.shape.channels(), z.shape.channels() / self.geometry.groups);
        let mut dw = Array::zeros(image(z.shape.rank(), k, self.kernel, cg));
        let shape = dw.shape;
        for_each_product(&self.geometry, z.shape, shape, |from, to, weight| {
            dw.data[weight] += z.data[from] * dy.data[to];
        });
        vec![dw]
    }
}

/// The adjoint of [`doubled`]: sums over the pixels that one was repeated to.
fn halved(x: &Array) -> Array {
    let rank = x.shape.rank();
    let shape = (1..rank - 1).fold(x.shape, |s, a| s.with(a, s[a] / 2));
    let mut sums = Array::zeros(shape);
    let strides = shape.strides();
    let mut from = 0;
    for_each_index(x.shape, |i| {
        let place = |a: usize| if a == 0 || a == rank - 1 { i[a] } else { i[a] / 2 };
        let to: usize = (0..rank).map(|a| place(a) * strides[a]).sum();
        sums.data[to] += x.data[from];
        from += 1;
    });
    sums
}
