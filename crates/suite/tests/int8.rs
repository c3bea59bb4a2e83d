//! Networks with convolutions in 8 bits: the CPU's kernels, fused and not, against the interpreter; and what a graph without
//! 8-bit products makes of them.

use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_graph::passes::int8::{candidates, round};
use clearshot_graph::passes::{Target, optimise};
use clearshot_graph::reach::reach;
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Graph, Op};
use clearshot_nn::init::example;
use clearshot_nn::models::{Network, Quantised, read};
use clearshot_nn::weights;
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::Tensor;
use std::collections::BTreeMap;

/// With norms, attention, concatenation, strides and upsampling; without norms; in 3-D.
const CASES: &[(&str, &[usize])] = &[
    (
        r#"{"_class_name": "UNet2DModel", "in_channels": 2, "out_channels": 1, "block_out_channels": [16, 32],
            "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 16,
            "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}"#,
        &[16, 12],
    ),
    (r#"{"_class_name": "Local", "channels": [16, 24], "blocks": 1, "in_channels": 10}"#, &[16, 20]),
    (
        r#"{"_class_name": "Local", "spatial_dims": 3, "channels": [16, 24], "blocks": 1, "in_channels": 3}"#,
        &[4, 6, 8],
    ),
];

/// A value whose rounding is a tie to within f32's error may be rounded the other way; that is a 255th of one input's range.
const A_FEW_UNITS: f64 = 1e-3;

struct Case {
    wide: Graph,
    graph: Graph,
    values: BTreeMap<String, Tensor>,
    table: Table,
}

fn case(config: &str, size: &[usize], dynamic: bool) -> Case {
    let network = read(config).unwrap();
    let wide = network.inference(2, size).unwrap();
    let rounding = |c: usize| match dynamic {
        true => Rounding::Dynamic,
        // Channels of different widths, and values beyond some.
        false => Rounding::Static((0..c).map(|i| Grid::between(-1.5 - 0.1 * (i % 5) as f32, 2.0)).collect()),
    };
    let found = candidates(&wide);
    assert!(found.len() > 4, "{} convolutions of {config}", found.len());
    let table: Table = found.into_iter().map(|c| (c.name, rounding(c.channels))).collect();
    let graph = round(wide.clone(), &table).unwrap();
    // Fresh weights end in zeros, after which nothing would be left to compare.
    let mut values: BTreeMap<String, Tensor> = weights::initial(&network.parameters().unwrap(), 3);
    for (i, w) in values.values_mut().enumerate() {
        let added = |(j, x): (usize, &f32)| x + 0.05 * ((i * 31 + j) as f32 * 0.7).sin();
        *w = Tensor::f32(w.shape(), w.as_f32().unwrap().iter().enumerate().map(added).collect());
    }
    let inputs = wide.inputs().map(|(name, v)| (name.to_string(), example(name, wide.ty(v), 1)));
    values.extend(inputs);
    Case { wide, graph, values, table }
}

fn meaning(graph: &Graph, values: &BTreeMap<String, Tensor>) -> Array {
    let mut given = values.iter().map(|(name, t)| (name.clone(), Array::from_tensor(t))).collect();
    run(graph, &mut given, Precision::Stored).unwrap().remove("y").unwrap()
}

fn computed(graph: &Graph, values: &BTreeMap<String, Tensor>, threads: usize, optimise: bool) -> Array {
    let options = Options { optimise, ..Options::default() };
    let mut session = compile(graph.clone(), &Device::cpu(Some(threads)), &options).unwrap();
    values.iter().for_each(|(name, t)| session.set(name, t).unwrap());
    session.run().unwrap();
    Array::from_tensor(&session.get("y").unwrap())
}

/// One convolution after the other: behind a second rounding the f32's last bits have become ties of their own, and two networks
/// that are both right differ by as much as rounding costs.
#[test]
fn networks_in_8_bits_are_what_the_interpreter_says() {
    for (config, size) in CASES {
        let case = case(config, size, false);
        let exact = meaning(&case.wide, &case.values);
        for (name, rounding) in case.table.iter().step_by(3) {
            let graph = round(case.wide.clone(), &Table::from([(name.clone(), rounding.clone())])).unwrap();
            let wanted = meaning(&graph, &case.values);
            let far = wanted.relative_error(&exact);
            let plain = computed(&graph, &case.values, 2, false).relative_error(&wanted);
            let fused = computed(&graph, &case.values, 2, true);
            let error = fused.relative_error(&wanted).max(plain);
            assert!(error < A_FEW_UNITS && error < 0.2 * far, "{config} {name}: {error:e}, rounding {far:e}");
            assert_eq!(fused, computed(&graph, &case.values, 1, true), "{config} {name} depends on threads");
        }
    }
}

#[test]
fn a_quantised_network_builds_the_same_graph() {
    let (config, size) = CASES[1];
    let case = case(config, size, false);
    let network = Quantised::new(read(config).unwrap(), case.table.clone()).unwrap();
    let graph = network.inference(2, size).unwrap();
    assert_eq!(meaning(&graph, &case.values), meaning(&case.graph, &case.values));
    let wrong = Table::from([("conv_in.bias".to_string(), Rounding::Dynamic)]);
    let refused = Quantised::new(read(config).unwrap(), wrong).unwrap_err().to_string();
    assert!(refused.contains("conv_in.bias") && refused.contains("no convolution"), "{refused}");
    let wrong =
        Table::from([("conv_in.weight".to_string(), Rounding::Static(vec![Grid::between(0.0, 1.0); 3]))]);
    let refused = Quantised::new(read(config).unwrap(), wrong).unwrap_err().to_string();
    assert!(refused.contains("steps and zeros"), "{refused}");
}

/// A backend without such products has the network in f32 back; tiles are exact where ranges are known, and not where an image's own
/// are used.
#[test]
fn without_8_bit_products_nothing_is_left_of_them() {
    let (config, size) = CASES[1];
    let [fixed, own] = [false, true].map(|dynamic| case(config, size, dynamic));
    let rounded = |g: &Graph| g.nodes.iter().any(|n| matches!(n.op, Op::Conv(c) if c.int8.is_some()));
    assert!(rounded(&fixed.graph) && rounded(&optimise(fixed.graph.clone(), &Target::ALL).unwrap()));
    let dropped = optimise(fixed.graph.clone(), &Target::PLAIN).unwrap();
    assert!(!rounded(&dropped));
    assert_eq!(
        meaning(&dropped, &fixed.values),
        meaning(&optimise(fixed.wide.clone(), &Target::PLAIN).unwrap(), &fixed.values)
    );
    assert!(reach(&fixed.graph, "x", "y").is_some());
    assert_eq!(reach(&fixed.graph, "x", "y"), reach(&fixed.wide, "x", "y"));
    assert!(reach(&own.graph, "x", "y").is_none());
}
