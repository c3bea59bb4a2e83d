//! Saturated pixels of simulated images, where what was cut off is known.

use clearshot_physics::{Correlation, Electrons};
use clearshot_restore::classical::bm3d::Bm3d;
use clearshot_restore::classical::{Method, stabilised};
use clearshot_restore::invalid::{Filled, Invalid};
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::{Camera, Measured, Values};
use clearshot_restore::saturated::{NoiseLevel, raise};
use clearshot_tensor::noise::Key;

const SIDE: usize = 96;
const SHAPE: [usize; 2] = [SIDE, SIDE];
const LIMIT: f32 = 255.0;

/// Electrons are counts here.
fn camera() -> Camera {
    Camera { read_noise: 3.0, ..Camera::default() }
}

/// The noise of a camera about some means, and the same cut off at the limit.
fn measured(means: &[f32], seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut noise = vec![0f32; means.len()];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let whole: Vec<f32> =
        means.iter().zip(&noise).map(|(&m, n)| m + n * camera().deviation(m.into()) as f32).collect();
    let cut = whole.iter().map(|v| v.min(LIMIT)).collect();
    (whole, cut)
}

fn filled(values: &[f32]) -> Filled {
    Invalid::find(values, Some(LIMIT), None).filled(values, &SHAPE, NoiseLevel::of(&camera()))
}

fn denoised(Filled { values, least }: &Filled) -> Vec<f32> {
    let (method, white) = (Method::Bm3d(Bm3d::USUAL), Correlation::WHITE);
    let mut made = stabilised(&method, Electrons(values), &SHAPE, Electrons(3.0), &white).unwrap().0;
    raise(&mut made, least);
    made
}

fn mean(values: impl Iterator<Item = f32>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(s, n), v| (s + f64::from(v), n + 1.0));
    sum / count
}

/// Noise cuts off a fifth of a flat region: what is put in its place has the mean of what was cut off.
#[test]
fn the_mean_of_a_region_survives_clipping() {
    let (whole, cut) = measured(&[242.0; SIDE * SIDE], 1);
    let share = mean(cut.iter().map(|v| f32::from(*v >= LIMIT)));
    assert!(share > 0.15 && share < 0.25, "{share}");
    let made = filled(&cut).values;
    // The whole noise's own mean strays by 0.16.
    let (truth, clipped, estimated) =
        (mean(whole.into_iter()), mean(cut.into_iter()), mean(made.into_iter()));
    assert!(truth - clipped > 1.5 && (estimated - truth).abs() < 0.5, "{truth} {clipped} {estimated}");
}

/// A bright object beyond the limit: its middle is not below the limit, and its rim is not pulled down.
#[test]
fn the_rim_of_a_saturated_object_has_no_bias() {
    let light = |i: usize| {
        let [y, x] = [i / SIDE, i % SIDE].map(|v| (v % 48) as f32 - 24.0);
        30.0 + 420.0 * (-(y * y + x * x) / (2.0 * 36.0)).exp()
    };
    let truth: Vec<f32> = (0..SIDE * SIDE).map(light).collect();
    let (_, cut) = measured(&truth, 2);
    let full = |i: usize| cut[i] >= LIMIT;
    let near = |i: usize, reach: usize| {
        let (y, x) = (i / SIDE, i % SIDE);
        let rows = y.saturating_sub(reach)..(y + reach + 1).min(SIDE);
        rows.flat_map(move |y| {
            (x.saturating_sub(reach)..(x + reach + 1).min(SIDE)).map(move |x| y * SIDE + x)
        })
    };
    let rim: Vec<usize> = (0..truth.len()).filter(|&i| !full(i) && near(i, 2).any(full)).collect();
    let middle: Vec<usize> = (0..truth.len()).filter(|&i| near(i, 2).all(full)).collect();
    assert!(rim.len() > 100 && middle.len() > 100);
    let bias = |made: &[f32]| mean(rim.iter().map(|&i| made[i] - truth[i]));
    let made = denoised(&filled(&cut));
    // As without the limit, where the rim's noise of 15 averages out over more than 100 pixels.
    let (whole, _) = measured(&truth, 2);
    let unlimited = denoised(&Filled { values: whole, least: vec![] });
    assert!((bias(&made) - bias(&unlimited)).abs() < 2.0, "{} {}", bias(&made), bias(&unlimited));
    assert!(middle.iter().all(|&i| made[i] >= LIMIT), "the middle is at least at the limit");
    // Every saturated pixel that is bright in truth is nearly there, and none is far above what is there.
    for i in (0..truth.len()).filter(|&i| full(i)) {
        assert!(made[i] > LIMIT - 30.0 || truth[i] < LIMIT, "{i}: {} for {}", made[i], truth[i]);
        assert!(made[i] < truth[i] + 60.0, "{i}: {} for {}", made[i], truth[i]);
    }
}

