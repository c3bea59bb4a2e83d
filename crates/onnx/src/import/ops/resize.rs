//! Resizing: nearest, linear and cubic, with all of ONNX's coordinate transformations.
//!
//! The source position of an output pixel is computed in 32 bits as in ONNX Runtime, because the nearest pixel may depend
//! on the last bit. Where the resizing operation of the graph means the same, it is used; otherwise the result is a
//! weighted sum of rows of the image, axis by axis.

use crate::error::ImportError;
use crate::file::Attribute;
use crate::import::Importer;
use crate::import::host::check;
use crate::import::node::Call;
use crate::import::view::channels_last;
use clearshot_graph::Value;
use clearshot_graph::ops::ResizeMode;
use clearshot_tensor::{Shape, Tensor};

type Done = Result<(), ImportError>;

/// More pixels along an axis than weighted sums are made for: each has a list of its own.
const MOST_PIXELS: usize = 1 << 16;

/// Resize of opsets 10 and up, and Upsample before.
pub(super) fn resize<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let view = im.view(call, 0)?;
    let from = im.view_sizes(&view);
    let rank = from.len();
    if !(3..=5).contains(&rank) || from.contains(&0) {
        return call.fail(format!("an image of sizes {from:?}"));
    }
    let axes = axes(im, call, &from)?;
    let to: Vec<usize> = axes.iter().map(|a| a.to).collect();
    if to[..2] != from[..2] || to.contains(&0) || to.iter().any(|s| *s > 1 << 24) {
        return call.fail(format!("from sizes {from:?} to {to:?}"));
    }
    let rule = Rule::of(call)?;
    if call.int_or("antialias", 0)? != 0 && to.iter().zip(&from).any(|(t, f)| t < f) {
        return call.fail("antialiased shrinking");
    }
    let x = im.arranged(&view, &channels_last(rank));
    let mut value = im.float(x);
    // ONNX Runtime passes on what keeps all of its sizes, whatever the scales; of other images each axis with a scale other than 1 is resized.
    match axes.iter().all(|a| a.from == a.to).then_some(None).or_else(|| rule.own(&axes[2..]).map(Some)) {
        Some(None) => {}
        Some(Some(mode)) if rank > 3 => {
            let mut size = [1; 3];
            size[5 - rank..].copy_from_slice(&to[2..]);
            value = im.b.resize(value, mode, size);
        }
        _ => {
            for (i, axis) in axes[2..].iter().enumerate().filter(|(_, a)| a.scale != 1.0) {
                if axis.to > MOST_PIXELS {
                    return call
                        .fail(format!("{} pixels along an axis; {MOST_PIXELS} are the most", axis.to));
                }
                value = rows(im, call, value, i + 1, &rule.taps(axis))?;
            }
        }
    }
    im.give_view(call, value, channels_last(rank));
    Ok(())
}

/// An axis before and behind.
struct Axis {
    from: usize,
    to: usize,
    /// As the file says it, or what the sizes come to.
    scale: f32,
}

impl Axis {
    /// The scale is exactly that of the sizes.
    fn is_exact(&self) -> bool {
        self.scale == self.to as f32 / self.from as f32
    }
}

