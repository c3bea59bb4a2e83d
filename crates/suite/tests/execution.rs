//! The executor against the reference interpreter where memory is shared: residuals over their own input,
//! states updated in place, skipped iterations, and what a session refuses.

use clearshot_graph::grad::grad;
use clearshot_graph::ops::{Geometry, LossScale, ReduceKind, ResizeMode, Sgd};
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::train::{Guard, Optimizer, Training, finish_iteration};
use clearshot_graph::{Array, Builder, Graph, StateInit, Type, losses};
use clearshot_runtime::{CompileError, Device, Options, Session, ValueError, compile};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape, Tensor};
use std::collections::BTreeMap;

fn noise(shape: impl Into<Shape>, stream: u32) -> Tensor {
    let shape = shape.into();
    let mut values = vec![0.0; shape.len()];
    Key { seed: 3, step: 0, stream }.fill_normal(0, &mut values);
    Tensor::f32(shape, values)
}

fn session(graph: &Graph, threads: usize, optimise: bool) -> Session {
    let options = Options { optimise, ..Options::default() };
    compile(graph.clone(), &Device::cpu(Some(threads)), &options).unwrap()
}

/// Runs the graph by kernels, with passes and without, and by the interpreter; all outputs must agree.
fn agree(graph: &Graph, values: &[(&str, Tensor)]) {
    let mut given: BTreeMap<String, Array> =
        values.iter().map(|(name, t)| (name.to_string(), Array::from_tensor(t))).collect();
    let truth = run(graph, &mut given, Precision::F64).unwrap();
    for (threads, optimise) in [(1, true), (2, true), (3, true), (2, false)] {
        let mut session = session(graph, threads, optimise);
        values.iter().for_each(|(name, t)| session.set(name, t).unwrap());
        session.run().unwrap();
        for (name, truth) in &truth {
            let error = Array::from_tensor(&session.get(name).unwrap()).relative_error(truth);
            assert!(error < 2e-5, "{name}, {threads} threads, passes {optimise}: {error:e}\n{graph}");
        }
    }
}

#[test]
fn a_residual_may_be_the_very_image_that_is_convolved() {
    let mut b = Builder::new();
    let input = b.input("x", Type::f32([2, 24, 24, 32]));
    let w = b.param("w", [32, 3, 3, 32]);
    let v = b.param("v", [32, 32]);
    // Values of the arena, each read for the last time by the sum that also convolves it.
    let x = b.mul_scalar(input, 0.5);
    let conv = b.conv(x, w, None, Geometry::new(2, 1, 1));
    let y = b.add(x, conv);
    let rows = b.reshape(y, [2 * 24 * 24, 32]);
    let product = b.linear(rows, v, None);
    let z = b.add(product, rows);
    let loss = b.reduce_all(ReduceKind::SumSquares, z);
    let gradients = grad(&mut b, loss, None, &[input, w, v]).unwrap();
    b.output("z", z);
    for (name, g) in ["dx", "dw", "dv"].iter().zip(gradients) {
        b.output(name, g);
    }
    let graph = b.finish().unwrap();
    let w = Tensor::f32(
        [32, 3, 3, 32],
        noise([32, 3, 3, 32], 1).as_f32().unwrap().iter().map(|x| x * 0.05).collect(),
    );
    agree(&graph, &[("x", noise([2, 24, 24, 32], 0)), ("w", w), ("v", noise([32, 32], 2))]);
}

/// x times x, of which one is held: half the slope of a square. Also for what is given out, for states, and where
/// another way round it is open.
#[test]
fn gradients_stop_where_they_are_told_to() {
    let mut b = Builder::new();
    let (x, w) = (b.input("x", Type::f32([2, 5])), b.param("w", [5]));
    let (held, held_w) = (b.stop_gradient(x), b.stop_gradient(w));
    let product = b.mul(x, held);
    let weighted = b.mul(product, held_w);
    let loss = b.reduce_all(ReduceKind::Sum, weighted);
    let gradients = grad(&mut b, loss, None, &[x, w]).unwrap();
    b.output("held", held);
    b.output("held_w", held_w);
    b.output("dx", gradients[0]);
    b.output("dw", gradients[1]);
    let graph = b.finish().unwrap();
    let (x, w) = (noise([2, 5], 0), noise([5], 1));
    agree(&graph, &[("x", x.clone()), ("w", w.clone())]);
    let mut session = session(&graph, 2, true);
    session.set("x", &x).unwrap();
    session.set("w", &w).unwrap();
    session.run().unwrap();
    let slope: Vec<f32> =
        x.as_f32().unwrap().iter().zip(w.as_f32().unwrap().iter().cycle()).map(|(x, w)| x * w).collect();
    assert_eq!(session.get("dx").unwrap().as_f32().unwrap(), slope, "once, not twice");
    assert_eq!(session.get("dw").unwrap().as_f32().unwrap(), [0.0; 5]);
    assert_eq!(session.get("held").unwrap(), x);
}

