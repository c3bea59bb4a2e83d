//! Every way of our own to do a convolution, not only the one that is fastest, against fp64 and against itself. Passes and says
//! so where there is no GPU.

use super::warpgroup::{self, Call};
use super::{Kernel, Node, Sizes};
use super::{direct, few, narrow};
use crate::context::Context;
use crate::lower::Math;
use crate::lower::trial::{check, rounded, run, values};
use clearshot_graph::Type;
use clearshot_graph::ops::conv::SideOperands;
use clearshot_graph::ops::int8::{Grid, WholeWeight};
use clearshot_graph::ops::{Geometry, Unary};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape};
use std::sync::Arc;

/// A convolution of some pixels along a side on an image of h x w, which it may see upsampled, or halve.
#[derive(Clone, Copy, Debug)]
struct Case {
    n: usize,
    c: usize,
    k: usize,
    h: usize,
    w: usize,
    upsample: bool,
    side: usize,
    stride: usize,
}

impl Case {
    fn scale(&self) -> usize {
        if self.upsample { 2 } else { 1 }
    }

    fn sizes(&self, dtype: DType) -> Sizes {
        let seen = [1, self.h * self.scale(), self.w * self.scale()];
        Sizes {
            dims: 2,
            n: self.n,
            c: self.c,
            k: self.k,
            input: seen,
            output: [1, seen[1] / self.stride, seen[2] / self.stride],
            kernel: [1, self.side, self.side],
            geometry: Geometry::new(2, self.stride, self.pad()),
            dtype,
        }
    }

    fn pad(&self) -> usize {
        (self.side - 1) / 2
    }

    /// Calls with the places of every product: in the result, in the image, in the weights without channels.
    fn each(&self, mut product: impl FnMut(usize, usize, usize)) {
        let (h, w, f) = (self.h * self.scale(), self.w * self.scale(), self.scale());
        let (rows, columns, pad) = (h / self.stride, w / self.stride, self.pad());
        let pixels = |h: usize, w: usize| (0..h).flat_map(move |y| (0..w).map(move |x| (y, x)));
        for (n, (y, x)) in (0..self.n).flat_map(|n| pixels(rows, columns).map(move |p| (n, p))) {
            for (dy, dx) in pixels(self.side, self.side) {
                let (sy, sx) = (y * self.stride + dy, x * self.stride + dx);
                if (pad..h + pad).contains(&sy) && (pad..w + pad).contains(&sx) {
                    let (sy, sx) = ((sy - pad) / f, (sx - pad) / f);
                    let from = (n * self.h + sy) * self.w + sx;
                    product((n * rows + y) * columns + x, from, dy * self.side + dx);
                }
            }
        }
    }

    fn forward(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        let taps = self.side * self.side;
        let mut y = vec![0.0; self.sizes(DType::F32).rows() * self.k];
        self.each(|to, from, tap| {
            for k in 0..self.k {
                let weights = &w[(k * taps + tap) * self.c..][..self.c];
                let pixel = &x[from * self.c..][..self.c];
                y[to * self.k + k] += weights.iter().zip(pixel).map(|(a, b)| a * b).sum::<f64>();
            }
        });
        y
    }

    fn input_grad(&self, dy: &[f64], w: &[f64]) -> Vec<f64> {
        let mut dx = vec![0.0; self.n * self.h * self.w * self.c];
        self.each(|from, to, tap| {
            for k in 0..self.k {
                let d = dy[from * self.k + k];
                let weights = &w[(k * 9 + tap) * self.c..][..self.c];
                dx[to * self.c..][..self.c].iter_mut().zip(weights).for_each(|(s, w)| *s += d * w);
            }
        });
        dx
    }

    fn weight_grad(&self, x: &[f64], dy: &[f64]) -> Vec<f64> {
        let mut dw = vec![0.0; self.k * 9 * self.c];
        self.each(|at, from, tap| {
            for k in 0..self.k {
                let d = dy[at * self.k + k];
                let pixel = &x[from * self.c..][..self.c];
                dw[(k * 9 + tap) * self.c..][..self.c].iter_mut().zip(pixel).for_each(|(s, x)| *s += d * x);
            }
        });
        dw
    }
}

