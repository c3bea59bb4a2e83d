//! Gradients against finite differences, on random small graphs of every differentiable operation.
//!
//! A graph is drawn from a seed ([`draw`]), its gradients are run by the reference interpreter in f64,
//! and each leaf's gradient is compared with the change of the loss along random directions: of second
//! order in two step sizes, combined to fourth. Where the two disagree the loss has a kink between the
//! points (a maximum that changes sides, an absolute value near zero) and the direction is left out;
//! that may happen rarely, which is checked, as is that every operation occurred.
//!
//! The same graphs then show that passes and recomputation keep the meaning, that plans never have two
//! live buffers overlap, and that the CPU's kernels agree with the interpreter.
//!
//! The same graphs, with their gradients, are also given to every other engine.

mod draw;
mod moves;

use clearshot_graph::grad::{GradError, grad};
use clearshot_graph::ops::{Binary, Op, PadMode, Pool, Reduce, Unary};
use clearshot_graph::passes::delay::delay;
use clearshot_graph::passes::recompute::{recompute, spare};
use clearshot_graph::passes::{Target, optimise};
use clearshot_graph::plan::{NoBackend, Plan};
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Graph, Type, Value};
use clearshot_suite::engine::Engine;
use clearshot_suite::report::{relative_error, say};
use clearshot_tensor::DType;
use draw::{Draw, Drawing};
use std::collections::{BTreeMap, BTreeSet};

/// Graphs drawn; enough for every operation to occur several times.
const GRAPHS: u64 = 1000;
/// Directions tried for each leaf.
const DIRECTIONS: usize = 2;
/// The smaller of the two steps.
const STEP: f64 = 2e-5;
/// Relative to the gradient's norm, which is what a direction of ones and minus ones sees of it.
const TOLERANCE: f64 = 1e-6;
/// Two slopes of a smooth loss differ by less, relative to the gradient's norm.
const SMOOTH: f64 = 3e-7;
/// What finite differences of a loss of order 1 know no better than.
const ROUNDING: f64 = 1e-9;

struct Case {
    graph: Graph,
    values: BTreeMap<String, Array>,
    leaves: Vec<String>,
}

fn case(seed: u64) -> Case {
    let Drawing { mut b, values, leaves, loss, .. } = draw::graph(seed);
    let by: Vec<Value> = leaves.iter().map(|(_, v)| *v).collect();
    let grads = grad(&mut b, loss, None, &by).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    b.output("loss", loss);
    for ((name, _), g) in leaves.iter().zip(grads) {
        b.output(&format!("d {name}"), g);
    }
    let leaves = leaves.into_iter().map(|(name, _)| name).collect();
    Case { graph: b.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}")), values, leaves }
}

/// The forward part alone, for the many runs that need no gradient.
fn forward(graph: &Graph) -> Graph {
    let mut forward = graph.clone();
    forward.outputs.retain(|o| o.name == "loss");
    forward.tidy()
}

fn loss_at(graph: &Graph, values: &BTreeMap<String, Array>, leaf: &str, direction: &[f64], step: f64) -> f64 {
    let mut moved = values.clone();
    let array = moved.get_mut(leaf).expect("a leaf has a value");
    array.data.iter_mut().zip(direction).for_each(|(v, d)| *v += step * d);
    run(graph, &mut moved, Precision::F64).unwrap()["loss"].data[0]
}

/// The slope along a direction, or nothing where the loss is not smooth between the points.
fn slope(
    graph: &Graph,
    values: &BTreeMap<String, Array>,
    leaf: &str,
    direction: &[f64],
    norm: f64,
) -> Option<f64> {
    let central = |h: f64| {
        let [up, down] = [h, -h].map(|step| loss_at(graph, values, leaf, direction, step));
        (up - down) / (2.0 * h)
    };
    let (near, far) = (central(STEP), central(2.0 * STEP));
    let scale = norm.max(near.abs());
    ((near - far).abs() <= SMOOTH * scale + ROUNDING).then_some((4.0 * near - far) / 3.0)
}

