//! Models come back from their files as they went in, and files that are not models are refused by name.

use clearshot_diffusion::{Condition, Denoiser, LevelInputs};
use clearshot_graph::{Builder, Type};
use clearshot_image::dataset::{Normaliser, Range};
use clearshot_model::{About, ConditionKind, Model, ModelError, PredictionKind, Process, Signal, Task};
use clearshot_nn::{models, weights};
use clearshot_tensor::DType;
use std::path::PathBuf;

const UNET: &str = r#"{"_class_name": "UNet2DModel", "sample_size": 8, "in_channels": 1, "out_channels": 1,
    "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4,
    "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"]}"#;
const LOCAL: &str = r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 10}"#;

fn about(task: Task) -> About {
    let training = serde_json::json!({"iterations": 3});
    let limits = "everything".to_string();
    About { training, limits, ..About::new("test", task, Signal::Photons, 1, &[16, 16]) }
}

fn conditional() -> Task {
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 10.0, rho: 7.0 };
    Task::Diffusion {
        prediction: PredictionKind::Edm { sigma_data: 0.5 },
        process,
        condition: ConditionKind::Measurement,
    }
}

fn prior() -> Task {
    let process =
        Process::Timesteps { law: "cosine".into(), first: 1e-4, last: 0.02, steps: 100, finer: 1.0 };
    Task::Diffusion { prediction: PredictionKind::VPrediction, process, condition: ConditionKind::None }
}

fn model(config: &str, task: Task) -> Model {
    let params = models::read(config).unwrap().parameters().unwrap();
    Model::new(about(task), config.into(), weights::initial(&params, 5)).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("clearshot-model-{name}-{}", std::process::id()));
    // Of an earlier run that was stopped.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_built_in_model_is_one_for_conditional_diffusion() {
    let model = Model::builtin().unwrap();
    assert_eq!(model.about.task.name(), "conditional diffusion");
    assert_eq!((&model.about.signal, model.about.channels), (&Signal::Photons, 1));
    assert_eq!(model.levels(7).unwrap().len(), 7);
    assert_eq!(model.hash().len(), 64);
}

/// The same weights for another task, another unit or other images are another model; its name and notes are not.
#[test]
fn the_hash_is_of_everything_that_results_follow_from() {
    let base = model(LOCAL, conditional());
    let with = |change: &dyn Fn(&mut About)| {
        let mut other = model(LOCAL, conditional());
        change(&mut other.about);
        other.hash()
    };
    assert_eq!(with(&|a| a.name = "another".into()), base.hash());
    let familiar = Model::builtin().unwrap().about.familiar;
    assert!(familiar.is_some());
    let limits = Normaliser { range: Range::MinMax, low: 100.0, high: 300.0, clip: false };
    let signal = Signal::Fixed { input: limits, target: Some(limits) };
    let others = [
        with(&|a| a.task = prior()),
        with(&|a| a.signal = signal.clone()),
        with(&|a| a.familiar = familiar.clone()),
    ];
    assert!(others.iter().all(|h| *h != base.hash()));
    assert!(others[0] != others[1] && others[1] != others[2]);
}

