//! Keys of CytoDL, Lightning and Hydra, translated to keys of this program.
//!
//! A key is another name for one here, or asks for what the engine always does, or has its counterpart elsewhere.
//! Translations are reported ([`Understood::notes`]); keys without a counterpart are refused with advice. No key is ignored
//! silently.

use clearshot_config::ConfigError;

/// What a key of another program means here.
enum Meaning {
    /// This key, with the same values.
    Key(&'static str),
    /// This key, with these values for those.
    Values(&'static str, &'static [(&'static str, &'static str)]),
    /// Always so, for these values; why.
    Always(&'static [&'static str], &'static str),
    /// So for these values, and why; what to write for others.
    Otherwise(&'static [&'static str], &'static str, &'static str),
    /// Not a key; what to do instead.
    Instead(&'static str),
}

use Meaning::{Always, Instead, Key, Otherwise, Values};

const YES: &[&str] = &["true", "1"];
const NO: &[&str] = &["false", "0"];
const ANY: &[&str] = &["true", "1", "false", "0"];

const KEYS: &[(&str, Meaning)] = &[
    ("data.batch_size", Key("trainer.batch")),
    ("data.num_workers", Key("performance.workers")),
    ("data.persistent_workers", Always(YES, "loader threads live as long as the run")),
    ("data.pin_memory", Always(ANY, "batches travel from page-locked memory wherever there is a GPU")),
    ("data.prefetch_factor", Instead("set performance.ahead to the number of batches that are made ahead")),
    ("model.channels_last", Always(YES, "images are stored with their channels last")),
    ("model.spatial_dims", Always(&["2", "3"], "a network's own description says how many axes it has")),
    ("model.compile_model", Values("model.compile_mode", &[("true", "max-autotune"), ("false", "none")])),
    (
        "model.gradient_checkpointing",
        Otherwise(
            NO,
            "values are recomputed only where performance.budget asks for it",
            "set performance.budget to a size such as 4GiB: what does not fit into it is recomputed",
        ),
    ),
    (
        "model.inference_args.sw_batch_size",
        Instead("restore and predict plan their tiles; --batch of restore sets how many at once"),
    ),
    ("optimizer.lr", Key("optimizer.rate")),
    ("optimizer.fused", Always(YES, "one launch updates all parameters")),
    ("performance.cudnn_benchmark", Always(YES, "kernels are chosen by measuring, and the choices are kept")),
    ("performance.tf32", Values("performance.precision", &[("true", "tf32"), ("false", "fp32")])),
    (
        "trainer.accelerator",
        Values("trainer.device", &[("gpu", "cuda"), ("cuda", "cuda"), ("cpu", "cpu"), ("auto", "auto")]),
    ),
    ("trainer.accumulate_grad_batches", Key("trainer.accumulate")),
    ("trainer.benchmark", Always(YES, "kernels are chosen by measuring, and the choices are kept")),
    ("trainer.deterministic", Always(YES, "the same seed gives the same bits")),
    ("trainer.gradient_clip_val", Key("optimizer.clip")),
    (
        "trainer.max_epochs",
        Instead(
            "trainer.iterations=N or trainer.seconds=S says how long to train, or trainer.epochs=simple|medium|complex, by the number of files",
        ),
    ),
    ("trainer.max_steps", Key("trainer.iterations")),
    ("trainer.max_time", Instead("set trainer.seconds")),
    ("trainer.num_nodes", Key("trainer.nodes")),
    (
        "trainer.strategy",
        Always(&["auto", "ddp"], "where several processes train, they average their gradients"),
    ),
    ("trainer.sync_batchnorm", Always(ANY, "no network has batch norms that are trained")),
    (
        "trainer.precision",
        Values(
            "performance.precision",
            &[
                ("bf16-mixed", "bf16"),
                ("bf16", "bf16"),
                ("16-mixed", "fp16"),
                ("16", "fp16"),
                ("32-true", "fp32"),
                ("32", "fp32"),
                ("tf32", "tf32"),
            ],
        ),
    ),
    (
        "ckpt_path",
        Instead(
            "give the run's folder: clearshot train --resume FOLDER; or begin from a model by model.init=FILE",
        ),
    ),
];

/// What a list of overrides means here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Understood {
    pub overrides: Vec<String>,
    /// The translation of the keys of other programs, one sentence each.
    pub notes: Vec<String>,
}

