//! Resizing images: nearest and linear, as far as our graph has them.

use crate::error::ImportError;
use crate::import::Importer;
use crate::import::node::Call;
use crate::import::view::channels_last;
use clearshot_graph::ops::ResizeMode;

type Done = Result<(), ImportError>;

/// Resize of opsets 10 and up, and Upsample before.
pub(super) fn resize<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let view = im.view(call, 0)?;
    let from = im.view_sizes(&view);
    let rank = from.len();
    if rank != 4 && rank != 5 {
        return call.fail(format!("an image of sizes {from:?}"));
    }
    // Upsample and the first Resize have scales as their second operand, later ones a region first.
    let (scales, sizes) = match (call.node.op, call.opset) {
        ("Upsample", _) | (_, ..=10) => (1, usize::MAX),
        _ => (2, 3),
    };
    let to = target(im, call, scales, sizes, &from)?;
    if to[..2] != from[..2] || to.contains(&0) || to.iter().any(|s| *s > 1 << 24) {
        return call.fail(format!("from sizes {from:?} to {to:?}"));
    }
    let mode = mode(call, &from[2..], &to[2..])?;
    if call.int_or("antialias", 0)? != 0 && to.iter().zip(&from).any(|(t, f)| t < f) {
        return call.fail("antialiased shrinking");
    }
    let x = im.arranged(&view, &channels_last(rank));
    let x = im.float(x);
    let mut size = [1; 3];
    size[5 - rank..].copy_from_slice(&to[2..]);
    let value = if from == to { x } else { im.b.resize(x, mode, size) };
    im.give_view(call, value, channels_last(rank));
    Ok(())
}

/// The sizes of all axes afterwards.
fn target<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    scales: usize,
    sizes: usize,
    from: &[usize],
) -> Result<Vec<usize>, ImportError> {
    let rank = from.len();
    // Opset 18 may speak of some axes only.
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|&a| call.axis(a, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    if call.text_or("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return call.fail("a policy for the aspect ratio");
    }
    let mut to = from.to_vec();
    let given = if sizes == usize::MAX { None } else { im.host(call, sizes)? };
    if let Some(values) = given.and_then(|h| h.ints()).filter(|v| !v.is_empty()) {
        if values.len() != axes.len() {
            return call.fail(format!("{} sizes for {} axes", values.len(), axes.len()));
        }
        for (&axis, &size) in axes.iter().zip(&values) {
            to[axis] = usize::try_from(size).unwrap_or(0);
        }
        return Ok(to);
    }
    let factors = match im.host(call, scales)?.map(|h| h.floats()).filter(|v| !v.is_empty()) {
        Some(values) => values,
        None => match call.node.attribute("scales") {
            Some(crate::file::Attribute::Floats(values)) => values.clone(),
            _ => return call.fail("neither sizes nor scales"),
        },
    };
    if factors.len() != axes.len() {
        return call.fail(format!("{} scales for {} axes", factors.len(), axes.len()));
    }
    for (&axis, &factor) in axes.iter().zip(&factors) {
        to[axis] = (from[axis] as f64 * f64::from(factor)).floor().clamp(0.0, 1e9) as usize;
    }
    Ok(to)
}

fn mode(call: Call<'_, '_>, from: &[usize], to: &[usize]) -> Result<ResizeMode, ImportError> {
    let old = call.node.op == "Upsample" || call.opset <= 10;
    let kind = call.text_or("mode", "nearest")?;
    let coordinates =
        if old { "asymmetric" } else { call.text_or("coordinate_transformation_mode", "half_pixel")? };
    let rounding = if old { "floor" } else { call.text_or("nearest_mode", "round_prefer_floor")? };
    let factors = || from.iter().zip(to).map(|(f, t)| (t % f == 0).then_some(t / f));
    match (kind, coordinates) {
        ("nearest", "asymmetric") if rounding == "floor" => Ok(ResizeMode::Nearest),
        // Rounding down at the middle is rounding down for factors up to 2.
        ("nearest", "asymmetric")
            if rounding == "round_prefer_floor" && factors().all(|f| f.is_some_and(|f| f <= 2)) =>
        {
            Ok(ResizeMode::Nearest)
        }
        // Centres never lie in the middle between pixels when enlarged by whole factors.
        ("nearest", "half_pixel" | "pytorch_half_pixel" | "half_pixel_symmetric")
            if rounding.starts_with("round") && factors().all(|f| f.is_some()) =>
        {
            Ok(ResizeMode::Nearest)
        }
        ("linear", "half_pixel" | "half_pixel_symmetric") => Ok(ResizeMode::Linear),
        ("linear", "pytorch_half_pixel") if to.iter().all(|t| *t > 1) => Ok(ResizeMode::Linear),
        ("linear", "align_corners") => Ok(ResizeMode::LinearAligned),
        _ => call.fail(format!(
            "mode {kind}, coordinates {coordinates}, rounding {rounding} from {from:?} to {to:?}: nearest by whole factors, and linear by half_pixel or align_corners, are supported"
        )),
    }
}
