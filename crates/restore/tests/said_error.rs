//! What a network says of its own error becomes a standard deviation, beside an image that is the same as without.

use clearshot_model::{About, ConditionKind, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::models::{ERROR, LEAST_ERROR};
use clearshot_nn::{models, weights};
use clearshot_physics::Correlation;
use clearshot_restore::learned::{
    Camera, Guidance, Measured, Restored, Restorer, Settings, USUAL_SAMPLES, Values,
};
use clearshot_runtime::Device;
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;

const SAYS: &str =
    r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 10, "error": 4}"#;
const SILENT: &str = r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 10}"#;
const SIZE: [usize; 2] = [48, 70];
const CAMERA: Camera = Camera {
    gain: 2.0,
    offset: 100.0,
    read_noise: 3.0,
    background: Some(10.0),
    correlation: Correlation::WHITE,
};

/// A network that knows nothing of images; `said` is what it says of its error everywhere, or something else at every pixel.
fn model(config: &str, said: Option<f32>) -> Model {
    let params = models::read(config).unwrap().parameters().unwrap();
    let mut weights = weights::initial(&params, 5);
    for (name, t) in &mut weights {
        // The same for the same name, whatever else there is.
        let stream = name.bytes().fold(7, |n: u32, b| n.wrapping_mul(31).wrapping_add(u32::from(b)));
        let mut noise = vec![0.0; t.shape().len()];
        Key { seed: 9, step: 0, stream }.fill_normal(0, &mut noise);
        let values: Vec<f32> = match said.filter(|_| name.starts_with(ERROR)) {
            Some(said) => vec![if name == "error.conv_out.bias" { said } else { 0.0 }; noise.len()],
            None => noise.iter().map(|n| 0.1 * n).collect(),
        };
        *t = Tensor::f32(t.shape(), values);
    }
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 };
    let prediction = PredictionKind::Edm { sigma_data: 0.5 };
    let task = Task::Diffusion { prediction, process, condition: ConditionKind::Measurement };
    Model::new(About::new("test", task, Signal::Photons, 1, &[32, 32]), config.into(), weights).unwrap()
}

fn restorer(model: Model, settings: Settings) -> Restorer {
    Restorer::new(model, Settings { steps: 3, ..settings }, Device::cpu(Some(2))).unwrap()
}

fn restored(restorer: &mut Restorer) -> Restored {
    let [height, width] = SIZE;
    let mut noise = vec![0.0; height * width];
    Key { seed: 4, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let light = |i: usize| 40.0 + 30.0 * ((i % width) as f32 * 0.7).sin() * ((i / width) as f32 * 0.9).cos();
    let counts = |i: usize| 100.0 + (light(i) + noise[i] * (light(i) + 9.0).sqrt()) / 2.0;
    let values: Vec<f32> = (0..height * width).map(counts).collect();
    let image = Measured::read(&Values { values: &values, size: &SIZE, channels: 1 }, restorer.scratch());
    restorer.restore(&[image.unwrap()], &[3], Some(&CAMERA), &mut || Ok(())).unwrap().remove(0)
}

/// The mean of what the image can be, by one evaluation, without and with its deviation.
const MEAN: fn() -> Settings = || Settings { samples: 0, ..Settings::default() };
const ASKED: fn() -> Settings = || Settings { deviation: true, ..MEAN() };

#[test]
fn the_image_is_the_same_and_both_are_independent_of_tiles() {
    let plain = restored(&mut restorer(model(SAYS, None), MEAN()));
    let without = restored(&mut restorer(model(SILENT, None), MEAN()));
    let said = restored(&mut restorer(model(SAYS, None), ASKED()));
    let tiled = restored(&mut restorer(model(SAYS, None), Settings { tile: Some(16), ..ASKED() }));
    assert!(plain.deviation.is_none());
    assert!(
        plain.image[..] == without.image[..],
        "weights that say nothing of the image change none of its bits"
    );
    let apart = |other: &Restored| {
        plain.image.iter().zip(other.image.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    // One graph more is compiled in another way; rounding may differ, here by so many counts of about a hundred.
    assert!(apart(&said) < 1e-4 && apart(&tiled) < 1e-4, "{} {}", apart(&said), apart(&tiled));
    let (whole, parts) = (said.deviation.unwrap(), tiled.deviation.unwrap());
    let worst = whole.iter().zip(parts.iter()).map(|(a, b)| (a - b).abs() / a.max(1e-3)).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
    let [least, most] = [f32::min, f32::max].map(|f| whole.iter().copied().reduce(f).unwrap());
    assert!(least >= 0.0 && most > 1.2 * least, "something is said of every pixel: {least} to {most}");
}

/// One standard deviation of the noise holds nine errors in ten: they are normal with one of 1 / 1.645, in counts.
#[test]
fn what_is_said_is_in_standard_deviations_of_the_noise() {
    let mut restorer = restorer(model(SAYS, Some((1.0 + LEAST_ERROR as f32).ln())), ASKED());
    assert!(restorer.says_error());
    let reach = restorer.spread().unwrap().reach();
    assert!((reach - 1.644_854).abs() < 1e-5, "{reach}");
    let made = restored(&mut restorer);
    for (d, v) in made.deviation.unwrap().iter().zip(made.image.iter()) {
        let electrons = (f64::from(*v) - 100.0) * 2.0;
        let noise = (electrons.max(0.0) + 9.0).sqrt() / 2.0;
        let off = reach * f64::from(*d) / noise - 1.0;
        assert!(off.abs() < 1e-3, "{d} at {v}: {off}");
    }
}

#[test]
fn samples_tell_it_where_they_are_asked_for_or_nothing_else_does() {
    let mut two = restorer(model(SAYS, None), Settings { samples: 2, ..ASKED() });
    assert!(!two.says_error());
    assert_eq!(two.spread().unwrap().freedom, 2.0);
    let silent = restorer(model(SILENT, None), ASKED());
    assert_eq!((silent.says_error(), silent.settings().samples), (false, USUAL_SAMPLES));
    let guidance = Some(Guidance::usual(0.5));
    let guided = restorer(model(SAYS, None), Settings { guidance, ..ASKED() });
    assert_eq!((guided.says_error(), guided.settings().samples), (false, USUAL_SAMPLES));
    // From one to the other and back.
    let said = restored(&mut restorer(model(SAYS, None), ASKED())).deviation.unwrap();
    let drawn = restored(&mut two).deviation.unwrap();
    assert!(said[..] != drawn[..]);
    two.set(Settings { steps: 3, ..ASKED() }).unwrap();
    assert!(restored(&mut two).deviation.unwrap()[..] == said[..], "asked again, the same is said");
}
