//! Segmentation: the loss of logits, the probabilities, and the agreement of masks.
//!
//! The loss is MONAI's `DiceCELoss`, Dice plus cross-entropy: with sigmoids for a single foreground (`sigmoid=True`), with
//! a softmax for several classes (`softmax=True`, background included). Dice is computed for each sample and class, with
//! 1e-5 added to numerator and denominator.

use clearshot_graph::ops::{Binary, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_metrics::overlap::{dice, iou};

/// Added to numerator and denominator of Dice, as MONAI does by default.
const SMOOTH: f64 = 1e-5;

/// Keeps logarithms of probabilities finite; below what 32 bits tell apart from 0 in a mean.
const LEAST: f64 = 1e-30;

/// The probabilities of logits: of one class by itself, of several together.
#[track_caller]
pub fn probabilities(b: &mut Builder, logits: Value) -> Value {
    match b.channels(logits) {
        1 => b.unary(Unary::Sigmoid, logits),
        _ => b.softmax(logits),
    }
}

/// Dice plus cross-entropy of each sample, `[N]`. The target is 0 or 1, one channel for each class. `valid` is 1 for pixels
/// that count and 0 for others, and has all pixels over those that do, for each sample.
#[track_caller]
pub fn losses(b: &mut Builder, logits: Value, target: Value, valid: Option<(Value, Value)>) -> Value {
    let shape = b.shape(logits);
    let (rank, samples, classes) = (shape.rank(), shape[0], shape.channels());
    let space: Vec<usize> = (1..rank - 1).collect();
    let p = probabilities(b, logits);
    let entropy = match classes {
        1 => {
            // softplus(x) - x target never takes the logarithm of 0.
            let softplus = b.unary(Unary::Softplus, logits);
            let product = b.mul(logits, target);
            b.sub(softplus, product)
        }
        _ => {
            let least = b.scalar(LEAST as f32);
            let positive = b.binary(Binary::Max, p, least);
            let log = b.unary(Unary::Log, positive);
            let likely = b.mul(log, target);
            let sum = b.sum(likely, &[rank - 1]);
            b.mul_scalar(sum, -1.0)
        }
    };
    let (mut p, mut target, mut entropy) = (p, target, entropy);
    if let Some((valid, _)) = valid {
        (p, target, entropy) = (b.mul(p, valid), b.mul(target, valid), b.mul(entropy, valid));
    }
    let all: Vec<usize> = (1..rank).collect();
    let entropy = b.mean(entropy, &all);
    let mut entropy = b.reshape(entropy, [samples]);
    if let Some((_, factors)) = valid {
        entropy = b.mul(entropy, factors);
    }
    let both = b.mul(p, target);
    let [both, p, target] = [both, p, target].map(|v| b.sum(v, &space));
    let twice = b.mul_scalar(both, 2.0);
    let sum = b.add(p, target);
    let (above, below) = (b.add_scalar(twice, SMOOTH), b.add_scalar(sum, SMOOTH));
    let overlap = b.div(above, below);
    let overlap = b.mean(overlap, &all);
    let overlap = b.reshape(overlap, [samples]);
    let lost = b.sub(entropy, overlap);
    b.add_scalar(lost, 1.0)
}

/// How well a segmentation agrees with the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    pub dice: f64,
    pub iou: f64,
}

