//! Rows of a table by index: embeddings.
//!
//! The table is `[V, D]`, the indices whole numbers of any shape; the result has D behind their axes. An
//! index outside the table is clamped to it by every backend; checking is for who makes the indices.

use super::{GradNode, Grads, Op, OpError, floats, operands};
use crate::array::Array;
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::{DType, MAX_RANK, Shape};

fn rows_shape(indices: Shape, d: usize) -> Result<Shape, OpError> {
    if indices.rank() == MAX_RANK {
        return Err(OpError::Rank { what: "indices", expected: "5 or fewer", got: indices });
    }
    let mut sizes = indices.to_vec();
    sizes.push(d);
    Ok(Shape::new(&sizes))
}

fn check_indices(t: Type) -> Result<(), OpError> {
    if t.dtype == DType::I32 {
        Ok(())
    } else {
        Err(OpError::Kind { what: "indices", expected: DType::I32, got: t.dtype })
    }
}

pub(super) fn infer(x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, 2)?;
    let dtype = floats(&x[..1])?;
    check_indices(x[1])?;
    let table = x[0].shape;
    if table.rank() != 2 || table.is_empty() {
        return Err(OpError::Rank { what: "table", expected: "2 (rows, values), not empty,", got: table });
    }
    Ok(vec![Type { dtype, shape: rows_shape(x[1].shape, table[1])? }])
}

pub(super) fn grad(b: &mut Builder, n: &GradNode<'_>) -> Grads {
    let rows = b.shape(n.inputs[0])[0];
    let op = Op::GatherGrad(GatherGrad { rows });
    Some(vec![Some(b.push_one(op, vec![n.inputs[1], n.dy()])), None])
}

fn row(index: f64, rows: usize) -> usize {
    (index.max(0.0) as usize).min(rows - 1)
}

pub(super) fn eval(x: &[&Array]) -> Vec<Array> {
    let (table, indices) = (x[0], x[1]);
    let [rows, d] = [table.shape[0], table.shape[1]];
    let data = indices.data.iter().flat_map(|&i| &table.data[row(i, rows) * d..][..d]).copied().collect();
    vec![Array::new(rows_shape(indices.shape, d).unwrap(), data)]
}

/// The gradient of the table, which has this many rows. Operands: indices, gradient of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherGrad {
    pub rows: usize,
}

impl GatherGrad {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 2)?;
        check_indices(x[0])?;
        let dtype = floats(&x[1..])?;
        let d = x[1].shape.channels();
        super::want("gradient of the rows", x[1], rows_shape(x[0].shape, d)?)?;
        if self.rows == 0 {
            return Err(OpError::Attribute("a table without rows".into()));
        }
        Ok(vec![Type { dtype, shape: Shape::from([self.rows, d]) }])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let d = x[1].shape.channels();
        let mut table = Array::zeros([self.rows, d]);
        for (i, &index) in x[0].data.iter().enumerate() {
            for k in 0..d {
                table.data[row(index, self.rows) * d + k] += x[1].data[i * d + k];
            }
        }
        vec![table]
    }
}
