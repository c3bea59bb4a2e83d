use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Dropout, Noise, NoiseKind};
use clearshot_tensor::Shape;

fn keys(shape: impl Into<Shape>) -> Operand {
    Operand::whole(shape, |i| (i as i32).wrapping_mul(-1_640_531_527) ^ 0x55)
}

const SHAPES: [&[usize]; 6] = [&[], &[3], &[3, 43], &[2, 128], &[3, 5, 700], &[2, 33_001]];

#[test]
fn noise_has_the_bits_of_its_definition() {
    for kind in [NoiseKind::Normal, NoiseKind::Uniform] {
        for shape in SHAPES {
            let op = Op::Noise(Noise { kind, shape: Shape::new(shape) });
            check(&op, &[keys([4])], &[], 0.0);
            if let Some(&n) = shape.first() {
                check(&op, &[keys([n, 4])], &[], 0.0);
            }
        }
    }
}

#[test]
fn dropout() {
    for rate in [0.0, 0.1, 0.75] {
        for shape in SHAPES {
            let op = Op::Dropout(Dropout { rate });
            check(&op, &[Operand::normal(shape, 1), keys([4])], &[Some(0)], CLOSE);
            if let Some(&n) = shape.first() {
                check(&op, &[Operand::normal(shape, 1), keys([n, 4])], &[Some(0)], CLOSE);
            }
        }
    }
}
