//! ImageJ hyperstacks: a description of `key=value` lines in the first directory, planes in the order T Z C, and in large
//! files a single directory for all planes, which are contiguous.

use super::ifd::{Ifd, tag};
use crate::image::{Axis, Description, Dim};

pub fn is_imagej(description: &str) -> bool {
    description.starts_with("ImageJ=")
}

pub struct ImageJ {
    pub images: usize,
    /// T, Z and C, those longer than one.
    pub lead: Vec<Dim>,
    pub x: Option<f64>,
    pub y: Option<f64>,
    pub unit: String,
}

pub fn parse(description: &str, ifd: &Ifd) -> ImageJ {
    let value = |key: &str| {
        description.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=')).map(|v| v.trim().to_string())
    };
    let count = |key: &str| value(key).and_then(|v| v.parse::<usize>().ok()).unwrap_or(1).clamp(1, 1 << 24);
    let real = |key: &str| value(key).and_then(|v| v.parse::<f64>().ok());
    let unit =
        value("unit").map_or("pixel".to_string(), |u| if u == "\\u00B5m" { "µm".to_string() } else { u });
    let images = count("images");
    let mut lead = vec![
        Dim::stepped(
            Axis::T,
            count("frames"),
            real("finterval"),
            &value("tunit").unwrap_or("sec".to_string()),
        ),
        Dim::stepped(Axis::Z, count("slices"), real("spacing").map(f64::abs), &unit),
        Dim::new(Axis::C, count("channels")),
    ];
    let product = lead.iter().fold(1usize, |n, d| n.saturating_mul(d.len));
    if product != images {
        // A plain stack states only how many images there are.
        lead = vec![Dim::stepped(Axis::Z, images, real("spacing").map(f64::abs), &unit)];
    }
    lead.retain(|d| d.len > 1);
    let step = |t: u16| ifd.rational(t).filter(|v| *v > 0.0 && unit != "pixel").map(|v| 1.0 / v);
    ImageJ { images, lead, x: step(tag::X_RESOLUTION), y: step(tag::Y_RESOLUTION), unit }
}

/// The description of an image that comes from another format, where ImageJ can hold it.
pub fn compose(description: &Description) -> Option<String> {
    use crate::DType;
    if !matches!(description.dtype, DType::U8 | DType::U16 | DType::F32) {
        return None;
    }
    let known = |d: &Dim| matches!(d.axis, Axis::T | Axis::Z | Axis::C | Axis::Y | Axis::X | Axis::S);
    let lead: Vec<Axis> = description
        .dims
        .iter()
        .map(|d| d.axis)
        .filter(|a| matches!(a, Axis::T | Axis::Z | Axis::C))
        .collect();
    let in_order = lead.windows(2).all(|p| rank(p[0]) < rank(p[1]));
    let samples = description.dim(Axis::S).map_or(1, |d| d.len);
    let colour = samples == 1
        || (samples == 3 && description.dtype == DType::U8 && description.dims.last()?.axis == Axis::S);
    if !in_order || !colour || !description.dims.iter().all(known) {
        return None;
    }
    let len = |axis| description.dim(axis).map_or(1, |d| d.len);
    let (c, z, t) = (len(Axis::C), len(Axis::Z), len(Axis::T));
    let mut text = format!("ImageJ=1.54f\nimages={}\n", c * z * t);
    for (key, n) in [("channels", c), ("slices", z), ("frames", t)] {
        if n > 1 {
            text.push_str(&format!("{key}={n}\n"));
        }
    }
    if c * z * t > 1 {
        text.push_str("hyperstack=true\n");
    }
    if c > 1 {
        text.push_str("mode=grayscale\n");
    }
    if let Some(unit) = description.dim(Axis::X).and_then(|d| d.unit.as_deref()) {
        let unit = if matches!(unit, "µm" | "\u{3bc}m" | "micrometer") { "um" } else { unit };
        text.push_str(&format!("unit={unit}\n"));
    }
    if let Some(step) = description.dim(Axis::Z).and_then(|d| d.step) {
        text.push_str(&format!("spacing={step}\n"));
    }
    if let Some(step) = description.dim(Axis::T).and_then(|d| d.step) {
        text.push_str(&format!("finterval={step}\n"));
    }
    text.push_str("loop=false\n");
    Some(text)
}

fn rank(axis: Axis) -> usize {
    match axis {
        Axis::T => 0,
        Axis::Z => 1,
        _ => 2,
    }
}
