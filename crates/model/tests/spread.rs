//! Calibration of the samples' standard deviation, tested on other kinds of scenes than those it was fitted on.

use clearshot_model::SpreadFactor;
use clearshot_model::spread::{Known, Light};
use clearshot_tensor::noise::Key;

/// Dark pixels whose estimate is at the background, and those whose estimate is a little above it and wrong by that: a
/// factor from images that have few of the latter serves one that has many.
#[test]
fn estimates_slightly_above_the_background_are_distinguished_from_it() {
    let drawn = |seed: u64, doubtful: f32| -> Vec<Known> {
        let [mut normal, mut uniform] = [vec![0f32; 20_000], vec![0f32; 60_000]];
        Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut normal);
        Key { seed, step: 1, stream: 0 }.fill_uniform(0, &mut uniform);
        let pixel = |(z, u): (&f32, &[f32])| {
            let (spread, at) = ((-3.2 + f64::from(u[0])).exp(), f64::from(u[1]));
            let (signal, error) = match u[2] < doubtful {
                true => (0.03 + 0.07 * at, 0.03 + 0.07 * at),
                false => (0.008 * at, 0.2 * spread * f64::from(z.abs())),
            };
            Known { spread, light: Some(Light { signal, noise: 1.0 }), error }
        };
        normal.iter().zip(uniform.chunks(3)).map(pixel).collect()
    };
    let reach = 1.86;
    let factor = SpreadFactor::of(&[drawn(1, 0.1), drawn(2, 0.1)], reach).expect("pixels");
    let inside = |p: &&Known| p.error <= reach * p.spread * factor.at(p.spread, p.light);
    for doubtful in [0.0, 0.1, 0.5] {
        let others = drawn(3, doubtful);
        let held = others.iter().filter(inside).count() as f64 / others.len() as f64;
        assert!((held - 0.9).abs() < 0.06, "{doubtful}: {held}");
    }
}
