use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Reduce, ReduceKind};

const KINDS: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::SumSquares];

#[test]
fn every_set_of_axes() {
    for axes in 0..32u8 {
        for kind in KINDS {
            for shape in [[2, 3, 5, 4, 7], [1, 2, 1, 30, 70], [3, 1, 2, 2, 1]] {
                check(
                    &Op::Reduce(Reduce { kind, axes }),
                    &[Operand::between(shape, 7, -1.0, 3.0)],
                    &[],
                    CLOSE,
                );
            }
        }
    }
}

#[test]
fn large_sums() {
    let cases: [(&[usize], &[usize]); 10] = [
        (&[1_000_003], &[0]),
        (&[3000, 3], &[0]),
        (&[9000, 16], &[0]),
        (&[9000, 65], &[0]),
        (&[3, 5000], &[0]),
        (&[5, 900, 33], &[1]),
        (&[2, 70, 128], &[1]),
        (&[300, 257], &[1]),
        (&[20_000, 3], &[1]),
        (&[2, 40_000], &[1]),
    ];
    for (shape, axes) in cases {
        for kind in KINDS {
            check(&Op::Reduce(Reduce::new(kind, axes)), &[Operand::between(shape, 3, 0.0, 2.0)], &[], 5e-7);
        }
    }
    check(&Op::Reduce(Reduce::new(ReduceKind::Sum, &[])), &[Operand::normal([30], 1)], &[], CLOSE);
    check(&Op::Reduce(Reduce::all(ReduceKind::SumSquares, 0)), &[Operand::scalar(3.0)], &[], CLOSE);
}

#[test]
fn softmax() {
    for shape in [[1, 1], [3, 5], [2, 8], [5, 16], [7, 31], [300, 77], [3, 20_000]] {
        check(&Op::Softmax, &[Operand::normal(shape, 5)], &[Some(0)], CLOSE);
    }
    check(&Op::Softmax, &[Operand::between([4, 3, 50], 5, -1e4, 1e4)], &[Some(0)], CLOSE);
    let masked = Operand::new([2, 40], |i| if i % 3 == 0 { f64::NEG_INFINITY } else { 0.1 * i as f64 });
    check(&Op::Softmax, &[masked], &[Some(0)], CLOSE);
}

#[test]
fn no_rows_sum_to_zero() {
    for axes in [&[0][..], &[0, 1], &[1]] {
        check(&Op::Reduce(Reduce::new(ReduceKind::Sum, axes)), &[Operand::normal([0, 4], 1)], &[], CLOSE);
    }
}
