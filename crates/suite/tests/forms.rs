//! Every form that convolutions, products and norms can have once something was fused into them, against the
//! interpreter: forms that no network of ours has are as right as the others. On the CPU, and where there is a GPU, on it
//! in fp32, bf16 and fp16.

use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_graph::ops::{Bias, Conv, ConvInputGrad, Geometry, Int8, MatMul, Norm, NormGrad, Op, Unary};
use clearshot_graph::passes::eighths::{self, Eighth};
use clearshot_graph::passes::int8::steps;
use clearshot_graph::passes::{Target, precision};
use clearshot_graph::reference::{self, run};
use clearshot_graph::{Array, Builder, Graph, Type, Value};
use clearshot_runtime::{CompileError, Device, Options, Precision, compile};
use clearshot_suite::report::relative_error;
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape};
use std::collections::BTreeMap;

/// One graph of many nodes, each an output of its own: what they need is compiled side by side.
struct Forms {
    target: Target,
    b: Builder,
    values: BTreeMap<String, Array>,
}

impl Forms {
    fn new(target: Target) -> Forms {
        Forms { target, b: Builder::new(), values: BTreeMap::new() }
    }

    /// An operand of normal values, exact in 16 bits.
    fn operand(&mut self, shape: impl Into<Shape>, scale: f64) -> Value {
        let (shape, name) = (shape.into(), format!("x{}", self.values.len()));
        let key = Key { seed: 5, step: 0, stream: self.values.len() as u32 };
        let exact = |x: f32| f64::from((x * 32.0).round() / 32.0);
        let data = (0..shape.len()).map(|i| scale * exact(key.normal(i as u64))).collect();
        self.values.insert(name.clone(), Array::new(shape, data));
        self.b.input(&name, Type::f32(shape))
    }

    /// A node whose results are outputs under its own description; nothing where the device has no kernels for it.
    fn form(&mut self, op: Op, inputs: Vec<Value>) {
        if self.target.lacks(&op).is_some() {
            return;
        }
        let name = format!("{op:?} of {} channels", self.b.channels(inputs[0]));
        for (i, y) in self.b.push(op, inputs).into_iter().enumerate() {
            self.b.output(&format!("{name}, result {i}"), y);
        }
    }

    fn finish(self) -> (Graph, BTreeMap<String, Array>) {
        (self.b.finish().unwrap(), self.values)
    }
}

const ACTIVATIONS: [Option<Unary>; 3] = [None, Some(Unary::Silu), Some(Unary::Relu)];
const BOTH: [bool; 2] = [false, true];
const WEIGHTS: f64 = 0.125;

fn convolutions(target: Target, channels: &[(usize, usize)]) -> Forms {
    let mut f = Forms::new(target);
    let (n, h, w) = (2, 12, 10);
    for &(c, k) in channels {
        let image = |f: &mut Forms, c| f.operand([n, h, w, c], 1.0);
        let (x, second) = (image(&mut f, c), image(&mut f, 8));
        let (like, large) = (image(&mut f, k), f.operand([n, 2 * h, 2 * w, k], 1.0));
        let (of_channels, of_samples) = (f.operand([k], 1.0), f.operand([n, k], 1.0));
        for (side, parts, upsample) in
            [(3, 1, false), (3, 2, false), (1, 1, false), (1, 2, false), (3, 1, true)]
        {
            let weight = f.operand([k, side, side, if parts == 2 { c + 8 } else { c }], WEIGHTS);
            for bias in [Bias::None, Bias::Channel, Bias::Sample] {
                for (act, residual) in ACTIVATIONS.iter().flat_map(|a| BOTH.map(|r| (*a, r))) {
                    let geometry = Geometry::new(2, 1, side / 2);
                    let op = Conv { upsample, parts, bias, act, residual, ..Conv::plain(geometry, false) };
                    let mut inputs = if parts == 2 { vec![x, second] } else { vec![x] };
                    inputs.push(weight);
                    match bias {
                        Bias::None => {}
                        Bias::Channel => inputs.push(of_channels),
                        Bias::Sample => inputs.push(of_samples),
                    }
                    if residual {
                        inputs.push(if upsample { large } else { like });
                    }
                    f.form(Op::Conv(op), inputs);
                }
            }
        }
        for side in [1, 3] {
            let weight = f.operand([k, side, side, c], WEIGHTS);
            let geometry = Geometry::new(2, 1, side / 2);
            for part in [[0, c], [c / 2, c / 2]] {
                let (bias_of, residual_of) = (f.operand([part[1]], 1.0), image(&mut f, part[1]));
                for (bias, residual) in BOTH.iter().flat_map(|b| BOTH.map(|r| (*b, r))) {
                    for act in ACTIVATIONS {
                        let input = [1, h, w];
                        let upsample = false;
                        let op =
                            ConvInputGrad { geometry, upsample, input, channels: part, bias, act, residual };
                        let mut inputs = vec![like, weight];
                        inputs.extend(bias.then_some(bias_of));
                        inputs.extend(residual.then_some(residual_of));
                        f.form(Op::ConvInputGrad(op), inputs);
                    }
                }
            }
        }
    }
    f
}

