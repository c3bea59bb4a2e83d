//! Movies and stacks against their frames and planes restored one by one: better at rest and where planes show the same, as good where everything moves, the same where all changes.

use clearshot_physics::Electrons;
use clearshot_physics::calibration::Calibration;
use clearshot_restore::RestoreError;
use clearshot_restore::classical::{Method, bm3d::Bm3d, stabilised};
use clearshot_restore::learned::Camera;
use clearshot_restore::series::{self, ALONG_Z, IN_TIME};
use clearshot_scenes::{Camera as Taken, Scene};

const SIDE: usize = 96;
const FRAMES: usize = 7;
const GAIN: f64 = 0.5;
const OFFSET: f64 = 100.0;

/// BM3D, as the camera's noise is.
fn bm3d(frame: &[f32], camera: &Camera) -> Result<Vec<f32>, RestoreError> {
    let electrons: Vec<f32> = frame.iter().map(|&v| camera.electrons(v)).collect();
    let (method, noise) = (Method::Bm3d(Bm3d::USUAL), Electrons(camera.read_noise as f32));
    let made = stabilised(&method, Electrons(&electrons), &[SIDE, SIDE], noise, &camera.correlation)?;
    Ok(made.0.into_iter().map(|e| camera.counts(e)).collect())
}

/// A movie's measured frames and their truth, in counts, and the camera.
struct Movie {
    frames: Vec<Vec<f32>>,
    truth: Vec<Vec<f32>>,
    camera: Camera,
}

fn movie(peak: f64, scene: impl Fn(usize) -> Vec<f32>) -> Movie {
    let taken = Taken::for_peak(peak);
    let calibration = Calibration::uniform(GAIN, OFFSET, taken.read_noise).unwrap();
    let counts = |e: &[f32]| {
        let e: Vec<f64> = e.iter().map(|&v| v.into()).collect();
        calibration.digitise(Electrons(&e)).unwrap().0.into_iter().map(|v| v as f32).collect::<Vec<f32>>()
    };
    let camera = Camera { gain: GAIN, offset: OFFSET, read_noise: taken.read_noise, ..Camera::default() };
    let mut made = Movie { frames: vec![], truth: vec![], camera };
    for t in 0..FRAMES {
        let picture = taken.take(&scene(t), &[SIDE, SIDE], 11, t as u32).unwrap();
        made.frames.push(counts(&picture.values));
        made.truth.push(picture.mean.iter().map(|&e| (f64::from(e) / GAIN + OFFSET) as f32).collect());
    }
    made
}

fn decibels(truth: &[Vec<f32>], made: &[Vec<f32>]) -> f64 {
    let range = truth.iter().flatten().fold(0f32, |m, &v| m.max(v - OFFSET as f32));
    let error = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let sum: f64 = a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
        sum / a.len() as f64
    };
    let each = truth.iter().zip(made).map(|pair| 10.0 * (f64::from(range).powi(2) / error(pair)).log10());
    each.sum::<f64>() / truth.len() as f64
}

/// What neighbours in time gain in dB over frames alone.
fn gain(movie: &Movie) -> f64 {
    gain_with(movie, IN_TIME)
}

/// What so many neighbours gain: at the ends of the series and in its middle.
fn gain_with(movie: &Movie, most: usize) -> f64 {
    let frames: Vec<&[f32]> = movie.frames.iter().map(Vec::as_slice).collect();
    let (mut truth, mut alone, mut made) = (vec![], vec![], vec![]);
    for t in [0, FRAMES / 2, FRAMES - 1] {
        truth.push(movie.truth[t].clone());
        alone.push(bm3d(frames[t], &movie.camera).unwrap());
        made.push(series::restore(&frames, t, most, [SIDE; 2], &movie.camera, &mut bm3d).unwrap());
    }
    decibels(&truth, &made) - decibels(&truth, &alone)
}

/// A window of a larger scene that begins at a place between pixels.
fn window(scene: &[f32], width: usize, y: f64, x: f64) -> Vec<f32> {
    let at = |r: usize, c: usize| f64::from(scene[r * width + c]);
    let (top, left) = (y as usize, x as usize);
    let (v, u) = (y.fract(), x.fract());
    let pixel = |i: usize| {
        let (r, c) = (top + i / SIDE, left + i % SIDE);
        let row = |r: usize| (1.0 - u) * at(r, c) + u * at(r, c + 1);
        ((1.0 - v) * row(r) + v * row(r + 1)) as f32
    };
    (0..SIDE * SIDE).map(pixel).collect()
}

fn scene(kind: Scene, index: u32) -> Vec<f32> {
    kind.generate(5, index, &[SIDE, SIDE]).unwrap()
}

