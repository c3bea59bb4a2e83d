//! Samplers on a device: one graph replayed. Compared with the host, for single images and batches, with known pixels, from
//! intermediate levels, coarse to fine, and with errors.

use clearshot_diffusion::cascade::{self, Anchored, Stage};
use clearshot_diffusion::host::{self, HostEstimate};
use clearshot_diffusion::noise::{BLOCK, Keys, Stream, Tile};
use clearshot_diffusion::precondition::{Clipped, Preconditioned, Prediction};
use clearshot_diffusion::sampler::{
    Churn, Ddim, Ddpm, DpmSolver, Program, Variance, ddim, ddpm, dpm_solver_pp, euler, heun,
};
use clearshot_diffusion::schedule::{BetaLaw, End, Schedule};
use clearshot_diffusion::step_graph::{Noise, NoiseFrom, Replay, Setup, StepGraph, X};
use clearshot_diffusion::{
    ClassifierFree, Condition, Denoiser, Error, Estimate, Level, LevelInputs, Levels, Sampler, Spacing,
    Start, Thresholded,
};
use clearshot_graph::ops::{ResizeMode, Unary};
use clearshot_graph::{Builder, Type, Value};
use clearshot_nn::models::unet2d::{UNet2D, UNet2DConfig, network};
use clearshot_nn::weights;
use clearshot_runtime::{Device, Options, Session, compile};
use clearshot_tensor::{Shape, Tensor};
use std::cell::RefCell;

/// E[x0 | x] where values have mean 0.2 and standard deviation 0.5, bent a little.
fn smooth(x: f64, l: &Level) -> f64 {
    let v = 0.25 / (0.25 + l.ratio().powi(2));
    v * x / l.alpha + (1.0 - v) * 0.2 + 0.05 * v * (2.0 * x / l.alpha).sin()
}

fn smooth_nodes(b: &mut Builder, x: Value, level: &mut LevelInputs, _: &Condition) -> Estimate {
    let weight = |l: &Level| 0.25 / (0.25 + l.ratio().powi(2));
    let gain = level.factor(b, x, "gain", move |l| weight(l) / l.alpha);
    let shift = level.factor(b, x, "shift", move |l| 0.2 * (1.0 - weight(l)));
    let angle = level.factor(b, x, "angle", |l| 2.0 / l.alpha);
    let bend = level.factor(b, x, "bend", move |l| 0.05 * weight(l));
    let (linear, angle) = (b.mul(x, gain), b.mul(x, angle));
    let wave = b.unary(Unary::Sin, angle);
    let wave = b.mul(wave, bend);
    let sum = b.add(linear, wave);
    Estimate::of(b.add(sum, shift))
}

fn schedule() -> Schedule {
    Schedule::new(BetaLaw::SquaredCosine, [0.0; 2], 1000).unwrap()
}

fn compiled(denoiser: &dyn Denoiser, shape: impl Into<Shape>, program: Program, setup: Setup) -> Sampler {
    let (b, none) = (Builder::new(), Condition::default());
    Sampler::compile(b, denoiser, &none, shape, program, setup, &Device::cpu(Some(2))).unwrap()
}

fn programs() -> Vec<(&'static str, Program)> {
    let levels = schedule().levels(Spacing::Trailing, 12, End::Clean).unwrap();
    let edm = Levels::karras([0.01, 20.0], 7.0, 9).unwrap();
    let churn = Churn { amount: 4.0, range: [0.05, 10.0], noise: 1.003 };
    let solver = |order, stochastic| DpmSolver { order, stochastic, ..DpmSolver::default() };
    let large = Ddpm { variance: Variance::FixedLarge, temperature: 0.8 };
    vec![
        ("ddpm", ddpm(&levels, &Ddpm::default()).unwrap()),
        ("ddpm large", ddpm(&levels, &large).unwrap()),
        ("ddim", ddim(&levels, &Ddim::default()).unwrap()),
        ("ddim 0.7", ddim(&levels, &Ddim { eta: 0.7, clipped_direction: false }).unwrap()),
        ("dpm 1", dpm_solver_pp(&levels, &solver(1, false)).unwrap()),
        ("dpm 2", dpm_solver_pp(&levels, &solver(2, false)).unwrap()),
        ("dpm 3", dpm_solver_pp(&levels, &solver(3, false)).unwrap()),
        ("sde 2", dpm_solver_pp(&edm, &solver(2, true)).unwrap()),
        ("euler churn", euler(&edm, &churn).unwrap()),
        ("heun", heun(&edm, &Churn::NONE).unwrap()),
        ("heun churn", heun(&edm, &churn).unwrap()),
    ]
}

