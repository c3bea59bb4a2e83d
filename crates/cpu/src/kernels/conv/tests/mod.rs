//! Every algorithm against plain sums in f64, on dimensions drawn at random, for every level and
//! 1 to 3 threads, whose results must be the same bits.

mod reference;

use super::*;
use reference::{Case, error};

/// A small generator of our own: tests must draw the same cases everywhere.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Draw {
        Draw(seed)
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    pub(super) fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.next() as usize % (high - low + 1)
    }
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.within(1, n) == 1
    }
    pub(super) fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() as f64 / (1u64 << 30) as f64 - 1.0) as f32).collect()
    }
}

pub(super) fn random_dims(draw: &mut Draw) -> ConvDims {
    let groups = if draw.one_in(4) { draw.within(2, 4) } else { 1 };
    let volume = draw.one_in(4);
    let (most_c, most_k) = (if draw.one_in(2) { 6 } else { 40 }, if draw.one_in(2) { 6 } else { 80 });
    let mut dims = ConvDims {
        n: draw.within(1, 3),
        input: [1; 3],
        c: groups * draw.within(1, most_c),
        output: [1; 3],
        k: groups * draw.within(1, most_k),
        kernel: [1; 3],
        stride: [1; 3],
        pad: [0; 3],
        dilation: [1; 3],
        groups,
    };
    for d in if volume { 0..3 } else { 1..3 } {
        dims.kernel[d] = draw.within(1, if volume { 3 } else { 5 });
        dims.stride[d] = if draw.one_in(2) { 1 } else { draw.within(1, 3) };
        dims.dilation[d] = if draw.one_in(3) { 2 } else { 1 };
        let reach = (dims.kernel[d] - 1) * dims.dilation[d] + 1;
        dims.pad[d] = draw.within(0, reach.min(3));
        dims.input[d] =
            draw.within(reach.saturating_sub(2 * dims.pad[d]).max(1), if volume { 7 } else { 15 });
        let high = draw.within(0, dims.pad[d]);
        let span = (dims.input[d] + dims.pad[d] + high).max(reach);
        dims.output[d] = (span - reach) / dims.stride[d] + 1;
    }
    dims
}

/// Stride 1, 3x3 in the plane: the dimensions that the transforms take.
fn random_three(draw: &mut Draw) -> ConvDims {
    let mut dims = random_dims(draw);
    let depth = if draw.one_in(3) { 3 } else { 1 };
    (dims.kernel, dims.stride, dims.dilation, dims.groups) = ([depth, 3, 3], [1; 3], [1; 3], 1);
    dims.c = draw.within(8, 70);
    dims.k = draw.within(8, 140);
    for d in 0..3 {
        dims.input[d] = if d == 0 { draw.within(1, depth) } else { draw.within(3, 19) };
        dims.pad[d] = if dims.kernel[d] == 1 { 0 } else { draw.within(0, 2) };
        let high = draw.within(if dims.pad[d] == 0 && d == 0 { 2 } else { 0 }, 2);
        dims.output[d] = (dims.input[d] + dims.pad[d] + if dims.kernel[d] == 1 { 0 } else { high } + 1)
            .saturating_sub(dims.kernel[d])
            .max(1);
    }
    dims
}

/// Relative errors of the forward convolution, and of the gradients of input and weights.
const TOLERANCE: [f64; 3] = [1e-5, 1e-5, 2e-5];

fn check(dims: &ConvDims, draw: &mut Draw, levels: impl Iterator<Item = Level>, choices: &[Option<Choice>]) {
    let case = Case::new(dims, draw);
    let wanted = [case.forward(), case.input_grad(), case.weight_grad()];
    for level in levels {
        let contexts: Vec<_> = (1..=3).map(|threads| Cpu::with_level(threads, level)).collect();
        for choice in choices {
            let runs: Vec<_> = contexts.iter().map(|cpu| case.run_all(cpu, *choice)).collect();
            for (i, what) in ["forward", "input_grad", "weight_grad"].into_iter().enumerate() {
                let e = error(&runs[0][i], &wanted[i]);
                assert!(e <= TOLERANCE[i], "{what} {level:?} {choice:?} {dims:?} {case:?}: error {e:.2e}");
                assert!(
                    runs.iter().all(|r| r[i] == runs[0][i]),
                    "{what} {level:?} {choice:?} {dims:?} depends on threads"
                );
            }
        }
    }
}

