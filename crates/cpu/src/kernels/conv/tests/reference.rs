//! The plain meaning of a convolution in f64, and the same case run by the plans.

use super::super::*;
use super::Draw;
use crate::act::Act;

/// Tensors for one convolution: parts, normalisation and epilogue included.
pub(super) struct Case {
    dims: ConvDims,
    /// Channels, stride and values of each part.
    parts: Vec<(usize, usize, Vec<f32>)>,
    coef: Option<(Vec<f32>, Act)>,
    weights: Vec<f32>,
    dy: Vec<f32>,
    bias: [Option<Vec<f32>>; 2],
    per_sample: bool,
    residual: [Option<Vec<f32>>; 2],
    act: Act,
    out_stride: usize,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<_> = self.parts.iter().map(|p| (p.0, p.1)).collect();
        write!(f, "parts {parts:?}, pre {:?}, act {:?}", self.coef.as_ref().map(|c| c.1), self.act)
    }
}

fn act(act: Act, x: f64) -> f64 {
    match act {
        Act::Identity => x,
        Act::Silu => x / (1.0 + (-x).exp()),
        Act::Relu => x.max(0.0),
        Act::LeakyRelu(slope) => {
            if x > 0.0 {
                x
            } else {
                x * slope as f64
            }
        }
        other => unreachable!("{other:?} is not drawn"),
    }
}

fn draw_act(draw: &mut Draw) -> Act {
    [Act::Identity, Act::Silu, Act::Relu, Act::LeakyRelu(0.2)][draw.within(0, 3)]
}

/// The relative error in the Euclidean norm.
pub(super) fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let difference: f64 = got.iter().zip(want).map(|(&g, w)| square(g as f64 - w)).sum();
    let size: f64 = want.iter().map(|&w| square(w)).sum();
    (difference / size.max(1e-12)).sqrt()
}

impl Case {
    pub fn new(dims: &ConvDims, draw: &mut Draw) -> Case {
        let pixels = |size: [usize; 3]| dims.n * size.iter().product::<usize>();
        let (inputs, outputs) = (pixels(dims.input), pixels(dims.output));
        let mut parts = Vec::new();
        let mut left = dims.c;
        while left > 0 {
            let c = if parts.len() == 3 || draw.one_in(2) { left } else { draw.within(1, left) };
            let stride = c + draw.within(0, 3) * draw.within(0, 1);
            parts.push((c, stride, draw.values(inputs * stride)));
            left -= c;
        }
        let mut maybe = |len: usize| if draw.one_in(2) { Some(draw.values(len)) } else { None };
        let bias = [maybe(dims.n * dims.k), maybe(dims.n * dims.c)];
        let residual = [maybe(outputs * dims.k), maybe(inputs * dims.c)];
        let coef = maybe(2 * dims.n * dims.c);
        Case {
            dims: *dims,
            parts,
            coef: coef.map(|c| (c, draw_act(draw))),
            weights: draw.values(dims.k * dims.kernel.iter().product::<usize>() * dims.c / dims.groups),
            dy: draw.values(outputs * dims.k),
            bias,
            per_sample: draw.one_in(2),
            residual,
            act: draw_act(draw),
            out_stride: draw.within(0, 5),
        }
    }

    fn source(&self) -> Source {
        let parts: Vec<Part> = self
            .parts
            .iter()
            .map(|(channels, stride, data)| Part {
                data: data.as_ptr(),
                channels: *channels,
                stride: *stride,
            })
            .collect();
        Source::new(&parts, self.coef.as_ref().map(|(c, act)| Pre { coef: c.as_ptr(), act: *act }))
    }

    fn epilogue(&self, which: usize) -> Epilogue {
        Epilogue {
            bias: self.bias[which].as_ref().map(|b| b.as_ptr()),
            bias_per_sample: self.per_sample,
            residual: self.residual[which].as_ref().map(|r| r.as_ptr()),
            act: self.act,
        }
    }

    /// The concatenated, normalised input.
    fn input(&self) -> Vec<f64> {
        let d = &self.dims;
        let per_sample: usize = d.input.iter().product();
        let mut z = Vec::new();
        for pixel in 0..d.n * per_sample {
            let mut channel = 0;
            for (c, stride, data) in &self.parts {
                for x in &data[pixel * stride..][..*c] {
                    let mut x = *x as f64;
                    if let Some((coef, a)) = &self.coef {
                        let at = 2 * (pixel / per_sample) * d.c + channel;
                        x = act(*a, x * coef[at] as f64 + coef[at + d.c] as f64);
                    }
                    z.push(x);
                    channel += 1;
                }
            }
        }
        z
    }

    /// Calls `f(input pixel, output pixel, tap)` for each pair that a tap joins.
    fn pairs(&self, mut f: impl FnMut(usize, usize, usize)) {
        let d = &self.dims;
        let flat = |n: usize, p: [usize; 3], size: [usize; 3]| {
            ((n * size[0] + p[0]) * size[1] + p[1]) * size[2] + p[2]
        };
        let count = |size: [usize; 3]| size.iter().product::<usize>();
        let unflat = |i: usize, size: [usize; 3]| [i / size[2] / size[1], i / size[2] % size[1], i % size[2]];
        for n in 0..d.n {
            for o in 0..count(d.output) {
                let out = unflat(o, d.output);
                for t in 0..count(d.kernel) {
                    let tap = unflat(t, d.kernel);
                    let at: [isize; 3] = std::array::from_fn(|a| {
                        (out[a] * d.stride[a] + tap[a] * d.dilation[a]) as isize - d.pad[a] as isize
                    });
                    if (0..3).all(|a| (0..d.input[a] as isize).contains(&at[a])) {
                        f(flat(n, at.map(|x| x as usize), d.input), flat(n, out, d.output), t);
                    }
                }
            }
        }
    }