fn numbers(seed: u64, count: usize, size: f32) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut values);
    values.iter().map(|v| v * size).collect()
}

/// What matrix units should make of fp32: the nearest number of 10 bits behind the first.
fn as_tf32(values: &[f64]) -> Vec<f64> {
    let nearest = |v: f64| f64::from(f32::from_bits(((v as f32).to_bits() + 0x1000) & !0x1FFF));
    values.iter().map(|v| nearest(*v)).collect()
}

#[test]
fn every_tile_is_right_and_repeats_itself() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    let case = |n, c, k, h, w, upsample| Case { n, c, k, h, w, upsample, side: 3, stride: 1 };
    let halving = |n, c, k, h, w, side| Case { n, c, k, h, w, upsample: false, side, stride: 2 };
    let cases = [
        case(2, 64, 128, 16, 16, false),
        case(1, 72, 136, 19, 37, false),
        case(2, 48, 48, 17, 9, false),
        case(1, 96, 192, 8, 40, false),
        case(3, 8, 64, 5, 3, false),
        case(2, 128, 64, 9, 13, true),
        case(1, 40, 136, 16, 24, true),
        case(2, 2, 128, 21, 18, false),
        halving(2, 64, 128, 36, 30, 3),
        halving(1, 72, 48, 20, 14, 3),
        halving(1, 256, 64, 16, 16, 3),
        halving(2, 48, 96, 38, 22, 2),
        halving(1, 136, 192, 16, 10, 2),
    ];
    let mut right = true;
    // First all kernels are asked for, and compiled side by side.
    let types = [DType::BF16, DType::F16, DType::F32];
    for (dtype, asked) in [false, true].into_iter().flat_map(|a| types.map(|t| (t, a))) {
        // Products are exact but for rounding at the end; phases' weights are rounded once more.
        let [unit, of_phases] = match dtype {
            DType::BF16 => [2.5e-3, 5e-3],
            DType::F16 => [4e-4, 8e-4],
            _ => [1e-5, 4e-4],
        };
        let is_tf32 = dtype == DType::F32;
        for (i, case) in cases.into_iter().enumerate().filter(|(_, case)| !is_tf32 || case.c % 4 == 0) {
            let s = case.sizes(dtype);
            let limit = if case.upsample { of_phases } else { unit };
            let seed = 10 * i as u64;
            let (x_bytes, x) = rounded(dtype, &numbers(seed, s.in_rows() / case.scale().pow(2) * s.c, 1.0));
            let (w_bytes, w) = rounded(dtype, &numbers(seed + 1, s.weight_len(), 0.1));
            let (x, w) = if is_tf32 { (as_tf32(&x), as_tf32(&w)) } else { (x, w) };
            let bias_type = if i % 2 == 0 { DType::F32 } else { dtype };
            let (bias_bytes, bias) = rounded(bias_type, &numbers(seed + 2, s.n * s.k, 1.0));
            let (dy_bytes, dy) = rounded(dtype, &numbers(seed + 3, s.rows() * s.k, 1.0));
            let image = Shape::new(&[s.n, case.h, case.w, s.c]);
            let large = Shape::new(&[s.n, s.output[1], s.output[2], s.k]);
            let ty = |shape| Type { dtype, shape };
            let node = |x: Vec<Type>, y| Node { cx: &cx, math: Math { tf32: is_tf32 }, x, y };
            let weight = ty(Shape::new(&[s.k, case.side, case.side, s.c]));
            // Images here are so small that it is not worth holding weights.
            let tiles = |n: &Node<'_>, call: &Call| {
                let some = warpgroup::tiles(n, &s, call);
                some.iter()
                    .flat_map(|t| [Some(*t), t.holding(&s, call), t.holding_less(&s, call)])
                    .flatten()
                    .collect::<Vec<_>>()
            };
            let call = Call {
                parts: 1,
                weight: 1,
                scales: None,
                offsets: None,
                bias: None,
                residual: None,
                side: None,
                by_sample: false,
                act: None,
                transposed: false,
                first: 0,
                channels: s.k,
                upsample: case.upsample,
            };
            let mut compare = |name: String, kernel: Kernel, inputs: &[Vec<u8>], truth: &[f64]| {
                if !asked {
                    return;
                }
                let name = format!("{dtype} {case:?} {name}");
                let got = run(&cx, &kernel, inputs, &[truth.len() * dtype.bytes()], &name);
                right &= check(&name, "result", &values(dtype, &got[0]), truth, limit);
            };

            let plain = case.forward(&x, &w);
            let outs = [ty(large)];
            let bias_of_samples = Type { dtype: bias_type, shape: Shape::new(&[s.n, s.k]) };
            let n = node(vec![ty(image), weight, bias_of_samples, ty(large)], &outs);
            for (i, tile) in tiles(&n, &call).into_iter().enumerate() {
                let kernel = warpgroup::forward(&n, &s, call, tile).unwrap();
                compare(format!("{tile:?}"), kernel, &[x_bytes.clone(), w_bytes.clone()], &plain);
                let act = [Unary::Silu, Unary::Relu, Unary::LeakyRelu(0.2)][(i + s.k / 8) % 3];
                let full = Call { bias: Some(2), residual: Some(3), by_sample: true, act: Some(act), ..call };
                let kernel = warpgroup::forward(&n, &s, full, tile).unwrap();
                let pixels = s.output.iter().product::<usize>();
                let truth: Vec<f64> = plain
                    .iter()
                    .enumerate()
                    .map(|(i, v)| (i, v + bias[i / (pixels * s.k) * s.k + i % s.k]))
                    .map(|(i, v)| act.value(v) + dy[i])
                    .collect();
                let inputs = [x_bytes.clone(), w_bytes.clone(), bias_bytes.clone(), dy_bytes.clone()];
                compare(format!("{tile:?} to its end, {act:?}"), kernel, &inputs, &truth);
            }

            assert!(!tiles(&n, &call).is_empty());
            if s.c < 8 || case.stride == 2 || is_tf32 {
                continue;
            }
            let whole = case.input_grad(&dy, &w);
            // Some of the channels, where they begin at a multiple of 8.
            let first = if case.upsample || s.c < 24 { 0 } else { 8 };
            let back = Call { transposed: true, first, channels: s.c - first, ..call };
            let part: Vec<f64> = whole.chunks(s.c).flat_map(|row| row[first..].to_vec()).collect();
            let outs = [ty(image.with(3, s.c - first))];
            let n = node(vec![ty(large), weight], &outs);
            for tile in tiles(&n, &back) {
                let kernel = warpgroup::forward(&n, &s, back, tile).unwrap();
                let name = format!("{tile:?} input's gradient");
                compare(name, kernel, &[dy_bytes.clone(), w_bytes.clone()], &part);
            }

            let outs = [weight];
            let n = node(vec![ty(image), ty(large)], &outs);
            let kernel = warpgroup::weight_grad(&n, &s, 1, case.upsample).unwrap();
            let truth = case.weight_grad(&x, &dy);
            compare("weight's gradient".into(), kernel, &[x_bytes.clone(), dy_bytes.clone()], &truth);
        }
    }
    assert!(right, "see above");
}

