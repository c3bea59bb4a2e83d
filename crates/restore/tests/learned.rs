//! Restoring with networks: the result does not depend on tiles, batch, threads, company or where states are kept, and
//! it is what the sampler of crate `diffusion` makes of the whole image at once.

use clearshot_diffusion::noise::Tile;
use clearshot_diffusion::sampler::named;
use clearshot_diffusion::step_graph::Setup;
use clearshot_diffusion::{Condition, Denoiser, Estimate, LevelInputs, Levels, Sampler, Start};
use clearshot_graph::{Builder, Value};
use clearshot_model::familiar::STATISTICS;
use clearshot_model::{About, ConditionKind, Familiar, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::{models, weights};
use clearshot_physics::{Correlation, Psf};
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::layout::Layout;
use clearshot_restore::learned::tiles::{Also, Asked, Conditions, Question, TileGraph, Tiles};
use clearshot_restore::learned::{
    Camera, Error, Guidance, Measured, Output, Restored, Restorer, Settings, Values, law as law_of, walk,
};
use clearshot_runtime::{Device, Options};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::collections::BTreeMap;

const LOCAL: &str = r#"{"_class_name": "Local", "channels": [8, 16], "blocks": 1, "in_channels": 10}"#;
const CAMERA: Camera =
    Camera { gain: 0.5, offset: 100.0, read_noise: 1.5, background: None, correlation: Correlation::WHITE };

fn about(task: Task, signal: Signal) -> About {
    About::new("test", task, signal, 1, &[32, 32])
}

fn diffusion(condition: ConditionKind) -> Task {
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 };
    Task::Diffusion { prediction: PredictionKind::Edm { sigma_data: 0.5 }, process, condition }
}

/// A model whose every weight counts: what usually begins at zero does not.
fn model(config: &str, about: About) -> Model {
    let params = models::read(config).unwrap().parameters().unwrap();
    let mut weights = weights::initial(&params, 5);
    for (i, t) in weights.values_mut().enumerate() {
        let mut noise = vec![0.0; t.shape().len()];
        Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
        let values: Vec<f32> = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.05 * n).collect();
        *t = Tensor::f32(t.shape(), values);
    }
    Model::new(about, config.into(), weights).unwrap()
}

fn conditional() -> Model {
    model(LOCAL, about(diffusion(ConditionKind::Measurement), Signal::Photons))
}

/// Stripes and a blob, with noise.
fn picture(size: [usize; 2], seed: u64) -> Vec<f32> {
    let mut noise = vec![0.0; size[0] * size[1]];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    (0..noise.len())
        .map(|i| {
            let (y, x) = ((i / size[1]) as f32, (i % size[1]) as f32);
            let light =
                20.0 + 15.0 * (0.2 * x + 0.05 * y).sin() + 40.0 * (-((y - 40.0).powi(2)) / 200.0).exp();
            CAMERA.counts(light + noise[i] * (light + 2.0).sqrt())
        })
        .collect()
}

fn measured(values: &[f32], size: &[usize]) -> Measured {
    Measured::read(&Values { values, size, channels: 1 }, &Scratch::new(usize::MAX, None)).unwrap()
}

fn restore(model: Model, settings: Settings, threads: usize, image: &Measured) -> Restored {
    let mut restorer = Restorer::new(model, settings, Device::cpu(Some(threads))).unwrap();
    let forecast = restorer.prepare(&image.size, 1).unwrap();
    let sampled = restorer.settings().samples > 0 && restorer.guidance().is_none();
    assert_eq!(forecast.resident, sampled && forecast.tiles == 1, "{forecast:?}");
    let images = std::slice::from_ref(image);
    restorer.restore(images, &[0], Some(&CAMERA), &mut || Ok(())).unwrap().remove(0)
}

/// The largest difference in parts of the image's own scale.
fn apart(a: &[f32], b: &[f32], peak: f64) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max) * CAMERA.gain / peak
}

