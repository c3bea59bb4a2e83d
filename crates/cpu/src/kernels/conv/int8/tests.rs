//! Against the meaning, for every instruction set with and without products of bytes, and 1 to 3 threads.

use super::super::tests::Draw;
use super::super::{Part, Pre};
use super::*;
use crate::act::Act;
use clearshot_graph::ops::int8::Grid;
use clearshot_graph::ops::{Bias, Conv, Geometry, Int8, Op};
use clearshot_graph::{Array, ops::Unary};
use clearshot_tensor::Shape;

/// A unit of one rounded value changes a result by more than a thousandth of the largest.
const EXACT: f64 = 2e-6;

struct Case {
    dims: ConvDims,
    /// Channels of each part.
    parts: Vec<usize>,
    dynamic: bool,
    upsample: bool,
    silu: bool,
    bias: Bias,
    residual: bool,
}

fn shape(n: usize, at: [usize; 3], c: usize) -> Shape {
    Shape::from([n, at[0], at[1], at[2], c])
}

fn array(shape: Shape, values: &[f32]) -> Array {
    Array::new(shape, values.iter().map(|x| f64::from(*x)).collect())
}

/// The largest difference over the largest magnitude.
fn error(got: &[f32], wanted: &Array) -> f64 {
    let most = wanted.data.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    got.iter().zip(&wanted.data).fold(0.0, |e: f64, (a, b)| e.max((f64::from(*a) - b).abs())) / most
}

impl Case {
    fn check(&self, draw: &mut Draw) {
        let d = &self.dims;
        let each = if self.upsample { 2 } else { 1 };
        let given = [d.input[0], d.input[1] / each, d.input[2] / each];
        let pixels = d.n * given.iter().product::<usize>();
        let parts: Vec<Vec<f32>> = self.parts.iter().map(|c| draw.values(pixels * c)).collect();
        let weight = draw.values(d.k * d.kernel.iter().product::<usize>() * d.c);
        let bias = draw.values(d.n * d.k);
        let residual = draw.values(d.n * d.output.iter().product::<usize>() * d.k);
        let coef: Vec<f32> = draw.values(2 * d.n * d.c);
        // Channels of different widths, some narrower than their values.
        let grids: Vec<Grid> =
            (0..d.c).map(|c| Grid::between(-0.3 - 0.1 * (c % 9) as f32, 0.05 * (c % 17) as f32)).collect();
        let steps: Vec<f32> =
            grids.iter().map(|g| g.step).chain(grids.iter().map(|g| f32::from(g.zero))).collect();
        let op = Conv {
            bias: self.bias,
            residual: self.residual,
            upsample: self.upsample,
            int8: Some(if self.dynamic { Int8::Dynamic } else { Int8::Static }),
            act: self.silu.then_some(Unary::Silu),
            ..Conv::plain(
                Geometry {
                    stride: d.stride,
                    pad: std::array::from_fn(|a| {
                        let reach = (d.kernel[a] - 1) * d.dilation[a] + 1;
                        let span = (d.output[a] - 1) * d.stride[a] + reach;
                        [d.pad[a], span.saturating_sub(d.input[a] + d.pad[a])]
                    }),
                    dilation: d.dilation,
                    groups: 1,
                },
                false,
            )
        };
        // Upsampling is of planes.
        let image = |n, at: [usize; 3], c| match self.upsample {
            true => Shape::from([n, at[1], at[2], c]),
            false => shape(n, at, c),
        };
        // What the kernel normalises is normalised here for the reference.
        let mut x = vec![];
        for pixel in 0..pixels {
            for (values, c) in parts.iter().zip(&self.parts) {
                x.extend_from_slice(&values[pixel * c..(pixel + 1) * c]);
            }
        }
        if self.silu {
            for (i, v) in x.iter_mut().enumerate() {
                let (n, c) = (i / (pixels / d.n * d.c), i % d.c);
                let at = 2 * n * d.c + c;
                let u = f64::from(*v) * f64::from(coef[at]) + f64::from(coef[at + d.c]);
                *v = (u / (1.0 + (-u).exp())) as f32;
            }
        }
        let operands = [
            Some(array(image(d.n, given, d.c), &x)),
            (!self.dynamic).then(|| array(Shape::from([2, d.c]), &steps)),
            Some(array(image(d.k, d.kernel, d.c), &weight)),
            match self.bias {
                Bias::None => None,
                Bias::Channel => Some(array(Shape::from([d.k]), &bias[..d.k])),
                Bias::Sample => Some(array(Shape::from([d.n, d.k]), &bias)),
            },
            self.residual.then(|| array(image(d.n, d.output, d.k), &residual)),
        ];
        let operands: Vec<&Array> = operands.iter().flatten().collect();
        let wanted = Op::Conv(op).eval(&operands).remove(0);
        let parts: Vec<Part> = parts
            .iter()
            .zip(&self.parts)
            .map(|(p, c)| Part { data: p.as_ptr(), channels: *c, stride: *c })
            .collect();
        let source = Source::new(&parts, self.silu.then_some(Pre { coef: coef.as_ptr(), act: Act::Silu }));
        let mut first: Option<Vec<f32>> = None;
        for level in Level::available() {
            for instruction in [false, true] {
                let products = if instruction { Products::of(level) } else { Products::widened(level) };
                if products.has_instruction() != instruction {
                    continue;
                }
                for threads in 1..=3 {
                    let cpu = Cpu::with_level(threads, level);
                    let how = Reading { dynamic: self.dynamic, upsample: self.upsample };
                    let plan = Int8Plan::with(d, how, level, products);
                    let mut packed = vec![0.0; plan.packed_len];
                    // What was there before must not matter.
                    let mut workspace = vec![f32::NAN; plan.workspace_len];
                    // The residual may be the output itself.
                    let mut out = residual.clone();
                    let epilogue = Epilogue {
                        bias: (self.bias != Bias::None).then_some(bias.as_ptr()),
                        bias_per_sample: self.bias == Bias::Sample,
                        residual: self.residual.then_some(out.as_ptr()),
                        act: if self.silu { Act::Silu } else { Act::Identity },
                    };
                    // SAFETY: all tensors have the sizes of the dimensions.
                    unsafe {
                        let steps = (!self.dynamic).then_some(steps.as_ptr());
                        plan.pack(&cpu, weight.as_ptr(), steps, &mut packed);
                        plan.run(&cpu, &source, &packed, &epilogue, out.as_mut_ptr(), &mut workspace);
                    }
                    let e = error(&out, &wanted);
                    assert!(e <= EXACT, "{level:?} {instruction} {threads} {d:?}: error {e:.2e}");
                    // The whole numbers are the same everywhere; only activations and fused additions round differently.
                    if !self.silu && self.bias == Bias::None {
                        let first = first.get_or_insert_with(|| out.clone());
                        assert!(*first == out, "{level:?} {instruction} {threads} {d:?}: other bits");
                    }
                }
            }
        }
    }
}