/// Operands of 8 bits: the image, the weight, scales and offsets, as bytes, and what the products are of.
struct Eighths {
    bytes: [Vec<u8>; 4],
    x: Vec<f64>,
    w: Vec<f64>,
    scales: Vec<f64>,
}

impl Eighths {
    fn floats(s: &Sizes, seed: u64) -> Eighths {
        let (x_bytes, x) = rounded(DType::F8, &numbers(seed, s.in_rows() * s.c, 1.0));
        let (w_bytes, w) = rounded(DType::F8, &numbers(seed + 1, s.weight_len(), 80.0));
        let scale_of = |v: &f32| 0.1 / 80.0 * f32::exp2(v.round());
        let scales: Vec<f32> = numbers(seed + 2, s.k, 1.5).iter().map(scale_of).collect();
        let (scale_bytes, scales) = rounded(DType::F32, &scales);
        Eighths { bytes: [x_bytes, w_bytes, scale_bytes, vec![0; 16 * s.k * 4]], x, w, scales }
    }

    /// With steps and zeros of each channel of the image.
    fn whole(s: &Sizes, seed: u64) -> Eighths {
        let c = s.c;
        let grids: Vec<Grid> =
            (0..c).map(|i| Grid::between(-0.3 - 0.25 * (i % 9) as f32, 2.0 + 0.1 * (i % 7) as f32)).collect();
        let steps: Vec<f32> =
            grids.iter().map(|g| g.step).chain(grids.iter().map(|g| g.zero.into())).collect();
        let weight = numbers(seed + 1, s.weight_len(), 0.03);
        let made = WholeWeight::new(&weight, s.k, &steps);
        let q: Vec<u8> = numbers(seed, s.in_rows() * c, 1.0)
            .iter()
            .enumerate()
            .map(|(i, v)| grids[i % c].round(*v))
            .collect();
        // Beyond the image there is nothing, not its zeros.
        let x = q.iter().enumerate().map(|(i, q)| f64::from(*q) - f64::from(grids[i % c].zero)).collect();
        let w = made.values.iter().map(|p| f64::from(*p)).collect();
        let (scale_bytes, scales) = rounded(DType::F32, &made.scales);
        let offsets = made.offsets.iter().flat_map(|o| o.to_ne_bytes()).collect();
        let values = made.values.iter().map(|p| *p as u8).collect();
        Eighths { bytes: [q, values, scale_bytes, offsets], x, w, scales }
    }
}

