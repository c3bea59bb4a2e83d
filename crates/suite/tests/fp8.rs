//! Convolutions in floats of 8 bits (e4m3): which the pass takes, what the graph then means, by the interpreter, and what refuses it.

use clearshot_graph::array::Array;
use clearshot_graph::ops::{Float8, Geometry, Op};
use clearshot_graph::passes::eighths::{self, Eighth};
use clearshot_graph::passes::{optimise, precision};
use clearshot_graph::reference::{self, run};
use clearshot_graph::{Builder, Graph, Type};
use clearshot_nn::init::example;
use clearshot_nn::models::read;
use clearshot_nn::weights;
use clearshot_runtime::{CompileError, Device, Options, Precision, compile};
use clearshot_suite::report::relative_error;
use clearshot_tensor::{DType, Tensor};
use std::collections::BTreeMap;

/// Both kinds of residual blocks, attention, and images that are halved and upsampled.
const CONFIG: &str = r#"{"_class_name": "UNet2DModel", "in_channels": 2, "out_channels": 1, "block_out_channels": [16, 32],
    "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 16,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}"#;

fn network() -> (Graph, BTreeMap<String, Array>) {
    let network = read(CONFIG).unwrap();
    let graph = network.inference(1, &[12, 8]).unwrap();
    // Fresh weights end in zeros, after which nothing would be left to compare.
    let mut values: BTreeMap<String, Tensor> = weights::initial(&network.parameters().unwrap(), 3);
    for (i, w) in values.values_mut().enumerate() {
        let added = |(j, x): (usize, &f32)| x + 0.05 * ((i * 31 + j) as f32 * 0.7).sin();
        *w = Tensor::f32(w.shape(), w.as_f32().unwrap().iter().enumerate().map(added).collect());
    }
    let inputs = graph.inputs().map(|(name, v)| (name.to_string(), example(name, graph.ty(v), 1)));
    values.extend(inputs);
    let values = values.iter().map(|(name, t)| (name.clone(), Array::from_tensor(t))).collect();
    (graph, values)
}

fn fused(graph: Graph) -> Graph {
    optimise(graph, &clearshot_cuda::TARGET).unwrap()
}

fn in_16_bits(graph: Graph) -> Graph {
    precision::narrow(fused(graph), DType::BF16)
}

fn in_8_bits(graph: Graph) -> Graph {
    let graph = eighths::convolutions(in_16_bits(graph), Eighth::Float);
    graph.verify("fp8").unwrap();
    let graph = eighths::shortcuts(graph);
    graph.verify("shortcuts").unwrap();
    graph
}

fn result(graph: &Graph, values: &BTreeMap<String, Array>, precision: reference::Precision) -> Vec<f64> {
    run(graph, &mut values.clone(), precision).unwrap()["y"].data.clone()
}

fn scaled(graph: &Graph) -> Vec<&str> {
    let scaled = |op: &Op| matches!(op, Op::Conv(c) if c.scaled);
    graph.nodes.iter().filter(|n| scaled(&n.op)).map(|n| &*n.scope).collect()
}

#[test]
fn unrounded_the_graph_computes_what_it_did() {
    let (graph, values) = network();
    let plain = result(&graph, &values, reference::Precision::F64);
    let split = result(&in_8_bits(graph), &values, reference::Precision::F64);
    let error = relative_error(&split, &plain, 0.0);
    assert!(error < 1e-12, "{error:e}");
}

#[test]
fn rounding_to_8_bits_costs_what_four_significant_bits_do() {
    let (graph, values) = network();
    let plain = result(&graph, &values, reference::Precision::F64);
    let error =
        |graph: &Graph| relative_error(&result(graph, &values, reference::Precision::Stored), &plain, 0.0);
    let (half, eighth) = (error(&in_16_bits(graph.clone())), error(&in_8_bits(graph)));
    eprintln!("bf16 {half:.1e}, fp8 {eighth:.1e}");
    // bf16's steps are 16 times finer; what these weights make of an error is the same for both.
    assert!((3.0..20.0).contains(&(eighth / half)), "bf16 {half:e}, fp8 {eighth:e}");
}

