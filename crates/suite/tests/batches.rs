//! An image's result is the same bits alone or in a batch: random graphs with the gradients of their images, and
//! guided sampling with a network. The networks' own outputs and gradients are in `networks.rs`.
//!
//! Sums over a whole batch, such as the gradients of weights, cannot be, and are left out.

use clearshot_diffusion::guide::{Discrepancy, Measurement, NormAdaptive, Proximal};
use clearshot_diffusion::noise::Tile;
use clearshot_diffusion::precondition::{Preconditioned, Prediction};
use clearshot_diffusion::sampler::{Churn, heun};
use clearshot_diffusion::step_graph::Setup;
use clearshot_diffusion::{Condition, Guide, Law, Levels, Sampler, Start};
use clearshot_graph::grad::grad;
use clearshot_graph::ops::{Geometry, PadMode, PoolKind, ResizeMode, Unary};
use clearshot_graph::{Builder, Graph, Type, Value};
use clearshot_nn::models::unet2d::{UNet2DConfig, network};
use clearshot_nn::weights;
use clearshot_physics::{Boundary, Correlation, Electrons, Forward, Likelihood, Map, Operator, Psf, Scale};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{MAX_RANK, Shape, Tensor};

const BATCHES: [usize; 3] = [1, 4, 7];
const GRAPHS: u64 = 120;
/// Operations of one graph.
const LENGTH: usize = 7;
/// Larger images are not built upon.
const MOST_VALUES: usize = 40_000;

/// A graph while it is drawn: what is drawn does not depend on the batch.
struct Drawing {
    b: Builder,
    key: Key,
    at: u64,
    batch: usize,
    /// Shapes and scales of the parameters, named by their number.
    params: Vec<(Shape, f32)>,
    images: Vec<Value>,
    x: Value,
}

impl Drawing {
    fn new(seed: u64, batch: usize) -> Drawing {
        let (mut b, key) = (Builder::new(), Key { seed, step: 0, stream: 0 });
        let x = b.scalar(0.0);
        let mut d = Drawing { b, key, at: 0, batch, params: vec![], images: vec![], x };
        let side = |d: &mut Drawing| d.pick(&[4, 5, 8, 12, 16, 23, 32]);
        let shape = [batch, side(&mut d), side(&mut d), d.pick(&[1, 2, 3, 8, 16, 17, 32, 48])];
        d.x = d.b.input("x", Type::f32(shape));
        d
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        self.at += 1;
        from[(f64::from(self.key.uniform(self.at)) * from.len() as f64) as usize % from.len()]
    }

    fn param(&mut self, shape: impl Into<Shape>, scale: f32) -> Value {
        let shape = shape.into();
        self.params.push((shape, scale));
        self.b.param(&format!("p{}", self.params.len() - 1), shape)
    }

    fn conv(&mut self, x: Value, kernel: usize, stride: usize, k: usize) -> Value {
        let c = self.b.channels(x);
        let scale = 1.0 / ((c * kernel * kernel) as f32).sqrt();
        let weight = self.param([k, kernel, kernel, c], scale);
        let bias = self.pick(&[true, false]).then(|| self.param([k], 0.3));
        self.b.conv(x, weight, bias, Geometry::new(2, stride, kernel / 2))
    }