#[test]
fn any_convolution_in_8_bits() {
    let mut draw = Draw::new(23);
    for i in 0..60 {
        let mut dims = super::super::tests::random_dims(&mut draw);
        (dims.c, dims.k, dims.groups) = (dims.c.max(2), dims.k, 1);
        let split = draw.within(1, dims.c - 1);
        let parts = if draw.one_in(2) { vec![dims.c] } else { vec![split, dims.c - split] };
        let bias = [Bias::None, Bias::Channel, Bias::Sample][i % 3];
        let (dynamic, silu, residual) = (draw.one_in(3), draw.one_in(3), draw.one_in(2));
        Case { dims, parts, dynamic, upsample: false, silu, bias, residual }.check(&mut draw);
    }
}

/// Deep and wide layers, whole panels and rows of several tiles.
#[test]
fn shapes_of_networks_in_8_bits() {
    let mut draw = Draw::new(29);
    for (n, c, k, size, kernel, stride) in [
        (2, 64, 64, 13, 3, 1),
        (1, 96, 160, 9, 3, 1),
        (1, 64, 96, 12, 2, 2),
        (1, 192, 64, 20, 1, 1),
        (1, 31, 33, 40, 3, 2),
    ] {
        let dims = ConvDims::square(n, size, c, k, kernel, stride, kernel / 2 * (kernel % 2));
        for dynamic in [false, true] {
            let case = Case {
                dims,
                parts: vec![c],
                dynamic,
                upsample: false,
                silu: false,
                bias: Bias::Channel,
                residual: true,
            };
            case.check(&mut draw);
        }
    }
}

#[test]
fn upsampled_in_8_bits() {
    let mut draw = Draw::new(31);
    for (n, c, k, size) in [(2, 20, 24, 6), (1, 64, 64, 14)] {
        let dims = ConvDims::square(n, size, c, k, 3, 1, 1);
        for dynamic in [false, true] {
            let case = Case {
                dims,
                parts: vec![c],
                dynamic,
                upsample: true,
                silu: false,
                bias: Bias::Sample,
                residual: false,
            };
            case.check(&mut draw);
        }
    }
}

/// Values that are not numbers or infinite are rounded to the ends of the grid, on every instruction set.
#[test]
fn what_is_no_number_stays_in_range() {
    let grid = Grid { step: 0.5, zero: 3 };
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 0.25, 0.75, -0.25, 126.0];
    let wanted = values.map(|x| grid.round(x));
    assert_eq!(wanted, [0, 255, 0, 255, 0, 4, 4, 2, 255]);
    let dims = ConvDims::square(1, 3, 1, 1, 1, 1, 0);
    for level in Level::available() {
        let cpu = Cpu::with_level(1, level);
        let plan = Int8Plan::new(&dims, Reading { dynamic: false, upsample: false }, level);
        let (mut packed, mut workspace) = (vec![0.0; plan.packed_len], vec![0.0; plan.workspace_len]);
        let (steps, mut out) = ([grid.step, 3.0], [0.0; 9]);
        // SAFETY: nine pixels of one channel.
        unsafe {
            plan.pack(&cpu, [1.0f32].as_ptr(), Some(steps.as_ptr()), &mut packed);
            let source = Source::plain(values.as_ptr(), 1);
            plan.run(&cpu, &source, &packed, &Epilogue::NONE, out.as_mut_ptr(), &mut workspace);
        }
        let got = out.map(|y| (y / 0.5 + 3.0).round() as u8);
        assert_eq!(got, wanted, "{level:?}");
    }
}
