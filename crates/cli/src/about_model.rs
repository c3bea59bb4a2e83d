//! What a model's file says of itself, for `clearshot info`.

use anyhow::Result;
use clearshot_model::Model;
use std::io::Write;
use std::path::Path;

pub fn say(path: &Path, json: bool, out: &mut impl Write) -> Result<()> {
    let model = Model::load(path)?;
    let about = &model.about;
    let weights: usize = model.weights.values().map(|w| w.shape().len()).sum();
    let config: serde_json::Value = serde_json::from_str(&model.config).unwrap_or_default();
    let network = config["_class_name"].as_str().unwrap_or("UNet2DModel");
    let bytes = std::fs::metadata(path)?.len();
    if json {
        let record = serde_json::json!({
            "file": path, "bytes": bytes, "model": about.name, "task": about.task.name(), "network": network, "weights": weights,
            "dims": about.dims, "crop": about.crop, "hash": model.hash(), "quantised": about.quantised,
        });
        return Ok(writeln!(out, "{record}")?);
    }
    writeln!(out, "{}", path.display())?;
    writeln!(out, "  model     {}, {}", about.name, about.task.name())?;
    writeln!(out, "  network   {network}, {weights} weights, {:.2} MB", bytes as f64 / 1e6)?;
    writeln!(out, "  trained   on {} pixels", clearshot_image::lengths(&about.crop))?;
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
