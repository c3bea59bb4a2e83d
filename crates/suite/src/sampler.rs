//! Cases of samplers: x after every call of a scheduler of diffusers, or at the end of EDM's own sampler,
//! with a function in place of a network.
//!
//! The first engine runs the program in f64 on the host, the others as a graph that is replayed. A few
//! cases have a real network, whose runs are graphs for all of them.

use crate::case::{Attrs, Case};
use crate::engine::{Engine, Session};
use crate::report::{Checks, Class, relative_error};
use crate::{Result, schedule, unet2d};
use clearshot_diffusion::host::{self, HostEstimate};
use clearshot_diffusion::precondition::{Clipped, Network, Preconditioned, Prediction};
use clearshot_diffusion::sampler::{
    Churn, Ddim, Ddpm, DpmSolver, Program, Second, Third, Variance, ddim, ddpm, dpm_solver_pp, euler, heun,
};
use clearshot_diffusion::schedule::{BetaLaw, End, Rounding, Schedule};
use clearshot_diffusion::step_graph::{Noise, NoiseFrom, Replay, Setup, StepGraph, X};
use clearshot_diffusion::{
    Condition, Denoiser, Error, Estimate, Level, LevelInputs, Levels, Spacing, Thresholded,
};
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Type, Value};
use clearshot_nn::Weights;
use clearshot_nn::models::unet2d::{UNet2D, UNet2DConfig};
use clearshot_tensor::{Shape, Tensor};

/// What stands in place of a network.
#[derive(Clone, Copy)]
enum Model {
    /// 0.3 x cos(t / 300) + 0.1 sin(3 x) + 0.05 of the scaled x, predicting something; with twice the
    /// channels, the second half is the variance cos(x) / 2.
    Network { prediction: Prediction, clip: Clip, variance: bool },
    /// v x + (1 - v) 0.2 + 0.05 v sin(3 x), v = 0.25 / (0.25 + sigma^2): a denoiser.
    Analytic,
}

/// What happens to an estimate.
#[derive(Clone, Copy)]
enum Clip {
    None,
    Fixed(f64),
    /// By a quantile of each image, up to a largest bound.
    Dynamic {
        ratio: f64,
        most: f64,
    },
}

/// The images of a case's batch.
const IMAGES: usize = 2;

impl Clip {
    /// In f64, on plain numbers; nothing where nothing happens.
    fn on_host(self, raw: &[f64]) -> Option<Vec<f64>> {
        match self {
            Clip::None => None,
            Clip::Fixed(limit) => Some(raw.iter().map(|v| v.clamp(-limit, limit)).collect()),
            Clip::Dynamic { ratio, most } => {
                let image = |values: &[f64]| -> Vec<f64> {
                    let mut sizes: Vec<f64> = values.iter().map(|v| v.abs()).collect();
                    sizes.sort_by(f64::total_cmp);
                    let place = ratio * (sizes.len() - 1) as f64;
                    let (low, high) = (sizes[place as usize], sizes[place.ceil() as usize]);
                    let bound = (low + place.fract() * (high - low)).max(1.0).min(most);
                    values.iter().map(|v| v.clamp(-bound, bound) / bound).collect()
                };
                Some(raw.chunks(raw.len() / IMAGES).flat_map(image).collect())
            }
        }
    }

    fn denoise(
        self,
        denoiser: impl Denoiser,
        b: &mut Builder,
        x: Value,
        level: &mut LevelInputs,
        given: &Condition,
    ) -> Estimate {
        match self {
            Clip::None => denoiser.denoise(b, x, level, given),
            Clip::Fixed(limit) => Clipped { denoiser, range: [-limit, limit] }.denoise(b, x, level, given),
            Clip::Dynamic { ratio, most } => {
                Thresholded { denoiser, ratio, most }.denoise(b, x, level, given)
            }
        }
    }
}