/// e4m3 or whole numbers with a scale of each channel, results and residuals of 16 bits. Matrix units keep about 14 bits of a sum of e4m3, and
/// all of a sum of whole numbers.
#[test]
fn every_tile_of_8_bits_is_right_and_repeats_itself() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    if !cx.gpu.has_eighths() {
        return eprintln!("skipped: a card of compute capability {:?}", cx.gpu.capability);
    }
    let _turn = cx.turn();
    let case = |n, c, k, h, w| Case { n, c, k, h, w, upsample: false, side: 3, stride: 1 };
    let cases = [
        case(2, 128, 128, 16, 16),
        case(1, 144, 136, 19, 37),
        case(2, 48, 48, 17, 9),
        case(1, 256, 192, 8, 40),
        case(3, 16, 64, 5, 3),
        case(1, 1024, 128, 16, 16),
    ];
    let mut right = true;
    let halves = |of: [DType; 2], limits: [f64; 2]| [DType::BF16, DType::F16].map(|t| (of, t, limits));
    let kinds =
        [halves([DType::F8, DType::F8], [4e-3, 4e-3]), halves([DType::U8, DType::I8], [2.2e-3, 3e-4])];
    let turns = [false, true].into_iter().flat_map(|a| kinds.into_iter().flatten().map(move |k| (k, a)));
    for (([of_x, of_w], dtype, limits), asked) in turns {
        let limit = limits[usize::from(dtype == DType::F16)];
        for (i, case) in cases.into_iter().enumerate() {
            let s = case.sizes(of_x);
            let seed = 100 + 10 * i as u64;
            let is_whole = of_x == DType::U8;
            let eighths = if is_whole { Eighths::whole(&s, seed) } else { Eighths::floats(&s, seed) };
            let Eighths { bytes: [x_bytes, w_bytes, scale_bytes, offset_bytes], x, w, scales } = eighths;
            let (bias_bytes, bias) = rounded(DType::F32, &numbers(seed + 3, s.n * s.k, 1.0));
            let (added_bytes, added) = rounded(dtype, &numbers(seed + 4, s.rows() * s.k, 1.0));
            let of = |dtype, shape: &[usize]| Type { dtype, shape: Shape::new(shape) };
            let result = of(dtype, &[s.n, case.h, case.w, s.k]);
            let x_types = vec![
                of(of_x, &[s.n, case.h, case.w, s.c]),
                of(of_w, &[s.k, 3, 3, s.c]),
                of(DType::F32, &[s.k]),
                of(DType::F32, &[s.n, s.k]),
                result,
                of(dtype, &[s.n, case.h, case.w, 72]),
                of(dtype, &[s.n, case.h, case.w, 40]),
                of(dtype, &[s.k, 1, 1, 112]),
                of(dtype, &[s.k]),
                of(DType::I32, &[16, s.k]),
            ];
            let outs = [result];
            let n = Node { cx: &cx, math: Math { tf32: false }, x: x_types, y: &outs };
            let plain = Call {
                parts: 1,
                weight: 1,
                scales: Some(2),
                offsets: is_whole.then_some(9),
                bias: None,
                residual: None,
                side: None,
                by_sample: false,
                act: None,
                transposed: false,
                first: 0,
                channels: s.k,
                upsample: false,
            };
            let full =
                Call { bias: Some(3), residual: Some(4), by_sample: true, act: Some(Unary::Silu), ..plain };
            let beside = Call {
                side: Some(warpgroup::Side::new(&n, SideOperands { first: 5, weight: 7, bias: Some(8) })),
                ..plain
            };
            assert!(plain.is_taken(&n) && full.is_taken(&n));
            assert!(beside.is_taken(&n));
            let sides =
                [(72, 5), (40, 6)].map(|(c, at)| rounded(dtype, &numbers(seed + at, s.rows() * c, 1.0)));
            let (side_w_bytes, side_w) = rounded(dtype, &numbers(seed + 7, s.k * 112, 0.1));
            let (side_bias_bytes, side_bias) = rounded(dtype, &numbers(seed + 8, s.k, 1.0));
            let sums: Vec<f64> =
                case.forward(&x, &w).iter().enumerate().map(|(i, v)| v * scales[i % s.k]).collect();
            let pixels = s.rows() / s.n;
            let ended = |(i, v): (usize, &f64)| {
                let v = v + bias[i / (pixels * s.k) * s.k + i % s.k];
                v / (1.0 + (-v).exp()) + added[i]
            };
            let ended: Vec<f64> = sums.iter().enumerate().map(ended).collect();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let with_sides = |(i, v): (usize, &f64)| {
                let (row, k) = (i / s.k, i % s.k);
                let (first, second) = side_w[k * 112..][..112].split_at(72);
                let side =
                    dot(&sides[0].1[row * 72..][..72], first) + dot(&sides[1].1[row * 40..][..40], second);
                v + side + side_bias[k]
            };
            let with_sides: Vec<f64> = sums.iter().enumerate().map(with_sides).collect();
            let some = warpgroup::tiles(&n, &s, &plain);
            assert!(!some.is_empty());
            // Beside the side's weights too.
            let held = |t: &warpgroup::Tile| [Some(*t), t.holding(&s, &beside)];
            for tile in some.iter().flat_map(held).flatten() {
                for (call, truth, what) in
                    [(plain, &sums, ""), (full, &ended, "to its end"), (beside, &with_sides, "with a side")]
                {
                    let kernel = warpgroup::forward(&n, &s, call, tile).unwrap();
                    if !asked {
                        continue;
                    }
                    let of_sides = [&sides[0].0, &sides[1].0, &side_w_bytes, &side_bias_bytes, &offset_bytes];
                    let inputs: Vec<Vec<u8>> = [&x_bytes, &w_bytes, &scale_bytes, &bias_bytes, &added_bytes]
                        .into_iter()
                        .chain(of_sides)
                        .cloned()
                        .collect();
                    let name = format!("{of_x} to {dtype} {case:?} {tile:?} {what}");
                    let got = run(&cx, &kernel, &inputs, &[truth.len() * dtype.bytes()], &name);
                    right &= check(&name, "result", &values(dtype, &got[0]), truth, limit);
                }
            }
        }
    }
    assert!(right, "see above");
}

