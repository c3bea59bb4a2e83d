//! Cameras from repeats, movies, flats and darks: gain within 3 %, read noise within 5 %, correlation within 0.05, and what
//! is said of stripes, fixed pattern and how sure it all is.

use clearshot_physics::calibration::blind::{Doubt, Known};
use clearshot_physics::calibration::flats::{Darkness, from_flat_fields};
use clearshot_physics::calibration::measurement::{CameraMeasurement, from_single};
use clearshot_physics::calibration::movie::from_movies;
use clearshot_physics::calibration::repeats::{Series, from_series};
use clearshot_physics::correlation::FILTER;
use clearshot_physics::{Adu, Correlation, poisson};
use clearshot_tensor::noise::Key;

const SIDE: usize = 192;
const SHAPE: [usize; 2] = [SIDE; 2];
const LAGS: [(isize, isize); 4] = [(0, 1), (1, 0), (1, 1), (0, 2)];

/// A simulated camera.
#[derive(Clone, Copy)]
struct Camera {
    gain: f64,
    offset: f64,
    read_noise: f64,
    correlation: Correlation,
    /// Of rows, new in every frame, in counts.
    stripes: f64,
    /// The variance over that of Poisson noise.
    excess: f64,
}

const PLAIN: Camera = Camera {
    gain: 0.46,
    offset: 100.0,
    read_noise: 1.6,
    correlation: Correlation::WHITE,
    stripes: 0.0,
    excess: 1.0,
};

impl Camera {
    /// A frame of mean electrons in whole counts.
    fn take(&self, mean: &[f64], seed: u64) -> Vec<f32> {
        let key = |stream| Key { seed, step: 0, stream };
        let white: Vec<f64> = mean
            .iter()
            .enumerate()
            .map(|(i, &m)| {
                let shot = poisson::draw(m, key(0), i as u64) - m;
                let variance = m + self.read_noise.powi(2);
                let read = self.read_noise * f64::from(key(1).normal(i as u64));
                let more = (variance * (self.excess - 1.0)).sqrt() * f64::from(key(3).normal(i as u64));
                (shot + read + more) / variance.sqrt()
            })
            .collect();
        let noise = if self.correlation.is_white() { white } else { filtered(&white, &self.correlation) };
        (0..mean.len())
            .map(|i| {
                let electrons = mean[i] + noise[i] * (mean[i] + self.read_noise.powi(2)).sqrt();
                let row = self.stripes * f64::from(key(2).normal((i / SIDE) as u64));
                (electrons / self.gain + self.offset + row).round().max(0.0) as f32
            })
            .collect()
    }
}

fn filtered(white: &[f64], correlation: &Correlation) -> Vec<f64> {
    let (taps, half) = (correlation.filter(), FILTER / 2);
    let at = |y: usize, x: usize, k: usize| {
        let (v, u) = ((y + k / FILTER + SIDE - half) % SIDE, (x + k % FILTER + SIDE - half) % SIDE);
        taps[k] * white[v * SIDE + u]
    };
    (0..SIDE * SIDE).map(|i| (0..taps.len()).map(|k| at(i / SIDE, i % SIDE, k)).sum()).collect()
}

/// Cells before a dim background, in electrons; those of the right half move to the right by `shift` pixels.
fn scene(peak: f64, shift: f64) -> Vec<f64> {
    let key = Key { seed: 4, step: 0, stream: 0 };
    let cells: Vec<[f64; 4]> = (0..40u64)
        .map(|c| {
            let u = |k: u64| f64::from(key.uniform(4 * c + k));
            let (y, x) = (u(0) * SIDE as f64, u(1) * SIDE as f64);
            let moved = if x > SIDE as f64 / 2.0 { x + shift } else { x };
            [y, moved, 3.0 + 9.0 * u(2), u(3)]
        })
        .collect();
    (0..SIDE * SIDE)
        .map(|i| {
            let (y, x) = ((i / SIDE) as f64, (i % SIDE) as f64);
            let light = |c: &[f64; 4]| {
                c[3] * (-((y - c[0]).powi(2) + (x - c[1]).powi(2)) / (2.0 * c[2] * c[2])).exp()
            };
            3.0 + peak * cells.iter().map(light).sum::<f64>()
        })
        .collect()
}

