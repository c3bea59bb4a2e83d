//! A trained model in 8 bits: rounded and unrounded convolutions, scores, and the file.

mod tiny;

use clearshot_model::Model;
use clearshot_runtime::Device;
use clearshot_tensor::DType;
use clearshot_train::Run;
use clearshot_train::data::Data;
use clearshot_train::quantise::ranges::By;
use clearshot_train::quantise::tuning::Tuning;
use clearshot_train::quantise::{Images, Limits, Mode, Outcome, Settings, clear, quantise};
use clearshot_train::records::console::Show;
use clearshot_train::run::{BEST, never};
use serde_json::json;
use tiny::config;

const LOOSE: Limits = Limits { loss: 10.0, worst: 10.0, error: 1.0, cosine: 0.0 };
const NONE: Limits = Limits { loss: -10.0, worst: -10.0, error: 0.0, cosine: 1.0 };

fn made(model: &std::path::Path, mode: Mode, by: By, limits: Limits) -> Outcome {
    let model = Model::load(model).expect("a model");
    let config = clearshot_train::calibration::data_of(&model).expect("its data");
    let data = Data::new(&config).expect("scenes");
    let clear = Data::new(&clear(&config).expect("scenes")).expect("scenes that are seen clearly");
    let images = Images { calibration: &data, gate: &data, clear: Some(&clear) };
    let how = Settings { mode, by, samples: 4, limits };
    quantise(model, &config, &images, &how, Device::cpu(Some(2)), &mut |_, _, _| Ok(())).expect("quantised")
}

#[test]
fn a_model_is_quantised_scored_and_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let network = json!({"_class_name": "Local", "in_channels": 0, "channels": [16, 24], "blocks": 1});
    let changes = json!({"model": {"network": network}, "trainer": {"iterations": 6}});
    let mut run = Run::open(config(changes), &dir.path().join("run"), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("trained");
    let path = dir.path().join("run").join(BEST);
    for (mode, by) in
        [(Mode::Static, By::Error), (Mode::Static, By::Percentile(99.9)), (Mode::Dynamic, By::Error)]
    {
        let outcome = made(&path, mode, by, LOOSE);
        let about = outcome.model.about.quantised.clone().expect("it says what it is");
        // The first and the last have too few channels to be worth it.
        assert_eq!((about.convolutions, outcome.layers.len()), (8, 8));
        assert!(
            outcome
                .layers
                .iter()
                .all(|l| !l.kept && l.name != "conv_in.weight" && l.name != "conv_out.weight")
        );
        let s = &outcome.scores;
        assert!(s.error > 0.0 && s.error < 0.05 && s.cosine > 0.998, "{mode:?} {by:?}: {s:?}");
        assert!(s.truth().is_some() && LOOSE.missed(s).is_empty());
        // Four images of either view, each at two levels of noise, and the worst of them by its name.
        assert_eq!((s.images, s.cases.len()), (8, 16), "{s:?}");
        let clear = s.cases.iter().filter(|c| c.name.contains("clear scenes")).count();
        assert_eq!(clear, 8, "{s:?}");
        let worst = s.worst().expect("a worst");
        assert!(s.cases.iter().all(|c| c.loss() <= worst.loss()), "{s:?}");
        assert_eq!(about.scores["worst"]["image"], json!(worst.name));
        let file = dir.path().join(format!("{}-{}.clearshot", mode.name(), outcome.layers.len()));
        outcome.model.save_file(&file, DType::F32).expect("written");
        let read = Model::load(&file).expect("read again");
        assert_eq!(read.network.int8(), outcome.model.network.int8());
        assert_eq!(read.about.quantised, outcome.model.about.quantised);
        std::fs::remove_file(file).expect("removed");
    }
    // What nothing can reach is missed, and half of the convolutions are kept on the way: those that cost an image most.
    let outcome = made(&path, Mode::Static, By::Error, NONE);
    assert_eq!(NONE.missed(&outcome.scores).len(), 4);
    let (kept, rounded): (Vec<_>, Vec<_>) = outcome.layers.iter().partition(|l| l.kept);
    assert_eq!((kept.len(), rounded.len()), (4, 4));
    let least = kept.iter().map(|l| l.burden).fold(f64::INFINITY, f64::min);
    assert!(rounded.iter().all(|l| l.burden <= least), "{:?}", outcome.layers);
    // What is in 8 bits already is refused.
    let file = dir.path().join("again.clearshot");
    outcome.model.save_file(&file, DType::F32).expect("written");
    let model = Model::load(&file).expect("read");
    let config = clearshot_train::calibration::data_of(&model).expect("its data");
    let data = Data::new(&config).expect("scenes");
    let how = Settings { mode: Mode::Static, by: By::Error, samples: 4, limits: LOOSE };
    let images = Images { calibration: &data, gate: &data, clear: None };
    let refused = quantise(model, &config, &images, &how, Device::cpu(Some(2)), &mut |_, _, _| Ok(()));
    assert!(refused.err().expect("refused").to_string().contains("8 bits already"));
}

/// A network that is trained on while it rounds is as good as in f32; and ranges that cut off a tenth of the values at either end, which
/// cost it dearly, cost it much less.
#[test]
fn quantisation_aware_training_recovers_the_loss() {
    let dir = tempfile::tempdir().expect("a folder");
    let network = json!({"_class_name": "Local", "in_channels": 0, "channels": [16, 24], "blocks": 1});
    let changes = json!({
        "model": {"network": network},
        "optimizer": {"rate": 2e-3},
        "trainer": {"iterations": 150},
        "validation": {"every": 150},
    });
    let mut run = Run::open(config(changes), &dir.path().join("run"), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("trained");
    let path = dir.path().join("run").join(BEST);
    let tuning = Tuning { iterations: 80, batch: 4, rate: 5e-4 };
    let loss = |mode: Mode, by: By| made(&path, mode, by, LOOSE).scores.loss().expect("a truth");
    let narrow = By::Percentile(90.0);
    let (rounded, trained) = (loss(Mode::Static, narrow), loss(Mode::Qat(tuning), narrow));
    assert!(rounded > 0.2, "rounding cost {rounded} dB: nothing to win back");
    assert!(trained < 0.6 * rounded, "{trained} dB are lost after training, {rounded} before");
    let outcome = made(&path, Mode::Qat(tuning), By::Error, LOOSE);
    let usual = outcome.scores.loss().expect("a truth");
    assert!(usual < 0.03, "{usual} dB are lost after training");
    let about = outcome.model.about.quantised.as_ref().expect("it says what it is");
    assert_eq!((about.mode.as_str(), about.convolutions), ("qat", 8));
    // What was trained is what is kept, also by the file.
    let before = Model::load(&path).expect("a model").weights;
    assert!(outcome.model.weights.iter().any(|(name, w)| before[name] != *w), "no weight has changed");
    let file = dir.path().join("qat.clearshot");
    outcome.model.save_file(&file, DType::F32).expect("written");
    assert_eq!(Model::load(&file).expect("read").about.quantised, outcome.model.about.quantised);
}