/// The agreement of probabilities with a target, both with one channel for each class and channels last: of the foreground, or the mean over classes
/// that either has, but the background. Of pixels that are marked 0, nothing counts; an estimate that is not finite agrees with nothing.
pub fn agreement(estimate: &[f32], target: &[f32], classes: usize, valid: Option<&[f32]>) -> Agreement {
    if estimate.iter().any(|p| !p.is_finite()) {
        return Agreement { dice: f64::NEG_INFINITY, iou: f64::NEG_INFINITY };
    }
    let of = |values: &[f32]| -> Vec<usize> { values.chunks_exact(classes).map(class_of).collect() };
    let (found, wanted) = (of(estimate), of(target));
    let counts = |i: usize| valid.is_none_or(|v| v[i] != 0.0);
    let mask = |of: &[usize], class: usize| -> Vec<bool> {
        of.iter().enumerate().map(|(i, c)| *c == class && counts(i)).collect()
    };
    // Classes that neither has are not agreed on.
    let masks = (1..classes.max(2)).map(|class| (mask(&found, class), mask(&wanted, class)));
    let there: Vec<(Vec<bool>, Vec<bool>)> =
        masks.filter(|(a, b)| classes <= 2 || a.contains(&true) || b.contains(&true)).collect();
    if there.is_empty() {
        return Agreement { dice: 1.0, iou: 1.0 };
    }
    there.iter().fold(Agreement::default(), |sum, (a, b)| {
        let [d, i] = [dice, iou].map(|f| f(a, b).unwrap_or(0.0) / there.len() as f64);
        Agreement { dice: sum.dice + d, iou: sum.iou + i }
    })
}

/// The class of a pixel: 1 for a foreground with a probability above one half, or the most probable of several.
fn class_of(p: &[f32]) -> usize {
    match p {
        [foreground] => usize::from(*foreground > 0.5),
        _ => (0..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best }),
    }
}

