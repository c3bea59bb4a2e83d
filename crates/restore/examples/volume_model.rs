//! A model for stacks against the default one plane by plane: PSNR in dB (range: the stack's own) on generated stacks that no training
//! has seen, by kind and light. Both are told the camera.
//!
//! `cargo run --release -p clearshot-restore --example volume_model -- MODEL.clearshot [STACKS [cpu|cuda]]`

use clearshot_model::Model;
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::{Camera, Measured, Restorer, Settings, Values};
use clearshot_runtime::Device;
use clearshot_scenes::{Camera as Taken, SCENES};

const SHAPE: [usize; 3] = [24, 96, 96];
const PEAKS: [f64; 3] = [5.0, 20.0, 100.0];
const SEED: u64 = 0xD15C;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("a model for stacks is needed")?;
    let stacks: u32 = arguments.get(1).map_or(Ok(3), |n| n.parse())?;
    let device = match arguments.get(2).map(String::as_str) {
        Some("cuda") => Device::Cuda { ordinal: 0 },
        _ => Device::cpu(None),
    };
    let mut volumes = Restorer::new(Model::load(path.as_ref())?, Settings::default(), device)?;
    let mut planes = Restorer::new(Model::builtin()?, Settings::default(), device)?;
    println!("{:<14} {:>6} {:>8} {:>8} {:>8} {:>7}", "kind", "peak", "noisy", "planes", "volume", "gain");
    let (mut all, mut count) = (0.0, 0.0);
    for kind in SCENES.iter().filter(|k| !k.benchmark) {
        for peak in PEAKS {
            let mut means = [0.0; 3];
            for index in 0..stacks {
                let scene = kind.scene.generate(SEED, index, &SHAPE)?;
                let taken = Taken::for_peak(peak);
                let picture = taken.take(&scene, &SHAPE, SEED, index)?;
                let camera = Camera { read_noise: taken.read_noise, ..Camera::default() };
                let [flat, deep] =
                    [[1, SHAPE[1], SHAPE[2]], SHAPE].map(|s| s[usize::from(s[0] == 1)..].to_vec());
                let by_planes = restored(&mut planes, &picture.values, &flat, &camera)?;
                let by_volume = restored(&mut volumes, &picture.values, &deep, &camera)?;
                for (mean, made) in means.iter_mut().zip([&picture.values, &by_planes, &by_volume]) {
                    *mean += decibels(&picture.mean, made) / f64::from(stacks);
                }
            }
            let [noisy, flat, deep] = means;
            println!(
                "{:<14} {peak:>6} {noisy:>8.2} {flat:>8.2} {deep:>8.2} {:>+7.2}",
                kind.name,
                deep - flat
            );
            (all, count) = (all + deep - flat, count + 1.0);
        }
    }
    println!("mean gain {:+.2} dB", all / count);
    Ok(())
}

/// A stack in parts of a size, one behind the other.
fn restored(
    restorer: &mut Restorer,
    values: &[f32],
    size: &[usize],
    camera: &Camera,
) -> Result<Vec<f32>, Failure> {
    let mut out = Vec::with_capacity(values.len());
    for (number, part) in values.chunks(size.iter().product()).enumerate() {
        let source = Values { values: part, size, channels: 1 };
        let measured = [Measured::read(&source, &Scratch::new(usize::MAX, None))?];
        let made = restorer.restore(&measured, &[number as u64], Some(camera), &mut || Ok(()))?;
        out.extend_from_slice(&made[0].image);
    }
    Ok(out)
}

fn decibels(truth: &[f32], made: &[f32]) -> f64 {
    let (low, high) = truth.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
    let error: f64 = truth.iter().zip(made).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    10.0 * (f64::from(high - low).powi(2) * truth.len() as f64 / error).log10()
}