fn axes<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>, from: &[usize]) -> Result<Vec<Axis>, ImportError> {
    let rank = from.len();
    // Upsample and the first Resize have scales as their second operand, later ones a region first.
    let (scales, sizes) = match (call.node.op, call.opset) {
        ("Upsample", _) | (_, ..=10) => (1, usize::MAX),
        _ => (2, 3),
    };
    // Opset 18 may speak of some axes only.
    let named: Vec<usize> = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|&a| call.axis(a, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    if call.text_or("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return call.fail("a policy for the aspect ratio");
    }
    let mut all: Vec<Axis> = from.iter().map(|&n| Axis { from: n, to: n, scale: 1.0 }).collect();
    let given = if sizes == usize::MAX { None } else { im.host(call, sizes)? };
    if let Some(values) = given.and_then(|h| h.ints()).filter(|v| !v.is_empty()) {
        if values.len() != named.len() {
            return call.fail(format!("{} sizes for {} axes", values.len(), named.len()));
        }
        for (&axis, &size) in named.iter().zip(&values) {
            let (from, to) = (from[axis], usize::try_from(size).unwrap_or(0));
            all[axis] = Axis { from, to, scale: to as f32 / from as f32 };
        }
        return Ok(all);
    }
    let factors = match im.host(call, scales)?.map(|h| h.floats()).filter(|v| !v.is_empty()) {
        Some(values) => values,
        None => match call.node.attribute("scales") {
            Some(Attribute::Floats(values)) => values.clone(),
            _ => return call.fail("neither sizes nor scales"),
        },
    };
    if factors.len() != named.len() {
        return call.fail(format!("{} scales for {} axes", factors.len(), named.len()));
    }
    for (&axis, &scale) in named.iter().zip(&factors) {
        let to = (from[axis] as f64 * f64::from(scale)).floor().clamp(0.0, 1e9) as usize;
        all[axis] = Axis { from: from[axis], to, scale };
    }
    Ok(all)
}

/// How a pixel of the result is made of those of the image.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Nearest,
    Linear,
    /// With this coefficient; pixels outside of the image count as nothing, or as those at its edge.
    Cubic {
        a: f64,
        exclude: bool,
    },
}

struct Rule<'a> {
    kind: Kind,
    coordinates: &'a str,
    /// Of the nearest pixel.
    rounding: &'a str,
}

impl<'a> Rule<'a> {
    fn of(call: Call<'_, 'a>) -> Result<Rule<'a>, ImportError> {
        let old = call.node.op == "Upsample" || call.opset <= 10;
        let kind = match call.text_or("mode", "nearest")? {
            "nearest" => Kind::Nearest,
            "linear" => Kind::Linear,
            "cubic" => {
                let exclude = call.int_or("exclude_outside", 0)? != 0;
                Kind::Cubic { a: call.float_or("cubic_coeff_a", -0.75)?, exclude }
            }
            other => return call.fail(format!("mode {other}; nearest, linear and cubic are supported")),
        };
        let coordinates = call.text_or("coordinate_transformation_mode", "half_pixel")?;
        let coordinates = if old { "asymmetric" } else { coordinates };
        let rounding = if old { "old" } else { call.text_or("nearest_mode", "round_prefer_floor")? };
        let known = [
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
            "tf_half_pixel_for_nn",
        ];
        let roundings = ["old", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"];
        match known.contains(&coordinates) && roundings.contains(&rounding) {
            true => Ok(Rule { kind, coordinates, rounding }),
            false => call.fail(format!(
                "coordinates {coordinates}, rounding {rounding}; {} and {} are supported",
                known.join(", "),
                roundings[1..].join(", ")
            )),
        }
    }

    /// Where pixel `i` of the result lies in the image.
    fn place(&self, axis: &Axis, i: usize) -> f32 {
        let (i, scale) = (i as f32, axis.scale);
        let (from, to) = (axis.from as f32, axis.to as f32);
        let centre = (i + 0.5) / scale - 0.5;
        match self.coordinates {
            "asymmetric" => i / scale,
            "align_corners" if axis.to == 1 => 0.0,
            "align_corners" => i * (from - 1.0) / (to - 1.0),
            "pytorch_half_pixel" if axis.to == 1 => 0.0,
            "half_pixel_symmetric" => from / 2.0 * (1.0 - to / (scale * from)) + centre,
            "tf_half_pixel_for_nn" => (i + 0.5) / scale,
            _ => centre,
        }
    }

    fn nearest(&self, axis: &Axis, i: usize) -> usize {
        let at = self.place(axis, i);
        let whole = match self.rounding {
            "floor" => at.floor(),
            "ceil" => at.ceil(),
            "round_prefer_ceil" => at.round(),
            "round_prefer_floor" if at == at.trunc() + 0.5 => at.floor(),
            "round_prefer_floor" => at.round(),
            _ if axis.scale < 1.0 => at.ceil(),
            _ => at.trunc(),
        };
        (whole.max(0.0) as usize).min(axis.from - 1)
    }

