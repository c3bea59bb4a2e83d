//! Every kernel for few channels on volumes and planes, each tile of it, against fp64 and against itself. Passes and says so where there is
//! no GPU.

use super::{End, Kernel, Node, Sizes, few_out, one_in, volume};
use crate::context::Context;
use crate::lower::Math;
use crate::lower::trial::{check, rounded, run, values};
use clearshot_graph::Type;
use clearshot_graph::ops::{Geometry, Unary};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape};
use std::sync::Arc;

/// A convolution that sees an image [n, size, c], in parts, or transposed, its input's gradient: of an image of k channels.
#[derive(Clone, Copy, Debug)]
struct Case {
    dims: usize,
    n: usize,
    parts: &'static [usize],
    k: usize,
    size: [usize; 3],
    side: usize,
    step: usize,
    pad: [[usize; 2]; 3],
    transposed: bool,
}

/// Of 3 pixels with one around the image.
fn usual(dims: usize, n: usize, parts: &'static [usize], k: usize, size: [usize; 3], step: usize) -> Case {
    let pad = Geometry::new(dims, step, 1).pad;
    Case { dims, n, parts, k, size, side: 3, step, pad, transposed: false }
}

impl Case {
    fn sizes(&self, dtype: DType) -> Sizes {
        let geometry = Geometry::new(self.dims, self.step, 0).with_padding(self.pad);
        let kernel = [if self.dims == 3 { self.side } else { 1 }, self.side, self.side];
        let output = geometry.output(self.size, kernel).unwrap();
        let c = self.parts.iter().sum();
        Sizes { dims: self.dims, n: self.n, c, k: self.k, input: self.size, output, kernel, geometry, dtype }
    }

    /// Calls with the places of every product: in the output, in the input, in the weights without channels.
    fn each(&self, s: &Sizes, mut product: impl FnMut(usize, usize, usize)) {
        let every = |[z, y, x]: [usize; 3]| {
            (0..z).flat_map(move |a| (0..y).flat_map(move |b| (0..x).map(move |c| [a, b, c])))
        };
        let flat = |at: [usize; 3], size: [usize; 3]| (at[0] * size[1] + at[1]) * size[2] + at[2];
        for n in 0..s.n {
            for out in every(s.output) {
                for tap in every(s.kernel) {
                    let at = [0, 1, 2].map(|a| {
                        (out[a] * s.geometry.stride[a] + tap[a])
                            .checked_sub(self.pad[a][0])
                            .filter(|v| *v < s.input[a])
                    });
                    if let [Some(z), Some(y), Some(x)] = at {
                        let places = |size: [usize; 3]| n * size.iter().product::<usize>();
                        let from = places(s.input) + flat([z, y, x], s.input);
                        product(places(s.output) + flat(out, s.output), from, flat(tap, s.kernel));
                    }
                }
            }
        }
    }
}

/// Makes every kernel that takes the case, with a bias and more behind the sums, and runs them where `asked`; whether all are right.
fn is_right(cx: &Arc<Context>, case: Case, dtype: DType, number: usize, asked: bool) -> bool {
    let s = case.sizes(dtype);
    let taps = s.kernel.iter().product::<usize>();
    let numbers = |stream, len, size: f32| {
        let mut all = vec![0.0; len];
        Key { seed: 3, step: number as u32, stream }.fill_normal(0, &mut all);
        rounded(dtype, &all.iter().map(|v| v * size).collect::<Vec<f32>>())
    };
    let (rows, made) = if case.transposed { (s.in_rows(), s.c) } else { (s.rows(), s.k) };
    let parts: &[usize] = if case.transposed { &[case.k] } else { case.parts };
    let read_rows = if case.transposed { s.rows() } else { s.in_rows() };
    let images: Vec<_> = parts.iter().zip(0..).map(|(c, i)| numbers(i, read_rows * c, 1.0)).collect();
    let (weight, w) = numbers(10, s.weight_len(), 0.1);
    let (bias, b) = numbers(11, made, 1.0);
    let (residual, more) = numbers(12, rows * made, 1.0);
    let mut sums = vec![0.0; rows * made];
    case.each(&s, |y, x, tap| {
        if !asked {
            return;
        }
        let (to, from) = if case.transposed { (x, y) } else { (y, x) };
        let mut first = 0;
        for (c, (_, image)) in parts.iter().zip(&images) {
            for k in 0..made {
                for i in 0..*c {
                    let at = match case.transposed {
                        true => (i * taps + tap) * made + k,
                        false => (k * taps + tap) * s.c + first + i,
                    };
                    sums[to * made + k] += image[from * c + i] * w[at];
                }
            }
            first += c;
        }
    });
    let act = [None, Some(Unary::Relu), Some(Unary::LeakyRelu(0.1)), Some(Unary::Silu)][number % 4];
    let (has_bias, has_residual) = (number % 3 != 1, number.is_multiple_of(2));
    let truth: Vec<f64> = (0..sums.len())
        .map(|i| {
            let v = sums[i] + if has_bias { b[i % made] } else { 0.0 };
            act.map_or(v, |a| a.value(v)) + if has_residual { more[i] } else { 0.0 }
        })
        .collect();

    let image = |size: [usize; 3], c: usize| {
        let all = [s.n, size[0], size[1], size[2], c];
        let shape = if case.dims == 3 { Shape::new(&all) } else { Shape::new(&[s.n, size[1], size[2], c]) };
        Type { dtype, shape }
    };
    let (from, to) = if case.transposed { (s.output, s.input) } else { (s.input, s.output) };
    let vector = Type { dtype, shape: Shape::new(&[made]) };
    let mut x: Vec<Type> = parts.iter().map(|c| image(from, *c)).collect();
    x.extend([Type { dtype, shape: Shape::new(&[s.weight_len()]) }, vector, image(to, made)]);
    let outs = [image(to, made)];
    let node = Node { cx, math: Math { tf32: false }, x, y: &outs };
    let at = parts.len();
    let end =
        End { weight: at, bias: has_bias.then_some(at + 1), residual: has_residual.then_some(at + 2), act };
    assert!(end.suits(&node));
    let mut kernels: Vec<(String, Kernel)> = vec![];
    if case.transposed {
        for tile in volume::transposed_tiles(&node, &s) {
            kernels.push((format!("{tile:?}"), volume::transposed(&node, &s, end, tile).unwrap()));
        }
    } else {
        for tile in volume::tiles(&node, &s, parts) {
            kernels.push((format!("{tile:?}"), volume::forward(&node, &s, parts, end, tile).unwrap()));
        }
        if one_in::takes(&node, &s) {
            kernels.push(("one in".into(), one_in::forward(&node, &s, end).unwrap()));
        }
    }
    if parts.len() == 1 && few_out::takes(&s, case.transposed) {
        kernels.push(("few out".into(), few_out::forward(&node, &s, case.transposed, end).unwrap()));
    }
    assert!(!kernels.is_empty(), "{case:?} has no kernel");
    if !asked {
        return true;
    }
    let mut inputs: Vec<Vec<u8>> = images.into_iter().map(|i| i.0).collect();
    inputs.extend([weight, bias, residual]);
    let limit = match dtype {
        DType::BF16 => 2.5e-3,
        DType::F16 => 4e-4,
        _ => 1e-6,
    };
    let mut right = true;
    for (name, kernel) in kernels {
        let name = format!("{dtype} {case:?} {name} {act:?}");
        let got = run(cx, &kernel, &inputs, &[truth.len() * dtype.bytes()], &name);
        right &= check(&name, "result", &values(dtype, &got[0]), &truth, limit);
    }
    right
}