fn to_f64(t: &Tensor) -> Vec<f64> {
    t.to_f64()
}

#[test]
fn a_device_walks_as_the_host_does() {
    // Odd sizes: rows of noise are cut, and 3-D has planes.
    for shape in
        [Shape::from([2, 3, 19, 2]), Shape::from([1, 2, 3, 17, 1]), Shape::from([3, 4]), Shape::from([5])]
    {
        let tiles: Vec<Tile> = (0..shape[0] as u64).map(|i| Tile::whole(40 + i)).collect();
        let keys = Keys::new(shape, &tiles).unwrap();
        for (name, program) in programs() {
            let mut sampler = compiled(&smooth_nodes, shape, program.clone(), Setup::default());
            let mut seen = vec![];
            let got = sampler
                .run_watched(Start::Noise, &tiles, |_, session| {
                    seen.push(to_f64(&session.get(X)?));
                    Ok(())
                })
                .unwrap();
            let start = program.start();
            let x = to_f64(&keys.draw(0, Stream::Start)).iter().map(|n| n * start.sigma).collect();
            let denoiser = |x: &[f64], l: &Level| HostEstimate::of(x.iter().map(|&x| smooth(x, l)).collect());
            let noise = |step: usize| to_f64(&keys.draw(step as u32, Stream::Steps));
            let mut call = 0;
            let end = host::run(&program, x, denoiser, noise, |x| {
                let size = x.iter().map(|v| v * v).sum::<f64>().sqrt();
                let off = x.iter().zip(&seen[call]).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                assert!(off <= 2e-5 * size, "{name} {shape} call {call}: {off} of {size}");
                call += 1;
            });
            assert_eq!((end.unwrap().len(), call), (got.shape().len(), seen.len()), "{name}");
        }
    }
}

/// A session that notes what goes in and out.
struct Watched {
    session: Session,
    /// For each run, the values that were set before it.
    set: Vec<usize>,
    largest: RefCell<usize>,
}

impl Replay for Watched {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        *self.set.last_mut().unwrap() += value.shape().len();
        Replay::set(&mut self.session, name, value)
    }

    fn run(&mut self) -> Result<(), Error> {
        self.set.push(0);
        Replay::run(&mut self.session)
    }

    fn get(&self, name: &str) -> Result<Tensor, Error> {
        let value = Replay::get(&self.session, name)?;
        let mut largest = self.largest.borrow_mut();
        *largest = value.shape().len().max(*largest);
        Ok(value)
    }
}

#[test]
fn x_stays_on_the_device_and_a_call_is_one_run() {
    let shape = Shape::from([2, 32, 32, 3]);
    let keys = Keys::new(shape, &[Tile::whole(1), Tile::whole(2)]).unwrap();
    for (name, program) in programs() {
        let none = Condition::default();
        let steps = StepGraph::new(Builder::new(), &smooth_nodes, &none, shape, &program, Setup::default());
        let steps = steps.unwrap();
        let session = compile(steps.graph().clone(), &Device::cpu(Some(1)), &Options::default()).unwrap();
        let mut watched = Watched { session, set: vec![0], largest: RefCell::new(0) };
        let x = keys.draw(0, Stream::Start);
        steps.replay(&mut watched, &program, &x, &Noise::Keys(&keys), |_, _| Ok(())).unwrap();
        assert_eq!(watched.set.len(), program.calls().len() + 1, "{name}");
        // After the first, a call is given its numbers and the keys of its noise: four for a row of 48.
        let most = 2 * 32 * 2 * 4 + 32;
        assert!(watched.set[1..].iter().all(|&n| n <= most), "{name}: {:?}", watched.set);
        assert_eq!(*watched.largest.borrow(), 2, "{name}: one number for each image comes back");
    }
}

