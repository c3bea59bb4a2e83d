//! A trained checkpoint is a folder of diffusers, and a folder of diffusers is a model here: both programs give the same
//! numbers. Needs a Python with diffusers (`CLEARSHOT_DIFFUSERS`, or otherwise `python3`), which `.ci/run` makes; without
//! it the tests are skipped with a message.

mod tiny;

use clearshot_model::{Model, PredictionKind, Process, Task};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::noise::Key;
use clearshot_tensor::store::Store;
use clearshot_tensor::{Shape, Tensor};
use clearshot_train::Run;
use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Loads the network of a folder (having made it, if asked), asks it.
const SCRIPT: &str = r#"
import sys, torch
from diffusers import DDIMScheduler, UNet2DModel
from safetensors.torch import load_file, save_file
folder, given, made, make = sys.argv[1:5]
torch.manual_seed(5)
if make == "make":
    net = UNet2DModel(sample_size=16, in_channels=1, out_channels=1, block_out_channels=(8, 16), layers_per_block=1,
        norm_num_groups=4, attention_head_dim=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    # A network of diffusers begins with a last layer like the others; larger weights make its answer a test.
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    net.save_pretrained(folder)
    DDIMScheduler(clip_sample=False, prediction_type="v_prediction").save_pretrained(folder + "/scheduler")
net = UNet2DModel.from_pretrained(folder).eval()
given = load_file(given)
with torch.no_grad():
    save_file({"y": net(given["x"], given["t"]).sample.contiguous()}, made)
scheduler = DDIMScheduler.from_pretrained(folder, subfolder="scheduler")
print(scheduler.config.prediction_type, scheduler.config.beta_schedule, scheduler.config.num_train_timesteps)
"#;

/// Whether there is a Python with diffusers.
fn python() -> Option<String> {
    let program = std::env::var("CLEARSHOT_DIFFUSERS").unwrap_or("python3".into());
    let out = Command::new(&program).args(["-c", "import diffusers, torch, safetensors"]).output();
    match out {
        Ok(out) if out.status.success() => Some(program),
        _ => {
            eprintln!("skipped: {program} has no diffusers; CLEARSHOT_DIFFUSERS names a Python that has");
            None
        }
    }
}

/// What diffusers answers for the network of a folder, and what it says of its schedule.
fn theirs(python: &str, folder: &Path, make: bool, x: &Tensor, t: &Tensor) -> (Tensor, String) {
    let at = folder.parent().expect("a folder");
    let (given, made) = (at.join("given.safetensors"), at.join("made.safetensors"));
    let tensors = BTreeMap::from([("x".to_string(), x.channels_second()), ("t".to_string(), t.clone())]);
    Store { tensors, metadata: BTreeMap::new() }.write(&given).expect("a file");
    let out = Command::new(python)
        .args(["-c", SCRIPT])
        .args([folder, &given, &made])
        .arg(if make { "make" } else { "load" })
        .output()
        .expect("Python runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let y = Store::read(&made).expect("a file").tensors.remove("y").expect("an answer");
    (y.channels_last(), String::from_utf8(out.stdout).expect("text"))
}

fn ours(model: &Model, x: &Tensor, t: &Tensor) -> Tensor {
    let graph = model.network.inference(x.shape()[0], &x.shape()[1..3]).expect("a graph");
    let mut session = compile(graph, &Device::cpu(Some(1)), &Options::default()).expect("a session");
    for (name, weight) in &model.weights {
        session.set(name, weight).expect("a weight");
    }
    session.set("x", x).expect("x");
    session.set("t", t).expect("t");
    session.run().expect("a run");
    session.get("y").expect("y")
}

/// The largest difference over the largest value.
fn apart(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.to_f64(), b.to_f64());
    let largest = b.iter().fold(0f64, |m, v| m.max(v.abs()));
    assert!(largest > 1e-3, "an answer of nothing shows nothing");
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
}

fn question() -> (Tensor, Tensor) {
    let mut x = vec![0.0; 3 * 16 * 16];
    Key { seed: 8, step: 0, stream: 0 }.fill_normal(0, &mut x);
    (Tensor::f32([3, 16, 16, 1], x), Tensor::f32(Shape::new(&[3]), vec![0.0, 123.0, 999.0]))
}

#[test]
fn a_trained_checkpoint_answers_the_same_in_diffusers() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let config = tiny::config(json!({
        "model": {"network": tiny::network(1)},
        "task": {"kind": "prior", "prediction": "v_prediction", "schedule": "cosine", "timesteps": 1000},
        "optimizer": {"rate": 0.01}, "schedule": {"warm_up": 1}, "trainer": {"iterations": 12, "ema_half_life": 20.0},
        "validation": {"every": 0},
    }));
    let out = dir.path().join("run");
    let mut run = Run::open(config, &out, false, Show::Quiet).expect("a run");
    let folder = run.train(&never(), None).expect("an end").checkpoint.join("model");
    let model = Model::load(&folder).expect("a model");
    // Trained weights, not those that it began with.
    assert_eq!(model.about.training["iterations"], 12);
    let (x, t) = question();
    let (y, said) = theirs(&python, &folder, false, &x, &t);
    let apart = apart(&ours(&model, &x, &t), &y);
    eprintln!("a checkpoint of ours in diffusers: {apart:.2e} of the largest value; {}", said.trim());
    assert!(apart < 1e-5, "{apart}");
    assert_eq!(said.trim(), "v_prediction squaredcos_cap_v2 1000");
}

#[test]
fn a_folder_of_diffusers_answers_the_same_here() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("theirs");
    let (x, t) = question();
    let (y, _) = theirs(&python, &folder, true, &x, &t);
    let model = Model::load(&folder).expect("a model");
    let apart = apart(&ours(&model, &x, &t), &y);
    eprintln!("a network of diffusers here: {apart:.2e} of the largest value");
    assert!(apart < 1e-5, "{apart}");
    // What its scheduler says is what it was trained to do.
    let Task::Diffusion { prediction, process, .. } = &model.about.task else { panic!("no diffusion") };
    assert_eq!(*prediction, PredictionKind::VPrediction);
    let Process::Timesteps { law, steps, .. } = process else { panic!("no timesteps") };
    assert_eq!((law.as_str(), *steps), ("ddpm_linear", 1000));
}