#[test]
fn gradients_match_finite_differences() {
    let (mut seen, mut tried, mut kinks) = (BTreeSet::new(), 0, 0);
    for seed in 0..GRAPHS {
        let Case { graph, values, leaves } = case(seed);
        let forward = forward(&graph);
        seen.extend(forward.nodes.iter().map(|n| label(&forward, &n.op, &n.inputs)));
        let results = run(&graph, &mut values.clone(), Precision::F64).unwrap();
        for leaf in &leaves {
            let gradient = &results[&format!("d {leaf}")];
            let norm = gradient.data.iter().map(|g| g * g).sum::<f64>().sqrt();
            for i in 0..DIRECTIONS {
                let mut d = Draw::new(seed, 1000 + i as u32);
                let direction: Vec<f64> = gradient.data.iter().map(|_| d.sign()).collect();
                tried += 1;
                let Some(expected) = slope(&forward, &values, leaf, &direction, norm) else {
                    kinks += 1;
                    continue;
                };
                let got: f64 = gradient.data.iter().zip(&direction).map(|(g, d)| g * d).sum();
                let size = results["loss"].data[0].abs().max(1.0);
                assert!(
                    (got - expected).abs() <= TOLERANCE * norm + ROUNDING * size,
                    "seed {seed}, {leaf}: gradient {got:e}, difference {expected:e}, norm {norm:e}\n{graph}"
                );
            }
        }
    }
    say(&format!("{GRAPHS} graphs, {tried} directions, {kinks} of them across a kink"));
    assert!(kinks * 20 < tried, "{kinks} of {tried} directions met a kink");
    let expected: BTreeSet<String> = expected_labels();
    let absent: Vec<&String> = expected.difference(&seen).collect();
    assert!(absent.is_empty(), "operations that no graph had: {absent:?}");
}

/// What of an operation is to occur: its name, its mode, and whether on planes or on volumes.
fn label(graph: &Graph, op: &Op, inputs: &[Value]) -> String {
    let dims = || match inputs.first().map(|v| graph.shape(*v).rank()) {
        Some(5) => "3d",
        _ => "2d",
    };
    let word = |text: String| text.split(['(', ' ']).next().unwrap_or_default().to_string();
    match op {
        Op::Unary(u) => format!("unary {}", word(format!("{u:?}"))),
        Op::Binary(f) => format!("binary {f:?}"),
        Op::Pad(p) => format!("pad {:?}", p.mode),
        Op::Resize(r) => format!("resize {:?} {}", r.mode, dims()),
        Op::ResizeGrad(r) => format!("resize_grad {:?}", r.mode),
        Op::Pool(Pool { kind, .. }) => format!("pool {kind:?} {}", dims()),
        Op::Reduce(Reduce { kind, .. }) => format!("reduce {kind:?}"),
        Op::Norm(n) => format!("norm {}{}", if n.film { "film " } else { "" }, dims()),
        Op::Conv(_) | Op::ConvInputGrad(_) | Op::ConvWeightGrad(_) | Op::CyclicConv(_) => {
            format!("{} {}", op.name(), dims())
        }
        _ => op.name().into(),
    }
}

fn expected_labels() -> BTreeSet<String> {
    let mut all: Vec<String> = moves::UNARY.iter().map(|u| format!("unary {u:?}")).collect();
    all = all.iter().map(|l| l.split('(').next().unwrap_or_default().to_string()).collect();
    all.extend(moves::BINARY.iter().map(|f: &Binary| format!("binary {f:?}")));
    all.extend([PadMode::Zero, PadMode::Reflect, PadMode::Edge, PadMode::Wrap].map(|m| format!("pad {m:?}")));
    for dims in ["2d", "3d"] {
        all.extend(moves::RESIZE.iter().map(|m| format!("resize {m:?} {dims}")));
        all.extend(["Average", "Max"].map(|k| format!("pool {k} {dims}")));
        all.extend(["norm", "norm film"].map(|n| format!("{n} {dims}")));
        let convs = ["conv", "conv_input_grad", "conv_weight_grad", "cyclic_conv"];
        all.extend(convs.map(|c| format!("{c} {dims}")));
    }
    all.extend(moves::RESIZE.iter().map(|m| format!("resize_grad {m:?}")));
    all.extend(["Sum", "Mean", "SumSquares"].map(|k| format!("reduce {k}")));
    let plain = [
        "matmul",
        "attention",
        "softmax",
        "cast",
        "reshape",
        "transpose",
        "broadcast",
        "concat",
        "slice",
        "gather",
        "gather_grad",
        "noise",
        "dropout",
    ];
    all.extend(plain.map(String::from));
    all.into_iter().collect()
}

