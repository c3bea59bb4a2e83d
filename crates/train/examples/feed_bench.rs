//! How fast samples are made: `cargo run --release -p clearshot-train --example feed_bench -- [SIZE] [COUNT] [OVERRIDE ...]`
//!
//! One thread makes samples of the default experiment; the pool is filled before the clock starts.

use clearshot_train::data::{Data, Part};
use clearshot_train::presets;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().and_then(|a| a.parse().ok()).unwrap_or(default);
    let (size, count) = (number(96) as usize, number(2000));
    let mut overrides = vec!["experiment=default".to_string(), "data.pool=8".into(), "data.refresh=0".into()];
    overrides.extend(args);
    let config = presets::read(None, &overrides)?;
    let source = Data::new(&config)?.source(Part::Training, &[size, size], None)?;
    for number in 0..400 {
        source.sample(number)?;
    }
    let start = Instant::now();
    for number in 0..count {
        source.sample(number)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{:.0} samples a second and thread, {:.1} us each",
        count as f64 / seconds,
        1e6 * seconds / count as f64
    );
    Ok(())
}