/// Puts the keys of other programs into this one's words.
///
/// # Errors
/// If a key or its value has no counterpart: which, and what to write instead.
pub fn understand(overrides: &[String]) -> Result<Understood, ConfigError> {
    let mut all = Understood::default();
    for text in overrides {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        let bare = key.trim_start_matches('+');
        let Some((_, meaning)) = KEYS.iter().find(|(name, _)| *name == bare) else {
            all.overrides.push(text.clone());
            continue;
        };
        let refuse = |why: String| Err(ConfigError::Override { text: text.clone(), why });
        let said = value.trim().to_lowercase();
        let mut stands = |here: &str, value: &str| {
            all.notes.push(format!("{text} is {here}={value} here"));
            all.overrides.push(format!("{here}={value}"));
        };
        match meaning {
            Key(here) => stands(here, value),
            Values(here, known) => match known.iter().find(|(name, _)| *name == said) {
                Some((_, value)) => stands(here, value),
                None => {
                    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                    return refuse(format!("it stands for {here} here, and is one of {}", names.join(", ")));
                }
            },
            Always(values, why) | Otherwise(values, why, _) if values.contains(&said.as_str()) => {
                all.notes.push(format!("{text}: {why}"));
            }
            Always(_, why) => return refuse(format!("it cannot be changed: {why}; leave it out")),
            Otherwise(_, _, what) => return refuse((*what).into()),
            Instead(what) => return refuse((*what).into()),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    fn of(texts: &[&str]) -> Result<Understood, ConfigError> {
        understand(&texts.iter().map(|t| t.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn every_key_is_translated_refused_or_reported() {
        for (key, meaning) in KEYS {
            match meaning {
                Key(here) => {
                    let made = of(&[&format!("{key}=3")]).unwrap();
                    assert_eq!(made.overrides, [format!("{here}=3")]);
                    assert!(made.notes[0].contains(key) && made.notes[0].contains(here), "{:?}", made.notes);
                }
                Values(here, known) => {
                    for (value, means) in *known {
                        let made = of(&[&format!("{key}={value}")]).unwrap();
                        assert_eq!(made.overrides, [format!("{here}={means}")]);
                    }
                    assert!(of(&[&format!("{key}=wrong")]).unwrap_err().to_string().contains(here));
                }
                Always(values, _) | Otherwise(values, ..) => {
                    for value in *values {
                        let made = of(&[&format!("{key}={value}")]).unwrap();
                        assert_eq!((made.overrides.len(), made.notes.len()), (0, 1), "{key}");
                    }
                    assert!(of(&[&format!("{key}=7")]).unwrap_err().to_string().contains(key));
                }
                Instead(_) => assert!(of(&[&format!("{key}=3")]).unwrap_err().to_string().contains(key)),
            }
        }
    }

    /// Keys that they stand for are keys here: a run can be read with each.
    #[test]
    fn results_can_be_read_again() {
        let texts = [
            "experiment=supervised",
            "data.batch_size=16",
            "data.num_workers=4",
            "model.compile_model=True",
            "optimizer.lr=1e-3",
            "trainer.precision=bf16-mixed",
            "trainer.accelerator=gpu",
            "trainer.gradient_clip_val=0.5",
            "trainer.max_steps=7",
            "trainer.accumulate_grad_batches=2",
            "model.channels_last=True",
            "performance.cudnn_benchmark=True",
        ];
        let config = presets::read(None, &texts.map(String::from)).unwrap();
        assert_eq!((config.trainer.batch, config.performance.workers), (crate::config::Count::Number(16), 4));
        assert_eq!((config.optimizer.rate, config.optimizer.clip), (1e-3, 0.5));
        assert_eq!((config.performance.precision.as_str(), config.trainer.device.as_str()), ("bf16", "cuda"));
        assert_eq!((config.trainer.iterations, config.trainer.accumulate), (Some(7), 2));
    }

    #[test]
    fn our_own_keys_stay_as_they_are() {
        let texts = ["experiment=default", "trainer.batch=8", "a file.yaml", "~data.inputs"];
        assert_eq!(
            of(&texts).unwrap(),
            Understood { overrides: texts.map(String::from).to_vec(), notes: vec![] }
        );
    }
}