/// Progress is told of as many runs as were forecast, for any number of images at once: a last group may have fewer.
#[test]
fn as_many_runs_are_told_of_as_were_forecast() {
    let size = [40, 50];
    let images: Vec<Measured> = (0..5).map(|seed| measured(&picture(size, seed), &size)).collect();
    for (samples, tile, batch) in [(0, 32, 4), (1, 32, 4), (3, 64, 2), (2, 64, 1)] {
        let (tile, batch) = (Some(tile), Some(batch));
        let settings = Settings { samples, steps: 3, tile, batch, ..Settings::default() };
        let mut restorer = Restorer::new(conditional(), settings, Device::cpu(Some(2))).unwrap();
        for count in [5, 2, 1] {
            let forecast = restorer.prepare(&size, count).unwrap();
            let (mut runs, numbers) = (0, (0..count as u64).collect::<Vec<_>>());
            let mut ran = || {
                runs += 1;
                Ok(())
            };
            restorer.restore(&images[..count], &numbers, Some(&CAMERA), &mut ran).unwrap();
            assert_eq!(runs, forecast.runs, "{samples} samples of {count} images: {forecast:?}");
        }
    }
}

#[test]
fn tiles_batch_and_threads_do_not_matter() {
    let size = [150, 211];
    let values = picture(size, 3);
    let image = measured(&values, &size);
    for (sampler, steps, samples) in
        [("heun", 5, 0), ("heun", 5, 1), ("dpmpp-2m-sde", 5, 2), ("dpmpp-2m", 25, 1)]
    {
        let settings = Settings { sampler: sampler.into(), steps, samples, seed: 11, ..Settings::default() };
        let whole = restore(conditional(), Settings { tile: Some(256), ..settings.clone() }, 2, &image);
        let peak = whole.photons.unwrap().peak;
        for (tile, batch, threads) in [(64, 1, 1), (64, 4, 2), (128, 4, 1), (192, 1, 2)] {
            let settings = Settings { tile: Some(tile), batch: Some(batch), ..settings.clone() };
            let cut = restore(conditional(), settings, threads, &image);
            let difference = apart(&whole.image, &cut.image, peak);
            assert!(difference < 1e-5, "{sampler}, tile {tile}, batch {batch}: {difference}");
            match (&whole.deviation, &cut.deviation) {
                (Some(a), Some(b)) => assert!(apart(a, b, peak) < 1e-5),
                (None, None) => assert!(samples < 2),
                _ => panic!("one has a deviation"),
            }
        }
        // The network is no identity, and it looks at the image.
        assert!(apart(&whole.image, &values, peak) > 1e-3);
    }
}

#[test]
fn an_image_alone_is_the_same_as_among_others_and_from_a_file() {
    let size = [70, 45];
    let images: Vec<Measured> = (0..3).map(|i| measured(&picture(size, i), &size)).collect();
    let settings = Settings { steps: 4, samples: 3, keep_samples: true, ..Settings::default() };
    let mut restorer = Restorer::new(conditional(), settings.clone(), Device::cpu(Some(2))).unwrap();
    let all = restorer.restore(&images, &[5, 6, 7], Some(&CAMERA), &mut || Ok(())).unwrap();
    for (i, together) in all.iter().enumerate() {
        let one = std::slice::from_ref(&images[i]);
        let alone = restorer.restore(one, &[5 + i as u64], Some(&CAMERA), &mut || Ok(())).unwrap().remove(0);
        let peak = alone.photons.unwrap().peak;
        assert!(apart(&alone.image, &together.image, peak) < 1e-5);
        assert_eq!(alone.samples.len(), 3);
        for (a, b) in alone.samples.iter().zip(&together.samples) {
            assert!(apart(a, b, peak) < 1e-5);
        }
        // Samples differ among each other, and so do images.
        assert!(apart(&alone.samples[0], &alone.samples[1], peak) > 1e-3);
        // The direct estimate does not depend on whether samples are drawn beside it.
        let only = restore_numbered(Settings { samples: 0, ..settings.clone() }, &images[i], 5 + i as u64);
        assert!(apart(&alone.image, &only.image, peak) < 1e-5);
    }
    let mapped = Settings { host_memory: 0, ..settings };
    let filed = restore_numbered(mapped, &images[0], 5);
    assert!(filed.image.is_mapped());
    assert_eq!(&filed.image[..], &all[0].image[..]);
}

fn restore_numbered(settings: Settings, image: &Measured, number: u64) -> Restored {
    let mut restorer = Restorer::new(conditional(), settings, Device::cpu(Some(2))).unwrap();
    let images = std::slice::from_ref(image);
    restorer.restore(images, &[number], Some(&CAMERA), &mut || Ok(())).unwrap().remove(0)
}

