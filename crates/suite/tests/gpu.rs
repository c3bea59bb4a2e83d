//! What a GPU promises beyond parity: the same bits from run to run, replayed or launched one by one; noise
//! that is the CPU's; 16-bit training that learns as fp32 does; volumes; and words for what it refuses.
//! Every test says so and passes where there is no GPU.

use clearshot_graph::losses::mse;
use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_graph::ops::{Geometry, LossScale, NoiseKind, ResizeMode};
use clearshot_graph::passes::int8::{Candidate, candidates, round};
use clearshot_graph::train::{Training, finish_iteration};
use clearshot_graph::{Builder, Graph, Type, Value};
use clearshot_nn::Param;
use clearshot_nn::init::example;
use clearshot_nn::models::unet2d::{Extras, UNet2D, network};
use clearshot_runtime::{Communicator, CompileError, Device, NcclId, Options, Precision, Session, compile};
use clearshot_suite::report::relative_error;
use clearshot_tensor::DType;
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::sync::Arc;

/// The GPU, or nothing with a line that says why.
fn gpu() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn normal(shape: impl Into<Shape>, stream: u32) -> Tensor {
    let shape = shape.into();
    let mut values = vec![0.0; shape.len()];
    Key { seed: 11, step: 0, stream }.fill_normal(0, &mut values);
    Tensor::f32(shape, values)
}

/// Whether what a GPU computes in each precision is what the CPU does in fp32, within the limit beside it.
fn match_the_cpu<const N: usize>(
    gpu: &Device,
    limits: &[(Precision, f64)],
    names: &[&str; N],
    run: impl Fn(&Device, Precision) -> [Vec<f64>; N],
) {
    let truth = run(&Device::cpu(None), Precision::F32);
    for &(precision, limit) in limits {
        for (name, (got, truth)) in names.iter().zip(run(gpu, precision).iter().zip(&truth)) {
            let error = relative_error(got, truth, 0.0);
            eprintln!("{name}, {precision}: {error:.1e}");
            assert!(error < limit, "{name}, {precision}: {error}");
        }
    }
}

/// A small network that predicts noise: an iteration with AdamW, clipping and an average.
fn iteration(model: &UNet2D, batch: usize, size: usize, training: &Training) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([batch, size, size, 2]));
    let t = b.input("t", Type::f32([batch]));
    let truth = b.input("truth", Type::f32([batch, size, size, 1]));
    let y = model.build(&mut b, x, t, Extras::default());
    let loss = mse(&mut b, y, truth);
    let params: Vec<Value> = b.graph().states().map(|(_, _, v)| v).collect();
    finish_iteration(&mut b, loss, &params, training).unwrap();
    b.finish().unwrap()
}

fn tiny() -> (UNet2D, Vec<Param>) {
    let model = network("tiny").unwrap().resolve().unwrap();
    let params = model.parameters().unwrap();
    (model, params)
}

fn start(session: &mut Session, params: &[Param], average: bool) {
    for p in params {
        let value = p.initial(3);
        session.set(&p.name, &value).unwrap();
        if average {
            session.set(&format!("ema.{}", p.name), &value).unwrap();
        }
    }
    session.set("rate", &Tensor::scalar(1e-3)).unwrap();
}

/// Gives batch `i` and trains on it.
fn train(session: &mut Session, batch: usize, size: usize, i: u32) {
    // A picture that can be learnt: the target is a smooth function of the input.
    let x = normal([batch, size, size, 2], 100 + i % 8);
    let values = x.as_f32().unwrap();
    let truth = values.chunks(2).map(|p| (p[0] - 0.5 * p[1]).tanh()).collect();
    session.set("x", &x).unwrap();
    session.set("t", &Tensor::f32([batch], (0..batch).map(|n| (n * 37 % 1000) as f32).collect())).unwrap();
    session.set("truth", &Tensor::f32([batch, size, size, 1], truth)).unwrap();
    session.run().unwrap();
}

