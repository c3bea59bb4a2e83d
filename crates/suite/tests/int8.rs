//! Networks with convolutions in 8 bits: the CPU's kernels, fused and not, against the interpreter; and what a graph without
//! 8-bit products makes of them.

use clearshot_graph::grad::grad;
use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_graph::ops::{Binary, Geometry, Int8, PoolKind, ReduceKind, ResizeMode, Unary};
use clearshot_graph::passes::eighths::{self, Eighth};
use clearshot_graph::passes::int8::{candidates, round};
use clearshot_graph::passes::precision::narrow;
use clearshot_graph::passes::{Target, optimise};
use clearshot_graph::reach::reach;
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Graph, Op, Type, Value};
use clearshot_nn::init::example;
use clearshot_nn::models::{Network, Quantised, read};
use clearshot_nn::weights;
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::{DType, Shape, Tensor};
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
    // What is not rounded is in f32, as the interpreter has it.
    let options = Options { optimise, precision: clearshot_runtime::Precision::F32, ..Options::default() };
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

/// For a GPU: the convolutions of 3 x 3 pixels behind norms multiply whole numbers and mean what they did, at the image's sides too;
/// the others are in full.
#[test]
fn whole_numbers_mean_what_rounding_does() {
    let (config, size) = CASES[0];
    let case = case(config, size, false);
    let target = Target { whole: true, ..clearshot_cuda::TARGET };
    let made = |graph: &Graph| {
        let graph = narrow(optimise(graph.clone(), &target).unwrap(), DType::BF16);
        let graph = eighths::shortcuts(eighths::convolutions(graph, Eighth::Whole));
        graph.verify("whole").unwrap();
        graph
    };
    let graph = made(&case.graph);
    let wholes = |g: &Graph| {
        g.nodes.iter().filter(|n| matches!(n.op, Op::Conv(c) if c.int8 == Some(Int8::Whole))).count()
    };
    // Two of each of the eight residual blocks.
    assert_eq!(wholes(&graph), 16);
    assert!(
        graph.nodes.iter().all(|n| !matches!(n.op, Op::Conv(c) if c.int8.is_some_and(|i| i != Int8::Whole)))
    );
    for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Conv(c) if c.int8.is_some())) {
        let types: Vec<DType> = node.inputs[..4].iter().map(|v| graph.ty(*v).dtype).collect();
        assert_eq!(types, [DType::U8, DType::I8, DType::F32, DType::I32]);
    }
    let text = graph.to_string();
    assert!(text.contains("i32[16,16] = whole offsets") && text.contains("int8 whole scaled"), "{text}");
    // One convolution after the other, as a rounding that is a tie may fall to either side.
    let result = |graph: &Graph| {
        let mut given = case.values.iter().map(|(n, t)| (n.clone(), Array::from_tensor(t))).collect();
        run(graph, &mut given, Precision::F64).unwrap().remove("y").unwrap()
    };
    let exact = result(&case.wide);
    for (name, rounding) in &case.table {
        let graph = round(case.wide.clone(), &Table::from([(name.clone(), rounding.clone())])).unwrap();
        let eighth = made(&graph);
        let (wanted, got) = (result(&graph), result(&eighth));
        if wholes(&eighth) == 0 {
            assert!(got.relative_error(&exact) < 1e-9, "{name} is in full");
            continue;
        }
        let (far, error) = (wanted.relative_error(&exact), got.relative_error(&wanted));
        assert!(error < 1e-5 && far > 1e-4, "{name}: {error:e}, rounding {far:e}");
    }
}

