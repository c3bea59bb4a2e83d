use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Concat, Pad, PadMode, Slice, Transpose};
use clearshot_tensor::{MAX_RANK, Shape};

#[test]
fn transposes() {
    let cases: [(&[usize], &[usize]); 10] = [
        (&[5, 7], &[1, 0]),
        (&[200, 190], &[1, 0]),
        (&[2, 3, 40, 50], &[0, 2, 3, 1]),
        (&[2, 40, 50, 3], &[0, 3, 1, 2]),
        (&[2, 40, 5, 33], &[0, 2, 1, 3]),
        (&[2, 3, 4, 5, 6, 7], &[5, 3, 1, 0, 2, 4]),
        (&[2, 3, 4, 5, 6, 7], &[0, 1, 2, 3, 4, 5]),
        (&[1, 3, 1, 5], &[3, 2, 1, 0]),
        (&[4, 1, 6], &[2, 0, 1]),
        (&[], &[]),
    ];
    for (shape, order) in cases {
        let op = Op::Transpose(Transpose::new(order));
        check(&op, &[Operand::normal(shape, 1)], &[], 0.0);
        check(&op, &[Operand::whole(shape, |i| i as i32 - 9)], &[], 0.0);
    }
}

#[test]
fn broadcasts() {
    let cases: [(&[usize], &[usize]); 8] = [
        (&[], &[40_000]),
        (&[1], &[3, 4]),
        (&[7], &[50, 60, 7]),
        (&[3, 1, 1, 9], &[3, 20, 31, 9]),
        (&[3, 4, 1], &[3, 4, 50]),
        (&[2, 1, 3, 1], &[2, 4, 3, 5]),
        (&[1, 30_000], &[2, 30_000]),
        (&[4, 5], &[4, 5]),
    ];
    for (from, to) in cases {
        check(&Op::Broadcast(Shape::new(to)), &[Operand::normal(from, 1)], &[], 0.0);
    }
}

#[test]
fn concats_and_slices() {
    for axis in 0..4 {
        for shape in [[2, 3, 5, 4], [2, 30, 20, 33]] {
            let part = |size: usize, seed| Operand::normal(Shape::new(&shape).with(axis, size), seed);
            check(&Op::Concat(Concat { axis }), &[part(3, 1), part(1, 2), part(8, 3)], &[], 0.0);
            check(&Op::Concat(Concat { axis }), &[part(2, 1)], &[], 0.0);
            for (start, len) in [(0, 1), (1, 1), (0, 2), (1, shape[axis] - 1)] {
                check(&Op::Slice(Slice { axis, start, len }), &[Operand::normal(shape, 4)], &[], 0.0);
            }
        }
    }
    let long = |seed| Operand::normal([50_000], seed);
    check(&Op::Concat(Concat { axis: 0 }), &[long(1), long(2)], &[], 0.0);
    check(&Op::Slice(Slice { axis: 0, start: 77, len: 40_000 }), &[long(1)], &[], 0.0);
}

fn pad(list: &[[usize; 2]], mode: PadMode) -> Pad {
    let mut pad = [[0; 2]; MAX_RANK];
    pad[..list.len()].copy_from_slice(list);
    Pad { pad, mode }
}

#[test]
fn pads_and_their_gradients() {
    for mode in [PadMode::Zero, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        let cases: [(&[usize], &[[usize; 2]]); 6] = [
            (&[5], &[[2, 3]]),
            (&[2, 4, 5, 3], &[[0, 0], [1, 2], [3, 0], [0, 0]]),
            (&[2, 40, 41, 7], &[[0, 0], [3, 2], [1, 5], [0, 0]]),
            (&[1, 4, 5, 6, 2], &[[0, 0], [1, 3], [2, 2], [0, 1], [0, 0]]),
            (&[3, 4], &[[1, 2], [3, 3]]),
            (&[3, 4], &[[0, 0], [0, 0]]),
        ];
        for (shape, list) in cases {
            let op = pad(list, mode);
            check(&Op::Pad(op), &[Operand::normal(shape, 1)], &[], 0.0);
            let padded: Vec<usize> = shape.iter().zip(list).map(|(n, p)| n + p[0] + p[1]).collect();
            check(&Op::PadGrad(op), &[Operand::normal(&padded[..], 2)], &[], CLOSE);
        }
        check(&Op::Pad(pad(&[], mode)), &[Operand::scalar(2.0)], &[], 0.0);
    }
}

#[test]
fn nothing_to_move() {
    let none = Operand::normal([3, 0, 4], 1);
    check(&Op::Transpose(Transpose::new(&[2, 0, 1])), std::slice::from_ref(&none), &[], 0.0);
    check(&Op::Broadcast(Shape::from([2, 3, 0, 4])), std::slice::from_ref(&none), &[], 0.0);
    check(&Op::Concat(Concat { axis: 1 }), &[none.clone(), none], &[], 0.0);
}
