//! Prints the description of an image as one JSON line and writes its pixels, row-major and little-endian, to a file; or
//! copies it with `--copy`. The conformance script compares both with Python's readers.

use clearshot_image::{Image, copy};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--copy", input, output] => Ok(copy(input, output, true)?),
        [input, output] => dump(&Image::open(input)?, output),
        [input, output, item] => dump(&Image::open_item(input, item)?, output),
        _ => Err("usage: dump_image IN OUT [ITEM] | dump_image --copy IN OUT".into()),
    }
}

fn dump(image: &Image, output: &str) -> Result<(), Box<dyn Error>> {
    let d = &image.description;
    let mut levels = Vec::new();
    for (level, shape) in d.levels.iter().enumerate() {
        let region: Vec<_> = shape.iter().map(|&n| 0..n).collect();
        let bytes = image.read_level(level, &region)?;
        let name = if level == 0 { output.to_string() } else { format!("{output}.{level}") };
        std::fs::write(&name, bytes)?;
        levels.push(serde_json::json!({"shape": shape, "file": name}));
    }
    let steps: Vec<_> = d.dims.iter().map(|d| serde_json::json!([d.step, d.unit])).collect();
    let channels: Vec<_> = d.channels.iter().map(|c| c.name.clone()).collect();
    let line = serde_json::json!({
        "format": d.format,
        "axes": d.axes(),
        "shape": d.shape(),
        "dtype": d.dtype.name(),
        "bits": d.bits,
        "steps": steps,
        "channels": channels,
        "rescale": d.rescale.map(|r| serde_json::json!([r.slope, r.intercept, r.blank])),
        "levels": levels,
        "items": d.items,
        "tags": d.tags,
        "warnings": d.warnings,
        "provenance": d.provenance,
    });
    println!("{line}");
    Ok(())
}