#[test]
fn files_and_folders_come_back_as_they_were() {
    let dir = folder("back");
    for (config, task) in [(LOCAL, conditional()), (UNET, prior())] {
        let model = model(config, task);
        let (file, sub) = (dir.join("x.clearshot"), dir.join("folder"));
        model.save_file(&file, DType::F32).unwrap();
        model.save_folder(&sub).unwrap();
        // The folder of a training run, which keeps its best model in it.
        let run = dir.join("run");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::copy(&file, run.join("best.clearshot")).unwrap();
        for path in [&file, &sub, &run] {
            let back = Model::load(path).unwrap();
            assert_eq!((&back.about, &back.weights), (&model.about, &model.weights), "{}", path.display());
            assert_eq!(back.hash(), model.hash());
        }
        model.save_file(&file, DType::F16).unwrap();
        let narrow = Model::load(&file).unwrap();
        assert_ne!(narrow.hash(), model.hash());
        for (name, weight) in &model.weights {
            let pairs = weight.to_f64().into_iter().zip(narrow.weights[name].to_f64());
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= 5e-4 * a.abs() + 1e-7), "{name}");
        }
        assert!(model.save_file(&file, DType::I32).is_err());
        std::fs::remove_dir_all(&sub).unwrap();
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Without `model.json` the scheduler's configuration says what the network does.
#[test]
fn a_folder_of_diffusers_is_a_model() {
    let dir = folder("diffusers");
    model(UNET, prior()).save_folder(&dir).unwrap();
    std::fs::remove_file(dir.join("model.json")).unwrap();
    let back = Model::load(&dir).unwrap();
    let Task::Diffusion { prediction, process, condition } = &back.about.task else { panic!() };
    assert_eq!((prediction, condition), (&PredictionKind::VPrediction, &ConditionKind::None));
    let same = Process::Timesteps { law: "cosine".into(), first: 1e-4, last: 0.02, steps: 100, finer: 1.0 };
    assert_eq!(process, &same);
    // A table of betas of one's own goes there and back too.
    let (prediction, own) =
        (PredictionKind::Epsilon, Process::Betas { betas: vec![0.1, 0.2, 0.4], finer: 1.0 });
    let task = Task::Diffusion { prediction, process: own.clone(), condition: ConditionKind::None };
    let tables = folder("diffusers-betas");
    model(UNET, task).save_folder(&tables).unwrap();
    std::fs::remove_file(tables.join("model.json")).unwrap();
    let back = Model::load(&tables).unwrap();
    assert!(matches!(&back.about.task, Task::Diffusion { process, .. } if *process == own));
    assert_eq!(back.levels(3).unwrap().len(), 3);
    std::fs::remove_dir_all(&tables).unwrap();
    std::fs::write(dir.join("scheduler/scheduler_config.json"), r#"{"beta_schedule": "strange"}"#).unwrap();
    let text = Model::load(&dir).unwrap_err().to_string();
    assert!(text.contains("beta_schedule") && text.contains("scaled_linear"), "{text}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_that_are_not_models_are_refused() {
    let dir = folder("refused");
    let missing = Model::load(&dir.join("nothing.clearshot")).unwrap_err();
    assert!(
        matches!(missing, ModelError::Missing { .. }) && missing.to_string().contains("nothing.clearshot")
    );
    assert!(matches!(Model::load(&dir).unwrap_err(), ModelError::Missing { .. }));
    let path = dir.join("x.clearshot");
    std::fs::write(&path, b"no safetensors at all").unwrap();
    assert!(Model::load(&path).unwrap_err().to_string().contains("x.clearshot"));
    model(LOCAL, conditional()).save_file(&path, DType::F32).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert!(Model::load(&path).is_err(), "{length} bytes");
    }
    // A network for one image, where image and measurement come.
    let params = models::read(UNET).unwrap().parameters().unwrap();
    let error = Model::new(about(conditional()), UNET.into(), weights::initial(&params, 5)).unwrap_err();
    assert!(error.to_string().contains("from 10 to 1"), "{error}");
    let regression = model(r#"{"_class_name": "Local", "in_channels": 9, "time": false}"#, Task::Regression);
    assert!(matches!(regression.denoiser(), Err(ModelError::OtherTask { .. })));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A denoiser takes the condition beside x, and is refused without it.
#[test]
fn a_denoiser_takes_its_condition() {
    let model = model(LOCAL, conditional());
    let build = |channels: Option<usize>| {
        let mut b = Builder::new();
        let x = b.input("x", Type::f32([2, 8, 8, 1]));
        let image = channels.map(|c| b.input("condition", Type::f32([2, 8, 8, c])));
        let given = Condition { image, ..Condition::default() };
        let estimate = model.denoiser().unwrap().denoise(&mut b, x, &mut LevelInputs::new(2), &given);
        b.output("x0", estimate.x0);
        b.finish()
    };
    build(Some(9)).unwrap();
    assert!(build(None).is_err() && build(Some(4)).is_err());
}

/// Weights alone, of PyTorch or safetensors, are a model together with the configuration beside them.
#[test]
fn weights_with_a_configuration_beside_them_are_a_model() {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../refs/unet2d/diffusers_bin");
    let whole = Model::load(&from).unwrap();
    assert_eq!(whole.about.task.name(), "an unconditional prior");
    let dir = folder("beside");
    let file = dir.join("epoch_12.pth");
    std::fs::copy(from.join("diffusion_pytorch_model.bin"), &file).unwrap();
    let text = Model::load(&file).unwrap_err().to_string();
    assert!(text.contains("epoch_12.pth") && text.contains("config.json"), "{text}");
    std::fs::copy(from.join("config.json"), dir.join("config.json")).unwrap();
    assert_eq!(Model::load(&file).unwrap().hash(), whole.hash());
    // Written as ours, it is what it was.
    whole.save_folder(&dir.join("ours")).unwrap();
    assert_eq!(Model::load(&dir.join("ours")).unwrap().hash(), whole.hash());
    let attack = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tensor/tests/checkpoint/attack.pt");
    std::fs::copy(attack, &file).unwrap();
    let text = Model::load(&file).unwrap_err().to_string();
    assert!(text.contains("eval") && text.contains("nothing in a file is run"), "{text}");
    std::fs::remove_dir_all(&dir).unwrap();
}