/// A cyclic convolution's kernel is transformed once where it never changes, and again where it does.
#[test]
fn a_kernel_that_is_set_again_is_seen() {
    for optimise in [true, false] {
        let mut b = Builder::new();
        let (x, moving) = (b.input("x", Type::f32([2, 6, 9, 2])), b.input("moving", Type::f32([6, 9])));
        let fixed = b.param("fixed", [6, 9]);
        for (name, kernel) in [("by_fixed", fixed), ("by_moving", moving)] {
            let y = b.cyclic_conv(x, kernel, false);
            let y = b.cyclic_conv(y, kernel, true);
            b.output(name, y);
        }
        let mut session = session(&b.finish().unwrap(), 2, optimise);
        session.set("x", &noise([2, 6, 9, 2], 0)).unwrap();
        let mut before = None;
        for stream in [1, 2] {
            session.set("fixed", &noise([6, 9], stream)).unwrap();
            session.set("moving", &noise([6, 9], stream)).unwrap();
            for _ in 0..2 {
                session.run().unwrap();
                let fixed = session.get("by_fixed").unwrap();
                assert!(fixed == session.get("by_moving").unwrap(), "the same kernel, kernel {stream}");
                assert!(before.as_ref() != Some(&fixed) || stream == 1);
                before = (stream == 1).then_some(fixed);
            }
        }
    }
}

/// A small regression with every kind of update.
fn iteration(training: &Training) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([4, 6, 6, 3]));
    let target = b.input("target", Type::f32([4, 6, 6, 5]));
    let (w, bias) = (b.param("w", [5, 3, 3, 3]), b.param("bias", [5]));
    let y = b.conv(x, w, Some(bias), Geometry::new(2, 1, 1));
    let y = b.silu(y);
    let loss = losses::huber(&mut b, y, target, 0.7);
    finish_iteration(&mut b, loss, &[w, bias], training).unwrap();
    b.finish().unwrap()
}

#[test]
fn updates_are_those_of_the_reference_and_bad_gradients_skip_them() {
    let scaling = LossScale { growth: 2.0, backoff: 0.5, interval: 2.0 };
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 });
    let plain = Training::default();
    let cases = [
        Training { clip_norm: 0.1, ema_decay: Some(0.9), ..plain },
        Training { optimizer: sgd, ema_decay: Some(0.5), ..plain },
        // The weight has a third of the rate, the bias the whole.
        Training { base_fan_in: Some(9), ema_decay: Some(0.9), ..plain },
        Training { loss_scale: Some((1024.0, scaling)), ema_decay: Some(0.99), ..plain },
    ];
    for training in cases {
        let graph = iteration(&training);
        let (w, bias) = (noise([5, 3, 3, 3], 1), noise([5], 2));
        let mut first = vec![("w", w.clone()), ("bias", bias.clone()), ("rate", Tensor::scalar(0.05))];
        first.extend([("target", noise([4, 6, 6, 5], 3)), ("ema.w", w), ("ema.bias", bias)]);
        let mut truth: BTreeMap<String, Array> =
            first.iter().map(|(name, t)| (name.to_string(), Array::from_tensor(t))).collect();
        let mut session = session(&graph, 2, true);
        first.iter().for_each(|(name, t)| session.set(name, t).unwrap());
        for step in 0..6 {
            let mut x = noise([4, 6, 6, 3], 10 + step).as_f32().unwrap().to_vec();
            if step == 3 {
                x[17] = f32::INFINITY;
            }
            let before = session.get("w").unwrap();
            let x = Tensor::f32([4, 6, 6, 3], x);
            truth.insert("x".into(), Array::from_tensor(&x));
            session.set("x", &x).unwrap();
            session.run().unwrap();
            run(&graph, &mut truth, Precision::Stored).unwrap();
            assert_eq!(session.get("w").unwrap() == before, step == 3, "step {step} of {training:?}");
            for (name, ..) in graph.states() {
                let got = Array::from_tensor(&session.get(name).unwrap());
                let error = got.relative_error(&truth[name]);
                assert!(error < 1e-4, "{name} after step {step} of {training:?}: {error:e}");
            }
        }
        assert_eq!(
            session.get("train.step").unwrap().as_f32().unwrap(),
            [5.0],
            "one of six steps was skipped"
        );
        if training.loss_scale.is_some() {
            // Doubled after two good steps, halved by the bad one, doubled after two more.
            assert_eq!(session.get("train.loss_scale").unwrap().as_f32().unwrap(), [2048.0]);
        }
    }
}