/// The straight-through rule: backward, rounding is the identity. So the gradient of `sum(y c)`, with y of a rounded convolution, is that
/// of the same sum over the convolution in full, which is found by finite differences; and the rounded sum itself is another one.
#[test]
fn rounding_is_passed_straight_through_when_differentiating() {
    let (image, weight) = ([1, 5, 6, 16], [16, 3, 3, 16]);
    let mut b = Builder::new();
    let (x, w) = (b.input("x", Type::f32(image)), b.param("w", weight));
    let y = b.conv(x, w, None, Geometry::new(2, 1, 1));
    let like = b.shape(y);
    let c = b.input("c", Type::f32(like));
    let product = b.mul(y, c);
    let sum = b.reduce_all(ReduceKind::Sum, product);
    b.output("sum", sum);
    let wide = b.finish().unwrap();
    let grids = (0..16).map(|i| Grid::between(-1.0 - 0.1 * i as f32, 1.0)).collect();
    let table = Table::from([("w".to_string(), Rounding::Static(grids))]);
    let rounded = round(wide.clone(), &table).unwrap();
    let of = |graph: &Graph, name: &str| graph.outputs.iter().find(|o| o.name == name).unwrap().value;
    let mut b = Builder::extend(rounded);
    let graph = b.graph().clone();
    let input = graph.inputs().find(|(name, _)| *name == "x").unwrap().1;
    let state = graph.states().find(|(name, ..)| *name == "w").unwrap().2;
    let grads = grad(&mut b, of(&graph, "sum"), None, &[input, state]).unwrap();
    b.output("dx", grads[0]);
    b.output("dw", grads[1]);
    let both = b.finish().unwrap().tidy();
    let wave = |shape: Shape, step: f64| {
        let value = |i: usize| (0.3 + step * i as f64).sin();
        Array::new(shape, (0..shape.len()).map(value).collect())
    };
    let values: BTreeMap<String, Array> =
        [("x", image.into(), 0.71), ("w", weight.into(), 1.37), ("c", like, 2.11)]
            .into_iter()
            .map(|(name, shape, step)| (name.to_string(), wave(shape, step)))
            .collect();
    let evaluate = |graph: &Graph, values: &BTreeMap<String, Array>| {
        run(graph, &mut values.clone(), Precision::F64).unwrap()
    };
    let found = evaluate(&both, &values);
    let full = evaluate(&wide, &values)["sum"].data[0];
    assert!((found["sum"].data[0] - full).abs() > 1e-3, "nothing was rounded");
    for (name, gradient) in [("x", "dx"), ("w", "dw")] {
        for at in (0..values[name].data.len()).step_by(37) {
            let moved = |by: f64| {
                let mut values = values.clone();
                values.get_mut(name).unwrap().data[at] += by;
                evaluate(&wide, &values)["sum"].data[0]
            };
            let difference = (moved(1e-3) - moved(-1e-3)) / 2e-3;
            let stated = found[gradient].data[at];
            assert!(
                (difference - stated).abs() < 1e-6 * (1.0 + difference.abs()),
                "{name} {at}: {stated} {difference}"
            );
        }
    }
}

/// `(clamp(round(x / s) + z) - z) s`, as importers of ONNX spell it out.
fn pair(b: &mut Builder, x: Value, grid: Grid) -> Value {
    let [step, zero] = [grid.step, f32::from(grid.zero)].map(|v| b.constant(Tensor::f32([1], vec![v])));
    let divided = b.binary(Binary::Div, x, step);
    let whole = b.unary(Unary::Round, divided);
    let moved = b.add(whole, zero);
    let clamped = b.unary(Unary::Clamp(0.0, 255.0), moved);
    let back = b.sub(clamped, zero);
    b.mul(back, step)
}

