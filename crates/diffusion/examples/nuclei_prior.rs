//! Trains an EDM prior on generated nuclei on the CPU and restores noisy ones with it, as a Markdown table.
//!
//!     cargo run --release --example nuclei_prior -p clearshot-diffusion -- [SEED] [ITERATIONS] [THREADS|gpu] [FOLDER]
//!
//! A network of 32, 48 and 64 channels learns from 64 x 64 crops. Then 12 other scenes of 128 x 128 pixels are seen
//! with 20 electrons at the peak, 2 of background and 1.5 of read noise, and sampled in 18 steps under each law
//! of guidance: one sample, and the mean of 8. PSNR is for a range of 1, after clipping to [0, 1.5]; chi2 is the mean
//! squared residual over its variance; spread is the standard deviation of the samples over the error of their mean, which
//! is 0.94 for samples of the posterior itself. Training and test scenes have different seeds, whatever SEED is. The network
//! is kept in FOLDER, if there is one given, and taken from there if it is there already.

use clearshot_diffusion::guide::posterior::{Posterior, tile_of_sample};
use clearshot_diffusion::guide::{Covariance, Discrepancy, Measurement, NormAdaptive, Proximal};
use clearshot_diffusion::noise::Tile;
use clearshot_diffusion::objective::{Distance, LevelLaw, Weight, distance, noised, target};
use clearshot_diffusion::precondition::{Network, Preconditioned, Prediction};
use clearshot_diffusion::sampler::{Ddpm, Program, ddpm};
use clearshot_diffusion::step_graph::Setup;
use clearshot_diffusion::{Condition, Denoiser, Guide, Law, LevelInputs, Levels, Sampler, Start};
use clearshot_graph::train::{Optimizer, Training, finish_iteration};
use clearshot_graph::{Builder, StateInit, Type, Value};
use clearshot_metrics::intensity::psnr;
use clearshot_metrics::{Crop, ImageRef, Pair, Rounding};
use clearshot_nn::models::unet2d::{Extras, UNet2D, UNet2DConfig};
use clearshot_nn::{Weights, weights};
use clearshot_physics::{Correlation, Electrons, Forward, Likelihood, Map, Normalised, Operator, Scale};
use clearshot_runtime::{Device, Options, compile};
use clearshot_scenes::{Camera, Scene};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Pixels of a scene along an axis, and of a crop.
const SIDE: usize = 128;
const CROP: usize = 64;
const TRAINING_SCENES: u32 = 240;
const TEST_SCENES: u32 = 12;
const SAMPLES: usize = 8;
const BATCH: usize = 8;
const STEPS: usize = 18;
const PEAK: f64 = 20.0;
/// The learning rate at its highest; it rises over the first iterations and falls as a cosine.
const RATE: f64 = 2e-3;
const WARM_UP: usize = 60;
/// Iterations from one report to the next.
const REPORT: usize = 100;

/// How scenes, from 0 to 1, become images around 0, as the prior sees them: half a scene's unit is 1.
#[derive(Clone, Copy)]
struct Norm {
    mean: f64,
    /// Standard deviation of the images.
    sd: f64,
}

const PER_UNIT: f64 = 0.5;

impl Norm {
    fn image(self, scene: f32) -> f32 {
        ((f64::from(scene) - self.mean) / PER_UNIT) as f32
    }