#[test]
fn runs_repeat_to_the_bit_replayed_or_not() {
    let Some(device) = gpu() else { return };
    let (model, params) = tiny();
    let training = Training { clip_norm: 1.0, ema_decay: Some(0.99), ..Training::default() };
    // The larger one keeps the GPU busy for long enough that branches of a recording run side by side.
    let cases = [(Precision::F32, 2, 32), (Precision::Bf16, 2, 32), (Precision::Bf16, 4, 128)];
    for (precision, batch, size) in cases {
        let mut outcomes: Vec<Vec<u32>> = vec![];
        for replay in [true, true, false] {
            let graph = iteration(&model, batch, size, &training);
            let options = Options { precision, ..Options::default() };
            let mut session = compile(graph, &device, &options).unwrap();
            session.set_replay(replay);
            start(&mut session, &params, true);
            (0..5).for_each(|i| train(&mut session, batch, size, i));
            let mut bits = vec![session.get("loss").unwrap().as_f32().unwrap()[0].to_bits()];
            for p in &params {
                for name in [p.name.clone(), format!("ema.{}", p.name), format!("adam.v.{}", p.name)] {
                    let value = session.get(&name).unwrap();
                    bits.extend(value.as_f32().unwrap().iter().map(|v| v.to_bits()));
                }
            }
            outcomes.push(bits);
        }
        assert!(outcomes[0] == outcomes[1], "{precision}, {size} pixels: two sessions differ");
        assert!(outcomes[0] == outcomes[2], "{precision}, {size} pixels: replay differs from launches");
    }
}