impl Model {
    /// In f64, on plain numbers.
    fn on_host(self, x: &[f64], level: &Level) -> HostEstimate {
        match self {
            Model::Network { prediction, clip, variance } => {
                let c = prediction.coefficients(level);
                let network = |x: f64| 0.3 * x * (level.time / 300.0).cos() + 0.1 * (3.0 * x).sin() + 0.05;
                let raw: Vec<f64> = x.iter().map(|&x| c.skip * x + c.output * network(c.input * x)).collect();
                let fraction = |&x: &f64| 0.5 + 0.25 * (c.input * x).cos();
                let variance = variance.then(|| x.iter().map(fraction).collect());
                match clip.on_host(&raw) {
                    None => HostEstimate { variance, ..HostEstimate::of(raw) },
                    Some(x0) => HostEstimate { x0, unclipped: Some(raw), variance },
                }
            }
            Model::Analytic => {
                let v = analytic_weight(level);
                HostEstimate::of(
                    x.iter().map(|x| v * x + (1.0 - v) * 0.2 + 0.05 * (3.0 * x).sin() * v).collect(),
                )
            }
        }
    }
}

fn analytic_weight(level: &Level) -> f64 {
    0.25 / (0.25 + level.ratio().powi(2))
}

impl Denoiser for Model {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        match *self {
            Model::Network { prediction, clip, variance } => {
                let network = move |b: &mut Builder, x: Value, t: Value, _: &Condition| {
                    let angle = b.mul_scalar(t, 1.0 / 300.0);
                    let cos = b.unary(Unary::Cos, angle);
                    let shape = Shape::new(&[1]).padded_to(b.shape(x).rank()).with(0, b.shape(t).len());
                    let cos = b.reshape(cos, shape);
                    let linear = b.mul(x, cos);
                    let linear = b.mul_scalar(linear, 0.3);
                    let y = wave(b, x, linear, 0.1);
                    let y = b.add_scalar(y, 0.05);
                    if !variance {
                        return y;
                    }
                    let v = b.unary(Unary::Cos, x);
                    let v = b.mul_scalar(v, 0.5);
                    b.concat_channels(&[y, v])
                };
                let denoiser = Preconditioned { network, prediction, learned_variance: variance };
                clip.denoise(denoiser, b, x, level, given)
            }
            Model::Analytic => {
                let v = level.factor(b, x, "v", analytic_weight);
                let mean = level.factor(b, x, "mean", |l| 0.2 * (1.0 - analytic_weight(l)));
                let signal = wave(b, x, x, 0.05);
                let signal = b.mul(signal, v);
                Estimate::of(b.add(signal, mean))
            }
        }
    }
}

/// `y + size sin(3 x)`.
fn wave(b: &mut Builder, x: Value, y: Value, size: f64) -> Value {
    let wave = b.mul_scalar(x, 3.0);
    let wave = b.unary(Unary::Sin, wave);
    let wave = b.mul_scalar(wave, size);
    b.add(y, wave)
}

/// A real network, conditioned on an image.
struct Real {
    network: UNet2D,
    model: Model,
}

impl Denoiser for Real {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let Model::Network { prediction, clip, .. } = self.model else {
            return self.model.denoise(b, x, level, given);
        };
        let network = |b: &mut Builder, x: Value, t: Value, given: &Condition| {
            Network::build(&self.network, b, x, t, given)
        };
        let denoiser = Preconditioned { network, prediction, learned_variance: false };
        clip.denoise(denoiser, b, x, level, given)
    }
}

/// The network of a case that has one, and its parameters.
fn real(case: &Case, model: Model) -> Result<Option<(Real, Weights)>> {
    let Some(config) = case.attrs.get("network").and_then(|c| c.as_object()) else { return Ok(None) };
    let network = UNet2DConfig::from_map(config.clone())?.resolve()?;
    let weights = unet2d::parameters(case, "param.", &network)?;
    Ok(Some((Real { network, model }, weights)))
}

/// What a case asks for.
struct Task {
    program: Program,
    model: Model,
    /// What x is multiplied by before sampling begins.
    scale: f64,
}