/// Norms below this are as good as zero: what f32 leaves of sums that cancel.
const SMALL: f64 = 1e-2;
/// The relative error that kernels in f32 may have beside f64, on graphs this small.
const KERNELS: f64 = 2e-4;

#[test]
fn engines_agree_on_random_graphs() {
    for seed in 0..GRAPHS {
        let Case { graph, values, .. } = case(seed);
        // Kernels have no f64.
        if graph.nodes.iter().any(|n| n.outs.iter().any(|t| t.dtype == DType::F64)) {
            continue;
        }
        // What kernels are given is f32, so that is what the truth starts from.
        let values: BTreeMap<String, Array> =
            values.into_iter().map(|(k, v)| (k, v.map(|x| f64::from(x as f32)))).collect();
        let truth = run(&graph, &mut values.clone(), Precision::F64).unwrap();
        for engine in [Engine::Fused, Engine::CpuPlain, Engine::Cpu] {
            let mut session = engine.open(graph.clone()).unwrap();
            for (name, value) in &values {
                session.set(name, &value.to_tensor(DType::F32)).unwrap();
            }
            session.run().unwrap();
            for (name, truth) in &truth {
                let got = session.get(name).unwrap().to_f64();
                let error = relative_error(&got, &truth.data, SMALL);
                assert!(
                    error < KERNELS,
                    "seed {seed}, {name} by {}: error {error:e}\n{graph}",
                    engine.name()
                );
            }
        }
    }
}

#[test]
fn what_has_no_gradient_says_so() {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([3]));
    let slope = b.unary_grad(Unary::Silu, x, x);
    let loss = b.reduce_all(clearshot_graph::ops::ReduceKind::Sum, slope);
    let error = grad(&mut b, loss, None, &[x]).unwrap_err();
    assert!(matches!(error, GradError::NoRule { op: "unary_grad", .. }), "{error}");
    let error = grad(&mut b, slope, None, &[x]).unwrap_err();
    assert!(matches!(error, GradError::Seed { .. }), "{error}");
}

/// Passes only rewrite: what they change of a result is the rounding of folded constants, which are f32.
const REWRITTEN: f64 = 1e-5;

#[test]
fn passes_and_recomputation_keep_the_meaning() {
    let mut recomputed = 0;
    for seed in 0..GRAPHS {
        let Case { graph, values, .. } = case(seed);
        let truth = run(&graph, &mut values.clone(), Precision::F64).unwrap();
        let fused = optimise(graph.clone(), &Target::ALL).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let plan = Plan::new(fused.clone(), &NoBackend);
        assert_eq!(plan.overlap(), None, "seed {seed}: two live buffers overlap");
        let goal = plan.bytes() - plan.arena / 8;
        let small = recompute(fused.clone(), goal, &NoBackend);
        let late = delay(fused.clone(), &NoBackend);
        let spared = spare(late.clone(), 0.1, &NoBackend);
        let forms = [
            ("passes", Some(fused)),
            ("recomputation", small.ok()),
            ("delay", Some(late)),
            ("sparing", Some(spared)),
        ];
        for (what, graph) in forms {
            let Some(graph) = graph else { continue };
            recomputed += usize::from(what == "recomputation");
            graph.verify(what).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(Plan::new(graph.clone(), &NoBackend).overlap(), None, "seed {seed}: {what}");
            let results = run(&graph, &mut values.clone(), Precision::F64).unwrap();
            for (name, truth) in &truth {
                let size = truth.data.iter().map(|x| x * x).sum::<f64>().sqrt();
                let error = results[name].relative_error(truth);
                assert!(
                    error <= REWRITTEN || size < 1e-9,
                    "seed {seed}, {what}: {name} differs by {error:e}"
                );
            }
        }
    }
    say(&format!("{recomputed} of {GRAPHS} random graphs could be made smaller by recomputing"));
    assert!(recomputed * 20 > GRAPHS as usize, "{recomputed} graphs");
}