/// A communicator of this GPU alone, or nothing with a line that says why.
fn alone_over_nccl() -> Option<Arc<Communicator>> {
    match NcclId::new() {
        Ok(id) => {
            Some(Arc::new(Communicator::new(0, id, 0, 1, || None).expect("a communicator of one rank")))
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// The mean of one rank is its own value: recorded or not, beside the backward or behind it, in one run of an iteration or two.
#[test]
fn one_rank_over_nccl_trains_to_the_bits_of_no_exchange() {
    let Some(device) = gpu() else { return };
    let Some(communicator) = alone_over_nccl() else { return };
    let (model, params) = tiny();
    for (precision, runs) in [(Precision::F32, 1), (Precision::Bf16, 1), (Precision::Bf16, 2)] {
        let of = |bucket: Option<usize>, carried: Option<(DType, bool)>, replay: bool| -> Vec<f64> {
            let training = Training { clip_norm: 1.0, bucket, runs, ..Training::default() };
            let options = Options { precision, ..Options::default() };
            let mut session = compile(iteration(&model, 2, 32, &training), &device, &options).unwrap();
            if let Some((dtype, overlaps)) = carried {
                session.set_communicator(Arc::clone(&communicator), dtype, overlaps).unwrap();
            }
            session.set_replay(replay);
            start(&mut session, &params, false);
            for i in 0..8 {
                let [is_first, is_last] = [0, runs - 1].map(|run| i as usize % runs == run);
                if runs > 1 {
                    session.set("carry", &Tensor::scalar(if is_first { 0.0 } else { 1.0 })).unwrap();
                    session.set("gate", &Tensor::scalar(if is_last { 0.0 } else { f32::INFINITY })).unwrap();
                }
                session.set_gradients_travel(is_last);
                train(&mut session, 2, 32, i);
            }
            assert_eq!(session.is_recorded(), replay, "{precision}, {runs} runs");
            let mut values = session.get("loss").unwrap().to_f64();
            for p in &params {
                for name in [p.name.clone(), format!("adam.m.{}", p.name)] {
                    values.extend(session.get(&name).unwrap().to_f64());
                }
            }
            values
        };
        let bucket = Some(16 << 10);
        let nobody = of(bucket, None, true);
        for (overlaps, replay) in [(true, true), (true, false), (false, true)] {
            let got = of(bucket, Some((DType::F32, overlaps)), replay);
            let same = got.iter().zip(&nobody).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{precision}, {runs} runs, overlaps {overlaps}, replay {replay}");
        }
        if precision == Precision::F32 {
            let without = relative_error(&nobody, &of(None, None, true), 0.0);
            eprintln!("{precision}: without all-reduces {without:.1e}");
            assert!(without < 1e-5, "{without}");
        }
        for dtype in [DType::BF16, DType::F16] {
            let error = relative_error(&of(bucket, Some((dtype, true)), true), &nobody, 0.0);
            eprintln!("{precision}, {runs} runs: gradients in {dtype} {error:.1e}");
            assert!(error > 0.0 && error < 0.1, "{dtype}: {error}");
        }
    }
}

/// What another rank's end does: the communicator is aborted, and nothing that was computed since is given out.
#[test]
fn what_an_aborted_communicator_leaves_is_not_given_out() {
    let Some(device) = gpu() else { return };
    if alone_over_nccl().is_none() {
        return;
    }
    let (model, params) = tiny();
    let training = Training { bucket: Some(16 << 10), ..Training::default() };
    let mut session = compile(iteration(&model, 2, 32, &training), &device, &Options::default()).unwrap();
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = Arc::clone(&gone);
    let fault =
        move || asked.load(std::sync::atomic::Ordering::Relaxed).then(|| "rank 1: it was killed".to_string());
    let communicator = Communicator::new(0, NcclId::new().unwrap(), 0, 1, fault).unwrap();
    session.set_communicator(Arc::new(communicator), DType::F32, true).unwrap();
    start(&mut session, &params, false);
    (0..3).for_each(|i| train(&mut session, 2, 32, i));
    assert!(session.get("loss").is_ok());
    gone.store(true, std::sync::atomic::Ordering::Relaxed);
    std::thread::sleep(std::time::Duration::from_millis(300));
    for told in [session.get("loss").map(|_| ()), session.run(), session.wait()] {
        let text = told.unwrap_err().to_string();
        assert!(text.contains("rank 1: it was killed"), "{text}");
    }
}

#[test]
fn noise_is_the_cpus_to_the_bit() {
    let Some(device) = gpu() else { return };
    for kind in [NoiseKind::Normal, NoiseKind::Uniform] {
        for keys in [Shape::from([4]), Shape::from([3, 4])] {
            let mut b = Builder::new();
            let key = b.input("key", Type::i32(keys));
            let y = b.noise(kind, key, Shape::from([3, 17, 5]));
            b.output("y", y);
            let graph = b.finish().unwrap();
            let mut bits = vec![];
            for device in [Device::cpu(Some(1)), device] {
                let mut session = compile(graph.clone(), &device, &Options::default()).unwrap();
                let words = (0..keys.len() as i32).map(|i| i * 77_777 - 5).collect();
                session.set("key", &Tensor::i32(keys, words)).unwrap();
                session.run().unwrap();
                let y = session.get("y").unwrap();
                bits.push(y.as_f32().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>());
            }
            assert_eq!(bits[0], bits[1]);
        }
    }
}

#[test]
fn sixteen_bits_learn_as_fp32_does() {
    let Some(device) = gpu() else { return };
    let (model, params) = tiny();
    let mut last = vec![];
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let scale = LossScale { growth: 2.0, backoff: 0.5, interval: 50.0 };
        let loss_scale = (precision == Precision::F16).then_some((65_536.0, scale));
        let training = Training { clip_norm: 1.0, loss_scale, ..Training::default() };
        let graph = iteration(&model, 4, 32, &training);
        let options = Options { precision, ..Options::default() };
        let mut session = compile(graph, &device, &options).unwrap();
        start(&mut session, &params, false);
        let mut losses = vec![];
        for i in 0..200 {
            train(&mut session, 4, 32, i);
            losses.push(f64::from(session.get("loss").unwrap().as_f32().unwrap()[0]));
        }
        assert!(losses.iter().all(|l| l.is_finite()), "{precision}: {losses:?}");
        let mean = losses[190..].iter().sum::<f64>() / 10.0;
        eprintln!("{precision}: loss {:.5} at first, {mean:.5} over the last ten of 200", losses[0]);
        assert!(mean < 0.5 * losses[0], "{precision} does not learn");
        let total: f64 = losses.iter().sum();
        last.push(total);
    }
    for (narrow, name) in last[1..].iter().zip(["bf16", "fp16"]) {
        let off = (narrow - last[0]).abs() / last[0];
        eprintln!("{name}: losses of 200 iterations are off fp32's by {:.2} % in all", 100.0 * off);
        assert!(off < 0.02, "{name}: {narrow} for {}", last[0]);
    }
}

/// Convolution, norm and attention on a volume, by the CPU and the GPU.
#[test]
fn volumes_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let (side, c) = (16, 24);
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, side, side, side, c]));
    let w = b.input("w", Type::f32([c, 3, 3, 3, c]));
    let gamma = b.input("gamma", Type::f32([c]));
    let beta = b.input("beta", Type::f32([c]));
    let y = b.conv(x, w, None, Geometry::new(3, 1, 1));
    let y = b.group_norm(y, gamma, beta, 4, 1e-5);
    let y = b.silu(y);
    let down = b.conv(y, w, None, Geometry::new(3, 2, 1));
    let tokens = b.reshape(down, Shape::from([1, side * side * side / 8, c]));
    let o = b.attention(tokens, tokens, tokens, 3, None);
    let loss = b.reduce_all(clearshot_graph::ops::ReduceKind::SumSquares, o);
    let grads = clearshot_graph::grad::grad(&mut b, loss, None, &[x, w, gamma]).unwrap();
    b.output("o", o);
    for (name, g) in ["dx", "dw", "dgamma"].into_iter().zip(grads) {
        b.output(name, g);
    }
    let graph = b.finish().unwrap();
    let run = |device: &Device, precision| {
        let options = Options { precision, ..Options::default() };
        let mut session = compile(graph.clone(), device, &options).unwrap();
        for (i, (name, v)) in graph.inputs().enumerate() {
            let mut value = normal(graph.shape(v), i as u32);
            if name == "w" {
                let scaled = value.as_f32().unwrap().iter().map(|v| v * 0.05).collect();
                value = Tensor::f32(graph.shape(v), scaled);
            }
            session.set(name, &value).unwrap();
        }
        session.run().unwrap();
        ["o", "dx", "dw", "dgamma"].map(|n| session.get(n).unwrap().to_f64())
    };
    match_the_cpu(
        &device,
        &[(Precision::F32, 2e-5), (Precision::Bf16, 2e-2)],
        &["o", "dx", "dw", "dgamma"],
        run,
    );
}