#[test]
fn at_rest_neighbours_gain_a_decibel_and_more() {
    for (kind, peak) in [(Scene::Fibres, 20.0), (Scene::Tissue, 100.0), (Scene::Vesicles, 10.0)] {
        let clean = scene(kind, 3);
        let still = gain(&movie(peak, |_| clean.clone()));
        let faded = gain(&movie(peak, |t| clean.iter().map(|v| v * 0.96f32.powi(t as i32)).collect()));
        eprintln!("{} at {peak}: still {still:.2} dB, bleached {faded:.2} dB", kind.name());
        assert!(still >= 1.0 && faded >= 1.0, "{}: {still} {faded}", kind.name());
    }
}

/// Specimens in three dimensions through a microscope's PSF: in little light planes gain a decibel and more in the mean from their neighbours along Z and never lose, in
/// much light half of one, and none loses more than a tenth.
#[test]
fn neighbouring_planes_of_a_stack_help() {
    let kinds = [
        Scene::Fibres,
        Scene::Mitochondria,
        Scene::Membranes,
        Scene::Reticulum,
        Scene::Vesicles,
        Scene::Tissue,
        Scene::Textures,
    ];
    for (peak, least, least_mean) in [(10.0, 0.0, 1.0), (100.0, -0.1, 0.5)] {
        let mut all = Vec::new();
        for kind in kinds {
            let stack = kind.generate(5, 2, &[FRAMES, SIDE, SIDE]).unwrap();
            let plane = |z: usize| stack[z * SIDE * SIDE..][..SIDE * SIDE].to_vec();
            let gained = gain_with(&movie(peak, plane), ALONG_Z);
            eprintln!("{} at {peak}: {gained:+.2} dB", kind.name());
            all.push(gained);
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean >= least_mean && all.iter().all(|g| *g >= least), "{peak}: {all:?}");
    }
}

/// Discs that cross a still scene, scenes that drift by parts of a pixel and by more, lights that go on and off.
#[test]
fn what_moves_is_no_worse() {
    let mut worse = Vec::new();
    for (kind, peak) in [(Scene::Fibres, 20.0), (Scene::Mitochondria, 100.0), (Scene::Vesicles, 10.0)] {
        let clean = scene(kind, 4);
        let disc = |t: usize, speed: f64| {
            let mut now = clean.clone();
            for (i, v) in now.iter_mut().enumerate() {
                let d = (i / SIDE) as f64 - 48.0;
                let e = (i % SIDE) as f64 - 20.0 - speed * t as f64;
                *v = v.max(if d * d + e * e < 64.0 { 0.6 } else { 0.0 });
            }
            now
        };
        let wide = kind.generate(6, 4, &[128, 128]).unwrap();
        let drift = |speed: f64| {
            movie(peak, |t| window(&wide, 128, 1.0 + 0.3 * speed * t as f64, 1.0 + speed * t as f64))
        };
        let blink = |t: usize| {
            let on = |i: usize| (i / 24 + i % 24 / 8 + t).is_multiple_of(3);
            clean.iter().enumerate().map(|(i, v)| if on(i % SIDE) { *v } else { 0.4 * v }).collect()
        };
        for (name, made) in [
            ("disc", movie(peak, |t| disc(t, 3.0))),
            ("slow disc", movie(peak, |t| disc(t, 0.5))),
            ("drift 0.25", drift(0.25)),
            ("drift 1", drift(1.0)),
            ("drift 4", drift(4.0)),
            ("blinking", movie(peak, blink)),
            ("other scenes", movie(peak, |t| scene(kind, t as u32))),
        ] {
            let gained = gain(&made);
            eprintln!("{} at {peak}, {name}: {gained:+.2} dB", kind.name());
            if gained < -0.05 {
                worse.push(format!("{} at {peak}, {name}: {gained:+.2} dB", kind.name()));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn where_all_changes_frames_are_restored_alone_to_the_bit() {
    // Blocks of 8 x 8 pixels, each of another brightness in every frame.
    let block = |i: usize| i / SIDE / 8 * 7 + i % SIDE / 8 * 5;
    let level = |i: usize, t: usize| [0.1, 0.9, 0.5][(block(i) + block(i) / 3 + t) % 3];
    let Movie { frames, camera, .. } = movie(100.0, |t| (0..SIDE * SIDE).map(|i| level(i, t)).collect());
    let frames: Vec<&[f32]> = frames[..3].iter().map(Vec::as_slice).collect();
    for (t, frame) in frames.iter().enumerate() {
        let made = series::restore(&frames, t, IN_TIME, [SIDE; 2], &camera, &mut bm3d).unwrap();
        assert_eq!(bm3d(frame, &camera).unwrap(), made);
    }
}
