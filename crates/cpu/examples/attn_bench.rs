//! Times attention and the norms at the sizes of our networks: best of many, in milliseconds.
//! `attn_bench [threads] [filter]`.

use clearshot_cpu::Cpu;
use clearshot_cpu::kernels::attention::*;
use std::time::Instant;

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747796405).wrapping_add(1);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 24) as f32 * 3.4 - 1.7
        })
        .collect()
}

/// The best time of a call, in milliseconds, over at least 0.4 s.
fn best(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.4 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64() * 1e3);
    }
    best
}

fn attention(cpu: &Cpu, batch: usize, s: usize, heads: usize, d: usize) {
    let dims = AttentionDims { batch, heads, sq: s, sk: s, d, dv: d, scale: (d as f32).powf(-0.5) };
    let c = heads * d;
    let n = batch * s * c;
    let (q, k, v, d_o) = (noise(n, 1), noise(n, 2), noise(n, 3), noise(n, 4));
    let (mut o, mut lse) = (vec![0.0; n], vec![0.0; batch * heads * s]);
    let (mut dq, mut dk, mut dv) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let threads = cpu.pool.threads();
    let mut workspace = vec![0.0; forward_workspace(&dims, threads).max(backward_workspace(&dims, threads))];
    let rows = |data| Rows { data, stride: c };
    let f = best(|| {
        forward(cpu, &dims, rows(&q), rows(&k), rows(&v), RowsMut::new(&mut o, c), &mut lse, &mut workspace)
    });
    let b = best(|| {
        let gradients = Gradients {
            dq: RowsMut::new(&mut dq, c),
            dk: RowsMut::new(&mut dk, c),
            dv: RowsMut::new(&mut dv, c),
        };
        backward(
            cpu,
            &dims,
            rows(&q),
            rows(&k),
            rows(&v),
            rows(&o),
            &lse,
            rows(&d_o),
            gradients,
            &mut workspace,
        )
    });
    let work = (batch * heads * s * s * d) as f64 / 1e6;
    println!(
        "attn B{batch} S{s} H{heads} D{d}: fwd {f:.3} ms {:.0} GF/s  bwd {b:.3} ms {:.0} GF/s",
        4.0 * work / f,
        10.0 * work / b
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let filter = args.next().unwrap_or_default();
    let cpu = Cpu::new(threads);
    if "attn".contains(&filter) {
        for (b, s, h, d) in [
            (1, 1024, 4, 64),
            (1, 4096, 4, 64),
            (8, 256, 8, 8),
            (1, 1024, 32, 8),
            (1, 256, 4, 64),
            (1, 1024, 4, 32),
            (1, 1024, 4, 128),
            (1, 1024, 8, 16),
        ] {
            attention(&cpu, b, s, h, d);
        }
    }
}