fn views(frames: &[Vec<f32>]) -> Series<'_> {
    frames.iter().map(|f| Adu(&f[..])).collect()
}

/// With the offset known, so that nothing is left open.
fn offset(camera: &Camera) -> Known {
    Known { offset: Some(camera.offset), ..Known::default() }
}

#[track_caller]
fn near(found: &CameraMeasurement, camera: &Camera, read_noise: f64) {
    let fit = &found.fit;
    let gain = camera.gain / camera.excess;
    assert!((fit.gain / gain - 1.0).abs() < 0.03, "gain {} +- {} for {gain}", fit.gain, fit.gain_error);
    assert!((fit.gain - gain).abs() < 5.0 * fit.gain_error && fit.gain_error < 0.03 * gain, "{fit:?}");
    assert!(
        (fit.read_noise / read_noise - 1.0).abs() < 0.05,
        "read noise {} for {read_noise}",
        fit.read_noise
    );
    let [low, high] = fit.read_noise_range;
    assert!(low <= fit.read_noise && fit.read_noise <= high, "{fit:?}");
    for (dy, dx) in LAGS {
        let (got, want) = (fit.correlation.at(dy, dx), camera.correlation.at(dy, dx));
        assert!((got - want).abs() < 0.05, "lag {dy} {dx}: {got} for {want}");
        assert!(
            (got - want).abs() < 5.0 * found.fit.correlation_error.max(0.003),
            "lag {dy} {dx}: {got} for {want}"
        );
    }
}

#[test]
fn repeats_tell_the_camera() {
    for (correlation, frames, peak) in [
        (Correlation::WHITE, 2, 200.0),
        (Correlation::WHITE, 3, 60.0),
        (Correlation::gaussian([0.7, 0.5]), 8, 200.0),
        (Correlation::gaussian([0.0, 0.5]), 10, 60.0),
    ] {
        let camera = Camera { correlation, ..PLAIN };
        let mean = scene(peak, 0.0);
        let all: Vec<Vec<f32>> = (0..frames).map(|i| camera.take(&mean, 20 + i)).collect();
        let found = from_series(&[views(&all)], SHAPE, &offset(&camera)).unwrap();
        near(&found, &camera, camera.read_noise);
        assert!(found.changing_stripes.is_some_and(|l| !l.rows.seen && !l.columns.seen));
        assert!(found.fit.doubts.is_empty(), "{:?}", found.fit.doubts);
    }
}

/// Without the offset, the line is the same and its range holds the truth.
#[test]
fn repeats_leave_the_offset_open() {
    let mean = scene(200.0, 0.0);
    let all: Vec<Vec<f32>> = (0..4).map(|i| PLAIN.take(&mean, i)).collect();
    let fit = from_series(&[views(&all)], SHAPE, &Known::default()).unwrap().fit;
    assert!((fit.gain / PLAIN.gain - 1.0).abs() < 0.03, "{fit:?}");
    let [low, high] = fit.offset_range;
    assert!(low <= PLAIN.offset && PLAIN.offset <= high, "{fit:?}");
    let level = 150.0;
    let variance = (level - PLAIN.offset) / PLAIN.gain + (PLAIN.read_noise / PLAIN.gain).powi(2);
    assert!((fit.line.variance(level) / variance - 1.0).abs() < 0.03);
}

