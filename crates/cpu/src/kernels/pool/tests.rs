use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Geometry, Pool, PoolGrad, PoolKind};
use clearshot_tensor::Shape;

/// Forward and backward, with values of which many are equal.
fn both(shape: &[usize], kernel: [usize; 3], stride: [usize; 3], pad: [[usize; 2]; 3]) {
    let geometry = Geometry { stride, pad, dilation: [1; 3], groups: 1 };
    let input = if shape.len() == 4 { [1, shape[1], shape[2]] } else { [shape[1], shape[2], shape[3]] };
    for kind in [PoolKind::Average, PoolKind::Max] {
        let pool = Pool { kind, kernel, geometry };
        let x = Operand::new(shape, |i| (i * 7919 % 11) as f64 - 5.0);
        check(&Op::Pool(pool), std::slice::from_ref(&x), &[], CLOSE);
        let out = geometry.output(input, kernel).unwrap();
        let mut y = Shape::new(shape);
        let first = if shape.len() == 4 { 1 } else { 0 };
        for a in first..3 {
            y = y.with(a + 1 - first, out[a]);
        }
        let dy = Operand::normal(y, 3);
        let operands = if kind == PoolKind::Max { vec![x, dy] } else { vec![dy] };
        check(&Op::PoolGrad(PoolGrad { pool, input }), &operands, &[], CLOSE);
    }
}

#[test]
fn planes() {
    both(&[2, 6, 8, 3], [1, 2, 2], [1, 2, 2], [[0; 2]; 3]);
    both(&[1, 50, 51, 16], [1, 2, 2], [1, 2, 2], [[0; 2]; 3]);
    both(&[2, 17, 15, 19], [1, 3, 3], [1, 2, 2], [[0, 0], [1, 1], [1, 1]]);
    both(&[2, 7, 9, 5], [1, 3, 2], [1, 1, 1], [[0, 0], [2, 1], [0, 1]]);
    both(&[2, 9, 11, 4], [1, 2, 1], [1, 3, 4], [[0; 2]; 3]);
    both(&[1, 1, 1, 1], [1, 1, 1], [1, 1, 1], [[0; 2]; 3]);
}

#[test]
fn volumes() {
    both(&[2, 6, 5, 8, 7], [2, 2, 2], [2, 2, 2], [[0; 2]; 3]);
    both(&[1, 5, 6, 7, 33], [3, 3, 3], [2, 1, 2], [[1, 1], [0, 2], [1, 0]]);
}