/// The settings that diffusers had.
fn config(case: &Case) -> Result<Attrs> {
    let object = case.attrs.get("config").and_then(|c| c.as_object()).ok_or("the case has no `config`")?;
    Ok(Attrs(object.clone()))
}

fn prediction(config: &Attrs) -> Result<Prediction> {
    match config.text("prediction_type") {
        Some("epsilon") => Ok(Prediction::Noise),
        Some("sample") => Ok(Prediction::Sample),
        Some("v_prediction") => Ok(Prediction::Velocity),
        other => Err(format!("unknown prediction {other:?}").into()),
    }
}

fn model(config: &Attrs, clips: bool) -> Result<Model> {
    let clip = if config.flag("thresholding") {
        Clip::Dynamic {
            ratio: config.number("dynamic_thresholding_ratio")?,
            most: config.number("sample_max_value")?,
        }
    } else if clips && config.flag("clip_sample") {
        Clip::Fixed(config.number_or("clip_sample_range", 1.0)?)
    } else {
        Clip::None
    };
    let variance = config.text("variance_type") == Some("learned_range");
    Ok(Model::Network { prediction: prediction(config)?, clip, variance })
}

/// Timesteps as diffusers' DDPM and DDIM have them.
fn spacing(config: &Attrs) -> Result<Spacing> {
    let offset = config.count_or("steps_offset", 0)?;
    match config.text("timestep_spacing") {
        Some("leading") => Ok(Spacing::Leading { offset }),
        Some("linspace") => Ok(Spacing::Linspace),
        Some("trailing") => Ok(Spacing::Trailing),
        other => Err(format!("unknown timestep spacing {other:?}").into()),
    }
}

fn end(config: &Attrs) -> End {
    if config.text("final_sigmas_type") == Some("sigma_min") { End::First } else { End::Clean }
}

/// Karras' rho, which diffusers fixes where sigmas come from a schedule.
const RHO: f64 = 7.0;

fn dpm_levels(config: &Attrs, schedule: &Schedule, steps: usize) -> Result<Levels> {
    if config.flag("use_karras_sigmas") {
        let cosine =
            BetaLaw::of_diffusers(config.text("beta_schedule").unwrap_or(""))? == BetaLaw::SquaredCosine;
        let rounding = if cosine { Rounding::Down } else { Rounding::Nearest };
        return Ok(schedule.karras_levels(schedule.range(), RHO, steps, rounding, end(config))?);
    }
    let spacing = match spacing(config)? {
        Spacing::Linspace => Spacing::LinspaceOpen,
        Spacing::Leading { offset } => Spacing::LeadingOpen { offset },
        other => other,
    };
    Ok(schedule.levels(spacing, steps, end(config))?)
}

/// Euler's and Heun's: x is not shrunk.
fn exploding_levels(config: &Attrs, schedule: &Schedule, steps: usize) -> Result<Levels> {
    let spacing = match spacing(config)? {
        Spacing::Linspace => Spacing::LinspaceReal,
        other => other,
    };
    let plain = schedule.levels(spacing, steps, End::Clean)?;
    let levels = if config.flag("use_karras_sigmas") {
        let steps = plain.steps();
        let range = [steps[steps.len() - 1].from.ratio(), steps[0].from.ratio()];
        schedule.karras_levels(range, RHO, steps.len(), Rounding::None, end(config))?
    } else {
        schedule.levels(spacing, steps, end(config))?
    };
    Ok(levels.exploding())
}

fn dpm_solver(config: &Attrs) -> Result<DpmSolver> {
    Ok(DpmSolver {
        order: config.count_or("solver_order", 2)?,
        second: if config.text("solver_type") == Some("heun") { Second::Heun } else { Second::Midpoint },
        third: Third::Published,
        stochastic: config.text("algorithm_type") == Some("sde-dpmsolver++"),
        lower_order_final: config.flag("lower_order_final"),
        euler_at_final: config.flag("euler_at_final"),
    })
}