/// The guard's numbers stay what they are where images are stored in bfloat16, as for a GPU: what is far is refused, and
/// nothing else.
#[test]
fn a_guard_refuses_alike_in_sixteen_bits() {
    let guard = Guard { after: 3.0, ..Guard::USUAL };
    let graph = iteration(&Training { guard: Some(guard), ..Training::default() });
    let fused = clearshot_graph::passes::optimise(graph.clone(), &clearshot_cuda::TARGET).unwrap();
    let narrow = clearshot_graph::passes::precision::narrow(fused, DType::BF16);
    narrow.verify("precision").unwrap();
    for graph in [graph, narrow] {
        let (w, bias) = (noise([5, 3, 3, 3], 1), noise([5], 2));
        let first =
            [("w", w), ("bias", bias), ("rate", Tensor::scalar(0.05)), ("target", noise([4, 6, 6, 5], 3))];
        let mut values: BTreeMap<String, Array> =
            first.iter().map(|(name, t)| (name.to_string(), Array::from_tensor(t))).collect();
        for step in 0..7 {
            let far = step == 5;
            let x = Array::from_tensor(&noise([4, 6, 6, 3], 10 + step));
            values.insert("x".into(), x.map(|v| if far { 1e4 * v } else { v }));
            let before = values["w"].clone();
            let results = run(&graph, &mut values, Precision::Stored).unwrap();
            assert_eq!(results["admitted_norm"].data[0].is_finite(), !far, "step {step}\n{graph}");
            assert_eq!(values["w"].data == before.data, far, "step {step}");
        }
        assert_eq!(values["guard.refused"].data, [1.0]);
    }
}

#[test]
fn a_copy_of_an_updated_state_keeps_its_old_value() {
    let mut b = Builder::new();
    let p = b.state("p", Type::f32([4]), StateInit::Constant(1.0));
    let before = b.mul_scalar(p, 1.0);
    let next = b.add_scalar(p, 1.0);
    b.output("before", before);
    b.update(p, next);
    let mut session = session(&b.finish().unwrap(), 1, true);
    for i in 1..4 {
        session.run().unwrap();
        assert_eq!(session.get("before").unwrap().as_f32().unwrap(), [i as f32; 4]);
        assert_eq!(session.get("p").unwrap().as_f32().unwrap(), [i as f32 + 1.0; 4]);
    }
}

#[test]
fn mistakes_are_errors_with_names() {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([2, 3]));
    let y = b.silu(x);
    b.output("y", y);
    let mut session = session(&b.finish().unwrap(), 1, true);
    assert!(matches!(session.get("y"), Err(ValueError::NotRun(_))));
    assert_eq!(session.run(), Err(ValueError::NotSet("x".into())));
    let error = session.set("x", &Tensor::zeros([3, 2])).unwrap_err().to_string();
    assert!(error.contains("f32[2,3]") && error.contains("f32[3,2]"), "{error}");
    assert!(session.set("z", &Tensor::zeros([2])).unwrap_err().to_string().contains("`z`"));

    let mut b = Builder::new();
    let x = b.input("x", Type { dtype: DType::F16, shape: Shape::from([3]) });
    let y = b.silu(x);
    b.output("y", y);
    let refused = compile(b.finish().unwrap(), &Device::cpu(None), &Options::default());
    assert!(matches!(refused, Err(CompileError::Type { dtype: DType::F16, .. })));

    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1 << 40]));
    let y = b.silu(x);
    b.output("y", y);
    let refused = compile(b.finish().unwrap(), &Device::cpu(None), &Options::default());
    assert!(matches!(refused, Err(CompileError::NoRoom { .. } | CompileError::Memory(_))));
}