    fn scene(self, image: f32) -> f64 {
        f64::from(image) * PER_UNIT + self.mean
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (seed, iterations) = (number(0, 1)? as u64, number(1, 1200)?);
    let device = match args.get(2).map(String::as_str) {
        Some("gpu") => Device::cuda(0)?,
        _ => Device::cpu(Some(number(2, 2)?)),
    };
    // Even seeds for training, odd ones for testing.
    let scenes = |test: u64, count: u32| -> Result<Vec<Vec<f32>>> {
        (0..count).map(|i| Ok(Scene::Nuclei.generate(2 * seed + test, i, &[SIDE, SIDE])?)).collect()
    };
    let training = scenes(0, TRAINING_SCENES)?;
    let all = || training.iter().flatten().map(|&v| f64::from(v));
    let count = (training.len() * SIDE * SIDE) as f64;
    let mean = all().sum::<f64>() / count;
    let sd = (all().map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt() / PER_UNIT;
    let norm = Norm { mean, sd };
    eprintln!("{TRAINING_SCENES} scenes of mean {mean:.4}, images of standard deviation {sd:.4}");

    let folder = args.get(3).map(Path::new);
    let weights = match folder.filter(|f| f.exists()) {
        Some(folder) => weights::load(folder)?.1,
        None => {
            let (begin, used) = (Instant::now(), processor_seconds());
            let weights = train(&training, norm, seed, iterations, &device)?;
            let processor = processor_seconds().zip(used).map(|(now, then)| now - then);
            eprintln!(
                "trained {iterations} iterations in {:.0} s of wall time, {} s of processor time",
                begin.elapsed().as_secs_f64(),
                processor.map_or("unknown".into(), |s| format!("{s:.0}"))
            );
            if let Some(folder) = folder {
                weights::save(folder, &config(), &weights)?;
            }
            weights
        }
    };
    restore(&scenes(1, TEST_SCENES)?, norm, seed, &weights, &device)
}

/// What the process has used of all processors together, where the system says so.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name in brackets, user and system time are the 12th and 13th number, in hundredths.
    let numbers: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    Some((numbers.get(11)?.parse::<f64>().ok()? + numbers.get(12)?.parse::<f64>().ok()?) / 100.0)
}

fn config() -> UNet2DConfig {
    let blocks = |name: &str| vec![name.to_string(); 3];
    UNet2DConfig {
        in_channels: 1,
        out_channels: 1,
        block_out_channels: vec![32, 48, 64],
        layers_per_block: 1,
        down_block_types: blocks("DownBlock2D"),
        up_block_types: blocks("UpBlock2D"),
        norm_num_groups: 8,
        attention_head_dim: Some(32),
        ..UNet2DConfig::default()
    }
}

/// The network as EDM's. Its embedding tells apart times that differ by 1, and ln(sigma) / 4 hardly does.
fn preconditioned(net: UNet2D, norm: Norm) -> Preconditioned<impl Network> {
    let network = move |b: &mut Builder, x: Value, time: Value, _: &Condition| {
        let time = b.mul_scalar(time, 250.0);
        net.build(b, x, time, Extras::default())
    };
    Preconditioned { network, prediction: Prediction::Edm { sigma_data: norm.sd }, learned_variance: false }
}

/// Trains, and gives the averaged weights.
fn train(scenes: &[Vec<f32>], norm: Norm, seed: u64, iterations: usize, device: &Device) -> Result<Weights> {
    let net = config().resolve()?;
    let parameters = net.parameters()?;
    let denoiser = preconditioned(net, norm);
    let shape = Shape::from([BATCH, CROP, CROP, 1]);
    let mut b = Builder::new();
    let mut level = LevelInputs::new(BATCH);
    let (x0, noise) = (b.input("x0", Type::f32(shape)), b.input("noise", Type::f32(shape)));
    let x = noised(&mut b, x0, noise, &mut level);
    let predicted = denoiser.predict(&mut b, x, &mut level, &Condition::default()).value;
    let wanted = target(&mut b, denoiser.prediction, x0, noise, &mut level);
    let weight = Weight::Edm { sigma_data: norm.sd }.input(&mut b, denoiser.prediction, &mut level);
    let loss = distance(&mut b, Distance::L2, predicted, wanted, Some(weight));
    let params: Vec<Value> =
        parameters.iter().map(|p| b.state(&p.name, Type::f32(p.shape), StateInit::Given)).collect();
    let rule = Training {
        optimizer: Optimizer::ADAMW,
        clip_norm: 1.0,
        ema_decay: Some(0.99),
        ..Training::default()
    };
    finish_iteration(&mut b, loss, &params, &rule)?;
    let mut session = compile(b.finish()?, device, &Options::default())?;
    for (name, value) in weights::initial(&parameters, seed) {
        session.set(&name, &value)?;
        session.set(&format!("ema.{name}"), &value)?;
    }
    let law = LevelLaw::LogNormal { mean: -1.2, deviation: 1.4 };
    let (mut crops, mut drawn) = (vec![0.0; shape.len()], vec![0.0; shape.len()]);
    let mut sum = 0.0;
    for i in 0..iterations {
        let key = |stream: u32| Key { seed, step: i as u32, stream };
        for (k, to) in crops.chunks_exact_mut(CROP * CROP).enumerate() {
            crop(scenes, norm, key(k as u32), to);
        }
        key(1000).fill_normal(0, &mut drawn);
        let levels: Vec<_> = (0..BATCH).map(|k| law.draw(key(2000 + k as u32))).collect();
        session.set("x0", &Tensor::f32(shape, crops.clone()))?;
        session.set("noise", &Tensor::f32(shape, drawn.clone()))?;
        for (name, value) in level.at_each(&levels) {
            session.set(name, &value)?;
        }
        session.set("rate", &Tensor::scalar(rate(i, iterations) as f32))?;
        session.run()?;
        sum += session.get("loss")?.to_f64()[0];
        if (i + 1) % REPORT == 0 {
            eprintln!("iteration {}: loss {:.4}", i + 1, sum / REPORT as f64);
            sum = 0.0;
        }
    }
    parameters.iter().map(|p| Ok((p.name.clone(), session.get(&format!("ema.{}", p.name))?))).collect()
}

fn rate(i: usize, iterations: usize) -> f64 {
    let rise = ((i + 1) as f64 / WARM_UP as f64).min(1.0);
    let done = i as f64 / iterations as f64;
    RATE * rise * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
}

/// A crop of a scene, turned and mirrored, all by the key.
fn crop(scenes: &[Vec<f32>], norm: Norm, key: Key, to: &mut [f32]) {
    let below = |at: u64, n: usize| ((f64::from(key.uniform(at)) * n as f64) as usize).min(n - 1);
    let scene = &scenes[below(0, scenes.len())];
    let (top, left, way) = (below(1, SIDE - CROP + 1), below(2, SIDE - CROP + 1), below(3, 8));
    for (i, v) in to.iter_mut().enumerate() {
        let (mut y, mut x) = (i / CROP, i % CROP);
        if way & 1 != 0 {
            y = CROP - 1 - y;
        }
        if way & 2 != 0 {
            x = CROP - 1 - x;
        }
        if way & 4 != 0 {
            (y, x) = (x, y);
        }
        *v = norm.image(scene[(top + y) * SIDE + left + x]);
    }
}

/// The noisy scenes and what is known of them.
struct Test {
    scenes: Vec<Vec<f32>>,
    seen: Vec<Vec<f64>>,
    forward: Forward,
}

fn restore(scenes: &[Vec<f32>], norm: Norm, seed: u64, weights: &Weights, device: &Device) -> Result<()> {
    let camera = Camera::for_peak(PEAK);
    let mut seen = Vec::new();
    for (i, scene) in scenes.iter().enumerate() {
        let picture = camera.take(scene, &[SIDE, SIDE], 2 * seed + 1, i as u32)?;
        seen.push(picture.values.iter().map(|&v| f64::from(v)).collect());
    }
    let forward = Forward {
        operator: Operator::identity([SIDE, SIDE])?,
        scale: Scale::new(Electrons(PEAK * norm.mean), Electrons(PEAK * PER_UNIT))?,
        exposure: 1.0,
        background: Map::Uniform(camera.background),
        read_noise: Map::Uniform(camera.read_noise),
        correlation: Correlation::WHITE,
        likelihood: Likelihood::ShiftedPoisson,
    };
    let test = Test { scenes: scenes.to_vec(), seen, forward };
    let levels = Levels::karras([0.02, 5.0], 7.0, STEPS)?;
    let program = ddpm(&levels, &Ddpm::default())?;
    let step = |lambda| {
        let warm_up = [levels.start().time, levels.start().time - 0.2];
        Law::NormAdaptive(NormAdaptive { lambda, eps: 1e-3, warm_up })
    };
    let proximal = |strength, passes| Law::Proximal(Proximal { strength, passes, ..Proximal::new(norm.sd) });
    let covariance = |strength, iterations| {
        Law::Covariance(Covariance { strength, iterations, ..Covariance::new(norm.sd) })
    };
    let squared = |kappa| Law::SigmaSquared { kappa };
    let rows: &[(&str, Option<Law>)] = &[
        ("none", None),
        ("norm-adaptive (PKL), step 0.01", Some(step(0.01))),
        ("norm-adaptive (PKL), step 0.03", Some(step(0.03))),
        ("norm-adaptive (PKL), step 0.1", Some(step(0.1))),
        ("norm-adaptive (PKL), step 0.3", Some(step(0.3))),
        ("kappa sigma^2, kappa 1", Some(squared(1.0))),
        ("kappa sigma^2, kappa 0.3", Some(squared(0.3))),
        ("kappa sigma^2, kappa 0.1", Some(squared(0.1))),
        ("kappa sigma^2, kappa 0.03", Some(squared(0.03))),
        ("kappa sigma^2, kappa 0.01", Some(squared(0.01))),
        ("discrepancy", Some(Law::Discrepancy(Discrepancy::default()))),
        ("proximal, strength 0.5", Some(proximal(0.5, 2))),
        ("proximal", Some(proximal(1.0, 2))),
        ("proximal, strength 2", Some(proximal(2.0, 2))),
        ("proximal, one pass", Some(proximal(1.0, 1))),
        ("covariance, strength 0.5", Some(covariance(0.5, 1))),
        ("covariance", Some(covariance(1.0, 1))),
        ("covariance, strength 2", Some(covariance(2.0, 1))),
        ("covariance, 2 iterations", Some(covariance(1.0, 2))),
    ];
    println!("| guidance | one sample, dB | chi2 | mean of {SAMPLES}, dB | chi2 | spread |");
    println!("|---|---|---|---|---|---|");
    let background = camera.background;
    let noisy: Vec<Vec<f64>> =
        test.seen.iter().map(|y| y.iter().map(|v| (v - background) / PEAK).collect()).collect();
    println!("| (the noisy images) | {:.2} | | | | |", test.psnr(&noisy)?);
    for (name, law) in rows {
        let begin = Instant::now();
        match test.sampled(*law, norm, seed, weights, &program, device) {
            Ok(Sampled { one, mean, sd }) => println!(
                "| {name} | {:.2} | {:.3} | {:.2} | {:.3} | {:.2} |",
                test.psnr(&one)?,
                test.chi2(&one)?,
                test.psnr(&mean)?,
                test.chi2(&mean)?,
                test.spread(&mean, &sd)
            ),
            Err(e) => println!("| {name} | {e} | | | | |"),
        }
        eprintln!("{name}: {:.0} s", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

/// One sample of every scene, and mean and standard deviation of several, as scenes.
struct Sampled {
    one: Vec<Vec<f64>>,
    mean: Vec<Vec<f64>>,
    sd: Vec<Vec<f64>>,
}

impl Test {
    fn sampled(
        &self,
        law: Option<Law>,
        norm: Norm,
        seed: u64,
        weights: &Weights,
        program: &Program,
        device: &Device,
    ) -> Result<Sampled> {
        let shape = Shape::from([self.scenes.len(), SIDE, SIDE, 1]);
        let prior = preconditioned(config().resolve()?, norm);
        let mut inputs = Vec::new();
        let denoiser: Box<dyn Denoiser> = match law {
            None => Box::new(prior),
            Some(law) => {
                let guide = Guide::new(self.forward.clone(), law)?;
                let planes: Vec<Measurement<'_>> =
                    self.seen.iter().map(|y| Measurement { y: Electrons(y), valid: None }).collect();
                inputs.extend(guide.inputs(shape, &planes)?);
                Box::new(guide.guides(prior))
            }
        };
        let (none, setup) = (Condition::default(), Setup::default());
        let mut sampler =
            Sampler::compile(Builder::new(), &*denoiser, &none, shape, program.clone(), setup, device)?;
        for (name, value) in weights {
            sampler.set(name, value)?;
        }
        for (name, value) in &inputs {
            sampler.set(name, value)?;
        }
        let (mut one, mut several) = (None, Posterior::new(shape));
        for sample in 0..SAMPLES {
            let tile = |i: u64| tile_of_sample(Tile::whole((seed << 32) + i), sample);
            let tiles: Vec<Tile> = (0..self.scenes.len() as u64).map(tile).collect();
            let x = sampler.run(Start::Noise, &tiles)?;
            several.add(&x)?;
            one.get_or_insert(x);
        }
        let scenes = |x: &Tensor, of: &dyn Fn(f32) -> f64| -> Result<Vec<Vec<f64>>> {
            let images = x.as_f32()?.chunks_exact(SIDE * SIDE);
            Ok(images.map(|image| image.iter().map(|&v| of(v)).collect()).collect())
        };
        let light = |v| norm.scene(v);
        Ok(Sampled {
            one: scenes(&one.ok_or("no sample was drawn")?, &light)?,
            mean: scenes(&several.mean(), &light)?,
            sd: scenes(&several.sd()?, &|v| f64::from(v) * PER_UNIT)?,
        })
    }

    /// The standard deviation of the samples over the error of their mean, both as root mean squares of all scenes.
    fn spread(&self, mean: &[Vec<f64>], sd: &[Vec<f64>]) -> f64 {
        let truth = self.scenes.iter().flatten().map(|&v| f64::from(v));
        let error: f64 = mean.iter().flatten().zip(truth).map(|(m, t)| (m - t).powi(2)).sum();
        (sd.iter().flatten().map(|s| s * s).sum::<f64>() / error).sqrt()
    }

    /// The mean over the scenes.
    fn psnr(&self, images: &[Vec<f64>]) -> Result<f64> {
        let mut sum = 0.0;
        for (image, scene) in images.iter().zip(&self.scenes) {
            let truth: Vec<f64> = scene.iter().map(|&v| f64::from(v)).collect();
            let clipped: Vec<f64> = image.iter().map(|v| v.clamp(0.0, 1.5)).collect();
            let shape = [SIDE, SIDE];
            let (truth, clipped) = (ImageRef::new(&truth, &shape)?, ImageRef::new(&clipped, &shape)?);
            sum += psnr(&Pair::new(truth, clipped, None, Rounding::Keep, Crop::Nothing)?, 1.0)?;
        }
        Ok(sum / images.len() as f64)
    }

    /// The mean over the scenes.
    fn chi2(&self, images: &[Vec<f64>]) -> Result<f64> {
        let mut sum = 0.0;
        for (image, y) in images.iter().zip(&self.seen) {
            let scale = &self.forward.scale;
            let light = |v: &f64| scale.to_normalised(Electrons(PEAK * v.clamp(0.0, 1.5))).0;
            let image: Vec<f64> = image.iter().map(light).collect();
            let mean = self.forward.mean(Normalised(&image))?;
            let measured = self.forward.measured(Electrons(y), None, None);
            sum += measured.chi2(Electrons(&mean.0))?.unwrap_or(f64::NAN);
        }
        Ok(sum / images.len() as f64)
    }
}
