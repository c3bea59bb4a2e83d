//! Cases of whole networks: diffusers' UNet2DModel forward, and the gradients of its input and of
//! every parameter. And the folders that diffusers saves such networks into.

use crate::Result;
use crate::case::Case;
use crate::engine::{Engine, Session};
use crate::report::{Checks, Class, relative_error};
use clearshot_graph::grad::grad;
use clearshot_graph::{Builder, Type, Value};
use clearshot_nn::models::Network;
use clearshot_nn::models::unet2d::{Extras, UNet2DConfig};
use clearshot_nn::{Weights, weights};
use clearshot_tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// Every how many values a large gradient was sampled.
const STRIDE: usize = 97;

/// When a gradient counts as zero but for rounding. Both are parts of the root mean square of all gradients.
pub(crate) struct Vanishing {
    /// A gradient smaller than this does...
    pub below: f64,
    /// ...and has to stay small: a difference is measured against this.
    pub beside: f64,
}

/// The bias of attention's keys, which softmax does not see.
const VANISHING: Vanishing = Vanishing { below: 1e-5, beside: 1e-2 };

/// The network that a case's attributes describe.
pub(crate) fn config(case: &Case) -> Result<UNet2DConfig> {
    let object = case.attrs.get("config").and_then(|c| c.as_object()).ok_or("the case has no `config`")?;
    Ok(UNet2DConfig::from_map(object.clone())?)
}

/// The case's parameters under `prefix`, checked against the network's.
pub(crate) fn parameters(case: &Case, prefix: &str, network: &dyn Network) -> Result<Weights> {
    let tensors = case.tensors_of(prefix).map(|(name, t)| (name.to_string(), t.clone())).collect();
    Ok(weights::from_torch(tensors, &network.parameters()?)?)
}

/// Builds the case's network with its gradients, runs it and compares.
///
/// # Errors
/// If the network cannot be built or the engine refuses the graph.
pub fn run(case: &Case, engine: Engine) -> Result<Checks> {
    let network = config(case)?.resolve()?;
    let weights = parameters(case, "param.", &network)?;
    let (x, t) = (case.tensor("in.x")?.channels_last(), case.tensor("in.t")?.to_f32());
    let upstream = case.tensor("gout.y")?.channels_last();
    let mut b = Builder::new();
    let image = b.input("x", Type::f32(x.shape()));
    let time = b.input("t", Type::f32(t.shape()));
    let dy = b.input("dy", Type::f32(upstream.shape()));
    let class = case.tensors.get("in.class").map(class_input);
    let given = class.as_ref().map(|c| b.input("class", Type { dtype: c.dtype(), shape: c.shape() }));
    let y = network.build(&mut b, image, time, Extras { class: given, dropout_key: None });
    b.output("y", y);
    let trained = trained_states(&network, &b)?;
    let by: Vec<Value> = trained.iter().map(|(_, v)| *v).chain([image]).collect();
    let names = trained.iter().map(|(n, _)| format!("gradient {n}")).chain(["gradient".to_string()]);
    for (name, g) in names.zip(grad(&mut b, y, Some(dy), &by)?) {
        b.output(&name, g);
    }
    let mut session = engine.open(b.finish()?)?;
    for (name, value) in weights.iter() {
        session.set(name, value)?;
    }
    for (name, value) in [("x", &x), ("t", &t), ("dy", &upstream)] {
        session.set(name, value)?;
    }
    if let Some(class) = &class {
        session.set("class", class)?;
    }
    session.run()?;
    let mut checks = Checks::default();
    if engine.is_narrow() {
        return compare_narrow(case, &*session, trained.iter().map(|(n, _)| n.as_str()));
    }
    checks.tensor(Class::UNetOutput, "y", &session.get("y")?, &case.tensor("out.y")?.channels_last());
    if let Some(truth) = case.tensors.get("gin.x") {
        let got = session.get("gradient")?;
        checks.tensor(Class::UNetGradient, "gradient of x", &got, &truth.channels_last());
    }
    compare_gradients(case, &*session, trained.iter().map(|(n, _)| n.as_str()), &VANISHING, &mut checks)?;
    Ok(checks)
}

/// Whole numbers as graphs hold them; embeddings and times as they are.
fn class_input(class: &Tensor) -> Tensor {
    match class.dtype() {
        DType::I64 => Tensor::i32(class.shape(), class.to_f64().iter().map(|&v| v as i32).collect()),
        _ => class.to_f32(),
    }
}

/// The states that an optimiser would change, by name.
pub(crate) fn trained_states(network: &dyn Network, b: &Builder) -> Result<Vec<(String, Value)>> {
    let fixed: Vec<String> =
        network.parameters()?.into_iter().filter(|p| !p.trainable).map(|p| p.name).collect();
    let states = b.graph().states().filter(|(n, ..)| !fixed.iter().any(|f| f == n));
    Ok(states.map(|(n, _, v)| (n.to_string(), v)).collect())
}