/// An EMCCD's excess factor of 2 halves the gain.
#[test]
fn an_excess_factor_is_part_of_the_gain() {
    let camera = Camera { excess: 2.0, ..PLAIN };
    let mean = scene(200.0, 0.0);
    let all: Vec<Vec<f32>> = (0..6).map(|i| camera.take(&mean, i)).collect();
    let found = from_series(&[views(&all)], SHAPE, &offset(&camera)).unwrap();
    // Read noise in electrons of that gain: its variance in counts has the factor too.
    near(&found, &camera, camera.read_noise * camera.excess.sqrt() / camera.excess);
}

/// Light that falls by 3 % a frame, cells that move in half of the picture.
#[test]
fn movies_tell_the_camera() {
    for correlation in [Correlation::WHITE, Correlation::gaussian([0.5, 0.7])] {
        let camera = Camera { correlation, ..PLAIN };
        let all: Vec<Vec<f32>> = (0..12)
            .map(|t| {
                let light = 0.97f64.powi(t);
                let mean: Vec<f64> = scene(150.0, 1.5 * f64::from(t)).iter().map(|m| m * light).collect();
                camera.take(&mean, 50 + t as u64)
            })
            .collect();
        let found = from_movies(&[views(&all)], SHAPE, &offset(&camera)).unwrap();
        near(&found, &camera, camera.read_noise);
        assert!(found.fit.doubts.is_empty(), "{:?}", found.fit.doubts);
    }
}

/// An evenly lit movie has no levels to tell a change of brightness by: its noise is all of its differences, of two frames and of more.
#[test]
fn movies_of_even_light_tell_all_of_their_noise() {
    let mean = vec![40.0; SIDE * SIDE];
    for frames in [2, 3, 8] {
        let all: Vec<Vec<f32>> = (0..frames).map(|t| PLAIN.take(&mean, 300 + t)).collect();
        let line = from_movies(&[views(&all)], SHAPE, &Known::default()).unwrap().fit.line;
        let level = 40.0 / PLAIN.gain + PLAIN.offset;
        let variance = (40.0 + PLAIN.read_noise.powi(2)) / PLAIN.gain.powi(2);
        assert!((line.variance(level) / variance - 1.0).abs() < 0.05, "{frames}: {line:?}, {variance}");
    }
}

/// Where everything jumps from frame to frame, single frames tell, and repeats say that they are none.
#[test]
fn what_moves_everywhere_is_said() {
    let jumps = |t: u64| -> Vec<f64> {
        let shift = (37 * t % 64) as usize;
        let still = scene(150.0, 0.0);
        (0..SIDE * SIDE).map(|i| still[i / SIDE * SIDE + (i % SIDE + shift) % SIDE]).collect()
    };
    let all: Vec<Vec<f32>> = (0..8).map(|t| PLAIN.take(&jumps(t), 70 + t)).collect();
    let movie = from_movies(&[views(&all)], SHAPE, &offset(&PLAIN)).unwrap().fit;
    assert!(movie.doubts.contains(&Doubt::Moving), "{:?}", movie.doubts);
    assert!((movie.gain / PLAIN.gain - 1.0).abs() < 0.25, "{}", movie.gain);
    let repeats = from_series(&[views(&all)], SHAPE, &offset(&PLAIN)).unwrap().fit;
    assert!(repeats.doubts.contains(&Doubt::Changed), "{:?}", repeats.doubts);
}