fn task(case: &Case) -> Result<Task> {
    let attrs = &case.attrs;
    let which = attrs.text("sampler").ok_or("the case has no `sampler`")?;
    if which == "edm_heun" {
        let sigma_max = attrs.number("sigma_max")?;
        let range = [attrs.number("sigma_min")?, sigma_max];
        let levels = Levels::karras(range, attrs.number("rho")?, attrs.count_or("num_steps", 18)?)?;
        let churn = Churn {
            amount: attrs.number_or("S_churn", 0.0)?,
            range: [attrs.number_or("S_min", 0.0)?, attrs.number_or("S_max", f64::INFINITY)?],
            noise: attrs.number_or("S_noise", 1.0)?,
        };
        return Ok(Task { program: heun(&levels, &churn)?, model: Model::Analytic, scale: sigma_max });
    }
    let config = config(case)?;
    let steps = attrs.count_or("steps", 0)?;
    if which.starts_with("edm") {
        let range = [config.number("sigma_min")?, config.number("sigma_max")?];
        let levels = Levels::karras(range, config.number("rho")?, steps)?;
        let program = match which {
            "edm_euler" => euler(&levels, &Churn::NONE)?,
            "edm_dpmpp" => dpm_solver_pp(&levels, &dpm_solver(&config)?)?,
            other => return Err(format!("unknown sampler `{other}`").into()),
        };
        let prediction = Prediction::Edm { sigma_data: config.number("sigma_data")? };
        let model = Model::Network { prediction, clip: Clip::None, variance: false };
        return Ok(Task { program, model, scale: 1.0 });
    }
    let schedule = schedule::of_diffusers(&config)?;
    let (program, clips) = match which {
        "ddim" => {
            let end = if config.flag("set_alpha_to_one") { End::Clean } else { End::First };
            let levels = schedule.strided_levels(spacing(&config)?, steps, end)?;
            let clipped_direction = attrs.flag("use_clipped_model_output");
            (ddim(&levels, &Ddim { eta: attrs.number_or("eta", 0.0)?, clipped_direction })?, true)
        }
        "ddpm" => {
            let variance = match config.text("variance_type") {
                Some("fixed_small") => Variance::FixedSmall,
                Some("fixed_large") => Variance::FixedLarge,
                Some("learned_range") => Variance::Learned,
                other => return Err(format!("unknown variance {other:?}").into()),
            };
            let levels = schedule.levels(spacing(&config)?, steps, End::Clean)?;
            (ddpm(&levels, &Ddpm { variance, ..Ddpm::default() })?, true)
        }
        "dpmpp" | "dpmpp_sde" => {
            let levels = dpm_levels(&config, &schedule, steps)?;
            (dpm_solver_pp(&levels, &dpm_solver(&config)?)?, false)
        }
        "euler" => (euler(&exploding_levels(&config, &schedule, steps)?, &Churn::NONE)?, false),
        "heun" => (heun(&exploding_levels(&config, &schedule, steps)?, &Churn::NONE)?, true),
        other => return Err(format!("unknown sampler `{other}`").into()),
    };
    Ok(Task { program, model: model(&config, clips)?, scale: 1.0 })
}

