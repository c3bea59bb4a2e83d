//! Prints how near the noise that is told from one picture is to the noise that it has, for every kind of scene.
//!
//! Electrons of a known camera behind a lens, independent or shared by neighbours through a filter; the told standard deviation
//! over the true one at the dark and the bright end of what was seen, and the lags (0, 1), (1, 0), (1, 1) and (0, 2) less the
//! true ones, the mean and the worst over pictures. Run with `cargo run --release -p clearshot-scenes --example noise -- 512 4`.

use clearshot_physics::calibration::blind::{Known, estimate};
use clearshot_physics::{Adu, Correlation, Psf, poisson};
use clearshot_scenes::{Camera, SCENES};
use clearshot_tensor::noise::Key;

/// Filters along Y and X that noise has passed.
const FILTERS: [(&str, [&[f64]; 2]); 4] = [
    ("independent", [&[1.0], &[1.0]]),
    ("along rows", [&[1.0], &[0.3, 1.0, 0.3]]),
    ("weak", [&[0.2, 1.0, 0.2], &[0.2, 1.0, 0.2]]),
    ("strong", [&[0.5, 1.0, 0.5], &[0.5, 1.0, 0.5]]),
];
const LAGS: [(isize, isize); 4] = [(0, 1), (1, 0), (1, 1), (0, 2)];
const READ_NOISE: f64 = 2.0;
const BACKGROUND: f64 = 5.0;
const PEAK: f64 = 100.0;

fn filtered(noise: &[f32], side: usize, [down, right]: [&[f64]; 2]) -> Vec<f32> {
    let power: f64 = [down, right].iter().map(|t| t.iter().map(|x| x * x).sum::<f64>()).product();
    let reach = |t: &[f64]| t.len() / 2;
    let at = |y: usize, x: usize| noise[y % side * side + x % side];
    let of = |i: usize| {
        let (y, x) = (i / side + side - reach(down), i % side + side - reach(right));
        let row = |(k, w): (usize, &f64)| {
            let along = right.iter().enumerate();
            w * along.map(|(l, v)| v * f64::from(at(y + k, x + l))).sum::<f64>()
        };
        (down.iter().enumerate().map(row).sum::<f64>() / power.sqrt()) as f32
    };
    (0..side * side).map(of).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u32| arguments.next().map_or(Ok(usual), |a| a.parse());
    let (side, count) = (number(512)? as usize, number(4)?);
    let shape = [side, side];
    println!(
        "scene, noise: told over true deviation in the dark and the bright (mean, worst); lags less the truth (worst each)"
    );
    for kind in &SCENES {
        for (name, filters) in FILTERS {
            let truth = Correlation::of_filters(filters);
            let (mut ratios, mut off) = (Vec::new(), [0f64; 4]);
            for seed in 0..count {
                let clear = Camera {
                    psf: Some(Psf::gaussian(&[1.2, 1.2])?),
                    background: 0.0,
                    read_noise: 0.0,
                    ..Camera::for_peak(1e6)
                };
                let scene = kind.scene.generate(9, seed, &shape)?;
                let seen = clear.take(&scene, &shape, 9, seed)?.values;
                let mean: Vec<f64> = seen.iter().map(|v| PEAK * f64::from(*v) / 1e6 + BACKGROUND).collect();
                let [shots, reads] = [1, 2].map(|stream| Key { seed: 77, step: seed, stream });
                let mut noise = vec![0f32; side * side];
                reads.fill_normal(0, &mut noise);
                for (i, n) in noise.iter_mut().enumerate() {
                    *n = (poisson::draw(mean[i], shots, i as u64) - mean[i] + READ_NOISE * f64::from(*n))
                        as f32;
                }
                let noise = filtered(&noise, side, filters);
                let image: Vec<f32> =
                    noise.iter().zip(&mean).map(|(n, m)| (f64::from(*n) + m + 100.0) as f32).collect();
                let fit = estimate(&[Adu(&image)], shape, &Known::default())?;
                ratios.extend(fit.levels.map(|level| {
                    fit.line.deviation(level) / ((level - 100.0).max(0.0) + READ_NOISE * READ_NOISE).sqrt()
                }));
                for (off, (dy, dx)) in off.iter_mut().zip(LAGS) {
                    let by = fit.correlation.at(dy, dx) - truth.at(dy, dx);
                    if by.abs() > off.abs() {
                        *off = by;
                    }
                }
            }
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            let worst =
                ratios.iter().fold(1.0, |w: f64, r| if (r - 1.0).abs() > (w - 1.0).abs() { *r } else { w });
            let off = off.map(|o| format!("{o:+.3}")).join(" ");
            println!("{:14} {name:12} {mean:.3} {worst:.3}   {off}", kind.name);
        }
    }
    Ok(())
}