    /// What an operation makes of an image.
    fn step(&mut self, x: Value) -> Value {
        let shape = self.b.shape(x);
        let [n, h, w, c] = [shape[0], shape[1], shape[2], shape[3]];
        let next = self.pick(&[0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        // Nothing is made of fewer than four pixels along an axis.
        match if h.min(w) < 8 && [5, 8].contains(&next) { 4 } else { next } {
            0 => {
                let kernel = self.pick(&[1, 3, 3, 3, 5]);
                let stride = if h.min(w) >= 8 { self.pick(&[1, 1, 2]) } else { 1 };
                let k = self.pick(&[1, 2, 4, 5, 16, 24, 64, 70]);
                self.conv(x, kernel, stride, k)
            }
            1 => {
                let groups = if c % 2 == 0 { self.pick(&[1, 2]) } else { 1 };
                let (gamma, beta) = (self.param([c], 1.0), self.param([c], 0.5));
                let y = self.b.group_norm(x, gamma, beta, groups, 1e-5);
                self.b.silu(y)
            }
            2 => {
                // A linear layer of a vector of each image, as embeddings go through.
                let mean = self.b.mean(x, &[1, 2]);
                let row = self.b.reshape(mean, [n, c]);
                let hidden = self.pick(&[7, 64, 130]);
                let (up, down) = (self.param([hidden, c], 0.4), self.param([c, hidden], 0.2));
                let bias = self.param([hidden], 0.3);
                let row = self.b.linear(row, up, Some(bias));
                let row = self.b.silu(row);
                let row = self.b.linear(row, down, None);
                let row = self.b.reshape(row, [n, 1, 1, c]);
                self.b.add(x, row)
            }
            3 => {
                let rows = self.b.reshape(x, [n, h * w, c]);
                let heads = if c % 2 == 0 { self.pick(&[1, 2]) } else { 1 };
                let y = self.b.attention(rows, rows, rows, heads, None);
                self.b.reshape(y, shape)
            }
            4 => self.b.resize(x, ResizeMode::Nearest, [1, 2 * h, 2 * w]),
            5 => self.b.resize(x, ResizeMode::Linear, [1, h + 1, w.div_ceil(2)]),
            6 => {
                let mode = self.pick(&[PadMode::Zero, PadMode::Reflect, PadMode::Edge, PadMode::Wrap]);
                let mut pad = [[0; 2]; MAX_RANK];
                (pad[1], pad[2]) = ([1, 2], [0, 1]);
                self.b.pad(x, pad, mode)
            }
            7 => {
                let kernel = self.param([h, w], 1.0 / (h * w) as f32);
                self.b.cyclic_conv(x, kernel, false)
            }
            8 => {
                let kind = self.pick(&[PoolKind::Average, PoolKind::Max]);
                self.b.pool(x, kind, [1, 2, 2], Geometry::new(2, 2, 0))
            }
            9 => {
                let square = self.b.unary(Unary::Square, x);
                let mean = self.b.mean(square, &[1, 2, 3]);
                let size = self.b.add_scalar(mean, 0.1);
                let size = self.b.unary(Unary::Sqrt, size);
                self.b.div(x, size)
            }
            10 => {
                let first = self.images[0];
                match self.b.shape(first)[1..3] == shape[1..3] {
                    true => self.b.concat_channels(&[first, x]),
                    false => self.b.softmax(x),
                }
            }
            11 => {
                let (gamma, beta) = (self.param([c], 1.0), self.param([c], 0.5));
                self.b.layer_norm(x, gamma, beta, 1e-5)
            }
            _ => {
                let f = self.pick(&[Unary::Gelu, Unary::Tanh, Unary::Softplus, Unary::Sin]);
                self.b.unary(f, x)
            }
        }
    }

    fn finish(mut self) -> (Graph, Vec<(Shape, f32)>) {
        self.images.push(self.x);
        let mut x = self.x;
        for _ in 0..LENGTH {
            let next = self.step(x);
            if self.b.shape(next).len() / self.batch <= MOST_VALUES {
                x = next;
                self.images.push(next);
            }
        }
        let dy = self.b.input("dy", Type::f32(self.b.shape(x)));
        let dx = grad(&mut self.b, x, Some(dy), &[self.x]).unwrap()[0];
        self.b.output("y", x);
        self.b.output("dx", dx);
        (self.b.finish().unwrap(), self.params)
    }
}

fn normal(shape: Shape, scale: f32, seed: u64, stream: u32) -> Vec<f32> {
    let mut values = vec![0.0; shape.len()];
    Key { seed, step: 1, stream }.fill_normal(0, &mut values);
    values.iter_mut().for_each(|v| *v *= scale);
    values
}

/// Output and gradient of the first images of a graph's seed, image by image.
fn images_of(seed: u64, batch: usize) -> Vec<[Vec<u32>; 2]> {
    let (graph, params) = Drawing::new(seed, batch).finish();
    let mut session = compile(graph.clone(), &Device::cpu(Some(2)), &Options::default()).unwrap();
    for (i, (shape, scale)) in params.into_iter().enumerate() {
        let values = normal(shape, scale, seed, i as u32);
        session.set(&format!("p{i}"), &Tensor::f32(shape, values)).unwrap();
    }
    for (name, v) in graph.inputs() {
        let shape = graph.ty(v).shape;
        let one = shape.with(0, 1);
        let stream = |image: usize| 1000 + 2 * image as u32 + u32::from(name == "dy");
        let values = (0..batch).flat_map(|i| normal(one, 1.0, seed, stream(i))).collect();
        session.set(name, &Tensor::f32(shape, values)).unwrap();
    }
    session.run().unwrap();
    let outputs = ["y", "dx"].map(|name| session.get(name).unwrap());
    (0..batch)
        .map(|i| {
            outputs.each_ref().map(|t| {
                let each = t.shape().len() / batch;
                t.as_f32().unwrap()[i * each..(i + 1) * each].iter().map(|v| v.to_bits()).collect()
            })
        })
        .collect()
}

#[test]
fn random_graphs_do_not_see_the_images_beside_them() {
    for seed in 0..GRAPHS {
        let [alone, four, seven] = BATCHES.map(|batch| images_of(seed, batch));
        for (batch, few) in [(1, alone), (4, four)] {
            for (i, image) in few.iter().enumerate() {
                for (what, (a, b)) in ["y", "dx"].iter().zip(image.iter().zip(&seven[i])) {
                    let graph = || Drawing::new(seed, batch).finish().0;
                    assert!(a == b, "seed {seed}: {what} of image {i} of {batch} and of 7\n{}", graph());
                }
            }
        }
    }
}

const SIDE: usize = 16;

/// Samples of the first images of a batch, each with its own measurement and seed.
fn sampled(law: Law, batch: usize) -> Vec<Vec<u32>> {
    let config = UNet2DConfig {
        in_channels: 1,
        block_out_channels: vec![16, 32],
        down_block_types: vec!["DownBlock2D".into(), "AttnDownBlock2D".into()],
        up_block_types: vec!["AttnUpBlock2D".into(), "UpBlock2D".into()],
        attention_head_dim: Some(8),
        norm_num_groups: 4,
        ..network("small").unwrap()
    };
    let network = config.resolve().unwrap();
    let parameters = network.parameters().unwrap();
    let psf = Psf::gaussian(&[1.0, 1.3]).unwrap().cropped([9, 9]).unwrap();
    let forward = Forward {
        operator: Operator::blur([SIDE, SIDE], &psf, Boundary::Reflect).unwrap(),
        scale: Scale::symmetric(Electrons(0.0), Electrons(40.0)).unwrap(),
        exposure: 1.0,
        background: Map::Uniform(2.0),
        read_noise: Map::Uniform(1.2),
        correlation: Correlation::WHITE,
        likelihood: Likelihood::ShiftedPoisson,
    };
    let guide = Guide::new(forward, law).unwrap();
    let prediction = Prediction::Edm { sigma_data: 0.5 };
    let denoiser = guide.clone().guides(Preconditioned { network, prediction, learned_variance: false });
    let levels = Levels::karras([0.02, 5.0], 7.0, 4).unwrap();
    let program = heun(&levels, &Churn { amount: 2.0, range: [0.0, f64::INFINITY], noise: 1.0 }).unwrap();
    let shape = Shape::from([batch, SIDE, SIDE, 1]);
    let (none, setup, device) = (Condition::default(), Setup::default(), Device::cpu(Some(2)));
    let mut sampler =
        Sampler::compile(Builder::new(), &denoiser, &none, shape, program, setup, &device).unwrap();
    for (name, value) in weights::initial(&parameters, 3) {
        sampler.set(&name, &value).unwrap();
    }
    let one = Shape::from([SIDE * SIDE]);
    let counts: Vec<Vec<f64>> = (0..batch)
        .map(|i| normal(one, 8.0, 5, i as u32).iter().map(|v| f64::from(v.abs().round())).collect())
        .collect();
    let planes: Vec<Measurement> =
        counts.iter().map(|y| Measurement { y: Electrons(y), valid: None }).collect();
    for (name, value) in guide.inputs(shape, &planes).unwrap() {
        sampler.set(&name, &value).unwrap();
    }
    let tiles: Vec<Tile> = (0..batch as u64).map(|i| Tile::whole(100 + i)).collect();
    let x = sampler.run(Start::Noise, &tiles).unwrap();
    let values = x.as_f32().unwrap();
    values.chunks(SIDE * SIDE).map(|c| c.iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn guided_sampling_does_not_see_the_images_beside_it() {
    let laws = [
        Law::Proximal(Proximal { iterations: 3, ..Proximal::new(0.5) }),
        Law::SigmaSquared { kappa: 0.01 },
        Law::NormAdaptive(NormAdaptive { lambda: 0.05, eps: 1e-3, warm_up: [1.0, -0.5] }),
        Law::Discrepancy(Discrepancy::default()),
        Law::Through { kappa: 0.01 },
    ];
    for law in laws {
        let [alone, four, seven] = BATCHES.map(|batch| sampled(law, batch));
        assert!(alone[..] == seven[..1] && four[..] == seven[..4], "{law:?}");
        assert_ne!(seven[0], seven[1], "images differ");
    }
}