/// Runs the case's program and compares every call.
///
/// # Errors
/// If the case asks for what there is not.
pub fn run(case: &Case, engine: Engine) -> Result<Checks> {
    let Task { program, model, scale } = task(case)?;
    let mut checks = Checks::default();
    compare_levels(case, &program, &mut checks);
    let x = case.tensor("in.x")?;
    let scaled: Vec<f64> = x.to_f64().iter().map(|v| v * scale).collect();
    let noise = case.tensors.get("in.noise").map(|n| n.to_f64()).unwrap_or_default();
    let each = x.shape().len();
    let of_step = |step: usize| noise.get(step * each..(step + 1) * each).unwrap_or(&[]).to_vec();
    let mut trajectory: Vec<Vec<f64>> = vec![];
    let real = real(case, model)?;
    if engine == Engine::Reference && real.is_none() {
        let watch = |x: &[f64]| trajectory.push(x.to_vec());
        host::run(&program, scaled, |x, level| model.on_host(x, level), of_step, watch)?;
    } else {
        let last = |t: Vec<f64>| {
            let values = t.into_iter().map(|v| v as f32).collect();
            Tensor::f32(x.shape(), values).channels_last()
        };
        let start = last(scaled);
        let setup = Setup { noise: NoiseFrom::Caller, inpaint: false };
        let (mut b, mut given) = (Builder::new(), Condition::default());
        let image = case.tensors.get("in.image").map(Tensor::channels_last);
        if let Some(image) = &image {
            given.image = Some(b.input("image", Type::f32(image.shape())));
        }
        let denoiser: &dyn Denoiser = real.as_ref().map_or(&model, |(real, _)| real);
        let steps = StepGraph::new(b, denoiser, &given, start.shape(), &program, setup)?;
        let mut session = Engined(engine.open(steps.graph().clone())?);
        for (name, value) in real.iter().flat_map(|(_, weights)| weights) {
            session.set(name, value)?;
        }
        if let Some(image) = &image {
            session.set("image", image)?;
        }
        let given = |step: usize| last(of_step(step));
        steps.replay(&mut session, &program, &start, &Noise::Given(&given), |_, session| {
            trajectory.push(session.get(X)?.channels_second().to_f64());
            Ok(())
        })?;
    }
    if let Some(end) = case.tensors.get("out.y") {
        // Computed in f64, so the host must agree better than 32 bits can.
        let class = if engine == Engine::Reference { Class::ExactEnd } else { Class::Trajectory };
        let got = trajectory.last().ok_or("no step was made")?;
        checks.error(class, "the end", relative_error(got, &end.to_f64(), 0.0));
        return Ok(checks);
    }
    let truth = case.tensor("out.trajectory")?.to_f64();
    if truth.len() != trajectory.len() * each {
        let calls = truth.len() / each;
        return Err(format!("{} calls were made where the case has {calls}", trajectory.len()).into());
    }
    for (i, (got, truth)) in trajectory.iter().zip(truth.chunks(each)).enumerate() {
        checks.error(Class::Trajectory, format!("x after call {i}"), relative_error(got, truth, 0.0));
    }
    Ok(checks)
}

/// The sigmas and times that diffusers lists, where it does.
fn compare_levels(case: &Case, program: &Program, checks: &mut Checks) {
    let calls = program.calls();
    if let Some(truth) = case.tensors.get("out.timesteps") {
        let times: Vec<f64> = calls.iter().map(|c| c.level.time).collect();
        checks.error(Class::Schedule, "timesteps", relative_error(&times, &truth.to_f64(), 0.0));
    }
    if let Some(truth) = case.tensors.get("out.sigmas") {
        let end = calls.last().map(|c| c.arrives.ratio());
        let sigmas: Vec<f64> = calls.iter().map(|c| c.level.ratio()).chain(end).collect();
        checks.error(Class::Schedule, "sigmas", relative_error(&sigmas, &truth.to_f64(), 0.0));
    }
}

/// The suite's sessions as samplers take them.
struct Engined(Box<dyn Session>);

impl Replay for Engined {
    fn set(&mut self, name: &str, value: &Tensor) -> std::result::Result<(), Error> {
        self.0.set(name, value).map_err(|e| refused(name, &*e))
    }

    fn run(&mut self) -> std::result::Result<(), Error> {
        self.0.run().map_err(|e| refused("a run", &*e))
    }

    fn get(&self, name: &str) -> std::result::Result<Tensor, Error> {
        self.0.get(name).map_err(|e| refused(name, &*e))
    }
}

fn refused(what: &str, e: &dyn std::error::Error) -> Error {
    Error::Session(format!("{what}: {e}"))
}