/// A denoiser that looks at single pixels: the best one where images are normal around 0.2.
fn pixel_wise(b: &mut Builder, x: Value, level: &mut LevelInputs, _: &Condition) -> Estimate {
    let share =
        level.factor(b, x, "share", |l| 0.25 / (0.25 * l.alpha * l.alpha + l.sigma * l.sigma) * l.alpha);
    let rest =
        level.factor(b, x, "rest", |l| 0.2 * l.sigma.powi(2) / (0.25 * l.alpha.powi(2) + l.sigma.powi(2)));
    let kept = b.mul(x, share);
    Estimate::of(b.add(kept, rest))
}

#[test]
fn walking_in_step_is_the_samplers_own_walk() {
    let device = Device::cpu(Some(2));
    for (size, channels) in [(vec![45, 70], 1), (vec![33, 20], 3), (vec![3, 18, 37], 1)] {
        for name in ["heun", "dpmpp-3m", "dpmpp-2m-sde", "ddim"] {
            let levels = Levels::karras([0.02, 10.0], 7.0, 6).unwrap();
            let program = named(name).unwrap().program(&levels).unwrap();
            let shape: Vec<usize> = [1].into_iter().chain(size.iter().copied()).chain([channels]).collect();
            let none = Condition::default();
            let mut whole = Sampler::compile(
                Builder::new(),
                &pixel_wise,
                &none,
                Shape::new(&shape),
                program.clone(),
                Setup::default(),
                &device,
            )
            .unwrap();
            let expected = whole.run(Start::Noise, &[Tile::whole(77)]).unwrap();
            let core: Vec<usize> = size.iter().map(|&n| if n < 10 { 2 } else { 16 }).collect();
            let none = vec![0; size.len()];
            let layout = Layout::cores(&size, &core, &none, &none, &core);
            let denoiser: &dyn Denoiser = &pixel_wise;
            let question = Question::Denoise(denoiser);
            let conditions = Conditions::default();
            let asked = Asked { question, channels, condition: None, also: Also::default(), conditions };
            let graph = TileGraph::new(&asked, &layout, 3).unwrap();
            let mut tiles =
                Tiles::compile(graph, layout, &BTreeMap::new(), &device, &Options::default()).unwrap();
            let scratch = Scratch::new(usize::MAX, None);
            let mut runs = 0;
            let made = walk::walk(
                &program,
                &mut tiles,
                channels,
                &[77],
                &scratch,
                &|_, _, _, _| {},
                &walk::Known::NOTHING,
                None,
                &mut || {
                    runs += 1;
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(runs, program.calls().len() * tiles.runs(1));
            let worst = made[0]
                .iter()
                .zip(expected.as_f32().unwrap())
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(worst < 2e-6, "{name} {size:?}: {worst}");
        }
    }
}

#[test]
fn guidance_under_a_psf_explains_the_measurement() {
    let size = [64, 80];
    let values = picture(size, 1);
    let image = measured(&values, &size);
    // A prior that knows nothing but the range of images: its answers come from the measurement.
    let task = diffusion(ConditionKind::None);
    let config = r#"{"_class_name": "Local", "channels": [4], "blocks": 1, "in_channels": 1}"#;
    let params = models::read(config).unwrap().parameters().unwrap();
    let silent: weights::Weights = params.iter().map(|p| (p.name.clone(), Tensor::zeros(p.shape))).collect();
    let prior = || Model::new(about(task.clone(), Signal::Photons), config.into(), silent.clone()).unwrap();
    let psf = Psf::gaussian(&[1.0, 1.0]).unwrap();
    let settings = Settings { psf: Some(psf), steps: 12, chi2: true, ..Settings::default() };
    let made = restore(prior(), Settings { tile: Some(32), ..settings.clone() }, 2, &image);
    let whole = restore(prior(), settings.clone(), 1, &image);
    let peak = whole.photons.unwrap().peak;
    assert!(apart(&made.image, &whole.image, peak) < 1e-5);
    let chi2 = made.mean_chi2.unwrap();
    assert!((0.3..1.3).contains(&chi2), "{chi2}");
    let blind = restore(prior(), Settings { psf: None, samples: 1, ..settings }, 2, &image);
    assert!(blind.mean_chi2.unwrap() > 3.0, "{:?}", blind.mean_chi2);
}

#[test]
fn networks_that_look_at_everything_are_blended_and_say_so() {
    let config = r#"{"_class_name": "UNet2DModel", "sample_size": 16, "in_channels": 1, "out_channels": 1,
        "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"]}"#;
    let process =
        Process::Timesteps { law: "cosine".into(), first: 1e-4, last: 0.02, steps: 100, finer: 1.0 };
    let prediction = PredictionKind::Epsilon;
    let task = Task::Diffusion { prediction, process, condition: ConditionKind::None };
    let size = [40, 75];
    let image = measured(&picture(size, 2), &size);
    let settings = Settings { steps: 5, sampler: "ddim".into(), ..Settings::default() };
    let mut restorer =
        Restorer::new(model(config, about(task, Signal::Photons)), settings, Device::cpu(Some(2))).unwrap();
    assert_eq!(restorer.output(), Output::Samples);
    let forecast = restorer.prepare(&size, 1).unwrap();
    assert!(
        forecast.blends && !forecast.resident && forecast.tile == [32, 32] && forecast.tiles == 2 * 3,
        "{forecast:?}"
    );
    let mut runs = 0;
    let mut count = || {
        runs += 1;
        Ok(())
    };
    let made = restorer.restore(&[image], &[0], Some(&CAMERA), &mut count).unwrap();
    assert!(made[0].image.iter().all(|v| v.is_finite()));
    assert_eq!(runs, forecast.runs);
}

