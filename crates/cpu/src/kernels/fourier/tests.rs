use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::CyclicConv;

fn both(x: &[usize], kernel: &[usize]) {
    for adjoint in [false, true] {
        let operands = [Operand::normal(x, 1), Operand::normal(kernel, 2)];
        check(&Op::CyclicConv(CyclicConv { adjoint }), &operands, &[Some(0)], CLOSE);
    }
}

#[test]
fn planes() {
    both(&[1, 1, 1, 1], &[1, 1]);
    both(&[2, 5, 7, 3], &[5, 7]);
    both(&[2, 8, 6, 3], &[1, 8, 6, 3]);
    both(&[2, 4, 11, 3], &[2, 4, 11, 1]);
    both(&[3, 1, 13, 2], &[3, 1, 13, 2]);
    both(&[1, 24, 1, 2], &[24, 1]);
    both(&[1, 48, 45, 1], &[48, 45]);
}

#[test]
fn volumes() {
    both(&[2, 3, 4, 5, 3], &[3, 4, 5]);
    both(&[1, 2, 9, 10, 2], &[1, 2, 9, 10, 2]);
    both(&[2, 5, 1, 6, 1], &[2, 5, 1, 6, 1]);
}