#[test]
fn any_convolution() {
    let mut draw = Draw(7);
    for _ in 0..100 {
        let dims = random_dims(&mut draw);
        check(&dims, &mut draw, Level::available(), &[None]);
    }
}

#[test]
fn three_by_three_by_each_algorithm() {
    let mut draw = Draw(11);
    for _ in 0..20 {
        let dims = random_three(&mut draw);
        let choices = [Choice::Implicit, Choice::Winograd2, Choice::Winograd4].map(Some);
        check(&dims, &mut draw, Level::available(), &choices);
    }
}

#[test]
fn pointwise() {
    let mut draw = Draw(13);
    for c in [40, 64] {
        let dims = ConvDims::square(2, 11, c, c, 1, 1, 0);
        check(&dims, &mut draw, Level::available(), &[None]);
    }
}

/// Depthwise convolutions and small groups: channels in and out of each, kernels, strides, dilations, volumes.
#[test]
fn small_groups() {
    let mut draw = Draw(29);
    let plane =
        |kernel, stride, dilation| ([1, kernel, kernel], [1, stride, stride], [1, dilation, dilation]);
    for (groups, c, k, size, (kernel, stride, dilation)) in [
        (24, 1, 1, 11, plane(3, 1, 1)),
        (72, 1, 1, 14, plane(5, 2, 1)),
        (96, 1, 1, 9, plane(7, 1, 1)),
        (20, 1, 1, 17, plane(3, 1, 4)),
        (33, 1, 1, 150, ([1, 1, 3], [1, 1, 2], [1; 3])),
        (6, 1, 4, 10, plane(3, 2, 1)),
        (9, 4, 4, 10, plane(3, 1, 1)),
        (5, 7, 3, 9, plane(3, 1, 2)),
        (11, 20, 2, 5, plane(1, 1, 1)),
        (18, 1, 1, 7, ([3; 3], [1; 3], [1; 3])),
        (12, 2, 2, 8, ([3, 3, 3], [2, 1, 2], [1, 2, 1])),
    ] {
        let pad: [usize; 3] = std::array::from_fn(|d| (kernel[d] - 1) * dilation[d] / 2);
        let input = if kernel[0] > 1 { [size / 2 + 1, size, size] } else { [1, size.min(12), size] };
        let reach = |d: usize| (kernel[d] - 1) * dilation[d] + 1;
        let output = std::array::from_fn(|d| (input[d] + 2 * pad[d] - reach(d)) / stride[d] + 1);
        let (c, k) = (groups * c, groups * k);
        let dims = ConvDims { n: 2, input, c, output, k, kernel, stride, pad, dilation, groups };
        assert_eq!(Algo::choose(&dims, Direction::Forward, Level::Portable), Choice::Grouped);
        check(&dims, &mut draw, Level::available(), &[None]);
    }
}

/// Deep and wide layers, which take their own ways: many channels, few outputs, long rows.
#[test]
fn shapes_of_networks() {
    let mut draw = Draw(17);
    for (n, c, k, size) in [
        (1, 256, 192, 8),
        (2, 48, 512, 6),
        (1, 512, 256, 4),
        (1, 2, 64, 40),
        (1, 64, 1, 40),
        (1, 16, 16, 150),
    ] {
        let dims = ConvDims::square(n, size, c, k, 3, 1, 1);
        let choices = if size > 8 { vec![None] } else { vec![Some(Choice::Winograd4)] };
        check(&dims, &mut draw, std::iter::once(Level::detect()), &choices);
    }
}
