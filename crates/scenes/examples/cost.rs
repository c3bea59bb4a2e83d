//! Prints the cost of generating a scene of each kind, in milliseconds of one core, and on request writes the scenes.
//!
//! Run with `cargo run --release -p clearshot-scenes --example cost -- 256 24`; a folder as third argument receives the
//! scenes of each kind as one file of little-endian f32.

use clearshot_scenes::SCENES;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u32| arguments.next().map_or(Ok(usual), |a| a.parse());
    let (side, count) = (number(256)? as usize, number(24)?);
    let folder = arguments.next();
    for kind in &SCENES {
        let (mut times, mut bytes) = (Vec::new(), Vec::new());
        for index in 0..count {
            let start = Instant::now();
            let scene = kind.scene.generate(5, index, &[side, side])?;
            times.push(1e3 * start.elapsed().as_secs_f64());
            bytes.extend(scene.iter().flat_map(|v| v.to_le_bytes()));
        }
        let mean = times.iter().sum::<f64>() / f64::from(count);
        println!(
            "{:14} {mean:6.1} ms, at most {:6.1}",
            kind.name,
            times.iter().fold(0.0, |a: f64, b| a.max(*b))
        );
        if let Some(folder) = &folder {
            std::fs::write(format!("{folder}/{}_{side}.f32", kind.name), bytes)?;
        }
    }
    Ok(())
}