/// Of one sum: each factor is off by 2.6 % of itself (root mean square), independently.
#[test]
fn one_convolution_is_off_by_what_its_factors_are() {
    let graph = behind_a_norm(32, 32, |_, _| {});
    let graph = eighths::convolutions(in_16_bits(graph), Eighth::Float);
    let draw = |shape: clearshot_tensor::Shape, stream: u32, scale: f64, mean: f64| {
        let key = clearshot_tensor::noise::Key { seed: 8, step: 0, stream };
        Array::new(shape, (0..shape.len()).map(|i| mean + scale * f64::from(key.normal(i as u64))).collect())
    };
    let values: BTreeMap<String, Array> = graph
        .inputs()
        .chain(graph.states().map(|(name, _, v)| (name, v)))
        .zip(0..)
        .map(|((name, v), stream)| {
            let (scale, mean) = match name {
                "w" => (0.02, 0.0),
                "gamma" => (0.2, 1.0),
                _ => (1.0, 0.0),
            };
            (name.to_string(), draw(graph.shape(v), stream, scale, mean))
        })
        .collect();
    let plain = result(&graph, &values, reference::Precision::F64);
    let error = relative_error(&result(&graph, &values, reference::Precision::Stored), &plain, 0.0);
    assert!((0.03..0.045).contains(&error), "{error:e}");
}

#[test]
fn convolutions_of_3_x_3_pixels_behind_norms_are_taken_and_no_others() {
    let graph = in_8_bits(network().0);
    let found = scaled(&graph);
    let blocks =
        ["down_blocks.0.resnets.0", "down_blocks.1.resnets.0", "mid_block.resnets.0", "mid_block.resnets.1"]
            .into_iter()
            .chain([
                "up_blocks.0.resnets.0",
                "up_blocks.0.resnets.1",
                "up_blocks.1.resnets.0",
                "up_blocks.1.resnets.1",
            ]);
    let wanted: Vec<String> = blocks.flat_map(|b| ["", ".conv2"].map(|c| format!("{b}{c}"))).collect();
    assert_eq!(found, wanted);
    for node in graph.nodes.iter().filter(|n| matches!(&n.op, Op::Conv(c) if c.scaled)) {
        let types: Vec<DType> = node.inputs.iter().map(|v| graph.ty(*v).dtype).collect();
        assert_eq!(
            (types[..3].to_vec(), node.outs[0].dtype),
            (vec![DType::F8, DType::F8, DType::F32], DType::BF16)
        );
    }
    let text = graph.to_string();
    assert!(text.contains("f8[16,3,3,16] = float8 values") && text.contains(" scaled"), "{text}");
    // What is split is no longer there in 16 bits, and no value of 8 bits is read by anything else.
    for (i, node) in graph.nodes.iter().enumerate() {
        if let Op::Float8(Float8::Values) = node.op {
            assert!(graph.is_state_copy(i));
            let state = node.inputs[0];
            let is_half = |n: &clearshot_graph::Node| matches!(n.op, Op::Cast(_)) && n.inputs[0] == state;
            assert!(!graph.nodes.iter().any(is_half), "{}", graph.line(i));
        }
        for v in node.inputs.iter().filter(|v| graph.ty(**v).dtype == DType::F8) {
            assert!(matches!(&node.op, Op::Conv(c) if c.scaled), "{} reads {v:?}", graph.line(i));
        }
    }
}