/// Attention between many queries and other keys in heads of 64, whose kernels differ from card to card, in 16 bits
/// by the GPU and in fp32 by the CPU; and the same bits again.
#[test]
fn wide_heads_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let (heads, queries, keys) = (4, 1000, 1500);
    let mut b = Builder::new();
    let q = b.input("q", Type::f32([2, queries, heads * 64]));
    let k = b.input("k", Type::f32([2, keys, heads * 64]));
    let v = b.input("v", Type::f32([2, keys, heads * 64]));
    let o = b.attention(q, k, v, heads, None);
    let loss = b.reduce_all(clearshot_graph::ops::ReduceKind::SumSquares, o);
    let grads = clearshot_graph::grad::grad(&mut b, loss, None, &[q, k, v]).unwrap();
    b.output("o", o);
    for (name, g) in ["dq", "dk", "dv"].into_iter().zip(grads) {
        b.output(name, g);
    }
    let graph = b.finish().unwrap();
    let run = |device: &Device, precision| {
        let options = Options { precision, ..Options::default() };
        let mut session = compile(graph.clone(), device, &options).unwrap();
        for (i, (name, v)) in graph.inputs().enumerate() {
            session.set(name, &normal(graph.shape(v), i as u32)).unwrap();
        }
        let mut once = || {
            session.run().unwrap();
            ["o", "dq", "dk", "dv"].map(|n| session.get(n).unwrap().to_f64())
        };
        let first = once();
        assert!(first == once(), "{precision}: other bits in the second run");
        first
    };
    match_the_cpu(&device, &[(Precision::Bf16, 2e-2), (Precision::F16, 3e-3)], &["o", "dq", "dk", "dv"], run);
}

