//! Denoises a plane in correlated noise, for scripts that compare with other programs: 32-bit floats without a header in and
//! out, and the seconds that it took as text.
//!
//! `cargo run --release -p clearshot-restore --example correlated -- bm3d IN OUT HEIGHT WIDTH DEVIATION [CORRELATION.json]`
//!
//! The file has 5 rows of lags (0 to 4 along Y), each of 9 numbers (-4 to 4 along X). Default: white noise.

use clearshot_physics::Correlation;
use clearshot_restore::classical::{Method, Noise};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [method, input, output, height, width, deviation, rest @ ..] = &arguments[..] else {
        return Err("METHOD IN OUT HEIGHT WIDTH DEVIATION [CORRELATION.json] are needed".into());
    };
    let correlation = match rest.first() {
        Some(path) => serde_json::from_str(&std::fs::read_to_string(path)?)?,
        None => Correlation::WHITE,
    };
    let bytes = std::fs::read(input)?;
    let image: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let shape = [height.parse()?, width.parse()?];
    let noise = Noise { deviation: deviation.parse()?, correlation };
    let start = Instant::now();
    let denoised = Method::by_name(method)?.run(&image, &shape, noise)?;
    println!("{:.3}", start.elapsed().as_secs_f64());
    std::fs::write(output, denoised.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
