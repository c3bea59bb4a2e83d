//! Operations that move values and compute nothing: reshape, transpose, broadcast, concat, slice, pad.

use super::{GradNode, Grads, OpError, floats, operands, want};
use crate::array::{Array, for_each_index};
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::{MAX_RANK, Shape};

pub(super) fn infer_reshape(shape: Shape, x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, 1)?;
    if shape.checked_len() != Some(x[0].shape.len()) {
        return Err(OpError::Mismatch { what: "reshape", left: x[0].shape, right: shape });
    }
    Ok(vec![Type { dtype: x[0].dtype, shape }])
}

pub(super) fn infer_broadcast(shape: Shape, x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, 1)?;
    if x[0].shape.broadcast(&shape) != Some(shape) {
        return Err(OpError::Mismatch { what: "broadcast", left: x[0].shape, right: shape });
    }
    Ok(vec![Type { dtype: x[0].dtype, shape }])
}

/// Axis `i` of the result is axis `order[i]` of the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    order: [u8; MAX_RANK],
    rank: u8,
}

impl Transpose {
    /// # Panics
    /// If there are more than `MAX_RANK` axes.
    pub fn new(order: &[usize]) -> Transpose {
        let mut t = Transpose { order: [0; MAX_RANK], rank: order.len() as u8 };
        // An axis that there cannot be stays one that there is not.
        order.iter().enumerate().for_each(|(i, &a)| t.order[i] = a.min(u8::MAX as usize) as u8);
        t
    }

    pub fn order(&self) -> impl Iterator<Item = usize> + '_ {
        self.order[..self.rank as usize].iter().map(|&a| a as usize)
    }

    pub fn inverse(&self) -> Vec<usize> {
        let mut inverse = vec![0; self.rank as usize];
        self.order().enumerate().for_each(|(i, a)| inverse[a] = i);
        inverse
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        let rank = x[0].shape.rank();
        let order: Vec<usize> = self.order().collect();
        if order.len() != rank || !(0..rank).all(|a| order.contains(&a)) {
            return Err(OpError::Attribute(format!(
                "order {order:?} does not permute the axes of {}",
                x[0].shape
            )));
        }
        let sizes: Vec<usize> = order.iter().map(|&a| x[0].shape[a]).collect();
        Ok(vec![Type { dtype: x[0].dtype, shape: Shape::new(&sizes) }])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let sizes: Vec<usize> = self.order().map(|a| x[0].shape[a]).collect();
        let inverse = self.inverse();
        vec![Array::from_fn(Shape::new(&sizes), |i| {
            let from: Vec<usize> = inverse.iter().map(|&at| i[at]).collect();
            x[0].get(&from)
        })]
    }
}

/// Operands one behind the other along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concat {
    pub axis: usize,
}

impl Concat {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        let Some(first) = x.first() else {
            return Err(OpError::Count { expected: "one or more".into(), got: 0 });
        };
        let rank = first.shape.rank();
        if self.axis >= rank {
            return Err(OpError::Attribute(format!("axis {} of shape {}", self.axis, first.shape)));
        }
        let mut size = 0;
        for t in x {
            if t.shape.rank() != rank || t.shape.with(self.axis, 0) != first.shape.with(self.axis, 0) {
                return Err(OpError::Mismatch { what: "concat", left: first.shape, right: t.shape });
            }
            if t.dtype != first.dtype && !(t.dtype.is_float() && first.dtype.is_float()) {
                return Err(OpError::Kind { what: "concat", expected: first.dtype, got: t.dtype });
            }
            size += t.shape[self.axis];
        }
        Ok(vec![Type { dtype: first.dtype, shape: first.shape.with(self.axis, size) }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let mut start = 0;
        let part = |(i, &v): (usize, &crate::Value)| {
            let len = b.shape(v)[self.axis];
            start += len;
            n.wanted[i].then(|| b.slice(n.dy(), self.axis, start - len, len))
        };
        Some(n.inputs.iter().enumerate().map(part).collect())
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        vec![concat(x, self.axis)]
    }
}

fn concat(x: &[&Array], axis: usize) -> Array {
    let size = x.iter().map(|a| a.shape[axis]).sum();
    let shape = x[0].shape.with(axis, size);
    let outer: usize = shape[..axis].iter().product();
    let mut data = Vec::with_capacity(shape.len());
    for o in 0..outer {
        for a in x {
            let run = a.data.len() / outer;
            data.extend(&a.data[o * run..(o + 1) * run]);
        }
    }
    Array::new(shape, data)
}

/// Side by side along the last axis.
pub(crate) fn concat_channels(parts: &[&Array]) -> Array {
    if let [one] = parts { (*one).clone() } else { concat(parts, parts[0].shape.rank() - 1) }
}

/// A range of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    pub axis: usize,
    pub start: usize,
    pub len: usize,
}

