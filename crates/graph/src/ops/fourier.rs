//! Cyclic convolution over the spatial axes, as blurring by a point-spread function is modelled.
//!
//! x is `[N, (Z,) Y, X, C]`; the kernel has the spatial sizes of x, alone or with N and C (each may be
//! 1). `y[p] = sum_q kernel[q] x[p - q]`, indices modulo the sizes; with `adjoint`, `x[p + q]`. The
//! kernel's origin is its first element. The CPU transforms
//! (FFTs), the GPU sums over the taps that are not zero; the meaning below is the plain sum.

use super::{GradNode, Grads, Op, OpError, floats, operands};
use crate::array::{Array, for_each_index};
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::Shape;

/// Operands: x, kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CyclicConv {
    pub adjoint: bool,
}

/// The kernel's shape with all of x's axes.
///
/// # Errors
/// If the spatial sizes differ or the other axes do not broadcast.
pub fn full_kernel(x: Shape, kernel: Shape) -> Result<Shape, OpError> {
    let misfit =
        OpError::Mismatch { what: "image and kernel of a cyclic convolution", left: x, right: kernel };
    let rank = x.rank();
    if rank != 4 && rank != 5 {
        return Err(OpError::Rank { what: "image", expected: "4 or 5", got: x });
    }
    let full = if kernel.rank() == rank - 2 {
        let mut sizes = vec![1];
        sizes.extend(kernel.iter());
        sizes.push(1);
        Shape::new(&sizes)
    } else {
        kernel
    };
    let fits = full.rank() == rank
        && full[1..rank - 1] == x[1..rank - 1]
        && [0, rank - 1].iter().all(|&a| full[a] == 1 || full[a] == x[a]);
    if fits { Ok(full) } else { Err(misfit) }
}

impl CyclicConv {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 2)?;
        floats(x)?;
        full_kernel(x[0].shape, x[1].shape)?;
        Ok(vec![x[0]])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let (x, kernel, dy) = (n.inputs[0], n.inputs[1], n.dy());
        let dx = n.wanted[0].then(|| b.cyclic_conv(dy, kernel, !self.adjoint));
        let dk = n.wanted[1].then(|| {
            // dk[q] = sum_p dy[p] x[p - q]: a correlation of the two images, in the order that the
            // adjoint asks for, summed over what the kernel is shared by.
            let whole = if self.adjoint { b.cyclic_conv(x, dy, true) } else { b.cyclic_conv(dy, x, true) };
            let given = b.shape(kernel);
            let full = full_kernel(b.shape(x), given).expect("checked when the node was built");
            let summed = b.sum_to(whole, full);
            b.reshape(summed, given)
        });
        Some(vec![dx, dk])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (image, shape) = (x[0], x[0].shape);
        let kernel = x[1].clone().reshaped(full_kernel(shape, x[1].shape).unwrap());
        let rank = shape.rank();
        let space = Shape::new(&shape[1..rank - 1]);
        let y = Array::from_fn(shape, |p| {
            let mut sum = 0.0;
            for_each_index(space, |q| {
                let mut from = Shape::new(p);
                let mut tap = Shape::new(p);
                for a in 1..rank - 1 {
                    let size = shape[a];
                    let shifted = if self.adjoint { p[a] + q[a - 1] } else { p[a] + size - q[a - 1] };
                    from = from.with(a, shifted % size);
                    tap = tap.with(a, q[a - 1]);
                }
                sum += kernel.get(&tap) * image.get(&from);
            });
            sum
        });
        vec![y]
    }
}

/// The op as a builder adds it.
pub(crate) fn op(adjoint: bool) -> Op {
    Op::CyclicConv(CyclicConv { adjoint })
}