/// Of few channels and of one, on volumes and planes, in steps of 1 and 2, and transposed.
fn of_few_channels(target: Target) -> Forms {
    let mut f = Forms::new(target);
    let acts = [None, Some(Unary::LeakyRelu(0.2)), Some(Unary::Relu)];
    for (dims, c, k, step) in
        [(3, 16, 8, 1), (3, 8, 24, 2), (3, 1, 16, 2), (3, 1, 1, 1), (2, 32, 64, 1), (2, 1, 32, 1)]
    {
        let image = |f: &mut Forms, size: usize, c: usize| match dims {
            3 => f.operand([2, size, size + 2, size + 4, c], 1.0),
            _ => f.operand([2, 2 * size, 3 * size, c], 1.0),
        };
        // Sizes that steps of 2 halve.
        let (x, second, like) = (image(&mut f, 4, c), image(&mut f, 4, 8), image(&mut f, 4 / step, k));
        let like = if step == 2 { f.operand([2, 2, 3, 4, k], 1.0) } else { like };
        let bias_of = f.operand([k], 1.0);
        for parts in [1, 2] {
            let seen = if parts == 2 { c + 8 } else { c };
            let weight = match dims {
                3 => f.operand([k, 3, 3, 3, seen], WEIGHTS),
                _ => f.operand([k, 3, 3, seen], WEIGHTS),
            };
            for (act, residual) in acts.iter().flat_map(|a| BOTH.map(|r| (*a, r))) {
                let geometry = Geometry::new(dims, step, 1);
                let bias = if residual { Bias::Channel } else { Bias::None };
                let op = Conv { parts, bias, act, residual, ..Conv::plain(geometry, false) };
                let mut inputs = if parts == 2 { vec![x, second, weight] } else { vec![x, weight] };
                inputs.extend(residual.then_some([bias_of, like]).into_iter().flatten());
                f.form(Op::Conv(op), inputs);
            }
        }
    }
    for (c, k, side) in [(16, 32, 2), (1, 16, 3), (8, 24, 3)] {
        let dy = f.operand([2, 3, 4, 5, k], 1.0);
        let weight = f.operand([k, side, side, side, c], WEIGHTS);
        let (bias_of, like) = (f.operand([c], 1.0), f.operand([2, 6, 8, 10, c], 1.0));
        for (act, residual) in acts.iter().flat_map(|a| BOTH.map(|r| (*a, r))) {
            let geometry = Geometry::new(3, 2, side / 3);
            let (upsample, input, channels, bias) = (false, [6, 8, 10], [0, c], residual);
            let op = ConvInputGrad { geometry, upsample, input, channels, bias, act, residual };
            let mut inputs = vec![dy, weight];
            inputs.extend(residual.then_some([bias_of, like]).into_iter().flatten());
            f.form(Op::ConvInputGrad(op), inputs);
        }
    }
    f
}

fn products(target: Target) -> Forms {
    let mut f = Forms::new(target);
    for [batch, m, k, n] in [[1, 40, 64, 24], [3, 17, 10, 7]] {
        let (bias_of, like) = (f.operand([n], 1.0), f.operand([batch, m, n], 1.0));
        for (transpose_a, transpose_b) in BOTH.iter().flat_map(|a| BOTH.map(|b| (*a, b))) {
            let a = f.operand(if transpose_a { [batch, k, m] } else { [batch, m, k] }, 1.0);
            let b = f.operand(if transpose_b { [batch, n, k] } else { [batch, k, n] }, WEIGHTS);
            for (bias, residual) in BOTH.iter().flat_map(|b| BOTH.map(|r| (*b, r))) {
                for act in ACTIVATIONS {
                    let mut inputs = vec![a, b];
                    inputs.extend(bias.then_some(bias_of));
                    inputs.extend(residual.then_some(like));
                    f.form(Op::MatMul(MatMul { transpose_a, transpose_b, bias, act, residual }), inputs);
                }
            }
        }
    }
    f
}

