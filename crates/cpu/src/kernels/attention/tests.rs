//! Against a plain f64 attention, at every level; the same bits for any number of threads.

use super::*;
use crate::Cpu;
use crate::simd::Level;
use crate::simd::factors::{Bf16, Multiply};

/// Numbers of about unit size from a counter.
pub struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bits = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51afd7ed558ccd) >> 40;
        (bits as f32 / (1u64 << 24) as f32 - 0.5) * 3.4
    }
    fn below(&mut self, n: usize) -> usize {
        ((self.next() / 3.4 + 0.5) * n as f32) as usize % n
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// One problem with its own strides; rows have `gap` unused values at their end.
struct Problem {
    dims: AttentionDims,
    gap: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_o: Vec<f32>,
}

#[derive(PartialEq)]
struct Results {
    o: Vec<f32>,
    lse: Vec<f32>,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl Problem {
    fn new(dims: AttentionDims, gap: usize, seed: u64) -> Problem {
        let mut noise = Noise(seed);
        let (c, cv) = (dims.heads * dims.d + gap, dims.heads * dims.dv + gap);
        Problem {
            dims,
            gap,
            q: noise.vec(dims.batch * dims.sq * c),
            k: noise.vec(dims.batch * dims.sk * c),
            v: noise.vec(dims.batch * dims.sk * cv),
            d_o: noise.vec(dims.batch * dims.sq * cv),
        }
    }

    fn strides(&self) -> (usize, usize) {
        (self.dims.heads * self.dims.d + self.gap, self.dims.heads * self.dims.dv + self.gap)
    }

    fn run(&self, factors: impl Into<Multiply>, threads: usize) -> Results {
        let factors = factors.into();
        let cpu = Cpu::with_level(threads, factors.level());
        let dims = &self.dims;
        let (c, cv) = self.strides();
        let rows = |data, stride| Rows { data, stride };
        let (q, k, v) = (rows(&self.q, c), rows(&self.k, c), rows(&self.v, cv));
        let mut r = Results {
            o: vec![7.0; self.d_o.len()],
            lse: vec![0.0; dims.planes() * dims.sq],
            dq: vec![7.0; self.q.len()],
            dk: vec![7.0; self.k.len()],
            dv: vec![7.0; self.v.len()],
        };
        let mut workspace = vec![f32::NAN; forward_workspace(dims, threads)];
        forward(&cpu, factors, dims, q, k, v, RowsMut::new(&mut r.o, cv), &mut r.lse, &mut workspace);
        let mut workspace = vec![f32::NAN; backward_workspace(dims, threads)];
        let gradients = Gradients {
            dq: RowsMut::new(&mut r.dq, c),
            dk: RowsMut::new(&mut r.dk, c),
            dv: RowsMut::new(&mut r.dv, cv),
        };
        let (o, d_o) = (rows(&r.o, cv), rows(&self.d_o, cv));
        backward(&cpu, dims, q, k, v, o, &r.lse, d_o, gradients, &mut workspace);
        r
    }

    /// o, lse, dq, dk, dv without strides' gaps touched: gaps are 7 as `run` leaves them.
    fn exact(&self) -> [Vec<f64>; 5] {
        let dims = &self.dims;
        let (c, cv) = self.strides();
        let mut out = [
            vec![7.0; self.d_o.len()],
            vec![0.0; dims.planes() * dims.sq],
            vec![7.0; self.q.len()],
            vec![7.0; self.k.len()],
            vec![7.0; self.v.len()],
        ];
        for (stride, width, i) in
            [(c, c - self.gap, 2), (c, c - self.gap, 3), (cv, cv - self.gap, 4), (cv, cv - self.gap, 0)]
        {
            out[i].chunks_mut(stride).for_each(|row| row[..width].fill(0.0));
        }
        for plane in 0..dims.planes() {
            self.exact_plane(plane / dims.heads, plane % dims.heads, &mut out);
        }
        out
    }

    fn exact_plane(&self, image: usize, head: usize, out: &mut [Vec<f64>; 5]) {
        let AttentionDims { heads, sq, sk, d, dv, scale, .. } = self.dims;
        let (c, cv) = self.strides();
        let [o, lse, dq, dk, d_v] = out;
        for i in 0..sq {
            let (qi, oi) = ((image * sq + i) * c + head * d, (image * sq + i) * cv + head * dv);
            let kj = |j: usize| (image * sk + j) * c + head * d;
            let vj = |j: usize| (image * sk + j) * cv + head * dv;
            let logits: Vec<f64> = (0..sk)
                .map(|j| {
                    (0..d).map(|x| self.q[qi + x] as f64 * self.k[kj(j) + x] as f64).sum::<f64>()
                        * scale as f64
                })
                .collect();
            let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = logits.iter().map(|l| (l - top).exp()).sum();
            lse[(image * heads + head) * sq + i] = top + total.ln();
            let p: Vec<f64> = logits.iter().map(|l| (l - top).exp() / total).collect();
            let dp: Vec<f64> = (0..sk)
                .map(|j| (0..dv).map(|x| self.d_o[oi + x] as f64 * self.v[vj(j) + x] as f64).sum())
                .collect();
            let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..sk {
                for x in 0..dv {
                    o[oi + x] += p[j] * self.v[vj(j) + x] as f64;
                    d_v[vj(j) + x] += p[j] * self.d_o[oi + x] as f64;
                }
                let ds = p[j] * (dp[j] - delta) * scale as f64;
                for x in 0..d {
                    dq[qi + x] += ds * self.k[kj(j) + x] as f64;
                    dk[kj(j) + x] += ds * self.q[qi + x] as f64;
                }
            }
        }
    }
}

/// Relative L2 distance; where the exact values vanish, the absolute one.
fn distance(got: &[f32], want: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(want).map(|(g, w)| (*g as f64 - w).powi(2)).sum();
    let size: f64 = want.iter().map(|w| w * w).sum();
    (error / size.max(0.05 * want.len() as f64)).sqrt()
}

fn check(problem: &Problem, level: Level) {
    let r = problem.run(level, 2);
    let want = problem.exact();
    if let Some(bf16) = Bf16::detect(level) {
        let got = problem.run(Multiply::Bf16(bf16), 2);
        // Queries, keys, values and probabilities are rounded to 8 bits, an error of 2^-9 at most each.
        let (error, log) = (distance(&got.o, &want[0]), distance(&got.lse, &want[1]));
        assert!(error <= 5e-3 && log <= 5e-3, "bf16 {:?}: off by {error:e} and {log:e}", problem.dims);
        assert!(problem.run(Multiply::Bf16(bf16), 3).o == got.o, "{:?} depends on threads", problem.dims);
    }
    let got = [&r.o, &r.lse, &r.dq, &r.dk, &r.dv];
    for (i, limit) in [2e-6, 2e-6, 1e-5, 1e-5, 1e-5].into_iter().enumerate() {
        let error = distance(got[i], &want[i]);
        assert!(error <= limit, "{level:?} {:?}: output {i} is off by {error:e}", problem.dims);
    }
}

fn dims(batch: usize, heads: usize, sq: usize, sk: usize, d: usize, dv: usize) -> AttentionDims {
    AttentionDims { batch, heads, sq, sk, d, dv, scale: (d as f32).powf(-0.5) }
}

#[test]
fn chosen_sizes() {
    let list = [
        dims(1, 1, 1, 1, 1, 1),
        dims(1, 2, 1, 300, 8, 8),
        dims(2, 1, 300, 1, 8, 8),
        dims(2, 3, 96, 96, 8, 8),
        dims(1, 2, 130, 200, 16, 16),
        dims(1, 2, 257, 77, 32, 32),
        dims(1, 1, 256, 256, 64, 64),
        dims(1, 2, 65, 97, 128, 128),
        dims(1, 1, 40, 50, 256, 256),
        dims(1, 1, 70, 90, 512, 512),
        dims(1, 2, 33, 20, 1030, 300),
        dims(1, 2, 33, 49, 24, 40),
        dims(1, 1, 20, 30, 7, 13),
    ];
    for level in Level::available() {
        for (i, dims) in list.into_iter().enumerate() {
            check(&Problem::new(dims, [0, 5][i % 2], i as u64), level);
        }
    }
}

#[test]
fn random_sizes() {
    let mut noise = Noise(99);
    for seed in 0..24 {
        let dims = dims(
            1 + noise.below(3),
            1 + noise.below(4),
            1 + noise.below(150),
            1 + noise.below(250),
            1 + noise.below(70),
            1 + noise.below(70),
        );
        for level in Level::available() {
            check(&Problem::new(dims, noise.below(9), seed), level);
        }
    }
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    for level in Level::available() {
        for dims in [dims(1, 2, 300, 500, 16, 16), dims(3, 2, 70, 60, 9, 20), dims(1, 1, 200, 1000, 8, 8)] {
            let problem = Problem::new(dims, 3, 5);
            let one = problem.run(level, 1);
            assert!((2..=3).all(|threads| problem.run(level, threads) == one), "{level:?} {dims:?}");
        }
    }
}

#[test]
fn large_logits() {
    for level in Level::available() {
        let mut problem = Problem::new(dims(1, 1, 70, 200, 16, 16), 0, 3);
        // Logits up to about 1e4: the softmax is all but a choice of the largest.
        problem.q.iter_mut().for_each(|q| *q *= 2500.0);
        let r = problem.run(level, 2);
        let want = problem.exact();
        for (got, want) in [(&r.o, &want[0]), (&r.lse, &want[1])] {
            assert!(distance(got, want) < 3e-3, "{level:?} {}", distance(got, want));
        }
        assert!([&r.dq, &r.dk, &r.dv].iter().all(|g| g.iter().all(|x| x.is_finite())));
        let largest = r.lse.iter().copied().fold(0.0, f32::max);
        assert!(largest > 5e3, "the test means large logits, not {largest}");
    }
}

#[test]
fn slices_of_one_product() {
    // q, k and v as slices of [B, S, 3 C], and their gradients into one of the same kind.
    let d = dims(2, 2, 50, 50, 8, 8);
    let (c, cpu) = (16, Cpu::new(2));
    let mut noise = Noise(8);
    let qkv = noise.vec(100 * 3 * c);
    let cut = |i: usize| qkv.chunks(3 * c).flat_map(|row| row[i * c..(i + 1) * c].to_vec()).collect();
    let apart = Problem { dims: d, gap: 0, q: cut(0), k: cut(1), v: cut(2), d_o: noise.vec(100 * c) };
    let want = apart.run(cpu.level, 1);

    let part = |i: usize| Rows { data: &qkv[i * c..], stride: 3 * c };
    let (mut o, mut lse) = (vec![0.0; 100 * c], vec![0.0; 200]);
    let mut workspace = vec![0.0; forward_workspace(&d, 2).max(backward_workspace(&d, 2))];
    forward(
        &cpu,
        cpu.level.into(),
        &d,
        part(0),
        part(1),
        part(2),
        RowsMut::new(&mut o, c),
        &mut lse,
        &mut workspace,
    );
    let mut grad = vec![0.0; qkv.len()];
    let base = grad.as_mut_ptr();
    // SAFETY: three column ranges of one matrix, which do not meet.
    let out = |i: usize| unsafe { RowsMut::from_raw(base.add(i * c), qkv.len() - i * c, 3 * c) };
    let gradients = Gradients { dq: out(0), dk: out(1), dv: out(2) };
    let rows = |data| Rows { data, stride: c };
    backward(
        &cpu,
        &d,
        part(0),
        part(1),
        part(2),
        rows(&o),
        &lse,
        rows(&apart.d_o),
        gradients,
        &mut workspace,
    );
    assert!(o == want.o && lse == want.lse);
    for (i, want) in [want.dq, want.dk, want.dv].into_iter().enumerate() {
        let got: Vec<f32> = grad.chunks(3 * c).flat_map(|row| row[i * c..(i + 1) * c].to_vec()).collect();
        assert!(got == want, "gradient {i}");
    }
}