pub(crate) fn compare_gradients<'a>(
    case: &Case,
    session: &dyn Session,
    trained: impl Iterator<Item = &'a str>,
    vanishing: &Vanishing,
    checks: &mut Checks,
) -> Result<()> {
    let mut gradients: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for name in trained {
        let got = session.get(&format!("gradient {name}"))?;
        gradients.insert(name, got.channels_second().to_f64());
    }
    let count: usize = gradients.values().map(Vec::len).sum();
    let squares: f64 = gradients.values().flatten().map(|v| v * v).sum();
    // The norm that so many values would have if they were like all the others.
    let typical = |values: usize| (squares / count as f64 * values as f64).sqrt();
    let compare = |got: &[f64], truth: &[f64], of: usize| {
        let norm = truth.iter().map(|v| v * v).sum::<f64>().sqrt();
        let vanishes = norm < vanishing.below * typical(of);
        relative_error(got, truth, if vanishes { vanishing.beside * typical(of) } else { 0.0 })
    };
    for (name, got) in &gradients {
        if let Some(truth) = case.tensors.get(&format!("gparam.{name}")) {
            let error = compare(got, &truth.to_f64(), got.len());
            checks.error(Class::UNetGradient, format!("gradient of {name}"), error);
            continue;
        }
        let norm = got.iter().map(|v| v * v).sum::<f64>().sqrt();
        let truth = case.tensor(&format!("gnorm.{name}"))?.to_f64();
        let error = compare(&[norm], &truth, got.len());
        checks.error(Class::UNetGradient, format!("norm of the gradient of {name}"), error);
        let some: Vec<f64> = got.iter().step_by(STRIDE).copied().collect();
        let truth = case.tensor(&format!("gsome.{name}"))?.to_f64();
        let error = compare(&some, &truth, some.len());
        checks.error(Class::UNetGradient, format!("part of the gradient of {name}"), error);
    }
    Ok(())
}

/// In 16 bits single gradients are off by chance, so all of them together are one vector; it and the output
/// may be off by 2 %, or by twice as much as PyTorch's are in bfloat16.
fn compare_narrow<'a>(
    case: &Case,
    session: &dyn Session,
    trained: impl Iterator<Item = &'a str>,
) -> Result<Checks> {
    let (mut got, mut truth) = (vec![], vec![]);
    for name in trained {
        let gradient = session.get(&format!("gradient {name}"))?.channels_second().to_f64();
        if let Some(t) = case.tensors.get(&format!("gparam.{name}")) {
            got.extend(gradient);
            truth.extend(t.to_f64());
        } else {
            let some = case.tensor(&format!("gsome.{name}"))?.to_f64();
            got.extend(gradient.into_iter().step_by(STRIDE).take(some.len()));
            truth.extend(some);
        }
    }
    let peer = |what: &str| case.bf16_error(what).map_or(2e-2, |e| f64::max(2.0 * e, 2e-2));
    let y = (session.get("y")?.to_f64(), case.tensor("out.y")?.channels_last().to_f64());
    let mut checks = Checks::default();
    checks.limited(Class::UNetOutput, "y", relative_error(&y.0, &y.1, 0.0), peer("y"));
    let error = relative_error(&got, &truth, 0.0);
    checks.limited(Class::UNetGradient, "all gradients", error, peer("gradient"));
    Ok(checks)
}

/// Loads a folder that diffusers saved, writes it again and loads that: nothing may change. Where a case
/// has the same configuration, its weights must be those of the case.
///
/// # Errors
/// If the folder cannot be read or does not come back as it was.
pub fn run_folder(folder: &Path, cases: &[Case]) -> Result<()> {
    let (written, held) = weights::load(folder)?;
    let copy = std::env::temp_dir().join(format!("clearshot-suite-{}", std::process::id()));
    let saved = weights::save(&copy, &written, &held).and_then(|()| weights::load(&copy));
    std::fs::remove_dir_all(&copy)?;
    let (again_config, again) = saved?;
    if again_config != written || again != held {
        return Err("what was written is not what was read".into());
    }
    for case in cases.iter().filter(|c| c.kind == "unet2d") {
        let described = config(case)?;
        if (UNet2DConfig { bookkeeping: BTreeMap::new(), ..written.clone() }) != described {
            continue;
        }
        let same = |(name, t): (&str, &Tensor)| held.get(name) == Some(&t.channels_last());
        if !case.tensors_of("param.").all(same) {
            return Err(format!("its weights are not those of the case {}", case.name).into());
        }
    }
    Ok(())
}