/// One pixel on two images, with a bias and a residual.
#[test]
fn two_images_add_up() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    for dtype in [DType::BF16, DType::F32] {
        two_images(&cx, dtype);
    }
}

fn two_images(cx: &Arc<Context>, dtype: DType) {
    let is_tf32 = dtype == DType::F32;
    let (n, [c0, c1], k, h, w) = (2, [136, 64], 200, 19, 21);
    let c = c0 + c1;
    let seen = [1, h, w];
    let s = Sizes {
        dims: 2,
        n,
        c,
        k,
        input: seen,
        output: seen,
        kernel: [1; 3],
        geometry: Geometry::new(2, 1, 0),
        dtype,
    };
    let rows = n * h * w;
    let draw = |seed, len, size| rounded(dtype, &numbers(seed, len, size));
    let factor = |seed, len, size| {
        let (bytes, values) = draw(seed, len, size);
        if is_tf32 { (bytes, as_tf32(&values)) } else { (bytes, values) }
    };
    let ((a, a_is), (b, b_is)) = (factor(1, rows * c0, 1.0), factor(2, rows * c1, 1.0));
    let ((weight, w_is), (bias, bias_is)) = (factor(3, k * c, 0.1), draw(4, k, 1.0));
    let (residual, residual_is) = draw(5, rows * k, 1.0);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let truth: Vec<f64> = (0..rows * k)
        .map(|i| {
            let (row, o) = (i / k, i % k);
            let (first, second) = w_is[o * c..][..c].split_at(c0);
            dot(&a_is[row * c0..][..c0], first)
                + dot(&b_is[row * c1..][..c1], second)
                + bias_is[o]
                + residual_is[i]
        })
        .collect();
    let ty = |channels| Type { dtype, shape: Shape::new(&[n, h, w, channels]) };
    let outs = [ty(k)];
    let weight_type = Type { dtype, shape: Shape::new(&[k, 1, 1, c]) };
    let bias_type = Type { dtype, shape: Shape::new(&[k]) };
    let x = vec![ty(c0), ty(c1), weight_type, bias_type, ty(k)];
    let node = Node { cx, math: Math { tf32: is_tf32 }, x, y: &outs };
    let call = Call {
        parts: 2,
        weight: 2,
        scales: None,
        offsets: None,
        bias: Some(3),
        residual: Some(4),
        side: None,
        by_sample: false,
        act: None,
        transposed: false,
        first: 0,
        channels: k,
        upsample: false,
    };
    assert!(call.is_taken(&node));
    let mut right = true;
    let some = warpgroup::tiles(&node, &s, &call);
    for tile in some.iter().flat_map(|t| [Some(*t), t.holding(&s, &call)].into_iter().flatten()) {
        let kernel = warpgroup::forward(&node, &s, call, tile).unwrap();
        let inputs = [a.clone(), b.clone(), weight.clone(), bias.clone(), residual.clone()];
        let name = format!("two images {tile:?}");
        let got = run(cx, &kernel, &inputs, &[truth.len() * dtype.bytes()], &name);
        let limit = if is_tf32 { 1e-5 } else { 2.5e-3 };
        right &= check(&name, "result", &values(dtype, &got[0]), &truth, limit);
    }
    assert!(right, "see above");
}