fn norms(target: Target) -> Forms {
    let mut f = Forms::new(target);
    let (n, h, w) = (2, 16, 12);
    // The second part's channels share a group with the first's.
    for (first, second, groups) in [(64, 32, 8), (20, 4, 4), (6, 3, 3)] {
        let parts_of = [f.operand([n, h, w, first], 1.0), f.operand([n, h, w, second], 1.0)];
        let addends_of = [f.operand([n, h, w, first], 1.0), f.operand([n, h, w, second], 1.0)];
        for parts in [1, 2] {
            let c = if parts == 2 { first + second } else { first };
            if c % groups != 0 {
                continue;
            }
            let [gamma, beta, bias_of] = [f.operand([c], 1.0), f.operand([c], 1.0), f.operand([n, c], 0.5)];
            let [scale, shift] = [f.operand([n, c], 0.25), f.operand([n, c], 1.0)];
            let dy = f.operand([n, h, w, c], 1.0);
            for (film, bias) in BOTH.iter().flat_map(|f| BOTH.map(|b| (*f, b))) {
                for act in ACTIVATIONS {
                    let norm = Norm { groups, eps: 1e-5, parts, film, act, rounded: false, bias };
                    let mut affine = vec![gamma, beta];
                    affine.extend(if film { vec![scale, shift] } else { vec![] });
                    let bias_of = bias.then_some(bias_of);
                    let mut inputs = parts_of[..parts].to_vec();
                    inputs.extend(affine.iter().copied().chain(bias_of));
                    f.form(Op::Norm(norm), inputs);
                    let stats_inputs = parts_of[..parts].iter().copied().chain(bias_of).collect();
                    if target.lacks(&Op::NormStats(norm)).is_some() {
                        continue;
                    }
                    let stats = f.b.push_one(Op::NormStats(norm), stats_inputs);
                    // Relu's slope jumps where rounding may decide.
                    if act == Some(Unary::Relu) {
                        continue;
                    }
                    for addends in 0..1u8 << parts {
                        let mut inputs = parts_of[..parts].to_vec();
                        inputs.push(stats);
                        inputs.extend(&affine);
                        inputs.push(dy);
                        inputs.extend((0..parts).filter(|p| addends >> p & 1 == 1).map(|p| addends_of[p]));
                        inputs.extend(bias_of);
                        f.form(Op::NormGrad(NormGrad { norm, addends }), inputs);
                    }
                }
            }
        }
    }
    f
}

/// Sums whose parts cancel are compared beside this.
const SMALL: f64 = 1e-2;

