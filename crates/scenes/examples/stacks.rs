//! Writes stacks of a kind of scene as raw 32-bit floats for inspection, and prints their cost: `cargo run --release -p
//! clearshot-scenes --example stacks -- fibres 4 32x128x128 OUT.raw`.

use clearshot_scenes::Scene;
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, count, size, out] = &arguments[..] else {
        return Err("a kind, a number of stacks, their size ZxYxX and a file are needed".into());
    };
    let shape = size.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let mut file = std::io::BufWriter::new(std::fs::File::create(out)?);
    for index in 0..count.parse()? {
        let start = std::time::Instant::now();
        let values = Scene::by_name(kind)?.generate(1, index, &shape)?;
        println!("{kind} {index}: {:.2} s", start.elapsed().as_secs_f64());
        values.iter().try_for_each(|v| file.write_all(&v.to_le_bytes()))?;
    }
    Ok(file.flush()?)
}
