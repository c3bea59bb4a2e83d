//! The description of a model file, for `clearshot info`.

use anyhow::Result;
use clearshot_model::{ConditionInput, DEFAULT_BYTES, InputKind, Model};
use std::io::Write;
use std::path::Path;

pub fn say(path: &Path, json: bool, out: &mut impl Write) -> Result<()> {
    let model = Model::load(path)?;
    let about = &model.about;
    let weights: usize = model.weights.values().map(|w| w.shape().len()).sum();
    let config: serde_json::Value = serde_json::from_str(&model.config).unwrap_or_default();
    let network = config["_class_name"].as_str().unwrap_or("UNet2DModel");
    let bytes = if Model::is_default(path) { DEFAULT_BYTES as u64 } else { std::fs::metadata(path)?.len() };
    if json {
        let record = serde_json::json!({
            "file": path, "bytes": bytes, "model": about.name, "task": about.task.name(), "network": network, "weights": weights,
            "dims": about.dims, "crop": about.crop, "hash": model.hash(), "quantised": about.quantised,
            "conditioning": about.conditioning,
        });
        return Ok(writeln!(out, "{record}")?);
    }
    writeln!(out, "{}", path.display())?;
    writeln!(out, "  model     {}, {}", about.name, about.task.name())?;
    writeln!(out, "  network   {network}, {weights} weights, {:.2} MB", bytes as f64 / 1e6)?;
    writeln!(out, "  trained   on {} pixels", clearshot_image::lengths(&about.crop))?;
    for input in model.condition_inputs() {
        let (name, what) = wanted(&model, &input);
        writeln!(out, "  {name:<9} {what}")?;
    }
    match &about.quantised {
        None => writeln!(out, "  computes  in floating point")?,
        Some(q) => {
            let s = |name: &str| q.scores[name].as_f64().map_or("unknown".into(), |x| format!("{x:.4}"));
            writeln!(
                out,
                "  computes  {} convolutions in 8 bits on CPUs, {} (ranges by {}, {} images); {} kept in fp32",
                q.convolutions,
                q.mode,
                q.calibration,
                q.images,
                q.kept.len()
            )?;
            writeln!(
                out,
                "  cost      relative error {}, PSNR against the truth {} dB ({} in fp32)",
                s("relative_error"),
                s("psnr_int8"),
                s("psnr_fp32")
            )?;
            for name in &q.kept {
                writeln!(out, "  in fp32   {name}")?;
            }
        }
    }
    Ok(())
}

/// The conditions of a model, and the option for each.
fn wanted(model: &Model, input: &ConditionInput) -> (&'static str, String) {
    let conditioning = model.about.conditioning.clone().unwrap_or_default();
    let open = if conditioning.dropped > 0.0 { "; can be left out" } else { "" };
    let classes = match (&conditioning.classes[..], input.classes()) {
        ([], Some(usize::MAX)) => "a number".into(),
        ([], count) => format!("a number below {}", count.unwrap_or(0)),
        (names, _) => format!("one of {}", names.join(", ")),
    };
    match input.kind {
        InputKind::Class { .. } | InputKind::OneHot { .. } => ("class", format!("{classes} (--class){open}")),
        InputKind::Vector(code) => {
            let class = (code.domains > 0).then(|| format!("class, {classes} (--class){open}"));
            let camera = code.camera.then(|| {
                "scale, read noise and background, as the camera and the image say (--condition)".to_string()
            });
            ("vector", class.into_iter().chain(camera).collect::<Vec<_>>().join("; "))
        }
        InputKind::Context { width } => {
            let tokens = conditioning.tokens.map_or(String::new(), |n| format!("{n} "));
            ("context", format!("{tokens}vectors of {width} numbers (--context FILE.npy){open}"))
        }
        InputKind::Unknown { numbers } => {
            ("unknown", format!("{numbers} numbers, `{}`, whose meaning its file does not state", input.port))
        }
    }
}