impl Slice {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        let shape = x[0].shape;
        let fits = |size: usize| self.len > 0 && self.len <= size && self.start <= size - self.len;
        if self.axis >= shape.rank() || !fits(shape[self.axis]) {
            return Err(OpError::Attribute(format!(
                "{} elements from {} of axis {} of shape {shape}",
                self.len, self.start, self.axis
            )));
        }
        Ok(vec![Type { dtype: x[0].dtype, shape: shape.with(self.axis, self.len) }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let size = b.shape(n.inputs[0])[self.axis];
        let mut pad = [[0; 2]; MAX_RANK];
        pad[self.axis] = [self.start, size - self.start - self.len];
        Some(vec![Some(b.pad(n.dy(), pad, PadMode::Zero))])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let mut at = [0; MAX_RANK];
        vec![Array::from_fn(x[0].shape.with(self.axis, self.len), |i| {
            at[..i.len()].copy_from_slice(i);
            at[self.axis] += self.start;
            x[0].get(&at[..i.len()])
        })]
    }
}

/// More padding than any image has; sums of sizes cannot overflow below it.
const LARGEST_PAD: usize = 1 << 40;

/// What lies outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PadMode {
    Zero,
    /// Mirrored about the edge pixel, which is not repeated.
    Reflect,
    /// The edge pixel again and again.
    Edge,
    /// The other side.
    Wrap,
}

/// Pixels added before and behind each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    pub pad: [[usize; 2]; MAX_RANK],
    pub mode: PadMode,
}

impl PadMode {
    /// Where padded position `p` comes from along an axis of `n` pixels with `before` added in front.
    pub fn source(self, p: usize, before: usize, n: usize) -> Option<usize> {
        let p = p as isize - before as isize;
        let n = n as isize;
        let inside = (0..n).contains(&p);
        let at = match self {
            _ if inside => p,
            PadMode::Zero => return None,
            PadMode::Reflect if p < 0 => -p,
            PadMode::Reflect => 2 * (n - 1) - p,
            PadMode::Edge => p.clamp(0, n - 1),
            PadMode::Wrap => p.rem_euclid(n),
        };
        Some(at as usize)
    }
}

impl Pad {
    fn padded(&self, x: Shape) -> Shape {
        (0..x.rank()).fold(x, |s, a| s.with(a, x[a] + self.pad[a][0] + self.pad[a][1]))
    }

    /// The operand's shape, from the padded one's.
    pub fn unpadded(&self, y: Shape) -> Option<Shape> {
        let mut x = y;
        for a in 0..y.rank() {
            x = x.with(a, y[a].checked_sub(self.pad[a][0])?.checked_sub(self.pad[a][1])?);
        }
        Some(x)
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        let shape = x[0].shape;
        for a in 0..MAX_RANK {
            let most = self.pad[a].into_iter().max().unwrap_or(0);
            let limit = match self.mode {
                _ if a >= shape.rank() => 0,
                PadMode::Zero => LARGEST_PAD,
                PadMode::Reflect => shape[a].saturating_sub(1),
                PadMode::Edge => {
                    if shape[a] > 0 {
                        LARGEST_PAD
                    } else {
                        0
                    }
                }
                PadMode::Wrap => shape[a],
            };
            if most > limit {
                return Err(OpError::Attribute(format!(
                    "{:?} padding of {most} on axis {a} of shape {shape}, {limit} at most",
                    self.mode
                )));
            }
        }
        Ok(vec![Type { dtype: x[0].dtype, shape: self.padded(shape) }])
    }

    pub(super) fn infer_grad(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        floats(x)?;
        let shape = self
            .unpadded(x[0].shape)
            .ok_or_else(|| OpError::Attribute(format!("{} is smaller than its padding", x[0].shape)))?;
        let forward = self.infer(&[Type { shape, ..x[0] }])?;
        want("gradient of the padded", x[0], forward[0].shape)?;
        Ok(vec![Type { shape, ..x[0] }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let shape = b.shape(n.inputs[0]);
        if self.mode != PadMode::Zero {
            return Some(vec![Some(b.push_one(super::Op::PadGrad(*self), vec![n.dy()]))]);
        }
        let inner = (0..shape.rank()).fold(n.dy(), |v, a| b.slice(v, a, self.pad[a][0], shape[a]));
        Some(vec![Some(inner)])
    }

    /// Calls `f(operand's flat index, padded flat index)` for every pixel that comes from somewhere.
    fn for_each(&self, x: Shape, mut f: impl FnMut(usize, usize)) {
        let strides = x.strides();
        let mut to = 0;
        for_each_index(self.padded(x), |i| {
            let from: Option<usize> = (0..x.rank())
                .map(|a| self.mode.source(i[a], self.pad[a][0], x[a]).map(|p| p * strides[a]))
                .sum();
            if let Some(from) = from {
                f(from, to);
            }
            to += 1;
        });
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let mut y = Array::zeros(self.padded(x[0].shape));
        self.for_each(x[0].shape, |from, to| y.data[to] = x[0].data[from]);
        vec![y]
    }

    pub(super) fn eval_grad(&self, x: &[&Array]) -> Vec<Array> {
        let shape = self.unpadded(x[0].shape).unwrap();
        let mut dx = Array::zeros(shape);
        self.for_each(shape, |from, to| dx.data[from] += x[0].data[to]);
        vec![dx]
    }
}
