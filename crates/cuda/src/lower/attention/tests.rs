//! Every way of attention that the card takes, not only the one that is fastest there, against fp64 and against
//! itself. Passes and says so where there is no GPU.

use super::{Problem, backward_kernel, backward_ways, forward_kernel, forward_ways};
use crate::context::Context;
use crate::lower::trial::{check, rounded, run, values};
use clearshot_graph::ops::attention::AttentionSizes;
use clearshot_tensor::DType;
use clearshot_tensor::noise::Key;

/// o, lse, dq, dk, dv in fp64.
fn reference(p: &Problem, q: &[f64], k: &[f64], v: &[f64], grad: &[f64]) -> [Vec<f64>; 5] {
    let (sq, sk, d, row) = (p.s.queries, p.s.keys, p.s.d, p.heads * p.s.d);
    let scale = f64::from(p.scale);
    let mut out = [q.len(), p.pairs() * sq, q.len(), k.len(), v.len()].map(|n| vec![0.0; n]);
    let [o, lse, dq, dk, dv] = &mut out;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for pair in 0..p.pairs() {
        let (b, h) = (pair / p.heads, pair % p.heads);
        for i in 0..sq {
            let at = (b * sq + i) * row + h * d..(b * sq + i) * row + h * d + d;
            let key = |j: usize| (b * sk + j) * row + h * d..(b * sk + j) * row + h * d + d;
            let scores: Vec<f64> = (0..sk).map(|j| dot(&q[at.clone()], &k[key(j)]) * scale).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            lse[pair * sq + i] = top + sum.ln();
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp() / sum).collect();
            for (j, w) in weights.iter().enumerate() {
                for c in 0..d {
                    o[at.start + c] += w * v[key(j).start + c];
                }
            }
            let delta = dot(&o[at.clone()], &grad[at.clone()]);
            for (j, w) in weights.iter().enumerate() {
                let ds = w * (dot(&grad[at.clone()], &v[key(j)]) - delta) * scale;
                for c in 0..d {
                    dv[key(j).start + c] += w * grad[at.start + c];
                    dk[key(j).start + c] += ds * q[at.start + c];
                    dq[at.start + c] += ds * k[key(j).start + c];
                }
            }
        }
    }
    out
}

#[test]
fn every_way_is_right_and_repeats_itself() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    let mut right = true;
    // batch, heads, queries, keys, factor of the queries
    let shapes = [
        (2, 3, 77, 1000, 1.0),
        (1, 2, 1000, 77, 1.0),
        (2, 2, 515, 515, 1.0),
        (1, 1, 33, 3, 1.0),
        (1, 2, 300, 513, 6.0),
    ];
    // fp32 stands for itself and for TF32; heads of other sizes have the same ways in 16 bits.
    let all = [(DType::BF16, 64), (DType::F16, 64)];
    let wide = [(64, true), (64, false), (8, true), (13, true), (40, true), (128, true)];
    let all = all.map(|(dtype, d)| (dtype, d, false)).into_iter();
    for (dtype, d, tf32) in all.chain(wide.map(|(d, tf32)| (DType::F32, d, tf32))) {
        let [limit, of_lse] = match dtype {
            DType::BF16 => [2e-2, 1e-4],
            DType::F16 => [3e-3, 1e-4],
            _ if tf32 => [4e-3, 4e-4],
            _ => [1e-5, 1e-6],
        };
        for (batch, heads, queries, keys, gain) in shapes {
            let s = AttentionSizes { batch, queries, keys, d, dv: d };
            let head = [8, 16, 32, 64, 128].into_iter().find(|h| *h >= d).unwrap_or(128);
            let p = Problem { s, heads, scale: 0.125, dtype, tf32, head };
            let draw = |rows: usize, stream: u32, gain: f32| {
                let mut values = vec![0.0; batch * rows * heads * d];
                Key { seed: 5, step: 0, stream }.fill_normal(0, &mut values);
                values.iter_mut().for_each(|v| *v *= gain);
                rounded(dtype, &values)
            };
            let [(q, q_is), (k, k_is), (v, v_is), (grad, grad_is)] =
                [draw(queries, 0, gain), draw(keys, 1, 1.0), draw(keys, 2, 1.0), draw(queries, 3, 1.0)];
            let [o, lse, dq, dk, dv] = reference(&p, &q_is, &k_is, &v_is, &grad_is);
            let lse_bytes: Vec<u8> = lse.iter().flat_map(|v| (*v as f32).to_ne_bytes()).collect();
            for way in forward_ways(&cx, &p) {
                let name = format!("{s:?} {dtype:?} {tf32} {way:?}");
                let kernel = forward_kernel(&cx, p, way).unwrap();
                let inputs = [q.clone(), k.clone(), v.clone()];
                let got = run(&cx, &kernel, &inputs, &[q.len(), lse_bytes.len()], &name);
                right &= check(&name, "o", &values(dtype, &got[0]), &o, limit);
                let got: Vec<f64> = got[1]
                    .chunks_exact(4)
                    .map(|b| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]])))
                    .collect();
                right &= check(&name, "lse", &got, &lse, of_lse);
            }
            let narrow: Vec<f32> = o.iter().map(|v| *v as f32).collect();
            let o_bytes = rounded(dtype, &narrow).0;
            for way in backward_ways(&cx, &p) {
                let name = format!("{s:?} {dtype:?} {tf32} {way:?}");
                let kernel = backward_kernel(&cx, p, way).unwrap();
                let inputs =
                    [q.clone(), k.clone(), v.clone(), o_bytes.clone(), lse_bytes.clone(), grad.clone()];
                let got = run(&cx, &kernel, &inputs, &[q.len(), k.len(), v.len()], &name);
                for (i, (what, truth)) in [("dq", &dq), ("dk", &dk), ("dv", &dv)].into_iter().enumerate() {
                    right &= check(&name, what, &values(dtype, &got[i]), truth, limit);
                }
            }
        }
    }
    assert!(right, "ways that are off are named above");
}
