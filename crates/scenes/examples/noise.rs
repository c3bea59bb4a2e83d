//! Compares the noise estimated from a single image with its true noise, for every kind of scene.
//!
//! Prints the ratio of estimated to true standard deviation at the dark and the bright end, mean and worst; the worst
//! errors of the lags (0, 1), (1, 0), (1, 1) and (0, 2); and the largest of these errors (root mean square of an image)
//! next to the mean of the estimated standard errors. The last line says how often the former is within the latter for
//! correlated noise. Run with `cargo run --release -p clearshot-scenes --example noise -- 512 4`.

#[path = "../tests/noisy/mod.rs"]
mod noisy;

use clearshot_scenes::SCENES;
use noisy::{FILTERS, Told, told};

/// Of some numbers the one that is farthest from another.
fn worst(values: impl Iterator<Item = f64>, from: f64) -> f64 {
    values.fold(from, |w, v| if (v - from).abs() > (w - from).abs() { v } else { w })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u32| arguments.next().map_or(Ok(usual), |a| a.parse());
    let (side, count) = (number(512)? as usize, number(4)?);
    let (mut within, mut shared) = (0, 0);
    for kind in &SCENES {
        for (name, filters) in FILTERS {
            let all: Vec<Told> = (0..count).map(|i| told(kind.scene, side, filters, i)).collect();
            let deviations = || all.iter().flat_map(|t| t.deviations);
            let mean = deviations().sum::<f64>() / deviations().count() as f64;
            let lags = [0, 1, 2, 3].map(|i| format!("{:+.3}", worst(all.iter().map(|t| t.lags[i]), 0.0)));
            let off = all.iter().map(Told::off).fold(0.0, f64::max);
            let said = all.iter().map(|t| t.error).sum::<f64>() / all.len() as f64;
            println!(
                "{:14} {name:12} {mean:.3} {:.3}   {}   {off:.3} {said:.3}",
                kind.name,
                worst(deviations(), 1.0),
                lags.join(" ")
            );
            if filters.iter().any(|taps| taps.len() > 1) {
                within += all.iter().filter(|t| t.off() <= t.error).count();
                shared += all.len();
            }
        }
    }
    println!("{within} of {shared} images are within the standard error that is said");
    Ok(())
}