/// Noise brings single pixels of a dim region to the limit: they come back like the others, and so does a hot pixel.
#[test]
fn single_pixels_are_not_left_as_salt() {
    let truth: Vec<f32> = (0..SIDE * SIDE).map(|i| 205.0 + 10.0 * ((i % SIDE) as f32 / 9.0).sin()).collect();
    let (_, mut cut) = measured(&truth, 3);
    let mut full: Vec<usize> = (0..cut.len()).filter(|&i| cut[i] >= LIMIT).collect();
    assert!(full.len() > 5 && full.len() < 60, "{}", full.len());
    let hot = 40 * SIDE + 40;
    let dark: Vec<usize> = (30..50).flat_map(|y| (30..50).map(move |x| y * SIDE + x)).collect();
    let mut truth = truth;
    dark.iter().for_each(|&i| (truth[i], cut[i]) = (12.0, 12.0 + (i % 7) as f32 - 3.0));
    (truth[hot], cut[hot]) = (12.0, LIMIT);
    full.retain(|i| !dark.contains(i));
    full.push(hot);
    let made = denoised(&filled(&cut));
    let errors = |of: &mut dyn Iterator<Item = usize>| {
        let (sum, n) = of.fold((0.0, 0.0), |(s, n), i| (s + f64::from(made[i] - truth[i]).powi(2), n + 1.0));
        (sum / n).sqrt()
    };
    let (there, elsewhere) = (errors(&mut full.iter().copied()), errors(&mut (0..truth.len())));
    // Left as they are, they would be off by 45 and more.
    assert!(there < 2.5 * elsewhere && there < 12.0, "{there} {elsewhere}");
    assert!((made[hot] - 12.0).abs() < 6.0, "{}", made[hot]);
}

#[test]
fn measured_images_have_them_by_channel() {
    // Of two channels the second is saturated in a corner, and a pixel of the first is not finite.
    let size = [12, 10];
    let mut values: Vec<f32> = (0..240).map(|i| if i % 2 == 0 { 50.0 } else { 200.0 }).collect();
    let corner: Vec<usize> = (0..4).flat_map(|y| (0..4).map(move |x| y * 10 + x)).collect();
    corner.iter().for_each(|p| values[2 * p + 1] = LIMIT);
    values[2 * 75] = f32::NAN;
    let source = Values { values: &values, size: &size, channels: 2 };
    let mut image = Measured::read(&source, &Scratch::new(usize::MAX, None)).unwrap();
    let plain = image.photons(&camera()).unwrap();
    image.saturate(LIMIT, NoiseLevel::of(&camera()));
    assert_eq!((image.filled, image.saturated), (1, 16));
    let valid = image.valid.clone().unwrap();
    assert!((0..120).all(|p| valid[p] != (corner.contains(&p) || p == 75)));
    assert!(corner.iter().all(|p| image.values[2 * p + 1] >= LIMIT && image.values[2 * p] == 50.0));
    assert!(image.values[150] == 50.0);
    // They count as the brightest.
    assert!(image.photons(&camera()).unwrap().peak >= plain.peak);
    let mut restored = vec![10.0; 240];
    image.raise(&mut restored);
    assert!(restored[1] > 200.0 && restored[0] == 10.0 && restored[239] == 10.0);
    // A plane of nothing else stays finite.
    image.saturate(40.0, NoiseLevel::Unknown);
    assert!(image.values.iter().all(|v| v.is_finite()) && image.photons(&camera()).is_ok());
}

/// Nothing but finite numbers, whatever is saturated and whatever is known of the noise.
#[test]
fn odd_images_stay_finite() {
    let huge = Camera { gain: 1e-30, read_noise: 1e30, ..Camera::default() };
    for shape in [[1, 1], [1, 9], [9, 1], [2, 2], [7, 7]] {
        let n = shape[0] * shape[1];
        for noise in [
            NoiseLevel::Unknown,
            NoiseLevel::Uniform(0.0),
            NoiseLevel::Uniform(3.0),
            NoiseLevel::of(&camera()),
            NoiseLevel::of(&huge),
        ] {
            for values in [
                vec![LIMIT; n],
                (0..n).map(|i| if i % 2 == 0 { LIMIT } else { f32::NAN }).collect(),
                (0..n).map(|i| if i == 0 { 1e30 } else { -1e30 }).collect(),
            ] {
                let Filled { values: made, least } =
                    Invalid::find(&values, Some(LIMIT), None).filled(&values, &shape, noise);
                assert!(made.iter().all(|v| v.is_finite()), "{shape:?} {noise:?}: {made:?}");
                assert!(least.iter().all(|(i, v)| *i < n && !v.is_nan()), "{shape:?} {noise:?}");
            }
        }
    }
}
