//! Restores a file with the built-in model, and an array with BM3D: `cargo run --release -p clearshot --example restore -- INPUT OUTPUT`.
//! A program of your own needs no more than `clearshot = { path = "..." }` among its dependencies.

use clearshot::{Array, Error, Method, Restorer, Settings, restore_file};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, input, output] = &arguments[..] else { panic!("usage: restore INPUT OUTPUT") };
    let report = restore_file(input, output, &Restorer::builtin()?, &Settings::default(), &mut ())?;
    for image in &report.images {
        println!("{}: chi2 {:?}, {:.1} s", image.output.display(), image.chi2, image.seconds);
    }
    let counts: Vec<u16> = (0..48 * 64).map(|i| 100 + (i * 7919 % 23) as u16).collect();
    let noisy = Array::new(&counts, &[48, 64], "YX")?;
    let denoiser = Restorer::denoiser(Method::by_name("bm3d")?);
    let restored = denoiser.restore(&noisy, &Settings::default(), &mut ())?;
    println!("{} pixels, axes {}", restored.image.len(), restored.axes);
    Ok(())
}
