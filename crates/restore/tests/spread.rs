//! What a restorer makes of samples' spread, and of images with more light than its model was trained on.

use clearshot_model::familiar::STATISTICS;
use clearshot_model::{
    About, ConditionKind, Familiar, Model, PredictionKind, Process, Signal, SpreadFactor, Task,
};
use clearshot_nn::{models, weights};
use clearshot_physics::Correlation;
use clearshot_restore::learned::{Camera, Example, Measured, Restored, Restorer, Settings, Values};
use clearshot_runtime::Device;
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;

const LOCAL: &str = r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 10}"#;
const SIZE: [usize; 2] = [32, 40];
const COUNT: usize = STATISTICS.len();

/// A network that knows nothing of images.
fn model() -> Model {
    let params = models::read(LOCAL).unwrap().parameters().unwrap();
    let mut weights = weights::initial(&params, 5);
    for (i, t) in weights.values_mut().enumerate() {
        let mut noise = vec![0.0; t.shape().len()];
        Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
        let values: Vec<f32> = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.05 * n).collect();
        *t = Tensor::f32(t.shape(), values);
    }
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 };
    let prediction = PredictionKind::Edm { sigma_data: 0.5 };
    let task = Task::Diffusion { prediction, process, condition: ConditionKind::Measurement };
    Model::new(About::new("test", task, Signal::Photons, 1, &[32, 32]), LOCAL.into(), weights).unwrap()
}

fn settings(samples: usize) -> Settings {
    Settings { samples, steps: 4, ..Settings::default() }
}

fn truth(peak: f32) -> Vec<f32> {
    let [height, width] = SIZE;
    let wave = |i: usize| ((i % width) as f32 * 0.7).sin() * ((i / width) as f32 * 0.9).cos();
    (0..height * width).map(|i| 10.0 + peak * (0.5 + 0.5 * wave(i))).collect()
}

fn measured(truth: &[f32], seed: u64) -> Vec<f32> {
    let mut noise = vec![0.0; truth.len()];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    truth.iter().zip(noise).map(|(t, z)| t + z * (t + 4.0).sqrt()).collect()
}

const CAMERA: Camera = Camera {
    gain: 1.0,
    offset: 0.0,
    read_noise: 2.0,
    background: Some(10.0),
    correlation: Correlation::WHITE,
};

fn restored(restorer: &mut Restorer, values: &[f32]) -> Restored {
    let image = Measured::read(&Values { values, size: &SIZE, channels: 1 }, restorer.scratch()).unwrap();
    restorer.restore(&[image], &[3], Some(&CAMERA), &mut || Ok(())).unwrap().remove(0)
}

/// Nothing is known of this network's errors but that they are large; intervals hold nine in ten all the same once it was
/// calibrated, whatever the number of samples, and the image is what it was.
#[test]
fn calibrated_intervals_hold_nine_truths_in_ten() {
    let device = Device::cpu(None);
    let mut restorer = Restorer::new(model(), settings(8), device).unwrap();
    let example = |seed: u64, restorer: &Restorer| {
        let truth = truth(20.0 + 30.0 * seed as f32);
        let values = measured(&truth, seed);
        let values = Values { values: &values, size: &SIZE, channels: 1 };
        Example {
            measured: Measured::read(&values, restorer.scratch()).unwrap(),
            truth,
            camera: Some(CAMERA),
            class: None,
            context: None,
        }
    };
    let examples: Vec<Example> = (0..6).map(|seed| example(seed, &restorer)).collect();
    let mut count = 0;
    let found = restorer
        .calibrate(&examples, &mut |done| {
            count = done;
            Ok(())
        })
        .unwrap()
        .expect("a factor");
    assert_eq!(count, 6);
    assert!((found.before - 0.9).abs() > 0.05, "there is nothing to calibrate: {found:?}");
    assert!((found.after - 0.9).abs() < 0.05, "{} {}", found.before, found.after);
    assert!(found.factor.is_of_pooled());
    let truth = truth(95.0);
    let values = measured(&truth, 77);
    let plain = restored(&mut restorer, &values);
    for samples in [4, 8, 16] {
        let mut model = model();
        model.about.spread = Some(found.factor.clone());
        let mut restorer = Restorer::new(model, settings(samples), device).unwrap();
        let reach = restorer.spread().expect("a spread").reach() as f32;
        let made = restored(&mut restorer, &values);
        assert_eq!(&made.image[..], &plain.image[..]);
        let deviation = made.deviation.expect("a deviation");
        let inside = |i: &usize| (truth[*i] - made.image[*i]).abs() <= reach * deviation[*i];
        let held = (0..truth.len()).filter(inside).count() as f64 / truth.len() as f64;
        assert!((0.84..=0.96).contains(&held), "{samples} samples: {held}");
    }
    // One sample has no spread, and one factor is one factor.
    let mut single = Restorer::new(model(), settings(1), device).unwrap();
    assert!(single.calibrate(&examples[..2], &mut |_| Ok(())).unwrap().is_none());
    let mut twice = model();
    twice.about.spread = Some(SpreadFactor::One(2.0));
    let made = restored(&mut Restorer::new(twice, settings(8), device).unwrap(), &values);
    let (wide, narrow) = (made.deviation.unwrap(), plain.deviation.unwrap());
    assert!(wide.iter().zip(&narrow[..]).all(|(w, n)| (w - 2.0 * n).abs() <= 1e-4 * w), "not twice as wide");
}

/// A network that is wrong by far more than the noise: near the most light that it was trained on and beyond it the measurement
/// counts, the more the more light there is; far below nothing is changed.
#[test]
fn beyond_the_light_of_its_training_the_measurement_counts() {
    let device = Device::cpu(None);
    let known = |most: f64| {
        let mut model = model();
        let image = |i: usize| {
            let mut numbers = vec![0f32; COUNT];
            Key { seed: 4, step: i as u32, stream: 0 }.fill_normal(0, &mut numbers);
            let mut statistics: [f64; COUNT] = std::array::from_fn(|k| f64::from(numbers[k]));
            // The first is the logarithm of the light.
            statistics[0] = most.log10() * i as f64 / 199.0;
            (0, statistics)
        };
        let images: Vec<_> = (0..200).map(image).collect();
        model.about.familiar = Familiar::of(&images, &["all".into()], 32);
        model
    };
    let brightest = known(2000.0).about.familiar.expect("known").brightest();
    assert!((brightest / 2000.0 - 1.0).abs() < 1e-6, "{brightest}");
    let rms = |a: &[f32], b: &[f32]| {
        (a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
    };
    for (peak, most) in [(100.0, None), (2000.0, Some(1.7)), (4000.0, Some(1.5)), (100_000.0, Some(1.05))] {
        let truth = truth(peak);
        let values = measured(&truth, 8);
        let made = restored(&mut Restorer::new(known(2000.0), settings(0), device).unwrap(), &values);
        let same = restored(&mut Restorer::new(model(), settings(0), device).unwrap(), &values);
        let noise = rms(&values, &truth);
        match most {
            None => assert_eq!(&made.image[..], &same.image[..]),
            Some(most) => {
                let error = rms(&made.image, &truth) / noise;
                assert!(error < most, "peak {peak}: {error} times the noise");
            }
        }
    }
    // The deviation is never less than what is left of the noise.
    let truth = truth(100_000.0);
    let made =
        restored(&mut Restorer::new(known(2000.0), settings(4), device).unwrap(), &measured(&truth, 8));
    let deviation = made.deviation.expect("a deviation");
    assert!(deviation.iter().zip(&truth).all(|(d, t)| *d > 0.8 * t.sqrt()), "deviations below the noise");
}
