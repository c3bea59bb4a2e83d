//! The real image of the demo: a built-in short exposure, restored with everything that can be estimated from it alone
//! (camera, method, uncertainty), and compared with the long exposure of the same field.
//!
//! The long exposure is only used for scoring. `crates/cli/demo/README.md` gives the source of the two.

use anyhow::{Context, Result};
use clearshot_evaluate::files::{Pairs, Terms};
use clearshot_evaluate::method::by_name;
use clearshot_evaluate::report::{self, Figure, Illustration};
use clearshot_evaluate::{Assumed, Case, Restored, Scores};
use clearshot_image::Image;
use clearshot_image::picture::{Colours, Panel, Stretch, side_by_side};
use clearshot_model::Model;
use clearshot_physics::calibration::blind::Known;
use clearshot_physics::calibration::measurement::CameraMeasurement;
use clearshot_restore::camera::file;
use clearshot_restore::estimate;
use clearshot_restore::learned::{Choice, Measured, Restorer, Settings, Values, choice};
use clearshot_restore::saturated::NoiseLevel;
use clearshot_runtime::Device;
use clearshot_tensor::store::write_whole;
use serde_json::{Value, json};
use std::path::Path;

const SHORT: &[u8] = include_bytes!("../../demo/short_exposure.tif");
const LONG: &[u8] = include_bytes!("../../demo/long_exposure.tif");
/// What they are, in words.
const ABOUT: &str = "actin in a cell, fluorescence, 20x (GigaDB 100888, CC0)";

/// What came out.
pub struct Real {
    /// For the console, line by line.
    pub lines: Vec<String>,
    /// The picture and the camera's figure.
    pub illustrations: Vec<Illustration>,
    /// The same for programs.
    pub record: Value,
}

/// The image as restored, and what it was decided by.
struct Outcome {
    choice: Choice,
    restored: Restored,
}

/// Writes the two exposures into the demo's folder, restores the short one and scores it by the long one.
///
/// # Errors
/// If a file cannot be written, or the device fails.
pub fn show(device: Device, out: &Path) -> Result<Real> {
    let (short, long) = (out.join("real/short_exposure.tif"), out.join("real/long_exposure.tif"));
    put(&short, SHORT)?;
    put(&long, LONG)?;
    let measured = estimate::measure(&[Image::open(&short)?], &Known::default())?;
    let case = case(&short, &long, &measured)?;
    let outcome = restore(&case, &measured, device)?;
    let scores = Scores::of(&case, &outcome.restored, &Assumed::default())?;
    let [raw, bm3d] = ["raw", "gat+bm3d"].map(|name| psnr(name, &case));
    let (raw, bm3d) = (raw?, bm3d?);

    let psnr = format!(
        "PSNR against the long exposure, gain and offset fitted: raw {raw:.2} dB, BM3D {bm3d:.2} dB, restored {:.2} dB",
        scores.psnr
    );
    let camera = estimate::as_camera(&measured.fit);
    let seen = format!(
        "camera estimated from it: {:.4} electrons per count, offset {:.2} counts, read noise {:.2} electrons{}",
        camera.gain,
        camera.offset,
        camera.read_noise,
        clearshot::correlation_in_words(&camera.correlation)
    );
    let chosen = format!("restored by: {}", outcome.choice.in_words());

    let png = picture(&case, &outcome.restored)?;
    let svg = report::camera(&measured, "Noise of short_exposure.tif");
    let (shown, plot) = (out.join("pictures/real.png"), out.join("pictures/real_camera.svg"));
    put(&shown, &png)?;
    put(&plot, svg.as_bytes())?;
    let caption = format!(
        "A real image, {ABOUT}: its short exposure, the restored image, the standard deviation of its error as the model states it, and its long exposure. {psnr}. {chosen}"
    );
    let illustrations = vec![
        Illustration { caption, figure: Figure::Png(png) },
        Illustration {
            caption: format!("The noise, as measured from the short exposure; {seen}"),
            figure: Figure::Svg(svg),
        },
    ];
    let record = json!({
        "about": ABOUT, "short_exposure": short, "long_exposure": long, "picture": shown, "plot": plot,
        "camera": file::record(&measured, &[short.display().to_string()]),
        "choice": outcome.choice,
        "psnr": { "raw": raw, "bm3d": bm3d, "restored": scores.psnr },
        "coverage": scores.coverage,
    });
    Ok(Real { lines: vec![format!("a real image: {ABOUT}"), seen, chosen, psnr], illustrations, record })
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole(path, bytes).with_context(|| path.display().to_string())
}