    /// Calls `f(k, c, c of the group)` for each pair of channels.
    fn channels(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (cg, kg) = (self.dims.c / self.dims.groups, self.dims.k / self.dims.groups);
        for k in 0..self.dims.k {
            (0..cg).for_each(|c| f(k, k / kg * cg + c, c));
        }
    }

    fn finish(&self, y: &mut [f64], which: usize, channels: usize, pixels: usize) {
        for (i, v) in y.iter_mut().enumerate() {
            let (pixel, c) = (i / channels, i % channels);
            let row = if self.per_sample { pixel / pixels * channels } else { 0 };
            let bias = self.bias[which].as_ref().map_or(0.0, |b| b[row + c] as f64);
            *v = act(self.act, *v + bias) + self.residual[which].as_ref().map_or(0.0, |r| r[i] as f64);
        }
    }

    pub fn forward(&self) -> Vec<f64> {
        let d = &self.dims;
        let (z, taps) = (self.input(), d.kernel.iter().product::<usize>());
        let mut y = vec![0.0; d.n * d.output.iter().product::<usize>() * d.k];
        self.pairs(|i, o, t| {
            self.channels(|k, c, cg| {
                y[o * d.k + k] +=
                    z[i * d.c + c] * self.weights[(k * taps + t) * (d.c / d.groups) + cg] as f64;
            });
        });
        self.finish(&mut y, 0, d.k, d.output.iter().product());
        y
    }

    pub fn input_grad(&self) -> Vec<f64> {
        let d = &self.dims;
        let taps = d.kernel.iter().product::<usize>();
        let mut dx = vec![0.0; d.n * d.input.iter().product::<usize>() * d.c];
        self.pairs(|i, o, t| {
            self.channels(|k, c, cg| {
                let w = self.weights[(k * taps + t) * (d.c / d.groups) + cg];
                dx[i * d.c + c] += self.dy[o * d.k + k] as f64 * w as f64;
            });
        });
        self.finish(&mut dx, 1, d.c, d.input.iter().product());
        dx
    }

    pub fn weight_grad(&self) -> Vec<f64> {
        let d = &self.dims;
        let (z, taps) = (self.input(), d.kernel.iter().product::<usize>());
        let mut dw = vec![0.0; self.weights.len()];
        self.pairs(|i, o, t| {
            self.channels(|k, c, cg| {
                dw[(k * taps + t) * (d.c / d.groups) + cg] += z[i * d.c + c] * self.dy[o * d.k + k] as f64;
            });
        });
        dw
    }

    fn run(
        &self,
        cpu: &Cpu,
        plan: &ConvPlan,
        source: &Source,
        which: usize,
        channels: usize,
        size: [usize; 3],
    ) -> Vec<f32> {
        let pixels = self.dims.n * size.iter().product::<usize>();
        let stride = channels + self.out_stride;
        let mut packed = vec![f32::NAN; plan.packed_len];
        let mut workspace = vec![f32::NAN; plan.workspace_len];
        let mut out = vec![7.5; pixels * stride];
        // SAFETY: the tensors of a case have the shapes of its dimensions.
        unsafe {
            plan.pack(cpu, self.weights.as_ptr(), &mut packed);
            plan.run(cpu, source, &packed, &self.epilogue(which), out.as_mut_ptr(), stride, &mut workspace);
        }
        for pixel in out.chunks(stride) {
            assert!(pixel[channels..].iter().all(|&x| x == 7.5), "a write between pixels: {:?}", self.dims);
        }
        out.chunks(stride).flat_map(|p| &p[..channels]).copied().collect()
    }

    /// The forward convolution and both gradients, by what is chosen or by `choice`.
    pub fn run_all(&self, cpu: &Cpu, choice: Option<Choice>) -> [Vec<f32>; 3] {
        let (dims, level, threads) = (&self.dims, cpu.level, cpu.pool.threads());
        let plan = |direction: Direction| match choice {
            Some(choice) => ConvPlan::new(choice, dims, direction, level, threads),
            None if direction == Direction::Forward => ConvPlan::forward(dims, level, threads),
            None => ConvPlan::input_grad(dims, level, threads),
        };
        let weights = match choice {
            Some(choice) => WeightGradPlan::with(choice, dims, level, threads),
            None => WeightGradPlan::new(dims, level, threads),
        };
        let y = self.run(cpu, &plan(Direction::Forward), &self.source(), 0, dims.k, dims.output);
        let dy = Source::plain(self.dy.as_ptr(), dims.k);
        let dx = self.run(cpu, &plan(Direction::InputGrad), &dy, 1, dims.c, dims.input);
        let mut workspace = vec![f32::NAN; weights.workspace_len];
        let mut dw = vec![f32::NAN; self.weights.len()];
        // SAFETY: the tensors of a case have the shapes of its dimensions.
        unsafe { weights.run(cpu, &self.source(), self.dy.as_ptr(), dw.as_mut_ptr(), &mut workspace) };
        [y, dx, dw]
    }
}
