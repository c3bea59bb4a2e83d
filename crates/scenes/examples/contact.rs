//! Writes scenes of every kind as raw f32 and prints what each costs.
//!
//! Run with `cargo run --release -p clearshot-scenes --example contact -- FOLDER SIDE COUNT`.
use clearshot_scenes::SCENES;
use std::io::Write;

/// Milliseconds that this process has been on a core.
fn busy() -> Result<f64, Box<dyn std::error::Error>> {
    let all = std::fs::read_to_string("/proc/self/schedstat")?;
    Ok(all.split(' ').next().ok_or("no time")?.parse::<f64>()? / 1e6)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("FOLDER SIDE COUNT")?;
    let side: usize = args.next().ok_or("SIDE")?.parse()?;
    let count: u32 = args.next().ok_or("COUNT")?.parse()?;
    for kind in &SCENES {
        let mut file = std::fs::File::create(format!("{folder}/{}_{side}.f32", kind.name))?;
        let (mut total, mut worst) = (0.0, 0f64);
        for index in 0..count {
            let start = busy()?;
            let scene = kind.scene.generate(5, index, &[side, side])?;
            let ms = busy()? - start;
            total += ms;
            worst = worst.max(ms);
            file.write_all(&scene.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
        }
        println!("{:14} {:6.1} ms, at most {:6.1}", kind.name, total / f64::from(count), worst);
    }
    Ok(())
}