#[test]
fn impossible_operations_are_refused_when_built() {
    let refused = |what: &str, build: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new();
        build(&mut b);
        let error = b.finish().map(|_| ()).expect_err(what).to_string();
        assert!(error.contains("tests/execution.rs") || error.contains("execution.rs"), "{what}: {error}");
    };
    let plane = |b: &mut Builder| b.input("x", Type::f32([1, 8, 8, 4]));
    refused("a volume's geometry on a plane", &|b| {
        let x = plane(b);
        let w = b.param("w", [4, 3, 3, 4]);
        b.conv(x, w, None, Geometry::new(3, 1, 1));
    });
    refused("channels that do not fit", &|b| {
        let x = plane(b);
        let w = b.param("w", [4, 3, 3, 5]);
        b.conv(x, w, None, Geometry::new(2, 1, 1));
    });
    refused("a slice behind the end", &|b| {
        let x = plane(b);
        b.slice(x, 1, usize::MAX, 2);
    });
    refused("an axis that is not there", &|b| {
        let x = plane(b);
        b.sum(x, &[8]);
    });
    refused("no images", &|b| {
        let x = b.input("x", Type::f32([0, 8, 8, 4]));
        let w = b.param("w", [4, 3, 3, 4]);
        b.conv(x, w, None, Geometry::new(2, 1, 1));
    });
    refused("a product of nothing", &|b| {
        let x = b.input("x", Type::f32([0, 4]));
        b.matmul(x, x, false, true);
    });
    refused("attention over no keys", &|b| {
        let q = b.input("q", Type::f32([1, 3, 8]));
        let k = b.input("k", Type::f32([1, 0, 8]));
        b.attention(q, k, k, 2, None);
    });
    refused("a norm of a scalar", &|b| {
        let x = b.input("x", Type::f32(Shape::SCALAR));
        b.group_norm(x, x, x, 1, 1e-5);
    });
    refused("a transposed convolution without taps", &|b| {
        let x = plane(b);
        let w = b.param("w", [4, 0, 3, 4]);
        b.conv_transpose(x, w, None, Geometry::new(2, 2, 0), [0; 3]);
    });
    refused("a transposed convolution of endless steps", &|b| {
        let x = plane(b);
        let w = b.param("w", [4, 3, 3, 4]);
        b.conv_transpose(x, w, None, Geometry::new(2, usize::MAX, 0), [0; 3]);
    });
    refused("an image enlarged beyond counting", &|b| {
        let x = plane(b);
        b.upsample(x, ResizeMode::Nearest, usize::MAX);
    });
    refused("a shape of more elements than can be counted", &|b| {
        let x = b.input("x", Type::f32([0, 4]));
        b.reshape(x, [1 << 32, 1 << 32]);
    });
    refused("more elements than there are addresses", &|b| {
        b.input("x", Type::f32([1 << 31, 1 << 16, 1 << 16, 2]));
    });
}

/// Convolutions that upsample what they read take no parts, give no parts and add nothing: a GPU's kernels for
/// them do nothing else. And a product adds only what has its own type.
#[test]
fn what_a_gpu_does_alone_stays_alone() {
    use clearshot_graph::ops::{Op, ResizeMode};
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, 8, 8, 8]));
    let w = b.state("w", Type::f32([8, 3, 3, 16]), StateInit::Given);
    let linear = b.state("linear", Type::f32([8, 8]), StateInit::Given);
    let rows = b.reshape(x, Shape::from([64, 8]));
    // One weight used twice: its gradient is a sum of products.
    let rows = b.matmul(rows, linear, false, true);
    let rows = b.matmul(rows, linear, false, true);
    let y = b.reshape(rows, Shape::from([1, 8, 8, 8]));
    let both = b.concat(&[x, y], 3);
    let large = b.resize(both, ResizeMode::Nearest, [1, 16, 16]);
    let z = b.conv(large, w, None, Geometry::new(2, 1, 1));
    // The small image has a second reader.
    let loss = b.reduce_all(ReduceKind::SumSquares, z);
    let beside = b.reduce_all(ReduceKind::SumSquares, both);
    let loss = b.add(loss, beside);
    finish_iteration(&mut b, loss, &[w, linear], &Training::default()).unwrap();
    let graph = clearshot_graph::passes::optimise(b.finish().unwrap(), &clearshot_cuda::TARGET).unwrap();
    let mut upsampled = 0;
    for node in &graph.nodes {
        match &node.op {
            Op::Conv(c) if c.upsample => {
                upsampled += 1;
                assert!(c.parts == 1);
            }
            Op::ConvWeightGrad(c) if c.upsample => {
                upsampled += 1;
                assert!(c.parts == 1);
            }
            Op::ConvInputGrad(c) if c.upsample => {
                upsampled += 1;
                assert!(!c.residual && !c.bias && c.act.is_none() && c.channels == [0, 16]);
            }
            _ => {}
        }
    }
    assert_eq!(upsampled, 3, "the convolution and both of its gradients upsample");
    let narrow = clearshot_graph::passes::precision::narrow(graph, DType::BF16);
    narrow.verify("precision").unwrap();
    let mut added = 0;
    for node in &narrow.nodes {
        if let Op::MatMul(m) = &node.op
            && let Some(r) = m.operands().1
        {
            added += 1;
            assert_eq!(narrow.ty(node.inputs[r]).dtype, node.outs[0].dtype);
        }
    }
    assert!(added > 0, "a gradient is a sum of products");
}