#[test]
fn a_tile_sees_the_noise_of_its_place() {
    let whole = Keys::new(Shape::from([1, 9, 53, 2]), &[Tile::whole(3)]).unwrap();
    let tile = Keys::new(Shape::from([1, 4, 20, 2]), &[Tile { seed: 3, origin: [0, 5, 2 * BLOCK] }]).unwrap();
    for (step, stream) in [(0, Stream::Start), (7, Stream::Steps), (7, Stream::Known)] {
        let (large, small) = (to_f64(&whole.draw(step, stream)), to_f64(&tile.draw(step, stream)));
        for (y, x, c) in (0..4).flat_map(|y| (0..20).flat_map(move |x| (0..2).map(move |c| (y, x, c)))) {
            let at = ((y + 5) * 53 + x + 2 * BLOCK) * 2 + c;
            assert_eq!(small[(y * 20 + x) * 2 + c], large[at], "{y} {x} {c}");
        }
    }
    let draws = [(0, Stream::Start), (0, Stream::Steps), (1, Stream::Steps)].map(|(s, t)| whole.draw(s, t));
    assert!(draws[0] != draws[1] && draws[1] != draws[2], "streams and steps differ");
    let n = draws[0].shape().len() as f64;
    let variance = to_f64(&draws[0]).iter().map(|v| v * v).sum::<f64>() / n;
    assert!((variance - 1.0).abs() < 4.0 * (2.0 / n).sqrt(), "{variance}");
    let e = Keys::new(Shape::from([1, 4, 20, 2]), &[Tile { seed: 3, origin: [0, 0, 8] }]).unwrap_err();
    assert!(e.to_string().contains("a multiple of 16"), "{e}");
    assert!(Keys::new(Shape::from([2, 4, 20, 2]), &[Tile::whole(1)]).is_err());
}

fn small_network() -> UNet2D {
    let config = UNet2DConfig {
        in_channels: 1,
        block_out_channels: vec![16, 32],
        down_block_types: vec!["DownBlock2D".into(), "AttnDownBlock2D".into()],
        up_block_types: vec!["AttnUpBlock2D".into(), "UpBlock2D".into()],
        attention_head_dim: Some(16),
        norm_num_groups: 8,
        ..network("small").unwrap()
    };
    config.resolve().unwrap()
}

/// Samples a batch of the small network, image i with seed `seeds[i]`.
fn sampled(program: &Program, seeds: &[u64], threads: usize) -> Tensor {
    let net = small_network();
    let parameters = net.parameters().unwrap();
    let denoiser = Clipped {
        denoiser: Preconditioned { network: net, prediction: Prediction::Noise, learned_variance: false },
        range: [-1.0, 1.0],
    };
    let (none, device) = (Condition::default(), Device::cpu(Some(threads)));
    let shape = [seeds.len(), 20, 36, 1];
    let setup = Setup::default();
    let mut sampler =
        Sampler::compile(Builder::new(), &denoiser, &none, shape, program.clone(), setup, &device).unwrap();
    for (name, value) in weights::initial(&parameters, 11) {
        sampler.set(&name, &value).unwrap();
    }
    let tiles: Vec<Tile> = seeds.iter().map(|&s| Tile::whole(s)).collect();
    sampler.run(Start::Noise, &tiles).unwrap()
}