#[test]
fn few_channels_are_right_on_either_side() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    let case = |n, c, k, h, w| Case { n, c, k, h, w, upsample: false, side: 3, stride: 1 };
    let mut right = true;
    for (case, with_bias) in [
        (case(2, 2, 128, 21, 45), true),
        (case(1, 1, 64, 40, 32), false),
        (case(3, 2, 512, 5, 3), true),
        (case(1, 1, 96, 70, 33), true),
        (case(2, 128, 1, 21, 45), true),
        (case(1, 48, 2, 14, 30), false),
        (case(1, 8, 1, 70, 61), true),
        (case(3, 64, 2, 5, 3), true),
    ] {
        for (dtype, limit) in [(DType::BF16, 2.5e-3), (DType::F16, 4e-4), (DType::F32, 1e-6)] {
            let s = case.sizes(dtype);
            if dtype == DType::F32 && !narrow::takes(&s) {
                continue;
            }
            assert!(few::takes(&s) != narrow::takes(&s));
            let draw = |seed, len, size| rounded(dtype, &numbers(seed, len, size));
            let ((x, x_is), (w, w_is)) = (draw(1, s.in_rows() * s.c, 1.0), draw(2, s.weight_len(), 0.1));
            let (bias, bias_is) = draw(3, s.k, 1.0);
            let mut truth = case.forward(&x_is, &w_is);
            if with_bias {
                truth.iter_mut().enumerate().for_each(|(i, v)| *v += bias_is[i % s.k]);
            }
            let node = Node { cx: &cx, math: Math { tf32: false }, x: vec![], y: &[] };
            let make = if few::takes(&s) { few::forward } else { narrow::forward };
            let kernel = make(&node, &s, 1, with_bias.then_some(2)).unwrap();
            let name = format!("few {dtype} {case:?}");
            let got = run(&cx, &kernel, &[x, w, bias], &[truth.len() * dtype.bytes()], &name);
            right &= check(&name, "result", &values(dtype, &got[0]), &truth, limit);
        }
    }
    assert!(right, "see above");
}

