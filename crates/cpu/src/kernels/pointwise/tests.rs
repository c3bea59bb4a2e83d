use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Binary, Program, Scalar, Step, Unary};
use clearshot_tensor::DType;
use std::sync::Arc;

const UNARY: [Unary; 26] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Round,
    Unary::Square,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Exp,
    Unary::Log,
    Unary::Sin,
    Unary::Cos,
    Unary::Relu,
    Unary::LeakyRelu(0.2),
    Unary::Sigmoid,
    Unary::Tanh,
    Unary::Softplus,
    Unary::Silu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Huber(0.7),
    Unary::SmoothL1(0.6),
    Unary::AddScalar(0.3),
    Unary::MulScalar(-1.7),
    Unary::PowScalar(2.3),
    Unary::Clamp(-0.5, 0.8),
    Unary::Snap(0.0371, -90.0, 101.0),
];

/// The operands for which a function is real.
fn domain(u: Unary, n: usize) -> Operand {
    match u {
        Unary::Sqrt | Unary::Log | Unary::Recip | Unary::PowScalar(_) => Operand::between([n], 3, 0.1, 4.0),
        _ => Operand::between([n], 4, -5.0, 5.0),
    }
}

#[test]
fn functions_of_one_value() {
    for u in UNARY {
        for n in [1, 7, 100, 20_001] {
            let (x, dy) = (domain(u, n), Operand::normal([n], 5));
            check(&Op::Unary(u), std::slice::from_ref(&x), &[Some(0)], CLOSE);
            if !matches!(u, Unary::Sign | Unary::Round | Unary::Snap(..)) {
                check(&Op::UnaryGrad(u), &[x, dy], &[Some(1)], CLOSE);
            }
        }
    }
}

#[test]
fn powers() {
    for p in [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 0.37] {
        let x = Operand::between([999], 3, 0.1, 4.0);
        check(&Op::Unary(Unary::PowScalar(p)), std::slice::from_ref(&x), &[Some(0)], CLOSE);
        if p != 0.0 {
            let dy = Operand::normal([999], 5);
            check(&Op::UnaryGrad(Unary::PowScalar(p)), &[x, dy], &[Some(0)], CLOSE);
        }
    }
    let negative = Operand::between([99], 3, -4.0, -0.1);
    check(&Op::Unary(Unary::PowScalar(2.0)), std::slice::from_ref(&negative), &[], CLOSE);
    check(&Op::Unary(Unary::PowScalar(5.0)), &[negative], &[], CLOSE);
}

#[test]
fn special_values_stay_special() {
    let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0, 1e-38, -1e30, 1e30];
    for u in UNARY {
        if matches!(
            u,
            Unary::Sin | Unary::Cos | Unary::Softplus | Unary::Silu | Unary::Gelu | Unary::GeluTanh
        ) || matches!(u, Unary::Square | Unary::Huber(_) | Unary::SmoothL1(_) | Unary::PowScalar(_))
        {
            continue; // Beyond the range of f32 or of the function's argument.
        }
        check(&Op::Unary(u), &[Operand::new([8], |i| special[i])], &[], 1e-5);
    }
}

#[test]
fn functions_of_two_values_with_every_broadcast() {
    let all = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Pow,
        Binary::Greater,
    ];
    let shapes: [(&[usize], &[usize]); 14] = [
        (&[], &[]),
        (&[5], &[]),
        (&[33_000], &[33_000]),
        (&[33_000], &[1]),
        (&[2, 9, 11, 7], &[7]),
        (&[2, 40, 40, 16], &[16]),
        (&[3, 40, 40, 16], &[3, 1, 1, 16]),
        (&[3, 40, 41, 3], &[3, 40, 41, 1]),
        (&[3, 5, 700], &[3, 5, 1]),
        (&[3, 5, 700], &[3, 1, 700]),
        (&[3, 1, 700], &[1, 5, 1]),
        (&[2, 1, 3, 1, 5], &[2, 4, 1, 6, 1]),
        (&[2, 3, 4, 5, 6, 7], &[3, 1, 5, 1, 7]),
        (&[40, 1], &[1, 1030]),
    ];
    for (i, (a, b)) in shapes.into_iter().enumerate() {
        for o in all {
            let (x, y) = (Operand::between(a, 1, 0.2, 3.0), Operand::between(b, 2, 0.2, 3.0));
            let place: &[_] = if a.len() >= b.len() && i < 10 { &[Some(0)] } else { &[] };
            check(&Op::Binary(o), &[x.clone(), y.clone()], place, CLOSE);
            if i < 10 {
                let place: &[_] = if place.is_empty() { &[] } else { &[Some(1)] };
                check(&Op::Binary(o), &[y, x], place, CLOSE);
            }
        }
    }
}

#[test]
fn chains() {
    let step = |scalar, a, b| Step { scalar, a, b };
    // silu(x * scale + shift) + residual, gated by a sample's value.
    let film = Program {
        operands: 5,
        steps: vec![
            step(Scalar::Binary(Binary::Mul), 0, 1),
            step(Scalar::Binary(Binary::Add), 5, 2),
            step(Scalar::Unary(Unary::Silu), 6, 0),
            step(Scalar::UnaryGrad(Unary::Tanh), 6, 7),
            step(Scalar::Binary(Binary::Add), 8, 3),
            step(Scalar::Binary(Binary::Mul), 9, 4),
            step(Scalar::Binary(Binary::Sub), 10, 0),
        ],
    };
    for (n, h, c) in [(1, 1, 1), (2, 3, 5), (2, 33, 16), (2, 9, 130), (1, 3, 2000)] {
        let x = [
            Operand::normal([n, h, h, c], 1),
            Operand::normal([n, 1, 1, c], 2),
            Operand::normal([c], 3),
            Operand::normal([n, h, h, c], 4),
            Operand::normal([n, 1, 1, 1], 5),
        ];
        check(&Op::Pointwise(Arc::new(film.clone())), &x, &[Some(0)], CLOSE);
        check(&Op::Pointwise(Arc::new(film.clone())), &x, &[Some(3)], CLOSE);
    }
}

#[test]
fn the_longest_chain() {
    let operands = 6;
    let steps = (operands..Program::MAX_REGISTERS)
        .map(|r| Step { scalar: Scalar::Binary(Binary::Add), a: (r - 1) as u8, b: (r * 7 % r.min(9)) as u8 })
        .collect();
    let program = Arc::new(Program { operands, steps });
    let x: Vec<_> =
        (0..6).map(|i| Operand::between([5, if i % 2 == 0 { 1 } else { 300 }], i, 1.0, 2.0)).collect();
    check(&Op::Pointwise(program), &x, &[], CLOSE);
}

#[test]
fn casts() {
    let x = Operand::between([17_001], 1, -100.0, 100.0);
    check(&Op::Cast(DType::I32), std::slice::from_ref(&x), &[Some(0)], 0.0);
    check(&Op::Cast(DType::F32), &[x], &[Some(0)], 0.0);
    check(&Op::Cast(DType::F32), &[Operand::whole([33], |i| i as i32 - 16)], &[Some(0)], 0.0);
}

#[test]
fn no_elements() {
    let (x, row) = (Operand::normal([3, 0, 4], 1), Operand::normal([4], 2));
    check(&Op::Binary(Binary::Add), &[x, row], &[Some(0)], CLOSE);
}
