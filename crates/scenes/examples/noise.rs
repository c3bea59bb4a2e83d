//! Prints how near the noise that is told from one picture is to the noise that it has, for every kind of scene.
//!
//! The told standard deviation over the true one at the dark and the bright end of what was seen, its mean and the worst; and the
//! worst errors of the lags (0, 1), (1, 0), (1, 1) and (0, 2). Run with
//! `cargo run --release -p clearshot-scenes --example noise -- 512 4`.

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
    for kind in &SCENES {
        for (name, filters) in FILTERS {
            let all: Vec<Told> = (0..count).map(|i| told(kind.scene, side, filters, i)).collect();
            let deviations = || all.iter().flat_map(|t| t.deviations);
            let mean = deviations().sum::<f64>() / deviations().count() as f64;
            let lags = [0, 1, 2, 3].map(|i| format!("{:+.3}", worst(all.iter().map(|t| t.lags[i]), 0.0)));
            println!(
                "{:14} {name:12} {mean:.3} {:.3}   {}",
                kind.name,
                worst(deviations(), 1.0),
                lags.join(" ")
            );
        }
    }
    Ok(())
}