fn check(forms: impl Fn(Target) -> Forms) {
    let mut engines = vec![(Device::cpu(None), clearshot_cpu::TARGET, Precision::F32, 2e-5)];
    match Device::cuda(0) {
        Ok(gpu) => {
            let precisions = [(Precision::F32, 2e-5), (Precision::Bf16, 1e-2), (Precision::F16, 1.5e-3)];
            engines
                .extend(precisions.map(|(precision, limit)| (gpu, clearshot_cuda::TARGET, precision, limit)));
        }
        Err(why) => eprintln!("skipped: forms on a GPU: {why}"),
    }
    for (device, target, precision, limit) in engines {
        let (graph, values) = forms(target).finish();
        let truth = run(&graph, &mut values.clone(), reference::Precision::F64).unwrap();
        let mut session =
            compile(graph.clone(), &device, &Options { optimise: false, budget: None, precision })
                .unwrap_or_else(|e| panic!("{precision}: {e}"));
        values.iter().for_each(|(name, v)| session.set(name, &v.to_tensor(DType::F32)).unwrap());
        session.run().unwrap();
        let (mut worst, mut wrong) = ((0.0, ""), vec![]);
        for (name, truth) in &truth {
            let error = relative_error(&session.get(name).unwrap().to_f64(), &truth.data, SMALL);
            if error >= limit {
                wrong.push(format!("{name}, {precision}: {error:.1e}"));
            }
            worst = if error > worst.0 { (error, name) } else { worst };
        }
        eprintln!("{} results, {precision}: at most {:.1e}, {}", truth.len(), worst.0, worst.1);
        assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}

#[test]
fn every_convolution() {
    check(|target| convolutions(target, &[(64, 64), (48, 48)]));
}

#[test]
fn every_convolution_of_odd_channels() {
    check(|target| convolutions(target, &[(6, 48), (10, 4)]));
}

/// Behind norms, of parameters: what a GPU has in 8 bits. The truth is what the graph says after rounding, by the interpreter.
#[test]
fn every_convolution_of_floats_of_8_bits() {
    in_8_bits(Eighth::Float, Precision::Fp8);
}

#[test]
fn every_convolution_of_whole_numbers() {
    in_8_bits(Eighth::Whole, Precision::Int8);
}

/// Every form of a convolution of 3 x 3 pixels behind a norm; of whole numbers each input channel has a grid of its own.
fn in_8_bits(of: Eighth, asked: Precision) {
    let is_whole = of == Eighth::Whole;
    let mut f = Forms::new(Target { whole: is_whole, ..clearshot_cuda::TARGET });
    let mut weights = vec![];
    for (c, k) in [(64, 64), (48, 48), (144, 136)] {
        let grids = (0..c).map(|i| Grid::between(-1.0 - 0.2 * (i % 5) as f32, 2.5)).collect();
        let table = Table::from([(String::new(), Rounding::Static(grids))]);
        let steps = if is_whole { steps(&mut f.b, &table)[""] } else { None };
        let (n, h, w) = (2, 12, 10);
        let x = f.operand([n, h, w, c], 1.0);
        let [gamma, beta, like] = [f.operand([c], 1.0), f.operand([c], 1.0), f.operand([n, h, w, k], 1.0)];
        let (of_channels, of_samples) = (f.operand([k], 1.0), f.operand([n, k], 1.0));
        for bias in [Bias::None, Bias::Channel, Bias::Sample] {
            for (act, residual) in [None, Some(Unary::Silu)].iter().flat_map(|a| BOTH.map(|r| (*a, r))) {
                let norm =
                    Norm { groups: 8, eps: 1e-5, parts: 1, film: false, act, rounded: false, bias: false };
                let normed = f.b.push(Op::Norm(norm), vec![x, gamma, beta])[0];
                let name = format!("w{}", weights.len());
                let weight = f.b.param(&name, [k, 3, 3, c]);
                weights.push((name, Shape::from([k, 3, 3, c])));
                let int8 = is_whole.then_some(Int8::Static);
                let op = Conv { bias, act, residual, int8, ..Conv::plain(Geometry::new(2, 1, 1), false) };
                let mut inputs = vec![normed];
                inputs.extend(steps);
                inputs.push(weight);
                match bias {
                    Bias::None => {}
                    Bias::Channel => inputs.push(of_channels),
                    Bias::Sample => inputs.push(of_samples),
                }
                inputs.extend(residual.then_some(like));
                f.form(Op::Conv(op), inputs);
            }
        }
    }
    let (graph, mut values) = f.finish();
    for (i, (name, shape)) in weights.into_iter().enumerate() {
        let key = Key { seed: 6, step: 0, stream: i as u32 };
        let drawn = (0..shape.len()).map(|i| f64::from(0.05f32 * key.normal(i as u64))).collect();
        values.insert(name, Array::new(shape, drawn));
    }
    let eighth = eighths::convolutions(precision::narrow(graph.clone(), DType::BF16), of);
    eighth.verify("8 bits").unwrap();
    let scaled = eighth.nodes.iter().filter(|n| matches!(&n.op, Op::Conv(c) if c.scaled)).count();
    assert_eq!(scaled, 36);
    let truth = run(&eighth, &mut values.clone(), reference::Precision::Stored).unwrap();
    let exact = run(&graph, &mut values.clone(), reference::Precision::F64).unwrap();
    for (name, truth) in &truth {
        let error = truth.relative_error(&exact[name]);
        // Whole numbers are rounded in both.
        let limit = if is_whole { 6e-3 } else { 5e-2 };
        assert!(error < limit, "{name}: {error:.1e} from what it would be without rounding");
    }
    let device = match Device::cuda(0) {
        Ok(gpu) => gpu,
        Err(why) => return eprintln!("skipped: forms on a GPU: {why}"),
    };
    let options = Options { optimise: false, budget: None, precision: asked };
    let mut session = match compile(graph, &device, &options) {
        Err(CompileError::NoEighths { name, .. }) => return eprintln!("skipped: {name} has no {asked}"),
        session => session.unwrap(),
    };
    values.iter().for_each(|(name, v)| session.set(name, &v.to_tensor(DType::F32)).unwrap());
    session.run().unwrap();
    let mut worst = (0.0, "");
    for (name, truth) in &truth {
        let error = relative_error(&session.get(name).unwrap().to_f64(), &truth.data, SMALL);
        worst = if error > worst.0 { (error, name) } else { worst };
    }
    eprintln!("{} results, {asked}: at most {:.1e}, {}", truth.len(), worst.0, worst.1);
    assert!(worst.0 < 1e-2, "{}: {}", worst.1, worst.0);
}

#[test]
fn every_convolution_of_few_channels() {
    check(of_few_channels);
}

#[test]
fn every_product() {
    check(products);
}

#[test]
fn every_norm() {
    check(norms);
}

#[test]
fn forms_that_a_device_lacks_are_refused() {
    let mut b = Builder::new();
    let (x, w) = (b.input("x", Type::f32([1, 4, 4, 8])), b.input("w", Type::f32([8, 3, 3, 8])));
    let op = Conv { upsample: true, ..Conv::plain(Geometry::new(2, 1, 1), false) };
    let y = b.push_one(Op::Conv(op), vec![x, w]);
    b.output("y", y);
    let graph = b.finish().unwrap();
    let told = compile(graph, &Device::cpu(None), &Options::default()).err().unwrap().to_string();
    assert!(told.contains("the CPU's kernels have no upsampling inside of convolutions"), "{told}");
}