#[test]
fn few_channels_of_volumes_and_planes_are_right_and_repeat_themselves() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    if cx.gpu.capability != (9, 0) {
        return eprintln!("skipped: a card of compute capability {:?}", cx.gpu.capability);
    }
    let halved = |dims, n, c, k, size| Case {
        side: 2,
        pad: [[0; 2]; 3],
        transposed: true,
        ..usual(dims, n, c, k, size, 2)
    };
    let spread = |dims, n, c, k, size| Case { transposed: true, ..usual(dims, n, c, k, size, 2) };
    let cases = [
        usual(3, 2, &[16], 16, [9, 21, 37], 1),
        usual(3, 1, &[16, 8], 24, [5, 9, 40], 1),
        usual(3, 3, &[32, 32], 32, [6, 10, 18], 1),
        usual(3, 2, &[8], 16, [9, 20, 33], 2),
        usual(3, 2, &[32], 64, [8, 18, 18], 2),
        usual(3, 1, &[48], 40, [4, 7, 19], 1),
        usual(3, 1, &[8], 8, [30, 5, 3], 1),
        Case { pad: [[0, 1], [2, 0], [1, 2]], ..usual(3, 1, &[24], 8, [6, 11, 17], 1) },
        usual(2, 3, &[32], 32, [1, 33, 50], 1),
        usual(2, 2, &[64, 64], 64, [1, 20, 31], 1),
        usual(2, 2, &[40], 48, [1, 21, 30], 2),
        halved(3, 2, &[16], 32, [10, 12, 38]),
        halved(3, 1, &[40], 64, [4, 18, 6]),
        halved(2, 2, &[32], 64, [1, 22, 34]),
        usual(3, 2, &[1], 16, [5, 11, 37], 1),
        usual(3, 2, &[1], 8, [9, 12, 50], 2),
        usual(2, 2, &[1], 32, [1, 33, 45], 1),
        usual(2, 1, &[1], 24, [1, 34, 70], 2),
        usual(3, 2, &[1], 1, [5, 9, 33], 1),
        usual(2, 2, &[24], 2, [1, 14, 9], 1),
        Case { side: 1, pad: [[0; 2]; 3], ..usual(2, 2, &[32], 1, [1, 14, 9], 1) },
        Case { side: 1, pad: [[0; 2]; 3], ..usual(3, 1, &[16], 2, [5, 6, 9], 1) },
        spread(3, 2, &[1], 16, [10, 12, 14]),
        spread(3, 1, &[2], 16, [9, 11, 13]),
        spread(2, 2, &[4], 24, [1, 18, 22]),
    ];
    let mut right = true;
    // All programs are asked for before the first is waited for.
    for asked in [false, true] {
        for (number, case) in cases.into_iter().enumerate() {
            for dtype in [DType::BF16, DType::F16] {
                right &= is_right(&cx, case, dtype, number, asked);
            }
            if few_out::takes(&case.sizes(DType::F32), case.transposed) && case.parts.len() == 1 {
                right &= is_right(&cx, case, DType::F32, number, asked);
            }
        }
    }
    assert!(right, "see above");
}
