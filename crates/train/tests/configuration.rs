//! Configurations as users write them: which of several lengths of training counts, and messages for wrong values.

use clearshot_config::ConfigError;
use clearshot_train::{RunConfig, presets};
use serde_json::json;

fn read_with(overrides: &[&str]) -> Result<RunConfig, ConfigError> {
    presets::read(None, &overrides.iter().map(|o| o.to_string()).collect::<Vec<_>>())
}

#[test]
fn a_length_takes_the_place_of_the_experiments() {
    let lengths = |overrides: &[&str]| {
        let config = read_with(overrides).unwrap();
        config.check().unwrap();
        (config.trainer.iterations, config.trainer.seconds)
    };
    assert_eq!(lengths(&["experiment=supervised"]), (None, Some(290.0)));
    assert_eq!(lengths(&["experiment=supervised", "trainer.iterations=200"]), (Some(200), None));
    assert_eq!(lengths(&["trainer.seconds=9", "experiment=default"]), (None, Some(9.0)));
    let both = ["experiment=supervised", "trainer.iterations=200", "trainer.seconds=9"];
    let said = read_with(&both).unwrap_err().to_string();
    assert!(said.contains("trainer.iterations (command line) and trainer.seconds (command line)"), "{said}");
    // Also for a resumed run.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, presets::yaml(&read_with(&["experiment=supervised"]).unwrap())).unwrap();
    let again = presets::read_again(&file, &["trainer.iterations=7".into()]).unwrap();
    assert_eq!((again.trainer.iterations, again.trainer.seconds), (Some(7), None));
}

/// As they were written, not as a program has them.
#[test]
fn wrong_values_are_quoted_as_written() {
    for (value, said) in [
        (json!({}), "trainer.iterations: nothing; the length of training is missing"),
        (
            json!({"trainer": {"iterations": 5, "seconds": 3.0}}),
            "trainer.iterations: given beside trainer.seconds; only one",
        ),
        (json!({"trainer": {"seconds": -3.0}}), "trainer.seconds: -3.0; a number above zero"),
        (
            json!({"trainer": {"iterations": 5}, "data": {"camera": {"background": [3.0, 1.0]}}}),
            "data.camera.background: [3.0, 1.0]; two rising",
        ),
        (
            json!({"trainer": {"iterations": 5}, "data": {"scenes": {"stars": 1.0}, "cameras": {"stars": {"peak": [30.0, 20.0]}}}}),
            "data.cameras.stars.peak: [30.0, 20.0]; two rising",
        ),
        (
            json!({"trainer": {"iterations": 5}, "data": {"scenes": {"stars": 1.0}, "cameras": {"stars": {"blur": 1.5}}}}),
            "data.cameras.stars.blur: 1.5; a share",
        ),
        (
            json!({"trainer": {"iterations": 5}, "data": {"clip": true}}),
            "data.clip: true; false: data.normalise does not apply to generated scenes",
        ),
        (
            json!({"trainer": {"iterations": 5}, "data": {"kind": "pairs", "inputs": "a", "targets": "b", "signal": "photons", "clip": true}}),
            "data.clip: true; false: data.normalise does not apply to images in electrons",
        ),
        (
            json!({"trainer": {"iterations": 5}, "task": {"kind": "segmentation"}, "data": {"kind": "pairs", "inputs": "a", "targets": "b", "clip": true}}),
            "data.clip: true; false: each image is scaled between its own",
        ),
        (
            json!({"trainer": {"iterations": 5}, "model": {"init": "a.clearshot"}, "data": {"kind": "pairs", "inputs": "a", "targets": "b", "clip": true}}),
            "data.clip: true; false: values are scaled and clipped as in the training of the model",
        ),
        (
            json!({"trainer": {"iterations": 5}, "task": {"wavelet": {"weight": -1.0}}}),
            "task.wavelet.weight: -1.0; a",
        ),
        (
            json!({"trainer": {"iterations": 5, "growth": {"stages": [{"size": 64, "share": 0.5}, {"size": 32, "share": 0.5}]}}}),
            "trainer.growth.stages: [64, 32]; sizes that rise",
        ),
    ] {
        let text = serde_json::from_value::<RunConfig>(value).unwrap().check().unwrap_err().to_string();
        assert!(text.starts_with(said), "{text}");
    }
}
