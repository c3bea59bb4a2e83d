//! The default model distinguishes its own kind of images from others: areas under the ROC curve of its distance.

use clearshot_model::familiar::statistics;
use clearshot_model::{Familiar, Model};
use clearshot_tensor::noise::Key;
use clearshot_train::data::camera::{Cameras, Ends, photons};
use clearshot_train::data::{Data, Part, Sample};
use clearshot_train::presets;

const SIDE: usize = 128;
const ENDS: Ends = Ends { bright: 1.0, dark: 0.0 };
/// Images of each kind.
const MANY: u64 = 40;

/// Values in [0, 1] of pixels (y, x), drawn with numbers of the image in [0, 1).
type Draw = fn(usize, usize, &[f64; 4]) -> f64;

/// Kinds of images that are in no training set.
const STRANGE: [(&str, Draw); 5] = [
    ("a gradient", |y, x, d| (y as f64 * d[0] + x as f64 * (1.0 - d[0])) / SIDE as f64),
    ("a checkerboard", |y, x, d| {
        let side = 3 + (14.0 * d[0]) as usize;
        (((y + (9.0 * d[1]) as usize) / side + (x + (9.0 * d[2]) as usize) / side) % 2) as f64
    }),
    ("stripes", |y, x, d| {
        let (sin, cos) = (std::f64::consts::PI * d[0]).sin_cos();
        0.5 + 0.5 * ((y as f64 * sin + x as f64 * cos) * std::f64::consts::TAU / (4.0 + 20.0 * d[1])).cos()
    }),
    // Letters of five by seven dots, two pixels each, in lines.
    ("text", |y, x, d| {
        let (line, letter, row, column) = (y / 18, x / 12, y % 18 / 2, x % 12 / 2);
        let key = Key { seed: (1e6 * d[0]) as u64, step: line as u32, stream: letter as u32 };
        let ink = key.uniform((row * 5 + column) as u64) < 0.5 || column == 0;
        f64::from(u8::from(row < 7 && column < 5 && ink && key.uniform(99) > 0.15))
    }),
    // Waves of all directions and about one length: noise that is not white.
    ("coloured noise", |y, x, d| {
        let key = Key { seed: (1e6 * d[0]) as u64, step: 0, stream: 0 };
        let sum: f64 = (0..40)
            .map(|i| {
                let [turn, phase] = [0, 1].map(|k| std::f64::consts::TAU * f64::from(key.uniform(3 * i + k)));
                let wave = (0.5 + f64::from(key.uniform(3 * i + 2))) * (0.4 + 0.8 * d[1]);
                ((y as f64 * turn.sin() + x as f64 * turn.cos()) * wave + phase).cos()
            })
            .sum();
        (0.5 + 0.04 * sum).clamp(0.0, 1.0)
    }),
];

fn of(familiar: &Familiar, sample: &Sample) -> Option<f64> {
    let photons = photons(&sample.numbers).expect("a scale");
    Some(familiar.distance(&statistics(&sample.measured, [SIDE, SIDE], &photons)?).share)
}

/// The share of pairs in which the strange image is farther off.
fn area(strange: &[f64], known: &[f64]) -> f64 {
    let won = strange.iter().map(|s| known.iter().filter(|k| s > k).count()).sum::<usize>();
    won as f64 / (strange.len() * known.len()) as f64
}

#[test]
fn unfamiliar_images_are_distinguished_from_training_images() {
    let about = Model::builtin().expect("a model").about;
    let familiar = about.familiar.expect("the default model knows its training images");
    let mut config = presets::read(None, &["experiment=default".into()]).expect("its configuration");
    // Scenes that it has not seen, some of them larger than the crops.
    config.seed = 77_003;
    config.validation.images = MANY as usize;
    let data = Data::new(&config).expect("data");
    let source = data.source(Part::Validation, &[SIDE, SIDE], None).expect("a source");
    let count = MANY * source.domains().len() as u64;
    let samples: Vec<Sample> = (0..count).map(|n| source.sample(n, None).expect("a sample")).collect();
    let known: Vec<f64> = samples.iter().filter_map(|s| of(&familiar, s)).collect();
    let alarms = known.iter().filter(|d| **d > 1.0).count();
    assert!(known.len() as u64 > count * 3 / 4, "{} of {count} have anything in them", known.len());
    assert!(alarms * 50 <= known.len(), "{alarms} of {} are called strange", known.len());
    let cameras = Cameras::new(&config.data.camera, 5);
    let far = |value: &dyn Fn(u64, usize, usize) -> f64| -> Vec<f64> {
        (0..MANY)
            .filter_map(|n| {
                let pixel = |i: usize| value(n, i / SIDE, i % SIDE) as f32;
                of(&familiar, &cameras.expose((0..SIDE * SIDE).map(pixel).collect(), &[SIDE, SIDE], ENDS, n))
            })
            .collect()
    };
    for (name, draw) in STRANGE {
        let dice = |n: u64| {
            let key = Key { seed: 9, step: n as u32, stream: 0 };
            [0, 1, 2, 3].map(|i| f64::from(key.uniform(i)))
        };
        let strange = far(&|n, y, x| draw(y, x, &dice(n)));
        let (area, said) = (area(&strange, &known), strange.iter().filter(|d| **d > 1.0).count());
        eprintln!("{name}: area {area:.3}, {said} of {} called strange", strange.len());
        assert!(area >= 0.9, "{name}: {area}");
    }
    // A known kind with dark and bright exchanged, as absorption in place of emission.
    for name in ["nuclei", "filaments", "stars"] {
        let scene = clearshot_scenes::Scene::by_name(name).expect("a scene");
        let images: Vec<Vec<f32>> =
            (0..MANY).map(|n| scene.generate(31, n as u32, &[SIDE, SIDE]).expect("a scene")).collect();
        let strange = far(&|n, y, x| 1.0 - f64::from(images[n as usize][y * SIDE + x]));
        let area = area(&strange, &known);
        eprintln!("{name} exchanged: area {area:.3}");
        assert!(area >= 0.9, "{name} exchanged: {area}");
    }
}