/// Those of the blocks whose input has other channels than their result, read as the parts that were concatenated.
#[test]
fn shortcuts_are_added_by_the_blocks_last_convolutions() {
    let graph = in_8_bits(network().0);
    let sides: Vec<(&str, usize)> = graph
        .nodes
        .iter()
        .filter_map(|n| match &n.op {
            Op::Conv(c) => c.side.map(|s| (&*n.scope, s.parts)),
            _ => None,
        })
        .collect();
    let wanted = [
        ("down_blocks.1.resnets.0.conv2", 1),
        ("up_blocks.0.resnets.0.conv2", 2),
        ("up_blocks.0.resnets.1.conv2", 2),
        ("up_blocks.1.resnets.0.conv2", 2),
        ("up_blocks.1.resnets.1.conv2", 2),
    ];
    assert_eq!(sides, wanted);
    assert!(!graph.nodes.iter().any(|n| matches!(&n.op, Op::Conv(_)) && n.scope.ends_with("conv_shortcut")));
    assert!(graph.to_string().contains(" beside 2"));
}

/// A norm and a convolution behind it that reads `c` channels and makes `k`; `also` may read the norm too.
fn behind_a_norm(c: usize, k: usize, also: impl Fn(&mut Builder, clearshot_graph::Value)) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, 8, 8, c]));
    let [gamma, beta] = ["gamma", "beta"].map(|name| b.param(name, [c]));
    let y = b.group_norm(x, gamma, beta, 4, 1e-5);
    let y = b.silu(y);
    let w = b.param("w", [k, 3, 3, c]);
    let z = b.conv(y, w, None, Geometry::new(2, 1, 1));
    also(&mut b, y);
    b.output("y", z);
    b.finish().unwrap()
}

#[test]
fn what_else_reads_a_norm_or_has_odd_channels_stays_in_16_bits() {
    let taken = |graph: Graph| scaled(&in_8_bits(graph)).len();
    assert_eq!(taken(behind_a_norm(32, 32, |_, _| {})), 1);
    assert_eq!(taken(behind_a_norm(24, 32, |_, _| {})), 0, "24 bytes of channels");
    assert_eq!(taken(behind_a_norm(32, 12, |_, _| {})), 0, "24 bytes of results");
    assert_eq!(taken(behind_a_norm(32, 32, |b, y| b.output("normed", y))), 0, "an output");
    let halved = |b: &mut Builder, y| {
        let w = b.param("w2", [32, 3, 3, 32]);
        let z = b.conv(y, w, None, Geometry::new(2, 2, 1));
        b.output("z", z);
    };
    assert_eq!(taken(behind_a_norm(32, 32, halved)), 0, "a convolution that halves the image");
    let twice = |b: &mut Builder, y| {
        let w = b.param("w2", [16, 3, 3, 32]);
        let z = b.conv(y, w, None, Geometry::new(2, 1, 1));
        b.output("z", z);
    };
    assert_eq!(taken(behind_a_norm(32, 32, twice)), 2, "two convolutions");
}

#[test]
fn a_weight_that_is_read_in_fp32_or_changes_is_not_split() {
    let read = behind_a_norm(32, 32, |b, _| {
        let w = b.graph().states().find(|(name, ..)| *name == "w").unwrap().2;
        let sum = b.reduce_all(clearshot_graph::ops::ReduceKind::SumSquares, w);
        b.output("sum", sum);
    });
    assert_eq!(scaled(&in_8_bits(read)).len(), 0);
    let changed = behind_a_norm(32, 32, |b, _| {
        let w = b.graph().states().find(|(name, ..)| *name == "w").unwrap().2;
        let next = b.mul_scalar(w, 0.5);
        b.update(w, next);
    });
    assert_eq!(scaled(&in_8_bits(changed)).len(), 0);
}

#[test]
fn a_cpu_says_what_it_takes() {
    let options = Options { precision: Precision::Fp8, ..Options::default() };
    let refused = compile(network().0, &Device::cpu(Some(1)), &options).err().unwrap();
    assert!(matches!(refused, CompileError::Precision(Precision::Fp8)));
    let text = refused.to_string();
    assert!(text.contains("fp32 and bf16") && text.contains("fp8 needs a GPU"), "{text}");
    assert_eq!("fp8".parse(), Ok(Precision::Fp8));
}