/// What is fused behind convolutions and products, in the order that the graph says: an activation, then a residual; on
/// upsampled images too, and with an embedding of each sample before it.
#[test]
fn fused_ends_match_the_cpu() {
    let Some(device) = gpu() else { return };
    let (n, size, c) = (2, 40, 64);
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([n, size, size, c]));
    let small = b.input("small", Type::f32([n, size / 2, size / 2, c]));
    let embedding = b.input("embedding", Type::f32([n, 1, 1, c]));
    let w = b.input("w", Type::f32([c, 3, 3, c]));
    let v = b.input("v", Type::f32([c, c]));
    let same = Geometry::new(2, 1, 1);
    let conv = b.conv(x, w, None, same);
    let told = b.add(conv, embedding);
    let activated = b.silu(told);
    let block = b.add(activated, x);
    let upsampled = b.upsample(small, ResizeMode::Nearest, 2);
    let grown = b.conv(upsampled, w, None, same);
    let grown = b.add(grown, x);
    let rows = b.reshape(x, [n * size * size, c]);
    let product = b.linear(rows, v, None);
    let product = b.silu(product);
    let product = b.add(product, rows);
    let names = ["block", "grown", "product"];
    for (name, y) in names.into_iter().zip([block, grown, product]) {
        b.output(name, y);
    }
    let graph = b.finish().unwrap();
    let run = |device: &Device, precision| {
        let options = Options { precision, ..Options::default() };
        let mut session = compile(graph.clone(), device, &options).unwrap();
        for (i, (name, v)) in graph.inputs().enumerate() {
            let value = normal(graph.shape(v), i as u32);
            let scale = if name == "w" || name == "v" { 0.1 } else { 1.0 };
            let values = value.as_f32().unwrap().iter().map(|v| v * scale).collect();
            session.set(name, &Tensor::f32(graph.shape(v), values)).unwrap();
        }
        session.run().unwrap();
        names.map(|n| session.get(n).unwrap().to_f64())
    };
    match_the_cpu(
        &device,
        &[(Precision::F32, 2e-5), (Precision::Bf16, 1e-2), (Precision::F16, 1.5e-3)],
        &names,
        run,
    );
}

#[test]
fn weights_come_back_whole_and_may_change() {
    let Some(gpu) = gpu() else { return };
    let (model, params) = tiny();
    let options = Options { precision: Precision::Bf16, ..Options::default() };
    let mut session = compile(model.inference(1, [16, 16]).unwrap(), &gpu, &options).unwrap();
    assert!(session.plan().on_host > 0, "the host keeps weights");
    let inputs: Vec<(String, Tensor)> = session
        .plan()
        .graph
        .inputs()
        .map(|(name, v)| (name.to_string(), normal(session.plan().graph.ty(v).shape, 5)))
        .collect();
    let mut results = vec![];
    for seed in [3, 4, 3] {
        for p in &params {
            session.set(&p.name, &p.initial(seed)).unwrap();
        }
        inputs.iter().for_each(|(name, x)| session.set(name, x).unwrap());
        session.run().unwrap();
        let output = session.plan().graph.outputs[0].name.clone();
        results.push(session.get(&output).unwrap());
        for p in &params {
            assert_eq!(session.get(&p.name).unwrap(), p.initial(seed), "{}", p.name);
        }
    }
    assert_eq!(results[0], results[2]);
    assert_ne!(results[0], results[1]);
}

