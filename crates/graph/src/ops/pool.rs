//! Average and maximum over windows.

use super::conv::{Geometry, image, spatial};
use super::{GradNode, Grads, Op, OpError, floats, operands, want};
use crate::array::{Array, for_each_index};
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::Shape;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// Padding counts as zeros, as in PyTorch's default.
    Average,
    /// Padding never wins; of equal values the first does.
    Max,
}

/// Windows of `kernel` pixels; the geometry's groups and dilation are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    pub kind: PoolKind,
    pub kernel: [usize; 3],
    pub geometry: Geometry,
}

/// The gradient of [`Pool`]. Operands: dy for the average; x, dy for the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolGrad {
    pub pool: Pool,
    pub input: [usize; 3],
}

impl Pool {
    fn pooled(&self, x: Shape) -> Result<Shape, OpError> {
        let g = &self.geometry;
        if g.groups != 1
            || g.dilation != [1; 3]
            || (0..3).any(|a| g.pad[a].iter().any(|&p| p >= self.kernel[a]))
        {
            return Err(OpError::Attribute(format!(
                "{self:?}: no groups, no dilation, less padding than kernel"
            )));
        }
        if x.rank() == 4 && (self.kernel[0] != 1 || g.stride[0] != 1 || g.pad[0] != [0, 0]) {
            return Err(OpError::Attribute(format!("{self:?} moves along Z, and the image is a plane")));
        }
        let out = g.output(spatial("input of pool", x)?, self.kernel)?;
        Ok(image(x.rank(), x[0], out, x.channels()))
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        floats(x)?;
        Ok(vec![Type { dtype: x[0].dtype, shape: self.pooled(x[0].shape)? }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let x = n.inputs[0];
        let input = spatial("x", b.shape(x)).ok()?;
        let operands = match self.kind {
            PoolKind::Average => vec![n.dy()],
            PoolKind::Max => vec![x, n.dy()],
        };
        Some(vec![Some(b.push_one(Op::PoolGrad(PoolGrad { pool: *self, input }), operands))])
    }

    /// Calls `f(output index, input indices of its window)` for every output element.
    fn for_each(&self, x: Shape, mut f: impl FnMut(usize, &[usize])) {
        let y = self.pooled(x).unwrap();
        let (input, output) = (spatial("x", x).unwrap(), spatial("y", y).unwrap());
        let c = x.channels();
        let mut window = Vec::new();
        let mut to = 0;
        for_each_index(Shape::from([x[0], output[0], output[1], output[2], c]), |i| {
            window.clear();
            for_each_index(Shape::from(self.kernel), |t| {
                let mut at = [0; 3];
                for a in 0..3 {
                    let p = i[a + 1] * self.geometry.stride[a] + t[a];
                    if p < self.geometry.pad[a][0] || p - self.geometry.pad[a][0] >= input[a] {
                        return;
                    }
                    at[a] = p - self.geometry.pad[a][0];
                }
                window.push((((i[0] * input[0] + at[0]) * input[1] + at[1]) * input[2] + at[2]) * c + i[4]);
            });
            f(to, &window);
            to += 1;
        });
    }

    fn taps(&self) -> f64 {
        self.kernel.iter().product::<usize>() as f64
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let mut y = Array::zeros(self.pooled(x[0].shape).unwrap());
        self.for_each(x[0].shape, |to, window| {
            let values = window.iter().map(|&i| x[0].data[i]);
            y.data[to] = match self.kind {
                PoolKind::Average => values.sum::<f64>() / self.taps(),
                PoolKind::Max => values.fold(f64::NEG_INFINITY, f64::max),
            };
        });
        vec![y]
    }
}

impl PoolGrad {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, if self.pool.kind == PoolKind::Max { 2 } else { 1 })?;
        floats(x)?;
        let dy = x[x.len() - 1];
        spatial("gradient of the pooled", dy.shape)?;
        let shape = image(dy.shape.rank(), dy.shape[0], self.input, dy.shape.channels());
        want("gradient of the pooled", dy, self.pool.pooled(shape)?)?;
        if x.len() == 2 {
            want("input of pool", x[0], shape)?;
        }
        Ok(vec![Type { dtype: dy.dtype, shape }])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let dy = x[x.len() - 1];
        let shape = image(dy.shape.rank(), dy.shape[0], self.input, dy.shape.channels());
        let mut dx = Array::zeros(shape);
        self.pool.for_each(shape, |to, window| match self.pool.kind {
            PoolKind::Average => window.iter().for_each(|&i| dx.data[i] += dy.data[to] / self.pool.taps()),
            PoolKind::Max => {
                let best =
                    window.iter().copied().reduce(|a, b| if x[0].data[b] > x[0].data[a] { b } else { a });
                if let Some(i) = best {
                    dx.data[i] += dy.data[to];
                }
            }
        });
        vec![dx]
    }
}