#[test]
fn a_regression_network_answers_at_once() {
    let config =
        r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 9, "time": false}"#;
    let regression = || model(config, about(Task::Regression, Signal::Photons));
    let size = [50, 90];
    let image = measured(&picture(size, 2), &size);
    let small = restore(regression(), Settings { tile: Some(32), ..Settings::default() }, 1, &image);
    let whole = restore(regression(), Settings { chi2: true, ..Settings::default() }, 2, &image);
    assert!(apart(&small.image, &whole.image, whole.photons.unwrap().peak) < 1e-5);
    assert!(whole.chi2.unwrap().iter().all(|v| v.is_finite()));
    let wrong =
        Restorer::new(regression(), Settings { samples: 4, ..Settings::default() }, Device::cpu(None));
    assert!(matches!(wrong.err(), Some(Error::Task { .. })));
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let size = [64, 64];
    let image = measured(&picture(size, 2), &size);
    let new = |settings| Restorer::new(conditional(), settings, Device::cpu(Some(1))).unwrap();
    let mut tight = new(Settings { device_memory: Some(1000), ..Settings::default() });
    assert!(matches!(tight.prepare(&size, 1), Err(Error::NoRoom { limit: 1000, .. })));
    let mut usual = new(Settings::default());
    assert!(matches!(usual.prepare(&[4, 64, 64], 1), Err(Error::Axes { got: 3, .. })));
    let said = usual.restore(std::slice::from_ref(&image), &[0], None, &mut || Ok(())).err().unwrap();
    assert!(said.to_string().contains("gain"), "{said}");
    let stopped = usual.restore(&[image], &[0], Some(&CAMERA), &mut || Err(Error::Stopped));
    assert!(matches!(stopped.err(), Some(Error::Stopped)));
    let rgb = Values { values: &[1.0; 48], size: &[4, 4], channels: 3 };
    let rgb = Measured::read(&rgb, &Scratch::new(usize::MAX, None)).unwrap();
    let said = usual.restore(&[rgb], &[0], Some(&CAMERA), &mut || Ok(())).err().unwrap().to_string();
    assert_eq!(said, "the model restores images of 1 channel, and this one has 3");
    let bad = Camera { gain: 0.0, ..CAMERA };
    let one = measured(&picture(size, 2), &size);
    assert!(usual.restore(&[one], &[0], Some(&bad), &mut || Ok(())).is_err());
    let unknown = Settings { sampler: "best".into(), samples: 1, ..Settings::default() };
    assert!(Restorer::new(conditional(), unknown, Device::cpu(None)).is_err());
}

