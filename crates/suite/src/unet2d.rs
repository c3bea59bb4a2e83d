//! Cases of whole networks: diffusers' UNet2DModel forward, and the gradients of its input and of
//! every parameter. And the folders that diffusers saves such networks into.

use crate::Result;
use crate::case::Case;
use crate::engine::{Engine, Session};
use crate::report::{Checks, Class, relative_error};
use clearshot_graph::grad::grad;
use clearshot_graph::{Builder, Type, Value};
use clearshot_nn::models::unet2d::{Extras, UNet2D, UNet2DConfig};
use clearshot_nn::{Weights, weights};
use clearshot_tensor::Tensor;
use std::collections::BTreeMap;
use std::path::Path;

/// Every how many values a large gradient was sampled.
const STRIDE: usize = 97;

/// Some gradients are zero but for rounding (a bias in front of softmax that all keys share). Each
/// value's share of the whole gradient times this is what a difference is measured against at least.
const FLOOR: f64 = 1e-3;

/// The network that a case's attributes describe.
pub(crate) fn config(case: &Case) -> Result<UNet2DConfig> {
    let object = case.attrs.get("config").and_then(|c| c.as_object()).ok_or("the case has no `config`")?;
    Ok(UNet2DConfig::from_map(object.clone())?)
}

/// The case's parameters under `prefix`, checked against the network's.
pub(crate) fn parameters(case: &Case, prefix: &str, network: &UNet2D) -> Result<Weights> {
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
    let y = network.build(&mut b, image, time, Extras::default());
    b.output("y", y);
    let states: Vec<(String, Value)> = b.graph().states().map(|(n, _, v)| (n.to_string(), v)).collect();
    let by: Vec<Value> = states.iter().map(|(_, v)| *v).chain([image]).collect();
    let names = states.iter().map(|(n, _)| format!("gradient {n}")).chain(["gradient".to_string()]);
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
    session.run()?;
    let mut checks = Checks::default();
    checks.tensor(Class::UNetOutput, "y", &session.get("y")?, &case.tensor("out.y")?.channels_last());
    if let Some(truth) = case.tensors.get("gin.x") {
        let got = session.get("gradient")?;
        checks.tensor(Class::UNetGradient, "gradient of x", &got, &truth.channels_last());
    }
    compare_gradients(case, &*session, &weights, &mut checks)?;
    Ok(checks)
}

fn compare_gradients(
    case: &Case,
    session: &dyn Session,
    weights: &Weights,
    checks: &mut Checks,
) -> Result<()> {
    let mut gradients: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for name in weights.keys() {
        let got = session.get(&format!("gradient {name}"))?;
        gradients.insert(name, got.channels_second().to_f64());
    }
    let count: usize = gradients.values().map(Vec::len).sum();
    let squares: f64 = gradients.values().flatten().map(|v| v * v).sum();
    let floor = |values: usize| FLOOR * (squares / count as f64 * values as f64).sqrt();
    for (name, got) in &gradients {
        if let Some(truth) = case.tensors.get(&format!("gparam.{name}")) {
            let error = relative_error(got, &truth.to_f64(), floor(got.len()));
            checks.error(Class::UNetGradient, format!("gradient of {name}"), error);
            continue;
        }
        let norm = got.iter().map(|v| v * v).sum::<f64>().sqrt();
        let truth = case.tensor(&format!("gnorm.{name}"))?.to_f64();
        let error = relative_error(&[norm], &truth, floor(got.len()));
        checks.error(Class::UNetGradient, format!("norm of the gradient of {name}"), error);
        let some: Vec<f64> = got.iter().step_by(STRIDE).copied().collect();
        let truth = case.tensor(&format!("gsome.{name}"))?.to_f64();
        let error = relative_error(&some, &truth, floor(some.len()));
        checks.error(Class::UNetGradient, format!("part of the gradient of {name}"), error);
    }
    Ok(())
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