/// A small U-Net whose values are rounded behind every operation, as quantisers of others write them.
fn pairs_everywhere() -> (Graph, BTreeMap<String, Tensor>) {
    let (mut b, mut values) = (Builder::new(), BTreeMap::new());
    let mut weight = |b: &mut Builder, name: &str, shape: [usize; 4]| {
        values.insert(name.to_string(), example(name, Type::f32(shape), 1).to_f32());
        b.param(name, Shape::from(shape))
    };
    let geometry = Geometry::new(2, 1, 1);
    let [outer, inner] = [0.05, 0.4].map(|step| Grid { step, zero: 0 });
    let middle = Grid { step: 0.3, zero: 90 };
    let table = [("a", middle), ("b", outer), ("c", inner)];
    let rounding = |g: Grid, c: usize| Rounding::Static(vec![g; c]);
    let table: Table =
        table.map(|(name, g)| (name.into(), rounding(g, if name == "c" { 48 } else { 16 }))).into();
    let steps = clearshot_graph::passes::int8::steps(&mut b, &table);
    let x = b.input("x", Type::f32([1, 8, 12, 2]));
    let w = weight(&mut b, "first", [16, 3, 3, 2]);
    let h = b.conv(x, w, None, geometry);
    let h = pair(&mut b, h, middle);
    let w = weight(&mut b, "a", [16, 3, 3, 16]);
    let h = b.conv(h, w, None, geometry);
    let h = b.unary(Unary::Relu, h);
    let skip = pair(&mut b, h, outer);
    let h = b.pool(skip, PoolKind::Max, [1, 2, 2], Geometry::new(2, 2, 0));
    let h = pair(&mut b, h, outer);
    let w = weight(&mut b, "b", [32, 3, 3, 16]);
    let h = b.conv(h, w, None, geometry);
    let h = pair(&mut b, h, inner);
    let h = b.upsample(h, ResizeMode::Nearest, 2);
    let h = pair(&mut b, h, inner);
    let h = b.concat_channels(&[h, skip]);
    let h = pair(&mut b, h, inner);
    let w = weight(&mut b, "c", [16, 3, 3, 48]);
    let h = b.conv(h, w, None, geometry);
    let h = pair(&mut b, h, outer);
    let w = weight(&mut b, "last", [1, 1, 1, 16]);
    let h = b.conv(h, w, None, Geometry::new(2, 1, 0));
    b.round_convolutions(0, &steps);
    let y = pair(&mut b, h, outer);
    b.output("y", y);
    let graph = b.finish().unwrap();
    values.insert("x".into(), example("x", Type::f32([1, 8, 12, 2]), 1));
    (graph, values)
}

/// Pairs behind convolutions end them; behind what only moves values they are gone; before a convolution in 8 bits they are its own rounding.
#[test]
fn pairs_are_no_passes_of_their_own() {
    let (graph, values) = pairs_everywhere();
    let fused = optimise(graph.clone(), &Target::ALL).unwrap();
    let is = |f: &dyn Fn(&Op) -> bool| fused.nodes.iter().filter(|n| f(&n.op)).count();
    let ends = |op: &Op| matches!(op, Op::Conv(c) if matches!(c.act, Some(Unary::Snap(..))));
    // All but that before `a`, which nothing else reads; that before `c` rounds values of another grid, and is the convolution's own too.
    assert_eq!(is(&ends), 4, "{fused}");
    assert_eq!(is(&|op| matches!(op, Op::Pointwise(_) | Op::Unary(_) | Op::Binary(_))), 0, "{fused}");
    let wanted = meaning(&graph, &values);
    let far = |got: &Array| {
        let pairs = got.data.iter().zip(&wanted.data);
        let off = pairs.filter(|(a, b)| (*a - *b).abs() > 1e-6).count();
        (got.relative_error(&wanted), off)
    };
    // Ties may go to the other side, by one step of the last grid each.
    for got in
        [computed(&graph, &values, 2, false), computed(&graph, &values, 1, true), meaning(&fused, &values)]
    {
        let (error, off) = far(&got);
        assert!(off <= wanted.data.len() / 50, "{off} of {} differ, by {error:e}", wanted.data.len());
    }
    // Without 8-bit products nothing changes.
    let plain = optimise(graph, &Target::PLAIN).unwrap();
    assert!(!plain.nodes.iter().any(|n| matches!(n.op, Op::Unary(Unary::Snap(..)))));
}