#[test]
fn fp32_without_tensor_cores_is_right_and_repeats_itself() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    let case = |n, c, k, h, w, upsample| Case { n, c, k, h, w, upsample, side: 3, stride: 1 };
    let mut right = true;
    for (i, case) in [
        case(2, 48, 48, 17, 9, false),
        case(1, 96, 48, 8, 40, true),
        case(3, 7, 8, 5, 3, false),
        case(2, 20, 72, 33, 35, false),
        case(1, 64, 136, 16, 64, false),
        case(2, 9, 64, 7, 17, true),
    ]
    .into_iter()
    .enumerate()
    {
        let s = case.sizes(DType::F32);
        if !direct::takes(&cx, &s) {
            return eprintln!("skipped: a card of compute capability {:?}", cx.gpu.capability);
        }
        let (by_sample, with_residual, silu) = (i % 2 == 1, i % 3 != 1, i % 4 < 2);
        let draw = |seed, len, size| rounded(DType::F32, &numbers(seed, len, size));
        let (x, x_is) = draw(1, case.n * case.h * case.w * case.c, 1.0);
        let (w, w_is) = draw(2, s.weight_len(), 0.1);
        let (bias, bias_is) = draw(3, case.n * s.k, 1.0);
        let (residual, residual_is) = draw(4, s.rows() * s.k, 1.0);
        let pixels = s.rows() / s.n;
        let end = |(i, v): (usize, f64)| {
            let sample = if by_sample { i / (pixels * s.k) * s.k } else { 0 };
            let v = v + bias_is[sample + i % s.k];
            let v = if silu { v / (1.0 + (-v).exp()) } else { v };
            v + if with_residual { residual_is[i] } else { 0.0 }
        };
        let truth: Vec<f64> = case.forward(&x_is, &w_is).into_iter().enumerate().map(end).collect();
        let call = direct::Call {
            weight: 1,
            bias: Some(2),
            residual: with_residual.then_some(3),
            by_sample,
            act: silu.then_some(Unary::Silu),
            upsample: case.upsample,
        };
        let vector = Type { shape: Shape::new(&[s.k]), dtype: DType::F32 };
        let node = Node { cx: &cx, math: Math { tf32: false }, x: vec![vector; 4], y: &[] };
        let kernel = direct::forward(&node, &s, call).unwrap();
        let name = format!("direct {case:?}");
        let got = run(&cx, &kernel, &[x, w, bias, residual], &[truth.len() * 4], &name);
        right &= check(&name, "result", &values(DType::F32, &got[0]), &truth, 1e-6);
    }
    assert!(right, "see above");
}