#[test]
fn an_image_is_the_same_alone_in_a_batch_and_for_any_number_of_threads() {
    let levels = schedule().levels(Spacing::Trailing, 4, End::Clean).unwrap();
    let solver = DpmSolver { stochastic: true, ..DpmSolver::default() };
    for program in [ddpm(&levels, &Ddpm::default()).unwrap(), dpm_solver_pp(&levels, &solver).unwrap()] {
        let seeds = [9, 4, 17];
        let all = sampled(&program, &seeds, 2);
        let image = |t: &Tensor, i: usize| t.as_f32().unwrap()[i * 720..(i + 1) * 720].to_vec();
        for (i, &seed) in seeds.iter().enumerate() {
            assert_eq!(image(&all, i), image(&sampled(&program, &[seed], 1 + i), 0), "image {i}");
        }
        assert_ne!(image(&all, 0), image(&all, 1));
        assert_eq!(all, sampled(&program, &seeds, 1));
        assert_eq!(all, sampled(&program, &seeds, 3));
    }
}

#[test]
fn without_eta_only_the_start_is_random() {
    let levels = schedule().levels(Spacing::Leading { offset: 0 }, 6, End::Clean).unwrap();
    let x = Keys::new(Shape::from([1, 5, 7, 1]), &[Tile::whole(1)]).unwrap().draw(0, Stream::Start);
    let end = |eta: f64, seed: u64| {
        let program = ddim(&levels, &Ddim { eta, clipped_direction: false }).unwrap();
        let mut sampler = compiled(&smooth_nodes, x.shape(), program, Setup::default());
        let first = sampler.run(Start::Given(&x), &[Tile::whole(seed)]).unwrap();
        // A second run forgets the first.
        assert_eq!(first, sampler.run(Start::Given(&x), &[Tile::whole(seed)]).unwrap());
        first
    };
    assert_eq!(end(0.0, 1), end(0.0, 2));
    assert_ne!(end(0.5, 1), end(0.5, 2));
}

#[test]
fn known_pixels_stay_exactly_as_they_are() {
    let shape = Shape::from([2, 6, 18, 1]);
    let n = shape.len();
    let known = Tensor::f32(shape, (0..n).map(|i| (i as f32 * 0.37).sin()).collect());
    let mask = Tensor::f32(shape, (0..n).map(|i| f32::from(u8::from(i % 3 == 0 || i % 18 < 5))).collect());
    let setup = Setup { inpaint: true, ..Setup::default() };
    for (name, program) in programs() {
        let mut sampler = compiled(&smooth_nodes, shape, program, setup);
        sampler.set("known", &known).unwrap();
        sampler.set("mask", &mask).unwrap();
        let got = sampler.run(Start::Noise, &[Tile::whole(1), Tile::whole(2)]).unwrap();
        let (got, known, mask) = (got.as_f32().unwrap(), known.as_f32().unwrap(), mask.as_f32().unwrap());
        for i in 0..n {
            assert_eq!(got[i] == known[i], mask[i] == 1.0, "{name} pixel {i}: {} {}", got[i], known[i]);
        }
    }
}

#[test]
fn known_pixels_inform_the_others() {
    // The mean of each image is all that its prior leaves open: E[x0] = mean over pixels of x.
    let mean = |b: &mut Builder, x: Value, level: &mut LevelInputs, _: &Condition| {
        let shape = b.shape(x);
        let alpha = level.factor(b, x, "one over alpha", |l| 1.0 / l.alpha);
        let mean = b.mean(x, &[1, 2, 3]);
        let mean = b.broadcast(mean, shape);
        Estimate::of(b.mul(mean, alpha))
    };
    let shape = Shape::from([1, 16, 16, 1]);
    let program = ddpm(&Levels::karras([0.01, 20.0], 7.0, 30).unwrap(), &Ddpm::default()).unwrap();
    let mut sampler = compiled(&mean, shape, program, Setup { inpaint: true, ..Setup::default() });
    sampler.set("known", &Tensor::full(shape, 3.0)).unwrap();
    let mask = (0..256).map(|i| f32::from(u8::from(i % 2 == 0))).collect();
    sampler.set("mask", &Tensor::f32(shape, mask)).unwrap();
    let got = sampler.run(Start::Noise, &[Tile::whole(8)]).unwrap();
    let free: Vec<f64> = to_f64(&got).into_iter().skip(1).step_by(2).collect();
    let average = free.iter().sum::<f64>() / free.len() as f64;
    assert!((average - 3.0).abs() < 0.2, "{average}");
}

