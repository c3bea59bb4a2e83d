use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::GatherGrad;

#[test]
fn rows_and_their_gradient() {
    // Rows, row length, indices; some of the indices lie outside.
    let cases: [(usize, usize, &[usize]); 6] = [
        (1, 1, &[]),
        (5, 3, &[7]),
        (10, 64, &[2, 9]),
        (1000, 33, &[40, 30]),
        (40, 512, &[100]),
        (9, 2, &[5000]),
    ];
    for (rows, width, shape) in cases {
        let index = |i: usize| (i * 7919 % (rows + 4)) as i32 - 2;
        let indices = Operand::whole(shape, index);
        let table = Operand::normal([rows, width], 1);
        check(&Op::Gather, &[table, indices.clone()], &[], 0.0);
        let mut drows = shape.to_vec();
        drows.push(width);
        let op = Op::GatherGrad(GatherGrad { rows });
        check(&op, &[indices, Operand::normal(&drows[..], 2)], &[], CLOSE);
    }
}
