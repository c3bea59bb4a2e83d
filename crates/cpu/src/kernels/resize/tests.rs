use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Resize, ResizeGrad, ResizeMode};

fn both(from: [usize; 3], size: [usize; 3], channels: usize) {
    let rank = if from[0] == 1 && size[0] == 1 { 4 } else { 5 };
    let image = |s: [usize; 3]| match rank {
        4 => vec![2, s[1], s[2], channels],
        _ => vec![2, s[0], s[1], s[2], channels],
    };
    for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::LinearAligned] {
        let exact = if mode == ResizeMode::Nearest { 0.0 } else { CLOSE };
        check(&Op::Resize(Resize { mode, size }), &[Operand::normal(&image(from)[..], 1)], &[], exact);
        let grad = ResizeGrad { mode, input: from };
        check(&Op::ResizeGrad(grad), &[Operand::normal(&image(size)[..], 2)], &[], CLOSE);
    }
}

#[test]
fn doubling() {
    both([1, 1, 1], [1, 2, 2], 1);
    both([1, 20, 21], [1, 40, 42], 16);
    both([1, 33, 30], [1, 66, 60], 19);
    both([5, 6, 7], [10, 12, 14], 8);
}

#[test]
fn any_sizes() {
    both([1, 7, 9], [1, 10, 4], 3);
    both([1, 7, 9], [1, 1, 30], 1);
    both([3, 4, 5], [4, 3, 9], 17);
    both([1, 50, 60], [1, 75, 77], 6);
}