#[test]
fn sampling_from_an_image_begins_at_its_level() {
    let shape = Shape::from([1, 40, 48, 1]);
    let image = Tensor::full(shape, 0.5);
    let levels = Levels::karras([0.01, 20.0], 7.0, 20).unwrap().starting_below(0.3).unwrap();
    let program = heun(&levels, &Churn::NONE).unwrap();
    assert_eq!(program.start(), levels.start());
    // A denoiser that returns x leaves the start unchanged.
    let same = |_: &mut Builder, x: Value, _: &mut LevelInputs, _: &Condition| Estimate::of(x);
    let mut sampler = compiled(&same, shape, program, Setup::default());
    let x = to_f64(&sampler.run(Start::Image(&image), &[Tile::whole(4)]).unwrap());
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let deviation = (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
    let sigma = levels.start().sigma;
    assert!(sigma <= 0.3 && (mean - 0.5).abs() < 4.0 * sigma / n.sqrt(), "{mean}");
    assert!((deviation / sigma - 1.0).abs() < 4.0 / (2.0 * n).sqrt(), "{deviation} for {sigma}");
    let e = sampler.run(Start::Image(&Tensor::full([1, 2, 2, 1], 0.0)), &[Tile::whole(4)]).unwrap_err();
    assert!(e.to_string().contains("the image to start from"), "{e}");
}

#[test]
fn a_cascade_keeps_what_the_coarse_stage_found() {
    let (coarse, fine) = (Shape::from([2, 6, 10, 1]), Shape::from([2, 12, 20, 1]));
    let levels = Levels::karras([0.01, 20.0], 7.0, 10).unwrap();
    let first = dpm_solver_pp(&levels, &DpmSolver::default()).unwrap();
    let second = heun(&levels.starting_below(2.0).unwrap(), &Churn::NONE).unwrap();
    let anchored = Anchored { denoiser: smooth_nodes, factor: 2 };
    let mut stages = [
        Stage {
            sampler: compiled(&smooth_nodes, coarse, first, Setup::default()),
            factor: 1,
            anchored: false,
        },
        Stage { sampler: compiled(&anchored, fine, second, Setup::default()), factor: 2, anchored: true },
    ];
    let got = cascade::run(&mut stages, ResizeMode::Nearest, &[Tile::whole(1), Tile::whole(2)]).unwrap();
    assert_eq!((got[0].shape(), got[1].shape()), (coarse, fine));
    let (small, large) = (to_f64(&got[0]), to_f64(&got[1]));
    let mut detail = 0.0f64;
    for (n, y, x) in (0..2).flat_map(|n| (0..6).flat_map(move |y| (0..10).map(move |x| (n, y, x)))) {
        let block =
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(i, j)| large[(n * 12 + 2 * y + i) * 20 + 2 * x + j]);
        let mean = block.iter().sum::<f64>() / 4.0;
        assert!((mean - small[(n * 6 + y) * 10 + x]).abs() < 1e-5, "{n} {y} {x}: {mean}");
        detail = detail.max((block[0] - mean).abs());
    }
    assert!(detail > 0.05, "the fine image has detail of its own: {detail}");
    // In 3-D, straight from a coarse image.
    let volume = Shape::from([1, 4, 6, 8, 1]);
    let program = heun(&levels.starting_below(2.0).unwrap(), &Churn::NONE).unwrap();
    let mut sampler = compiled(&anchored, volume, program, Setup::default());
    let small = Tensor::f32([1, 2, 3, 4, 1], (0..24).map(|i| (i as f32).cos()).collect());
    let large = cascade::enlarged(&small, 2, ResizeMode::Nearest, &Device::cpu(Some(1))).unwrap();
    sampler.set(cascade::COARSE, &small).unwrap();
    let got = to_f64(&sampler.run(Start::Image(&large), &[Tile::whole(5)]).unwrap());
    let mut means = vec![0.0; 24];
    for i in 0..192 {
        let (z, y, x) = (i / 48, i / 8 % 6, i % 8);
        means[(z / 2 * 3 + y / 2) * 4 + x / 2] += got[i] / 8.0;
    }
    assert!(means.iter().zip(to_f64(&small)).all(|(a, b)| (a - b).abs() < 1e-5), "{means:?}");
    let odd = Sampler::compile(
        Builder::new(),
        &anchored,
        &Condition::default(),
        [1, 7, 8, 1],
        heun(&levels, &Churn::NONE).unwrap(),
        Setup::default(),
        &Device::cpu(Some(1)),
    );
    assert!(odd.err().unwrap().to_string().contains("blocks of 2"));
}

