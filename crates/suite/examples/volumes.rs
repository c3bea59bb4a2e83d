//! Convolution, norm and attention on a patch of 64 x 64 x 64 voxels, forward and backward in bf16 on a GPU: each
//! op's time, and how far results are from the CPU's fp32. `bench/volumes.sh` runs it.

use clearshot_graph::cost;
use clearshot_graph::grad::grad;
use clearshot_graph::ops::{Geometry, ReduceKind};
use clearshot_graph::{Builder, Graph, Type};
use clearshot_runtime::{Device, Options, Precision, Session, compile};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::process::ExitCode;

const SIDE: usize = 64;
const CHANNELS: usize = 32;
/// Of the one head of attention between all voxels.
const HEAD: usize = 64;
/// bf16 against fp32, as a fraction of the size of the truth.
const LIMIT: f64 = 2e-2;

fn normal(shape: Shape, stream: u32, size: f32) -> Tensor {
    let mut values = vec![0.0; shape.len()];
    Key { seed: 7, step: 0, stream }.fill_normal(0, &mut values);
    values.iter_mut().for_each(|v| *v *= size);
    Tensor::f32(shape, values)
}

/// A convolution, its norm and activation, and the gradients of the sum of squares.
fn convolution() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, SIDE, SIDE, SIDE, CHANNELS]));
    let w = b.input("w", Type::f32([CHANNELS, 3, 3, 3, CHANNELS]));
    let gamma = b.input("gamma", Type::f32([CHANNELS]));
    let beta = b.input("beta", Type::f32([CHANNELS]));
    let y = b.conv(x, w, None, Geometry::new(3, 1, 1));
    let y = b.group_norm(y, gamma, beta, 8, 1e-5);
    let y = b.silu(y);
    finish(b, y, &[("dx", x), ("dw", w), ("dgamma", gamma)])
}

/// Attention of every voxel to every other, and its gradients.
fn attention() -> Graph {
    let mut b = Builder::new();
    let voxels = SIDE * SIDE * SIDE;
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, Type::f32([1, voxels, HEAD])));
    let y = b.attention(q, k, v, 1, None);
    finish(b, y, &[("dq", q), ("dk", k), ("dv", v)])
}

fn finish(mut b: Builder, y: clearshot_graph::Value, of: &[(&str, clearshot_graph::Value)]) -> Graph {
    let loss = b.reduce_all(ReduceKind::SumSquares, y);
    let values: Vec<_> = of.iter().map(|(_, v)| *v).collect();
    let grads = grad(&mut b, loss, None, &values).expect("sums of squares have gradients");
    b.output("y", y);
    for ((name, _), g) in of.iter().zip(grads) {
        b.output(name, g);
    }
    b.finish().expect("the graph is sound")
}

fn session(
    graph: &Graph,
    device: &Device,
    precision: Precision,
) -> Result<Session, Box<dyn std::error::Error>> {
    let mut session = compile(graph.clone(), device, &Options { precision, ..Options::default() })?;
    for ((name, v), stream) in graph.inputs().zip(0..) {
        let size = if name == "w" { 0.05 } else { 1.0 };
        session.set(name, &normal(graph.shape(v), stream, size))?;
    }
    Ok(session)
}

/// The milliseconds of every node that takes long enough to matter.
fn times(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    session.run()?;
    let times = session.profile(1)?;
    let graph = &session.plan().graph;
    for t in times.iter().filter(|t| t.nanoseconds > 3000) {
        let (flops, seconds) = (cost::flops(graph, t.node) as f64, t.nanoseconds as f64 * 1e-9);
        println!(
            "  {:<18} {:>9.3} ms {:>8.1} TFLOP/s",
            graph.nodes[t.node].op.name(),
            seconds * 1e3,
            flops / seconds * 1e-12
        );
    }
    Ok(())
}

fn distance(got: &[f64], truth: &[f64]) -> f64 {
    let off: f64 = got.iter().zip(truth).map(|(a, b)| (a - b) * (a - b)).sum();
    (off / truth.iter().map(|v| v * v).sum::<f64>()).sqrt()
}

fn tell(what: &str, error: f64) -> bool {
    let fits = error < LIMIT;
    println!("  {what:<18} off by {error:.1e}{}", if fits { "" } else { ": WRONG" });
    fits
}

/// Some rows of the attention, in fp64.
fn rows_of_attention(rows: &[usize]) -> Vec<f64> {
    let shape = Shape::from([1, SIDE * SIDE * SIDE, HEAD]);
    let [q, k, v] = [0, 1, 2].map(|stream| normal(shape, stream, 1.0).to_f64());
    let mut all = vec![];
    for &row in rows {
        let query = &q[row * HEAD..][..HEAD];
        let dot = |key: &[f64]| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
        let scores: Vec<f64> = k.chunks(HEAD).map(|key| dot(key) / (HEAD as f64).sqrt()).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        let mut out = [0.0; HEAD];
        for (s, value) in scores.iter().zip(v.chunks(HEAD)) {
            let weight = (s - top).exp() / sum;
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
        }
        all.extend(out);
    }
    all
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let gpu = Device::cuda(0)?;
    println!("{CHANNELS} channels, {SIDE} x {SIDE} x {SIDE} voxels, on {gpu}, bf16");
    let graph = convolution();
    let mut on_gpu = session(&graph, &gpu, Precision::Bf16)?;
    times(&mut on_gpu)?;
    on_gpu.run()?;
    let mut on_cpu = session(&graph, &Device::cpu(None), Precision::F32)?;
    on_cpu.run()?;
    let mut right = true;
    for name in ["y", "dx", "dw", "dgamma"] {
        right &= tell(name, distance(&on_gpu.get(name)?.to_f64(), &on_cpu.get(name)?.to_f64()));
    }
    drop((on_gpu, on_cpu));
    println!("attention between all {} voxels, one head of {HEAD}", SIDE * SIDE * SIDE);
    let mut on_gpu = session(&attention(), &gpu, Precision::Bf16)?;
    times(&mut on_gpu)?;
    on_gpu.run()?;
    let got = on_gpu.get("y")?.to_f64();
    let rows: Vec<usize> = (0..8).map(|i| i * 37_449).collect();
    let picked: Vec<f64> = rows.iter().flat_map(|r| got[r * HEAD..][..HEAD].to_vec()).collect();
    right &= tell("eight rows of y", distance(&picked, &rows_of_attention(&rows)));
    Ok(right)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
