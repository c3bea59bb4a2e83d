//! Restores a file and an array; a program of your own needs no more than `clearshot = { path = "..." }` among its dependencies.
use clearshot::{Array, Restorer, Settings, restore_file};

fn main() -> Result<(), clearshot::Error> {
    let restorer = Restorer::builtin()?;
    let settings = Settings { samples: 2, std: true, steps: 4, ..Settings::default() };
    if let [_, input, output] = &std::env::args().collect::<Vec<_>>()[..] {
        let report = restore_file(input, output, &restorer, &settings, &mut ())?;
        println!("{} images", report.images.len());
        return Ok(());
    }
    let counts: Vec<u16> =
        (0..64 * 64).map(|i| 100 + (i * 7919 % 31) as u16 + if i / 64 % 16 < 8 { 40 } else { 0 }).collect();
    let noisy = Array::new(&counts, &[64, 64], "YX")?;
    let restored = restorer.restore(&noisy, &settings, &mut ())?;
    println!("{} pixels, chi2 {:?}", restored.image.len(), restored.report.chi2);
    Ok(())
}