/// A network that sees its condition: x0 = (x + image) / 2.
fn conditioned(b: &mut Builder, x: Value, _: &mut LevelInputs, given: &Condition) -> Estimate {
    let image = given.image.unwrap();
    let sum = b.add(x, image);
    Estimate::of(b.mul_scalar(sum, 0.5))
}

#[test]
fn classifier_free_guidance_is_one_of_the_two_at_its_ends() {
    let shape = Shape::from([1, 3, 5, 1]);
    let program = euler(&Levels::karras([0.1, 5.0], 7.0, 3).unwrap(), &Churn::NONE).unwrap();
    let end = |weight: Option<f64>, with: f32, without: f32| {
        let mut b = Builder::new();
        let [image, nothing] = ["image", "nothing"].map(|n| b.input(n, Type::f32(shape)));
        let given = Condition { image: Some(image), ..Condition::default() };
        let nothing = Condition { image: Some(nothing), ..Condition::default() };
        let guided = ClassifierFree { denoiser: conditioned, weight: weight.unwrap_or(1.0), nothing };
        let plain: &dyn Denoiser = if weight.is_some() { &guided } else { &conditioned };
        let device = Device::cpu(Some(1));
        let mut sampler =
            Sampler::compile(b, plain, &given, shape, program.clone(), Setup::default(), &device)?;
        sampler.set("image", &Tensor::full(shape, with))?;
        sampler.set("nothing", &Tensor::full(shape, without))?;
        sampler.run(Start::Noise, &[Tile::whole(6)])
    };
    let plain = |image: f32| end(None, image, 0.0).unwrap();
    assert_eq!(end(Some(1.0), 0.7, -0.3).unwrap(), plain(0.7));
    assert_eq!(end(Some(0.0), 0.7, -0.3).unwrap(), plain(-0.3));
    // Linear in the condition: guidance by 3 from -0.3 to 0.7 is the condition 2.7.
    let (got, truth) = (to_f64(&end(Some(3.0), 0.7, -0.3).unwrap()), to_f64(&plain(2.7)));
    assert!(got.iter().zip(truth).all(|(a, b)| (a - b).abs() < 1e-5));
    assert!(end(Some(f64::NAN), 0.7, -0.3).unwrap_err().to_string().contains("a weight of NaN"));
}

