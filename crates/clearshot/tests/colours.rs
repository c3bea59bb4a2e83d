//! Colour images: samples restored together, with the same metadata and the same rules as others.

use clearshot::{Array, Device, Event, KnownCamera, Notice, Observer, Restorer, Settings};
use clearshot_tensor::noise::Key;
use std::ops::ControlFlow;
use std::path::Path;

const SIDE: usize = 96;
const GAIN: f64 = 4.0;

/// Rings that become finer with the distance from a corner, under a colour that changes slowly; in electrons.
fn truth(y: usize, x: usize, c: usize) -> f32 {
    let distance = (x * x + y * y) as f32;
    let colour = [1.0, 0.6 + 0.004 * x as f32, 0.5 + 0.005 * y as f32][c];
    30.0 + 120.0 * colour * (1.0 + (distance / 110.0).sin())
}

/// A colour image in counts, `YXS`, with transparency as a fourth sample on request.
fn noisy(samples: usize) -> Vec<f32> {
    let mut noise = vec![0.0; SIDE * SIDE * 4];
    Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let value = |(y, x, c): (usize, usize, usize)| match c {
        3 => (y + x) as f32,
        c => {
            let mean = truth(y, x, c);
            (mean + noise[(y * SIDE + x) * 4 + c] * (mean + 400.0).sqrt()) / GAIN as f32
        }
    };
    let places = (0..SIDE).flat_map(|y| (0..SIDE).flat_map(move |x| (0..samples).map(move |c| (y, x, c))));
    places.map(value).collect()
}

fn settings() -> Settings {
    let camera =
        KnownCamera { gain: Some(GAIN), offset: Some(0.0), read_noise: Some(20.0), ..KnownCamera::default() };
    Settings { camera, ..Settings::default() }
}

#[derive(Default)]
struct Heard(bool);

impl Observer for Heard {
    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        self.0 |= matches!(event, Event::Notice(Notice::Colours));
        ControlFlow::Continue(())
    }
}

/// The restored samples, and whether they were restored together.
fn restored(values: &[f32], shape: &[usize], axes: &str, settings: &Settings) -> (Vec<f32>, bool) {
    let restorer = Restorer::builtin_on(Device::cpu(Some(2))).unwrap();
    let mut heard = Heard::default();
    let image = Array::new(values, shape, axes).unwrap();
    let made = restorer.restore(&image, settings, &mut heard).unwrap();
    (made.image, heard.0)
}

fn error(image: &[f32], samples: usize) -> f64 {
    let mut sum = 0.0;
    for y in 0..SIDE {
        for x in 0..SIDE {
            for c in 0..3 {
                let truth = truth(y, x, c) / GAIN as f32;
                sum += f64::from(image[(y * SIDE + x) * samples + c] - truth).powi(2);
            }
        }
    }
    sum / (3 * SIDE * SIDE) as f64
}

#[test]
fn samples_help_each_other() {
    let image = noisy(3);
    let shape = [SIDE, SIDE, 3];
    let (together, joint) = restored(&image, &shape, "YXS", &settings());
    let alone = Settings { colours_alone: true, ..settings() };
    let (alone, apart) = restored(&image, &shape, "YXS", &alone);
    assert!(joint && !apart);
    let [raw, alone, together] = [&image, &alone, &together].map(|i| error(i, 3));
    assert!(together < 0.85 * alone && alone < 0.2 * raw, "raw {raw}, alone {alone}, together {together}");
}

/// Samples may be the first axis of a file, and a fourth one is transparency, which is copied.
#[test]
fn the_layout_of_samples_does_not_matter() {
    let image = noisy(3);
    let (together, _) = restored(&image, &[SIDE, SIDE, 3], "YXS", &settings());
    let planar: Vec<f32> = (0..3).flat_map(|c| image.iter().skip(c).step_by(3).copied()).collect();
    let (planes, joint) = restored(&planar, &[3, SIDE, SIDE], "SYX", &settings());
    assert!(joint);
    for (i, v) in together.iter().enumerate() {
        assert_eq!(v.to_bits(), planes[i % 3 * SIDE * SIDE + i / 3].to_bits());
    }
    let image = noisy(4);
    let (clear, joint) = restored(&image, &[SIDE, SIDE, 4], "YXS", &settings());
    assert!(joint);
    for (i, v) in clear.iter().enumerate() {
        let expected = if i % 4 == 3 { image[i] } else { together[i / 4 * 3 + i % 4] };
        assert_eq!(v.to_bits(), expected.to_bits());
    }
}

#[test]
fn samples_of_posteriors_are_drawn_for_each_colour_alone() {
    let image = noisy(3);
    let two = Settings { samples: 2, steps: 2, ..settings() };
    let (_, joint) = restored(&image, &[SIDE, SIDE, 3], "YXS", &two);
    assert!(!joint);
}