/// The target of a pixel's label, one number for each class: with a single class, 1 for everything but 0. `None` if there is no such class.
pub fn one_hot(label: f32, classes: usize, out: &mut Vec<f32>) -> Option<()> {
    if classes == 1 {
        out.push(if label > 0.0 { 1.0 } else { 0.0 });
        return Some(());
    }
    let class = label as usize;
    if label < 0.0 || label.fract() != 0.0 || class >= classes {
        return None;
    }
    out.extend((0..classes).map(|c| if c == class { 1.0 } else { 0.0 }));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_graph::Type;
    use clearshot_graph::ops::ReduceKind;
    use clearshot_runtime::{Device, Options, compile};
    use clearshot_tensor::Tensor;

    fn run(classes: usize, logits: &[f32], target: &[f32], valid: Option<(&[f32], &[f32])>) -> Vec<f32> {
        let shape = [2, logits.len() / 2 / classes / 3, 3, classes];
        let mut b = Builder::new();
        let [x, t] = ["x", "t"].map(|name| b.input(name, Type::f32(shape)));
        let marks = valid.map(|_| {
            let one = [shape[0], shape[1], shape[2], 1];
            (b.input("valid", Type::f32(one)), b.input("factors", Type::f32([2])))
        });
        let each = losses(&mut b, x, t, marks);
        b.output("losses", each);
        let mean = b.reduce_all(ReduceKind::Mean, each);
        b.output("mean", mean);
        let mut session = compile(b.finish().unwrap(), &Device::cpu(Some(1)), &Options::default()).unwrap();
        session.set("x", &Tensor::f32(shape, logits.to_vec())).unwrap();
        session.set("t", &Tensor::f32(shape, target.to_vec())).unwrap();
        if let Some((valid, factors)) = valid {
            session.set("valid", &Tensor::f32([shape[0], shape[1], shape[2], 1], valid.to_vec())).unwrap();
            session.set("factors", &Tensor::f32([2], factors.to_vec())).unwrap();
        }
        session.run().unwrap();
        session.get("losses").unwrap().as_f32().unwrap().to_vec()
    }

    /// MONAI's formulas in f64, of one sample.
    fn formula(classes: usize, logits: &[f32], target: &[f32], valid: &[f32]) -> f64 {
        let pixels = logits.chunks_exact(classes).zip(target.chunks_exact(classes)).zip(valid);
        let kept: Vec<(Vec<f64>, &[f32])> = pixels
            .filter(|(_, v)| **v != 0.0)
            .map(|((x, t), _)| {
                let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
                let p = match x[..] {
                    [x] => vec![1.0 / (1.0 + (-x).exp())],
                    _ => {
                        let sum: f64 = x.iter().map(|v| v.exp()).sum();
                        x.iter().map(|v| v.exp() / sum).collect()
                    }
                };
                (p, t)
            })
            .collect();
        let entropy = |(p, t): &(Vec<f64>, &[f32])| match (&p[..], t) {
            ([p], [t]) if *t == 1.0 => -p.ln(),
            ([p], _) => -(1.0 - p).ln(),
            _ => p.iter().zip(*t).map(|(p, t)| -f64::from(*t) * p.ln()).sum(),
        };
        let entropy = kept.iter().map(entropy).sum::<f64>() / kept.len() as f64;
        let dice = |c: usize| {
            let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                kept.iter().map(|(p, t)| f(p[c], f64::from(t[c]))).sum()
            };
            (2.0 * sum(&|p, t| p * t) + SMOOTH) / (sum(&|p, t| p + t) + SMOOTH)
        };
        entropy + 1.0 - (0..classes).map(dice).sum::<f64>() / classes as f64
    }

    #[test]
    fn the_loss_is_monais_of_one_class_and_of_several_and_leaves_pixels_out() {
        for classes in [1, 3] {
            let n = 2 * 12 * classes;
            let logits: Vec<f32> = (0..n).map(|i| ((i * 37 % 23) as f32 - 11.0) * 0.4).collect();
            let mut target = vec![];
            (0..24).for_each(|i| one_hot((i * 5 % 7 % 3) as f32, classes, &mut target).unwrap());
            let all = vec![1.0; 24];
            let got = run(classes, &logits, &target, None);
            let of = |k: usize, valid: &[f32]| {
                let (v, p) = (k * n / 2..(k + 1) * n / 2, k * 12..(k + 1) * 12);
                formula(classes, &logits[v.clone()], &target[v], &valid[p])
            };
            for k in 0..2 {
                assert!((f64::from(got[k]) - of(k, &all)).abs() < 1e-5, "{classes}: {got:?}");
            }
            let some: Vec<f32> = (0..24).map(|i| if i % 5 == 0 { 0.0 } else { 1.0 }).collect();
            let factors: Vec<f32> = some.chunks(12).map(|v| 12.0 / v.iter().sum::<f32>()).collect();
            let got = run(classes, &logits, &target, Some((&some, &factors)));
            for k in 0..2 {
                assert!((f64::from(got[k]) - of(k, &some)).abs() < 1e-5, "{classes}: {got:?}");
            }
        }
        // Sure and wrong: finite.
        let sure = run(3, &[1e4f32, 0.0, -1e4].repeat(24), &[0.0, 0.0, 1.0].repeat(24), None);
        assert!(sure.iter().all(|l| l.is_finite()), "{sure:?}");
    }

    #[test]
    fn agreement_is_that_of_masks() {
        let found = agreement(&[0.9, 0.6, 0.4, 0.1], &[1.0, 0.0, 1.0, 0.0], 1, None);
        assert_eq!(found, Agreement { dice: 0.5, iou: 1.0 / 3.0 });
        let found = agreement(&[0.9, 0.6, 0.4, 0.1], &[1.0, 0.0, 1.0, 0.0], 1, Some(&[1.0, 0.0, 0.0, 1.0]));
        assert_eq!(found, Agreement { dice: 1.0, iou: 1.0 });
        // Three classes, of which the background does not count.
        let p = [0.1, 0.8, 0.1, 0.1, 0.2, 0.7, 0.9, 0.1, 0.0, 0.6, 0.3, 0.1];
        let t = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        assert_eq!(agreement(&p, &t, 3, None), Agreement { dice: (1.0 + 2.0 / 3.0) / 2.0, iou: 0.75 });
        // A fourth class that is nowhere does not count.
        let wider = |v: &[f32]| v.chunks(3).flat_map(|p| [p[0], p[1], p[2], 0.0]).collect::<Vec<f32>>();
        assert_eq!(agreement(&wider(&p), &wider(&t), 4, None), agreement(&p, &t, 3, None));
        assert_eq!(agreement(&[f32::NAN], &[1.0], 1, None).dice, f64::NEG_INFINITY);
        let mut out = vec![];
        assert_eq!(one_hot(2.0, 2, &mut out), None);
        assert_eq!(one_hot(0.5, 2, &mut out), None);
    }
}