#[test]
fn values_that_are_not_finite_name_their_step_and_op() {
    let levels = Levels::karras([0.1, 10.0], 7.0, 8).unwrap();
    let bad = levels.steps().iter().position(|s| s.from.sigma < 1.0).unwrap();
    // The logarithm of a negative number from a certain level on.
    let broken = |b: &mut Builder, x: Value, level: &mut LevelInputs, _: &Condition| {
        let scope = b.set_scope("layer.seven");
        let number = level.factor(b, x, "number", |l| if l.sigma < 1.0 { -1.0 } else { 1.0 });
        let log = b.unary(Unary::Log, number);
        b.set_scope(&scope);
        Estimate::of(b.add(x, log))
    };
    for program in [euler(&levels, &Churn::NONE).unwrap(), heun(&levels, &Churn::NONE).unwrap()] {
        let two_calls = program.calls().len() > levels.len();
        let mut sampler = compiled(&broken, [2, 3, 4, 1], program, Setup::default());
        let e = sampler.run(Start::Noise, &[Tile::whole(1), Tile::whole(2)]).unwrap_err();
        // Heun asks about the next level before it gets there.
        let expected = if two_calls { bad - 1 } else { bad };
        assert!(matches!(&e, Error::NonFinite { step, steps: 8, .. } if *step == expected), "{e}");
        let text = e.to_string();
        assert!(text.contains("= log") && text.contains("layer.seven"), "{text}");
    }
    // Only one image of the batch, and from a parameter.
    let weighted = |b: &mut Builder, x: Value, _: &mut LevelInputs, _: &Condition| {
        let weight = b.param("weight", [2, 1, 1, 1]);
        Estimate::of(b.mul(x, weight))
    };
    let program = euler(&levels, &Churn::NONE).unwrap();
    let mut sampler = compiled(&weighted, [2, 3, 4, 1], program, Setup::default());
    sampler.set("weight", &Tensor::f32([2, 1, 1, 1], vec![0.5, f32::INFINITY])).unwrap();
    let e = sampler.run(Start::Noise, &[Tile::whole(1), Tile::whole(2)]).unwrap_err();
    assert!(matches!(&e, Error::NonFinite { step: 0, image: 1, .. }), "{e}");
    assert!(e.to_string().contains("the state `weight` holds them"), "{e}");
    // An image that was not finite to begin with.
    let x = Tensor::f32([2, 1, 1, 1], vec![0.0, f32::NAN]);
    let mut plain =
        compiled(&smooth_nodes, [2, 1, 1, 1], euler(&levels, &Churn::NONE).unwrap(), Setup::default());
    let e = plain.run(Start::Given(&x), &[Tile::whole(1), Tile::whole(2)]).unwrap_err();
    assert!(e.to_string().contains("step 0 of 8") && e.to_string().contains("`sample.x` holds them"), "{e}");
    // The session is as good as before.
    sampler.set("weight", &Tensor::full([2, 1, 1, 1], 0.5)).unwrap();
    assert!(sampler.run(Start::Noise, &[Tile::whole(1), Tile::whole(2)]).is_ok());
}

#[test]
fn a_threshold_is_a_quantile_of_each_image() {
    // One step from almost no noise gives the estimate, which is x itself, thresholded.
    let same = |_: &mut Builder, x: Value, _: &mut LevelInputs, _: &Condition| Estimate::of(x);
    let levels = Levels::karras([0.1, 0.1], 7.0, 1).unwrap();
    for (count, ratio, most) in
        [(1, 0.995, 9.0), (2, 0.25, 9.0), (35, 0.9, 9.0), (4096, 0.995, 1.2), (700, 1.0, 9.0)]
    {
        let shape = Shape::from([2, count, 1]);
        let keys = Keys::new(shape, &[Tile::whole(1), Tile::whole(2)]).unwrap();
        let x = to_f64(&keys.draw(0, Stream::Start)).into_iter().enumerate().map(|(i, v)| {
            let size = if i < count { 2.0 } else { 0.3 };
            (v * size) as f32
        });
        let x = Tensor::f32(shape, x.collect());
        let denoiser = Thresholded { denoiser: same, ratio, most };
        let program = euler(&levels, &Churn::NONE).unwrap();
        let mut sampler = compiled(&denoiser, shape, program, Setup::default());
        let got = to_f64(&sampler.run(Start::Given(&x), &[Tile::whole(1), Tile::whole(2)]).unwrap());
        for (got, x) in got.chunks(count).zip(to_f64(&x).chunks(count)) {
            let mut sizes: Vec<f64> = x.iter().map(|v| v.abs()).collect();
            sizes.sort_by(f64::total_cmp);
            let place = ratio * (count - 1) as f64;
            let (low, high) = (sizes[place as usize], sizes[place.ceil() as usize]);
            let bound = (low + place.fract() * (high - low)).max(1.0).min(most);
            for (got, x) in got.iter().zip(x) {
                assert!(
                    (got - (x / bound).clamp(-1.0, 1.0)).abs() < 1e-6,
                    "{count} {ratio}: {got} {x} {bound}"
                );
            }
        }
    }
    let bad = Thresholded { denoiser: same, ratio: 1.5, most: 2.0 };
    let (b, none, device) = (Builder::new(), Condition::default(), Device::cpu(Some(1)));
    let program = euler(&levels, &Churn::NONE).unwrap();
    let e = Sampler::compile(b, &bad, &none, [1, 2, 1], program, Setup::default(), &device).err().unwrap();
    assert!(e.to_string().contains("quantile 1.5"), "{e}");
}