    /// The graph's own resizing where it means the same.
    fn own(&self, axes: &[Axis]) -> Option<ResizeMode> {
        let same = |a: &Axis| (0..a.to).all(|i| self.nearest(a, i) == i * a.from / a.to);
        let exact = axes.iter().all(Axis::is_exact);
        match (self.kind, self.coordinates) {
            (Kind::Nearest, _) if axes.iter().all(same) => Some(ResizeMode::Nearest),
            (Kind::Linear, "half_pixel" | "half_pixel_symmetric") if exact => Some(ResizeMode::Linear),
            (Kind::Linear, "pytorch_half_pixel") if exact && axes.iter().all(|a| a.to > 1) => {
                Some(ResizeMode::Linear)
            }
            (Kind::Linear, "align_corners") => Some(ResizeMode::LinearAligned),
            _ => None,
        }
    }

    /// For each pixel of the result those of the image and their weights, as many for each.
    fn taps(&self, axis: &Axis) -> Vec<Vec<(usize, f32)>> {
        let last = axis.from - 1;
        let inside = |at: f32| (at.max(0.0) as usize).min(last);
        let one = |i: usize| match self.kind {
            Kind::Nearest => vec![(self.nearest(axis, i), 1.0)],
            Kind::Linear => {
                let at = self.place(axis, i).clamp(0.0, last as f32);
                let part = at - at.floor();
                vec![(inside(at), 1.0 - part), (inside(at + 1.0), part)]
            }
            Kind::Cubic { a, exclude } => {
                let at = self.place(axis, i);
                let (low, part) = (at.floor(), f64::from(at - at.floor()));
                let is_out = |tap: f32| exclude && !(0.0..=last as f32).contains(&(low + tap));
                let weight = |tap: f32| {
                    if is_out(tap) { 0.0 } else { cubic(a, (part - f64::from(tap)).abs()) }
                };
                let taps = [-1.0, 0.0, 1.0, 2.0];
                let sum: f64 = if exclude { taps.map(weight).iter().sum() } else { 1.0 };
                taps.map(|tap| (inside(low + tap), (weight(tap) / sum) as f32)).to_vec()
            }
        };
        (0..axis.to).map(one).collect()
    }
}

/// Keys' kernel.
fn cubic(a: f64, x: f64) -> f64 {
    match x {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => a * (((x - 5.0) * x + 8.0) * x - 4.0),
        _ => 0.0,
    }
}

/// Along one axis in memory each element becomes a weighted sum of some.
fn rows<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    x: Value,
    axis: usize,
    taps: &[Vec<(usize, f32)>],
) -> Result<Value, ImportError> {
    let shape = im.b.shape(x);
    let (before, size): (usize, usize) = (shape[..axis].iter().product(), shape[axis]);
    let behind: usize = shape[axis + 1..].iter().product();
    let found = Shape::from([before, taps.len()]);
    if let Err(reason) = check(found) {
        return call.fail(reason);
    }
    let table = im.b.reshape(x, Shape::from([before * size, behind]));
    let mut sum: Option<Value> = None;
    for t in 0..taps.first().map_or(0, Vec::len) {
        im.made += found.len();
        let of_row = |row: usize| taps.iter().map(move |taps| (row * size + taps[t].0) as i32);
        let indices = im.b.constant(Tensor::i32(found, (0..before).flat_map(of_row).collect()));
        let mut part = im.b.gather(table, indices);
        let weights: Vec<f32> = taps.iter().map(|taps| taps[t].1).collect();
        if weights.iter().any(|w| *w != 1.0) {
            let weights = im.b.constant(Tensor::f32(Shape::from([1, taps.len(), 1]), weights));
            part = im.b.mul(part, weights);
        }
        sum = Some(sum.map_or(part, |sum| im.b.add(sum, part)));
    }
    match sum {
        Some(sum) => Ok(im.b.reshape(sum, shape.with(axis, taps.len()))),
        None => call.fail("nothing is left"),
    }
}
