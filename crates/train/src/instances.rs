//! Instance segmentation: the loss of a network that predicts the maps of `clearshot_model::instances`, and the agreement
//! of objects.
//!
//! The loss is CytoDL's `InstanceSegLoss` with its weights: squared errors of vectors and of depths in cores, and the
//! cross-entropy of boundaries, with the pixel weights of the target, and Tversky's loss of the foreground as in MONAI
//! (half of each kind of error, 1e-5 added to numerator and denominator).

use crate::error::Result;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};
use clearshot_metrics::overlap::precision;
use clearshot_metrics::segment::Labels;
use clearshot_model::instances::{self, CORE, FOREGROUND, VECTOR, boundary, label, weight};

/// How much the parts count.
const VECTORS: f64 = 10.0;
const CORES: f64 = 1.0;
const FOREGROUNDS: f64 = 40.0;
const BOUNDARIES: f64 = 1.0;

/// Added to numerator and denominator of Tversky's index.
const SMOOTH: f64 = 1e-5;

/// The IoU from which on objects are the same.
pub const SAME: f64 = 0.5;

/// The loss of each sample, `[N]`. `valid` is 1 for pixels that count and 0 for others, and has all pixels over those that do, for each sample.
#[track_caller]
pub fn losses(b: &mut Builder, maps: Value, target: Value, valid: Option<(Value, Value)>) -> Value {
    let shape = b.shape(maps);
    let (rank, samples) = (shape.rank(), shape[0]);
    let (axis, dims) = (rank - 1, rank - 2);
    let all: Vec<usize> = (1..rank).collect();
    let part = |b: &mut Builder, v: Value, at: usize, count: usize| b.slice(v, axis, at, count);
    let mut counts = part(b, target, weight(dims), 1);
    if let Some((valid, _)) = valid {
        counts = b.mul(counts, valid);
    }
    let weighted = |b: &mut Builder, each: Value, factor: f64| {
        let each = b.mul(each, counts);
        let mean = b.mean(each, &all);
        let mean = b.reshape(mean, [samples]);
        let mean = valid.map_or(mean, |(_, factors)| b.mul(mean, factors));
        b.mul_scalar(mean, factor)
    };
    let squares = |b: &mut Builder, at: usize, count: usize| {
        let (made, wanted) = (part(b, maps, at, count), part(b, target, at, count));
        let off = b.sub(made, wanted);
        b.mul(off, off)
    };
    let vectors = squares(b, VECTOR, dims);
    let vectors = weighted(b, vectors, VECTORS);
    let cores = squares(b, CORE, 1);
    let cores = weighted(b, cores, CORES);
    let (logit, wanted) = (part(b, maps, boundary(dims), 1), part(b, target, boundary(dims), 1));
    // softplus(x) - x target never takes the logarithm of 0.
    let softplus = b.unary(Unary::Softplus, logit);
    let product = b.mul(logit, wanted);
    let entropy = b.sub(softplus, product);
    let boundaries = weighted(b, entropy, BOUNDARIES);

    let (logit, mut wanted) = (part(b, maps, FOREGROUND, 1), part(b, target, FOREGROUND, 1));
    let mut p = b.unary(Unary::Sigmoid, logit);
    if let Some((valid, _)) = valid {
        (p, wanted) = (b.mul(p, valid), b.mul(wanted, valid));
    }
    let both = b.mul(p, wanted);
    let [both, p, wanted] = [both, p, wanted].map(|v| {
        let sum = b.sum(v, &all);
        b.reshape(sum, [samples])
    });
    // With halves, what is in both and half of what is in one alone is half of both sums.
    let sums = b.add(p, wanted);
    let below = b.mul_scalar(sums, 0.5);
    let (above, below) = (b.add_scalar(both, SMOOTH), b.add_scalar(below, SMOOTH));
    let index = b.div(above, below);
    let lost = b.mul_scalar(index, -FOREGROUNDS);
    let foregrounds = b.add_scalar(lost, FOREGROUNDS);
    [cores, foregrounds, boundaries].into_iter().fold(vectors, |sum, own| b.add(sum, own))
}

/// The objects that a network's maps of an image show, and those that its targets have. Pixels that are marked 0 are background in both.
///
/// # Errors
/// If the image has not two or three axes.
pub fn found_and_wanted(
    maps: &[f32],
    target: &[f32],
    size: &[usize],
    valid: Option<&[f32]>,
) -> Result<[Labels; 2]> {
    let dims = size.len();
    let mut found = instances::objects(maps, instances::channels(dims), size)?;
    let wanted =
        target.chunks_exact(instances::target_channels(dims)).map(|p| p[label(dims)] as u32).collect();
    let mut wanted = Labels { data: wanted, shape: size.to_vec(), count: 0 };
    if let Some(valid) = valid {
        for labels in [&mut found, &mut wanted] {
            labels.data.iter_mut().zip(valid).filter(|(_, v)| **v == 0.0).for_each(|(l, _)| *l = 0);
        }
    }
    Ok([found, wanted])
}

/// The average precision at an IoU of a half: of all objects of both, the share that are the same.
///
/// # Errors
/// If the images are of different sizes.
pub fn average_precision([found, wanted]: &[Labels; 2]) -> Result<f64> {
    Ok(precision(wanted, found, &[SAME])?[0].average_precision())
}