#[test]
fn mismatches_are_refused_by_name() {
    let levels = schedule().levels(Spacing::Trailing, 4, End::Clean).unwrap();
    let learned = ddpm(&levels, &Ddpm { variance: Variance::Learned, temperature: 1.0 }).unwrap();
    let device = Device::cpu(Some(1));
    let compile = |denoiser: &dyn Denoiser, program: &Program, setup: Setup| {
        let (b, none) = (Builder::new(), Condition::default());
        Sampler::compile(b, denoiser, &none, [1, 4, 4, 1], program.clone(), setup, &device)
    };
    let refused = |e: Result<Sampler, Error>, text: &str| {
        let e = e.err().unwrap().to_string();
        assert!(e.contains(text), "{e}");
    };
    refused(compile(&smooth_nodes, &learned, Setup::default()), "learned variance");
    // Without noise there is nothing that a variance would change.
    let cold = ddpm(&levels, &Ddpm { variance: Variance::Learned, temperature: 0.0 }).unwrap();
    let mut sampler = compile(&smooth_nodes, &cold, Setup::default()).unwrap();
    sampler.run(Start::Noise, &[Tile::whole(1)]).unwrap();
    let empty = Sampler::compile(
        Builder::new(),
        &smooth_nodes,
        &Condition::default(),
        [0, 4, 4, 1],
        learned.clone(),
        Setup::default(),
        &device,
    );
    refused(empty, "the shape of x is [0,4,4,1]");
    let program = ddpm(&levels, &Ddpm::default()).unwrap();
    let given = Setup { noise: NoiseFrom::Caller, inpaint: true };
    refused(compile(&smooth_nodes, &program, given), "inpainting draws its noise by keys");
    let wide = |b: &mut Builder, x: Value, _: Value, _: &Condition| b.concat_channels(&[x, x]);
    let misfit = Preconditioned { network: wide, prediction: Prediction::Noise, learned_variance: false };
    refused(compile(&misfit, &program, Setup::default()), "the network gives [1,4,4,2]");
    let mut sampler = compile(&smooth_nodes, &program, Setup::default()).unwrap();
    let x = Tensor::zeros([1, 4, 5, 1]);
    let e = sampler.run(Start::Given(&x), &[Tile::whole(1)]).unwrap_err();
    assert!(matches!(e, Error::Shape { name: "x", .. }), "{e}");
    let e = sampler.run(Start::Noise, &[]).unwrap_err();
    assert!(e.to_string().contains("the number of seeds is 0"), "{e}");
    let zeros = |_: usize| Tensor::zeros([1, 4, 4, 1]);
    let e = sampler.run_with_noise(&Tensor::zeros([1, 4, 4, 1]), &zeros, |_, _| Ok(())).unwrap_err();
    assert!(e.to_string().starts_with("noise is"), "{e}");
    let mut inpaint = compile(&smooth_nodes, &program, Setup { inpaint: true, ..Setup::default() }).unwrap();
    assert!(inpaint.run(Start::Noise, &[Tile::whole(1)]).is_err(), "known and mask were not set");
}