/// Flats of four levels whose lamp flickers by 1 %, pixels whose sensitivity differs by 2 % and whose offset by 1.5 counts.
#[test]
fn flats_and_darks_tell_the_camera() {
    let key = Key { seed: 6, step: 0, stream: 3 };
    let normal = |from: u64| move |i: usize| f64::from(key.normal(from + i as u64));
    let pixels = SIDE * SIDE;
    let sensitivity: Vec<f64> = (0..pixels).map(|i| 1.0 + 0.02 * normal(0)(i)).collect();
    let offsets: Vec<f32> = (0..pixels).map(|i| (1.5 * normal(pixels as u64)(i)) as f32).collect();
    let camera = Camera { correlation: Correlation::gaussian([0.0, 0.45]), ..PLAIN };
    let with = |mean: &[f64], seed: u64| -> Vec<f32> {
        camera.take(mean, seed).iter().zip(&offsets).map(|(v, o)| (v + o).round()).collect()
    };
    let darks: Vec<Vec<f32>> = (0..10).map(|i| with(&vec![0.0; pixels], 900 + i)).collect();
    let mut flats = Vec::new();
    for (level, light) in [20.0, 100.0, 400.0, 1500.0].into_iter().enumerate() {
        for i in 0..4 {
            let flicker = 1.0 + 0.01 * (i as f64 - 1.5);
            let mean: Vec<f64> = sensitivity.iter().map(|s| s * light * flicker).collect();
            flats.push(with(&mean, 100 * level as u64 + i));
        }
    }
    let dark = Darkness::of(&views(&darks), SHAPE).unwrap();
    assert!((dark.offset - 100.0).abs() < 0.05, "{dark:?}");
    let found = from_flat_fields(&views(&flats), Some(&dark), SHAPE, &Known::default()).unwrap();
    // A second rounding.
    near(&found, &camera, camera.read_noise);
    let pattern = found.pattern.unwrap();
    assert!((pattern.offset.unwrap() - 1.5).abs() < 0.08, "{pattern:?}");
    assert!((pattern.sensitivity.unwrap() - 0.02).abs() < 0.001, "{pattern:?}");
    assert!(pattern.hot.unwrap() < 1e-3);
    let alone = from_flat_fields(&views(&flats[..1]), Some(&dark), SHAPE, &Known::default()).unwrap_err();
    assert!(alone.to_string().contains("frames of a scene"), "{alone}");
}

/// Rows of 2 counts that are new in every frame, as repeats, movies and single images show them.
#[test]
fn stripes_are_seen() {
    let camera = Camera { stripes: 2.0, ..PLAIN };
    let mean = scene(40.0, 0.0);
    let all: Vec<Vec<f32>> = (0..8).map(|i| camera.take(&mean, i)).collect();
    let repeats = from_series(&[views(&all)], SHAPE, &offset(&camera)).unwrap().changing_stripes.unwrap();
    let movie = from_movies(&[views(&all)], SHAPE, &offset(&camera)).unwrap().changing_stripes.unwrap();
    let single = from_single(&views(&all[..1]), SHAPE, &offset(&camera)).unwrap().stripes.unwrap();
    for (lines, within) in [(repeats, 0.1), (movie, 0.1), (single, 0.25)] {
        assert!(lines.rows.seen && (lines.rows.deviation / 2.0 - 1.0).abs() < within, "{lines:?}");
        assert!((lines.rows.deviation - 2.0).abs() < 5.0 * lines.rows.error, "{lines:?}");
        assert!(!lines.columns.seen, "{lines:?}");
    }
    let without = from_single(&views(&[PLAIN.take(&mean, 1)]), SHAPE, &offset(&PLAIN)).unwrap();
    assert!(without.stripes.is_some_and(|l| !l.rows.seen && !l.columns.seen));
}

#[test]
fn what_tells_nothing_is_refused() {
    let flat = vec![5.0f32; SIDE * SIDE];
    let one = [vec![Adu(&flat[..])]];
    for e in [
        from_series(&one, SHAPE, &Known::default()).unwrap_err(),
        from_movies(&one, SHAPE, &Known::default()).unwrap_err(),
        from_movies(&[vec![Adu(&flat[..]); 3]], SHAPE, &Known::default()).unwrap_err(),
        from_series(&[vec![Adu(&flat[..9]); 2]], SHAPE, &Known::default()).unwrap_err(),
    ] {
        assert!(e.to_string().contains("needed"), "{e}");
    }
    let constant = from_series(&[vec![Adu(&flat[..]); 3]], SHAPE, &Known::default()).unwrap();
    assert!(constant.fit.gain.is_finite() && constant.fit.read_noise.is_finite(), "{constant:?}");
}
