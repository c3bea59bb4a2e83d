use crate::kernels::check::{CLOSE, Operand, check};
use clearshot_graph::Op;
use clearshot_graph::ops::{Adam, Clip, LossScale, Sgd};

#[test]
fn clips() {
    for max_norm in [1.0, 1e6, f64::INFINITY] {
        for squares in [[1.0, 4.0, 9.0], [0.0; 3], [1.0, f64::NAN, 2.0], [f64::INFINITY, 1.0, 1.0]] {
            let x: Vec<_> = [1024.0].iter().chain(&squares).map(|&v| Operand::scalar(v)).collect();
            check(&Op::Clip(Clip { max_norm }), &x, &[], CLOSE);
        }
    }
}

#[test]
fn scalars() {
    let op = Op::LossScale(LossScale { growth: 2.0, backoff: 0.5, interval: 10.0 });
    for (good, norm) in [(3.0, 1.0), (9.0, 1.0), (5.0, f64::NAN), (5.0, f64::INFINITY)] {
        let x = [64.0, good, norm].map(Operand::scalar);
        check(&op, &x, &[Some(0), Some(1)], CLOSE);
    }
    for factor in [0.5, f64::NAN] {
        check(&Op::CountStep, &[Operand::scalar(7.0), Operand::scalar(factor)], &[Some(0)], 0.0);
    }
}

#[test]
fn optimisers() {
    let tensor = |n: usize, seed| Operand::normal([n], seed);
    for factor in [0.01, f64::NAN] {
        for n in [1, 77, 40_003] {
            let second = Operand::between([n], 4, 0.0, 1e-3);
            for decoupled in [false, true] {
                let a = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, decoupled };
                for steps in [0.0, 1000.0] {
                    let (p, g, m) = (tensor(n, 1), tensor(n, 2), tensor(n, 3));
                    let x = [p, g, m, second.clone()];
                    let rates = [1e-3, steps, factor].map(Operand::scalar);
                    let x: Vec<_> = x.into_iter().chain(rates).collect();
                    check(&Op::Adam(a), &x, &[Some(0), Some(2), Some(3)], CLOSE);
                }
            }
            for nesterov in [false, true] {
                let a = Sgd { momentum: 0.9, nesterov, weight_decay: 0.01 };
                let x =
                    [tensor(n, 1), tensor(n, 2), tensor(n, 3), Operand::scalar(0.1), Operand::scalar(factor)];
                check(&Op::Sgd(a), &x, &[Some(0), Some(2)], CLOSE);
            }
            let x = [tensor(n, 1), tensor(n, 2), Operand::scalar(0.9999), Operand::scalar(factor)];
            check(&Op::Ema, &x, &[Some(0)], CLOSE);
        }
    }
}
