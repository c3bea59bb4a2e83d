//! Times attention and the norms at the sizes of our networks: best of many, in milliseconds.
//! `attn_bench [threads] [part of a case's name]`.

use clearshot_cpu::Cpu;
use clearshot_cpu::act::Act;
use clearshot_cpu::kernels::attention::*;
use clearshot_cpu::kernels::norm;
use clearshot_cpu::kernels::norm::{Affine, GradInputs, NormDims, NormGradients, Part, PartGradients};
use clearshot_cpu::simd::factors::{Bf16, Multiply};
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

fn attention(cpu: &Cpu, filter: &str, batch: usize, s: usize, heads: usize, d: usize) {
    let name = format!("attn B{batch} S{s} H{heads} D{d}");
    if !name.contains(filter) {
        return;
    }
    let dims = AttentionDims { batch, heads, sq: s, sk: s, d, dv: d, scale: (d as f32).powf(-0.5) };
    let c = heads * d;
    let n = batch * s * c;
    let (q, k, v, d_o) = (noise(n, 1), noise(n, 2), noise(n, 3), noise(n, 4));
    let (mut o, mut lse) = (vec![0.0; n], vec![0.0; batch * heads * s]);
    let (mut dq, mut dk, mut dv) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let threads = cpu.threads();
    let mut workspace = vec![0.0; forward_workspace(&dims, threads).max(backward_workspace(&dims, threads))];
    let rows = |data| Rows { data, stride: c };
    let mut timed = |factors| {
        best(|| {
            let o = RowsMut::new(&mut o, c);
            forward(cpu, factors, &dims, rows(&q), rows(&k), rows(&v), o, &mut lse, &mut workspace)
        })
    };
    let half = Bf16::detect(cpu.level()).map(|bf16| timed(Multiply::Bf16(bf16)));
    let f = timed(Multiply::F32(cpu.level()));
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
    let half = half.map_or(String::new(), |h| format!("  in bf16 {h:.3} ms {:.0} GF/s", 4.0 * work / h));
    println!(
        "{name}: fwd {f:.3} ms {:.0} GF/s{half}  bwd {b:.3} ms {:.0} GF/s",
        4.0 * work / f,
        10.0 * work / b
    );
}

fn group_norm(cpu: &Cpu, filter: &str, n: usize, s: usize, c: usize, groups: usize, act: Act) {
    let name = format!("norm N{n} S{s} C{c} G{groups} {act:?}");
    if !name.contains(filter) {
        return;
    }
    let dims = NormDims { n, s, c, groups };
    let len = n * s * c;
    let (x, dy, gamma, beta) = (noise(len, 1), noise(len, 2), noise(c, 3), noise(c, 4));
    let (mut y, mut dx) = (vec![0.0; len], vec![0.0; len]);
    let (mut stats, mut dgamma, mut dbeta) = (vec![0.0; n * groups * 2], vec![0.0; c], vec![0.0; c]);
    let threads = cpu.threads();
    let words = norm::forward_workspace(&dims, threads).max(norm::grad_workspace(&dims, threads));
    let mut workspace = vec![0.0; words];
    let parts = [Part { data: &x, channels: c, stride: c }];
    let affine = Affine { gamma: Some(&gamma), beta: Some(&beta), film: None };
    let f = best(|| {
        norm::forward(cpu, &dims, &parts, &affine, 1e-5, act, &mut stats, &mut y, &mut workspace);
    });
    let b = best(|| {
        let inputs = GradInputs { parts: &parts, stats: &stats, affine, act, dy: &dy, addends: [None; 4] };
        let gradients = NormGradients {
            dx: Some(PartGradients::Whole(&mut dx)),
            dgamma: Some(&mut dgamma),
            dbeta: Some(&mut dbeta),
            ..Default::default()
        };
        norm::grad(cpu, &dims, &inputs, gradients, &mut workspace);
    });
    let mb = len as f64 * 4e-6;
    println!("{name}: fwd {f:.3} ms {:.0} GB/s  bwd {b:.3} ms {:.0} GB/s", 3.0 * mb / f, 5.0 * mb / b);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let filter = args.next().unwrap_or_default();
    let cpu = Cpu::new(threads);
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
        attention(&cpu, &filter, b, s, h, d);
    }
    for (n, s, c, groups) in
        [(1, 16384, 64, 32), (1, 4096, 128, 32), (1, 1024, 512, 32), (8, 4096, 128, 32), (8, 4096, 64, 64)]
    {
        group_norm(&cpu, &filter, n, s, c, groups, Act::Silu);
    }
    for n in [1024, 16384] {
        group_norm(&cpu, &filter, n, 1, 256, 1, Act::Identity);
    }
    for (c, groups) in [(1, 1), (3, 1), (8, 4)] {
        group_norm(&cpu, &filter, 1, 262144 / c, c, groups, Act::Silu);
    }
}
