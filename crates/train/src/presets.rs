//! The built-in configuration groups.
//!
//! `train.yaml` is the starting point of a run; `experiment=NAME` and the other groups choose among these files, and a
//! folder of the user takes precedence over them.

use crate::config::RunConfig;
use crate::elsewhere::understand;
use clearshot_config::{ConfigError, Groups, compose, compose_with};
use std::path::{Path, PathBuf};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../configs/", $name)))),*]
    };
}

/// Every file, by its path.
pub const FILES: &[(&str, &str)] = files![
    "data/clean.yaml",
    "data/filaments.yaml",
    "data/noisy.yaml",
    "data/nuclei.yaml",
    "data/pairs.yaml",
    "data/repeats.yaml",
    "data/scenes.yaml",
    "debug/profile_gpu.yaml",
    "debug/profile_memory.yaml",
    "experiment/adapt.yaml",
    "experiment/default.yaml",
    "experiment/growing.yaml",
    "experiment/im2im/gan.yaml",
    "experiment/im2im/gan_superres.yaml",
    "experiment/im2im/ijepa.yaml",
    "experiment/im2im/instance_seg.yaml",
    "experiment/im2im/iwm.yaml",
    "experiment/im2im/labelfree.yaml",
    "experiment/im2im/mae.yaml",
    "experiment/im2im/segmentation.yaml",
    "experiment/instances.yaml",
    "experiment/intervals.yaml",
    "experiment/mae.yaml",
    "experiment/medical.yaml",
    "experiment/multiscale.yaml",
    "experiment/noise2noise.yaml",
    "experiment/noise2void.yaml",
    "experiment/prior_ddpm.yaml",
    "experiment/prior_edm.yaml",
    "experiment/progressive.yaml",
    "experiment/segmentation.yaml",
    "experiment/splitting.yaml",
    "experiment/supervised.yaml",
    "experiment/superres.yaml",
    "experiment/volumes.yaml",
    "model/conditioned.yaml",
    "model/dncnn.yaml",
    "model/dynunet2d.yaml",
    "model/dynunet2d_superres.yaml",
    "model/dynunet3d.yaml",
    "model/growing.yaml",
    "model/jepa2d.yaml",
    "model/jepa3d.yaml",
    "model/local.yaml",
    "model/local_prior.yaml",
    "model/local_small.yaml",
    "model/local_volume.yaml",
    "model/mae2d.yaml",
    "model/mae3d.yaml",
    "model/multiscale.yaml",
    "model/n2v.yaml",
    "model/superres.yaml",
    "model/unet2d_prior.yaml",
    "model/vit_segmentation.yaml",
    "optimizer/adam.yaml",
    "optimizer/adam_fused.yaml",
    "optimizer/adamw.yaml",
    "optimizer/adamw_fused.yaml",
    "optimizer/sgd.yaml",
    "performance/default.yaml",
    "performance/gpu_optimized.yaml",
    "resume.yaml",
    "schedule/constant.yaml",
    "schedule/cosine.yaml",
    "schedule/restarts.yaml",
    "schedule/three_phase.yaml",
    "task/conditional.yaml",
    "task/gan.yaml",
    "task/ijepa.yaml",
    "task/instances.yaml",
    "task/iwm.yaml",
    "task/mae.yaml",
    "task/noise2noise.yaml",
    "task/noise2void.yaml",
    "task/prior_ddpm.yaml",
    "task/prior_edm.yaml",
    "task/segmentation.yaml",
    "task/splitting.yaml",
    "task/supervised.yaml",
    "train.yaml",
    "trainer/cpu.yaml",
    "trainer/default.yaml",
    "trainer/gpu.yaml",
    "trainer/gpu_optimized.yaml",
    "trainer/multi_gpu.yaml",
    "trainer/multi_gpu_ddp.yaml",
];

/// The keys that say how long to train, one at a time: `trainer.iterations=200` takes the place of the seconds that an
/// experiment is made for.
const LENGTHS: [&str; 3] = ["trainer.iterations", "trainer.seconds", "trainer.epochs"];

/// The groups, with those of a folder in front.
///
/// # Errors
/// If the folder is none.
pub fn groups(folder: Option<&Path>) -> Result<Groups, ConfigError> {
    let built_in = Groups::embedded(FILES).exclusive(&[&LENGTHS]);
    match folder {
        Some(folder) => built_in.in_front(folder),
        None => Ok(built_in),
    }
}

/// The run that a list of files and overrides means.
///
/// # Errors
/// Names the key, where it stands, and the nearest one that there is.
pub fn read(folder: Option<&Path>, overrides: &[String]) -> Result<RunConfig, ConfigError> {
    let overrides = with_tuned(folder, understand(overrides)?.overrides)?;
    Ok(compose(&groups(folder)?, "train", &overrides)?.read()?)
}

/// Where `tune` writes its findings, below a folder of configuration groups; by default below `configs`.
pub const TUNED: &str = "performance/auto_tuned.yaml";
const CONFIGS: &str = "configs";

/// The file of what was tuned.
pub fn tuned_file(folder: Option<&Path>) -> PathBuf {
    folder.unwrap_or(Path::new(CONFIGS)).join(TUNED)
}