/// What 8 bits cost whole networks with fresh weights, which are no easier than trained ones, beside bf16; and that runs repeat, replayed
/// or not. Cards that lack them say what to use.
#[test]
fn eight_bits_are_near_fp32() {
    let Some(device) = gpu() else { return };
    for (name, batch, size, limit) in [("tiny", 2, 64, 0.1), ("small", 1, 128, 0.1), ("base", 1, 256, 0.1)] {
        let model = network(name).unwrap().resolve().unwrap();
        let params = model.parameters().unwrap();
        let graph = model.inference(batch, [size, size]).unwrap();
        // Ranges that what a norm and SiLU make keeps to; others are of convolutions that stay in 16 bits.
        let known = |c: Candidate| (c.name, Rounding::Static(vec![Grid::between(-0.3, 5.0); c.channels]));
        let table: Table = candidates(&graph).into_iter().map(known).collect();
        let rounded = round(graph.clone(), &table).unwrap();
        let run = |precision, replay| {
            let options = Options { precision, ..Options::default() };
            let graph = if precision == Precision::Int8 { &rounded } else { &graph };
            let mut session = compile(graph.clone(), &device, &options)?;
            session.set_replay(replay);
            params.iter().for_each(|p| session.set(&p.name, &p.initial(3)).unwrap());
            for (name, v) in graph.inputs() {
                session.set(name, &example(name, graph.ty(v), 1)).unwrap();
            }
            (0..3).for_each(|_| session.run().unwrap());
            let output = session.get(&graph.outputs[0].name).unwrap().to_f64();
            Ok::<_, CompileError>((output, session.arithmetic().name()))
        };
        let (eighth, told) = match run(Precision::Fp8, true) {
            Err(refused @ CompileError::NoEighths { .. }) => {
                assert!(refused.to_string().contains("compute in bf16"), "{refused}");
                return eprintln!("skipped: {refused}");
            }
            made => made.unwrap(),
        };
        assert_eq!(told, "fp8");
        assert!(eighth == run(Precision::Fp8, false).unwrap().0, "{name}: replay differs from launches");
        let (whole, told) = run(Precision::Int8, true).unwrap();
        assert_eq!(told, "int8");
        assert!(
            whole == run(Precision::Int8, false).unwrap().0,
            "{name}: replay differs from launches, int8"
        );
        let exact = run(Precision::F32, true).unwrap().0;
        let half = run(Precision::Bf16, true).unwrap().0;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let cosine = |a: &[f64]| dot(a, &exact) / (dot(a, a) * dot(&exact, &exact)).sqrt();
        let range =
            exact.iter().fold(f64::MIN, |m, v| m.max(*v)) - exact.iter().fold(f64::MAX, |m, v| m.min(*v));
        let psnr = |a: &[f64]| {
            let squares = a.iter().zip(&exact).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
            10.0 * (range * range * a.len() as f64 / squares).log10()
        };
        for (what, got) in [("bf16", &half), ("fp8", &eighth), ("int8", &whole)] {
            let (error, cosine, psnr) = (relative_error(got, &exact, 0.0), cosine(got), psnr(got));
            eprintln!(
                "{name}, {what}: relative error {error:.2e}, 1 - cosine {:.1e}, PSNR {psnr:.1} dB",
                1.0 - cosine
            );
        }
        let error = relative_error(&eighth, &exact, 0.0);
        assert!(error < limit && error > relative_error(&half, &exact, 0.0), "{name}: {error}");
        let finer = relative_error(&whole, &exact, 0.0);
        assert!(finer < error, "{name}: int8 {finer}, fp8 {error}");
    }
}

/// A session says what it computes in, not what was asked for.
#[test]
fn what_has_nothing_in_eight_bits_says_so() {
    let Some(device) = gpu() else { return };
    let mut b = Builder::new();
    let (x, w) = (b.input("x", Type::f32([1, 8, 8, 16])), b.param("w", [16, 3, 3, 16]));
    let y = b.conv(x, w, None, Geometry::new(2, 1, 1));
    b.output("y", y);
    let options = Options { precision: Precision::Fp8, ..Options::default() };
    match compile(b.finish().unwrap(), &device, &options) {
        Err(refused @ CompileError::NoEighths { .. }) => eprintln!("skipped: {refused}"),
        made => assert_eq!(made.unwrap().arithmetic().name(), "bf16"),
    }
}

#[test]
fn eight_bits_do_not_train() {
    let Some(device) = gpu() else { return };
    let options = Options { precision: Precision::Fp8, ..Options::default() };
    let refused =
        compile(iteration(&tiny().0, 1, 32, &Training::default()), &device, &options).err().unwrap();
    assert!(refused.to_string().contains("train in bf16"), "{refused}");
}

#[test]
fn too_much_is_refused_with_both_numbers() {
    let Some(device) = gpu() else { return };
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1 << 20, 1 << 10]));
    // A quarter of a tebibyte, and nothing of it can be shared.
    let mut sum = x;
    for i in 0..64 {
        let part = b.mul_scalar(x, f64::from(i) + 2.0);
        b.output(&format!("part {i}"), part);
        sum = part;
    }
    b.output("y", sum);
    match compile(b.finish().unwrap(), &device, &Options::default()) {
        Err(CompileError::NoRoom { needed, free, fixed }) => {
            assert!(needed > free && free > 0 && fixed < needed)
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    }
}