/// A weight that is no number: the step and the op are named, whether the image stays on the device, is cut into tiles,
/// or is guided; and a correction that overshoots names its own.
#[test]
fn values_that_are_not_finite_name_their_step_and_op() {
    let mut broken = conditional();
    let name = broken.weights.keys().find(|n| n.ends_with("weight")).unwrap().clone();
    let shape = broken.weights[&name].shape();
    broken.weights.insert(name.clone(), Tensor::full(shape, 1e30));
    let broken = broken;
    let again = || Model::new(broken.about.clone(), broken.config.clone(), broken.weights.clone()).unwrap();
    let size = [48, 40];
    let image = measured(&picture(size, 3), &size);
    let said = |model: Model, settings: Settings| {
        let settings = Settings { samples: 1, steps: 4, output: Some(Output::Samples), ..settings };
        let mut restorer = Restorer::new(model, settings, Device::cpu(Some(2))).unwrap();
        let made = restorer.restore(std::slice::from_ref(&image), &[0], Some(&CAMERA), &mut || Ok(()));
        made.err().expect("values that are not finite").to_string()
    };
    let guided = |law: &str| Some(Guidance { law: law_of(law, 0.5).unwrap(), ..Guidance::usual(0.5) });
    for settings in [
        Settings::default(),
        Settings { tile: Some(16), ..Settings::default() },
        Settings { guidance: guided("proximal"), ..Settings::default() },
    ] {
        let text = said(again(), settings);
        assert!(
            text.contains("step ")
                && text.contains(" of 4")
                && text.contains("conv_in")
                && text.contains("first in %"),
            "{text}"
        );
    }
    let far = Settings { guidance: guided("constant:kappa=1e38"), ..Settings::default() };
    let text = said(conditional(), far);
    assert!(text.contains("of 4") && text.contains("correction") && text.contains("first in %"), "{text}");
}

/// An image with more light than a model knows is shown to it as if it had the most of that, as a camera with less gain
/// would, and its answer weighed with the measurement; one within what it knows as it is.
#[test]
fn light_beyond_the_training_is_shown_as_its_most() {
    let size = [64, 48];
    let image = measured(&picture(size, 5), &size);
    let model = |most: f64| {
        let mut noise = vec![0.0f32; 80 * STATISTICS.len()];
        Key { seed: 2, step: 0, stream: 0 }.fill_normal(0, &mut noise);
        let numbers = |(i, chunk): (usize, &[f32])| {
            let light = most.log10() - 0.01 * (79 - i) as f64;
            (0, std::array::from_fn(|k| if k == 0 { light } else { f64::from(chunk[k]) }))
        };
        let known: Vec<_> = noise.chunks(STATISTICS.len()).enumerate().map(numbers).collect();
        let mut model = conditional();
        model.about.familiar = Familiar::of(&known, &["all".into()], 128);
        assert!((model.about.familiar.as_ref().unwrap().brightest() / most - 1.0).abs() < 1e-9);
        model
    };
    let made = |model: Model, camera: &Camera| {
        let mut restorer = Restorer::new(model, Settings::default(), Device::cpu(Some(1))).unwrap();
        let one = std::slice::from_ref(&image);
        restorer.restore(one, &[0], Some(camera), &mut || Ok(())).unwrap().remove(0)
    };
    let camera = Camera { background: Some(4.0), ..CAMERA };
    let plain = made(conditional(), &camera);
    let peak = plain.photons.unwrap().peak;
    assert_eq!(made(model(20.0 * peak), &camera).image[..], plain.image[..]);
    let shown = made(model(0.25 * peak), &camera);
    let (gain, read_noise) = (0.25 * camera.gain, 0.25 * camera.read_noise);
    let less = made(conditional(), &Camera { gain, read_noise, background: Some(1.0), ..camera });
    // And then weighed with the measurement: somewhere on the way to it.
    for ((s, l), y) in shown.image.iter().zip(&less.image[..]).zip(&image.values[..]) {
        let (low, high, slack) = (l.min(*y), l.max(*y), 1e-4 * peak as f32);
        assert!((low - slack..=high + slack).contains(s), "{s} is not between {l} and {y}");
    }
    assert!(apart(&shown.image, &plain.image, peak) > 1e-4);
    // What is said of the image is as it was measured.
    assert_eq!(shown.photons, plain.photons);
}