/// `performance=auto_tuned` is the file that `tune` has written. It is a file of the user's, which comes after every group: the batch of an
/// experiment does not take the place of the one that was found.
fn with_tuned(folder: Option<&Path>, overrides: Vec<String>) -> Result<Vec<String>, ConfigError> {
    const CHOICE: &str = "performance=auto_tuned";
    let file = tuned_file(folder);
    let is_chosen = overrides.iter().any(|text| text == CHOICE);
    if is_chosen && !file.exists() {
        let why = format!(
            "there is no {}; `clearshot tune` writes it, --configs names another folder",
            file.display()
        );
        return Err(ConfigError::Override { text: CHOICE.into(), why });
    }
    let path = file.to_string_lossy().into_owned();
    Ok(overrides.into_iter().map(|text| if text == CHOICE { path.clone() } else { text }).collect())
}

/// The run whose resolved configuration stands in a file, with overrides.
///
/// # Errors
/// As [`read`].
pub fn read_again(file: &Path, overrides: &[String]) -> Result<RunConfig, ConfigError> {
    Ok(compose_with(&groups(None)?, "resume", &[file], &understand(overrides)?.overrides)?.read()?)
}

/// A configuration as YAML.
pub fn yaml(config: &RunConfig) -> String {
    let mut text = String::new();
    let value = serde_json::to_value(config).unwrap_or_default();
    write_map(&value, 0, &mut text);
    text
}

/// Maps as lines of keys; everything else as JSON, which is YAML too.
fn write_map(value: &serde_json::Value, indent: usize, text: &mut String) {
    let Some(map) = value.as_object() else { return };
    for (key, value) in map {
        text.push_str(&" ".repeat(indent));
        text.push_str(key);
        if value.as_object().is_some_and(|m| !m.is_empty()) {
            text.push_str(":\n");
            write_map(value, indent + 2, text);
        } else {
            text.push_str(&format!(": {value}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TaskKind;

    fn read_with(overrides: &[&str]) -> Result<RunConfig, ConfigError> {
        read(None, &overrides.iter().map(|o| o.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn every_experiment_resolves_to_a_valid_run() {
        for (name, _) in FILES.iter().filter(|(name, _)| name.starts_with("experiment/")) {
            let choice = format!("experiment={}", &name["experiment/".len()..name.len() - ".yaml".len()]);
            let mut overrides = vec![choice.as_str()];
            let pairs = ["labelfree", "im2im/segmentation", "im2im/gan.yaml", "instance_seg", "medical"];
            if pairs.iter().any(|n| name.contains(n)) {
                overrides.extend(["data.inputs=a", "data.targets=b"]);
            }
            if ["adapt", "noise2noise", "noise2void", "splitting"].iter().any(|n| name.contains(n)) {
                overrides.push("data.inputs=a");
            }
            let config = read_with(&overrides).unwrap_or_else(|e| panic!("{name}: {e}"));
            config.check().unwrap_or_else(|e| panic!("{name}: {e}"));
            crate::task::Task::new(&config.task).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut network = config.model.network.clone();
            if network.is_empty() {
                // That of the model that it begins from.
                continue;
            }
            // What a run makes of channels that are left open: the measurement beside the noisy image, and one image.
            for (key, count) in [("in_channels", 2), ("out_channels", 1)] {
                network.entry(key).and_modify(|n| {
                    if n.as_u64() == Some(0) {
                        *n = count.into();
                    }
                });
            }
            let network = serde_json::to_string(&network).unwrap();
            clearshot_nn::models::read(&network).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    #[test]
    fn several_gpus_by_either_name() {
        let ranks = |overrides: &[&str]| {
            let trainer = read_with(overrides).unwrap().trainer;
            (trainer.device, trainer.devices, trainer.nodes)
        };
        assert_eq!(ranks(&["trainer=multi_gpu_ddp", "trainer.num_nodes=2"]), ("cuda".to_string(), 4, 2));
        assert_eq!(ranks(&["trainer=multi_gpu", "trainer.devices=8"]), ("cuda".to_string(), 8, 1));
    }

    #[test]
    fn every_option_of_every_group_is_understood() {
        let groups = groups(None).unwrap();
        for group in groups.groups().into_iter().filter(|g| !g.is_empty() && !g.starts_with("experiment")) {
            for option in groups.options(&group) {
                read_with(&[&format!("{group}={option}")])
                    .unwrap_or_else(|e| panic!("{group}={option}: {e}"));
            }
        }
    }

    #[test]
    fn hydras_line_has_its_counterpart() {
        let config = read_with(&[
            "experiment=im2im/labelfree",
            "trainer=gpu_optimized",
            "performance=gpu_optimized",
            "optimizer=adamw_fused",
            "model.compile_mode=max-autotune",
        ])
        .unwrap();
        assert_eq!(config.task.kind, TaskKind::Supervised);
        assert_eq!((config.performance.precision.as_str(), config.trainer.device.as_str()), ("bf16", "cuda"));
        let text = read_with(&["experiment=default", "trainer.iteration=5"]).unwrap_err().to_string();
        assert!(text.contains("trainer.iteration") && text.contains("trainer.iterations"), "{text}");
    }

    #[test]
    fn a_written_configuration_is_read_again() {
        let config =
            read_with(&["experiment=default", "trainer.iterations=5", "data.scenes={nuclei: 2.5}"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        // A path that could be taken for an override.
        let run = folder.path().join("rate=1e-3,run");
        std::fs::create_dir(&run).unwrap();
        let file = run.join("config.yaml");
        std::fs::write(&file, yaml(&config)).unwrap();
        assert_eq!(read_again(&file, &[]).unwrap(), config);
        let changed = read_again(&file, &["trainer.iterations=9".to_string()]).unwrap();
        assert_eq!(changed.trainer.iterations, Some(9));
    }
}