/// The pair in electrons of the camera that was estimated, to be scored after a fit.
fn case(short: &Path, long: &Path, measured: &CameraMeasurement) -> Result<Case> {
    let fit = &measured.fit;
    let known = Known {
        gain: Some(fit.gain),
        offset: Some(fit.offset),
        read_noise: Some(fit.read_noise),
        saturation: fit.saturation,
        correlation: Some(fit.correlation),
    };
    let terms = Terms { known, fit: true, ..Terms::default() };
    let name = |path: &Path| path.to_str().map(str::to_string).context("the folder's name is not Unicode");
    Ok(Pairs::new(&name(long)?, &name(short)?, terms)?.case(0)?)
}

/// As `clearshot restore --std` does it.
fn restore(case: &Case, measured: &CameraMeasurement, device: Device) -> Result<Outcome> {
    let settings = Settings { deviation: true, ..Settings::default() };
    let mut restorer = Restorer::new(Model::builtin()?, settings, device)?;
    let camera = estimate::as_camera(&measured.fit);
    let counts: Vec<f32> = case.view.electrons.iter().map(|&e| camera.counts(e)).collect();
    let source = Values { values: &counts, size: &case.view.shape, channels: 1 };
    let mut image = Measured::read(&source, restorer.scratch())?;
    if let Some(full) = measured.fit.saturation {
        image.saturate(full as f32, NoiseLevel::of(&camera));
    }
    let image = [image];
    let choice = choice::choose(&mut restorer, &image[0], &camera, None, &mut || Ok(()))?;
    let mut made = restorer.restore(&image, &[0], Some(&camera), &mut || Ok(()))?.remove(0);
    choice.apply(&image[0], &camera, &mut made)?;
    let gain = camera.gain as f32;
    let restored = Restored {
        mean: made.image.iter().map(|&v| camera.electrons(v)).collect(),
        std: made.deviation.map(|d| d.iter().map(|&v| v * gain).collect()),
        reach: restorer.spread().map(|s| s.reach()),
    };
    Ok(Outcome { choice, restored })
}

fn psnr(method: &str, case: &Case) -> Result<f64> {
    let restored = by_name(method)?.restore(&case.view).map_err(anyhow::Error::msg)?;
    Ok(Scores::of(case, &restored, &Assumed::default())?.psnr)
}

/// Short exposure, restored, standard deviation, long exposure. The first two have one contrast; the long exposure, whose
/// counts have another scale, has its own.
fn picture(case: &Case, restored: &Restored) -> Result<Vec<u8>> {
    let shape = [case.view.shape[0], case.view.shape[1]];
    let panel = |label: &str, values: &[f32]| Panel::new(label, values.to_vec(), shape);
    let gamma = |stretch: Stretch| Stretch { gamma: 0.7, ..stretch };
    let mut after = panel("restored", &restored.mean)?;
    after.stretch = gamma(after.stretch);
    let before = Panel { stretch: after.stretch, ..panel("short exposure", &case.view.electrons)? };
    let mut panels = vec![before, after];
    if let Some(std) = &restored.std {
        panels.push(Panel { colours: Colours::Helix, ..panel("standard deviation", std)? });
    }
    let mut long = panel("long exposure", &case.truth)?;
    long.stretch = gamma(long.stretch);
    panels.push(long);
    Ok(side_by_side(&panels, panels.len(), 256).png()?)
}
