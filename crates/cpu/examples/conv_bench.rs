//! Prints the speed of convolutions and products on shapes of diffusion networks: effective GF/s,
//! that is multiplications and additions of the plain sum over the best time of several.
//!
//! `conv_bench [threads] [only lines that contain this]`

use clearshot_cpu::Cpu;
use clearshot_cpu::act::Act;
use clearshot_cpu::kernels::conv::{
    ConvDims, ConvPlan, Epilogue, Int8Plan, Part, Pre, Reading, Source, WeightGradPlan,
};
use clearshot_cpu::kernels::matmul::{MatmulDims, MatmulPlan};
use std::time::{Duration, Instant};

fn best(mut f: impl FnMut()) -> f64 {
    f();
    let start = Instant::now();
    let mut least = Duration::MAX;
    for run in 0.. {
        if run >= 7 && start.elapsed() > Duration::from_millis(250) {
            break;
        }
        let t = Instant::now();
        f();
        least = least.min(t.elapsed());
    }
    least.as_secs_f64()
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn convolution(cpu: &Cpu, name: &str, dims: &ConvDims) {
    let threads = cpu.threads();
    let pixels = |size: [usize; 3]| dims.n * size.iter().product::<usize>();
    let x = values(pixels(dims.input) * dims.c);
    let dy = values(pixels(dims.output) * dims.k);
    let w = values(dims.k * dims.kernel.iter().product::<usize>() * dims.c);
    let coef = vec![0.5; 2 * dims.n * dims.c];
    let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
    let forward = ConvPlan::forward(dims, cpu.level(), threads);
    let backward = ConvPlan::input_grad(dims, cpu.level(), threads);
    let weights = WeightGradPlan::new(dims, cpu.level(), threads);
    let mut workspace =
        vec![0.0; forward.workspace_len.max(backward.workspace_len).max(weights.workspace_len)];
    let mut packed = [vec![0.0; forward.packed_len], vec![0.0; backward.packed_len]];
    let plain = Source::plain(x.as_ptr(), dims.c);
    let part = Part { data: x.as_ptr(), channels: dims.c, stride: dims.c };
    let silu = Source::new(&[part], Some(Pre { coef: coef.as_ptr(), act: Act::Silu }));
    let gradient = Source::plain(dy.as_ptr(), dims.k);
    // SAFETY: all tensors have the sizes of the dimensions.
    unsafe {
        let pack_forward = best(|| forward.pack(cpu, w.as_ptr(), &mut packed[0]));
        let pack_backward = best(|| backward.pack(cpu, w.as_ptr(), &mut packed[1]));
        let mut run = |plan: &ConvPlan, source: &Source, packed: &[f32], out: &mut [f32], stride: usize| {
            best(|| plan.run(cpu, source, packed, &Epilogue::NONE, out.as_mut_ptr(), stride, &mut workspace))
        };
        let f = run(&forward, &plain, &packed[0], &mut y, dims.k);
        let fs = run(&forward, &silu, &packed[0], &mut y, dims.k);
        let b = run(&backward, &gradient, &packed[1], &mut dx, dims.c);
        let g = best(|| weights.run(cpu, &plain, dy.as_ptr(), dw.as_mut_ptr(), &mut workspace));
        let int8 = Int8Plan::new(dims, Reading { dynamic: false, upsample: false }, cpu.level());
        let steps: Vec<f32> = (0..2 * dims.c).map(|i| if i < dims.c { 1.0 / 127.0 } else { 128.0 }).collect();
        let (mut rounded, mut image) = (vec![0.0; int8.packed_len], vec![0.0; int8.workspace_len]);
        int8.pack(cpu, w.as_ptr(), Some(steps.as_ptr()), &mut rounded);
        let mut run = |source: &Source| {
            best(|| int8.run(cpu, source, &rounded, &Epilogue::NONE, y.as_mut_ptr(), &mut image))
        };
        let (q, qs) = (run(&plain), run(&silu));
        let rate = |t: f64| dims.flops() / t / 1e9;
        println!(
            "{name} n{} {:4}->{:4} {:4}: fwd {:7.1} (silu {:7.1}) int8 {:7.1} (silu {:7.1})  dx {:7.1}  dw {:7.1} GF/s   ({:.3} {:.3} {:.3} ms, pack {:.3} {:.3} ms)",
            dims.n,
            dims.c,
            dims.k,
            dims.input[2],
            rate(f),
            rate(fs),
            rate(q),
            rate(qs),
            rate(b),
            rate(g),
            f * 1e3,
            b * 1e3,
            g * 1e3,
            pack_forward * 1e3,
            pack_backward * 1e3,
        );
    }
}

fn product(cpu: &Cpu, m: usize, k: usize, n: usize) {
    let (a, b) = (values(m * k), values(n * k));
    let mut c = vec![0.0; m * n];
    let plan = MatmulPlan::new(&MatmulDims::new(m, k, n, true), cpu.level(), cpu.threads());
    let (mut packed, mut workspace) = (vec![0.0; plan.packed_len], vec![0.0; plan.workspace_len]);
    // SAFETY: all matrices have the sizes of the dimensions.
    let (pack, run) = unsafe {
        (
            best(|| plan.pack(cpu, b.as_ptr(), &mut packed)),
            best(|| {
                plan.run(
                    cpu,
                    a.as_ptr(),
                    b.as_ptr(),
                    &packed,
                    &Epilogue::NONE,
                    c.as_mut_ptr(),
                    &mut workspace,
                )
            }),
        )
    };
    let rate = 2.0 * (m * n * k) as f64 / run / 1e9;
    println!("matmul {m}x{k}x{n}: {rate:.1} GF/s ({:.4} ms, pack {:.4} ms)", run * 1e3, pack * 1e3);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(2, |a| a.parse().expect("a number of threads"));
    let only = args.next().unwrap_or_default();
    let cpu = Cpu::new(threads);
    let three = [
        (64, 64, 128),
        (128, 64, 128),
        (192, 64, 128),
        (128, 128, 64),
        (256, 128, 64),
        (384, 128, 64),
        (256, 256, 32),
        (512, 256, 32),
        (2, 64, 128),
        (64, 1, 128),
        (32, 32, 128),
        (64, 32, 128),
        (128, 128, 32),
        (512, 512, 16),
    ];
    let mut cases: Vec<(&str, ConvDims)> =
        three.iter().map(|&(c, k, h)| ("conv3s1", ConvDims::square(1, h, c, k, 3, 1, 1))).collect();
    cases.extend(
        [(32, 32, 128), (64, 32, 128)].map(|(c, k, h)| ("conv3s1", ConvDims::square(4, h, c, k, 3, 1, 1))),
    );
    cases.extend(
        [(192, 64, 128), (512, 256, 32)].map(|(c, k, h)| ("conv1s1", ConvDims::square(1, h, c, k, 1, 1, 0))),
    );
    cases.extend(
        [(64, 64, 128), (128, 128, 64)].map(|(c, k, h)| ("conv3s2", ConvDims::square(1, h, c, k, 3, 2, 1))),
    );
    for (name, dims) in cases {
        if format!("{name} {}->{} {}", dims.c, dims.k, dims.input[2]).contains(&only) {
            convolution(&cpu, name, &dims);
        }
    }
    for (m, k, n) in [(1024, 256, 256), (1024, 768, 256), (1, 1024, 256)] {
        if format!("matmul {m}x{k}x{n}").contains(&only) {
            product(&cpu, m, k, n);
        }
    }
}
