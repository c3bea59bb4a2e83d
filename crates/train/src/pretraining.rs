//! Training without labels: joint embeddings as nodes of an iteration, and scores of predicted patches and embeddings.
//!
//! A masked autoencoder is trained like other networks, because its result is an image
//! ([`clearshot_nn::models::vit::mae`]). A joint embedding compares the predictions for hidden patches with the teacher's
//! embeddings of them, by the mean absolute difference. The teacher is the average of the weights that training keeps
//! anyway, the states `ema.NAME`; it is updated only by averaging, and gets no gradient.

use crate::config::TaskKind;
use crate::data::image_shape;
use crate::iteration::{Forward, Shapes};
use crate::task::Task;
use clearshot_diffusion::objective::{Distance, distance_of_each};
use clearshot_graph::{Builder, Type};
use clearshot_nn::layers::Scope;
use clearshot_nn::models::Network;
use clearshot_nn::models::vit::jepa::Jepa;

/// The prefix of the names of averages.
const AVERAGE: &str = "ema.";

/// The two domains of a world model: an image itself, and its partner.
pub const DOMAINS: usize = 2;

/// The nodes of a joint embedding: what is predicted, what the teacher wants, and how far apart they are.
pub(crate) fn forward(
    b: &mut Builder,
    network: &Jepa,
    task: &Task,
    shapes: &Shapes<'_>,
    train: bool,
) -> Forward {
    let image = |channels| Type::f32(image_shape(shapes.batch, shapes.size, channels));
    let x = b.input("measured", image(shapes.channels[0]));
    let Some(masks) = network.masks(shapes.size) else { unreachable!("it hides patches") };
    let rows = [("visible", masks.visible), ("hidden", masks.hidden)]
        .map(|(name, count)| b.input(name, Type::i32([shapes.batch, count])));
    let (mut taught, mut domain) = (x, None);
    if task.kind == TaskKind::Iwm {
        let partner = b.input("clean", image(shapes.channels[1]));
        let share =
            b.input("partner_share", Type::f32(image_shape(shapes.batch, &vec![1; shapes.size.len()], 1)));
        let off = b.sub(partner, x);
        let off = b.mul(off, share);
        taught = b.add(x, off);
        domain = Some(b.input("partner", Type::i32([shapes.batch])));
    }
    let mut params = vec![];
    let mut s = Scope::new(b, &mut params);
    // Of validation, all weights are averages.
    let wanted = network.taught(&mut s, train.then_some(AVERAGE), taught, rows[1]);
    let made = network.predicted(&mut s, x, rows, domain);
    drop(s);
    let losses = distance_of_each(b, Distance::L1, made, wanted, None, None);
    Forward {
        clean: x,
        valid: None,
        losses,
        estimate: made,
        wanted: Some(wanted),
        measured: None,
        bound: None,
        error: None,
        rival: None,
        levels: None,
    }
}

/// A score, and what is recorded beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    pub score: f64,
    pub beside: f64,
}

/// The mean squared error of hidden patches, a `share` of the image, and the PSNR that it is for a range of 2, from an image's dark to its bright end. Pixels
/// that are seen are without error, and those that are marked 0 count for nothing.
pub fn of_hidden(estimate: &[f32], truth: &[f32], share: f64, valid: Option<&[f32]>) -> Scores {
    let channels = truth.len() / valid.map_or(truth.len(), <[f32]>::len).max(1);
    let counts = |i: usize| valid.is_none_or(|v| v[i / channels.max(1)] != 0.0);
    let pairs = estimate.iter().zip(truth).enumerate().filter(|(i, _)| counts(*i));
    let squares = pairs.map(|(_, (e, t))| (f64::from(*e) - f64::from(*t)).powi(2));
    let (sum, count) = squares.fold((0.0, 0), |(sum, n), square| (sum + square, n + 1));
    let mse = sum / f64::from(count.max(1)) / share;
    let score = if mse.is_finite() { -10.0 * (mse / 4.0).max(1e-12).log10() } else { f64::NEG_INFINITY };
    Scores { score, beside: mse }
}

/// The share of the variance of an image's embeddings (over its hidden patches) that is predicted, and the standard deviation of the wanted ones, the mean over
/// the numbers of an embedding: about 1 for embeddings that tell patches apart, 0 where all are alike, which is how joint embeddings collapse.
pub fn of_embeddings(made: &[f32], wanted: &[f32], width: usize) -> Scores {
    let patches = (wanted.len() / width) as f64;
    let mut lost = 0.0;
    let mut means = vec![0.0; width];
    let mut squares = vec![0.0; width];
    for (i, (m, w)) in made.iter().zip(wanted).enumerate() {
        let (m, w) = (f64::from(*m), f64::from(*w));
        lost += (m - w).powi(2) / patches;
        means[i % width] += w / patches;
        squares[i % width] += w * w / patches;
    }
    let variances: Vec<f64> = means.iter().zip(&squares).map(|(m, s)| (s - m * m).max(0.0)).collect();
    let whole: f64 = variances.iter().sum();
    let deviation = variances.iter().map(|v| v.sqrt()).sum::<f64>() / width as f64;
    // Embeddings that are all alike have nothing to explain.
    let score = if whole > 1e-9 { 1.0 - lost / whole } else { f64::NEG_INFINITY };
    Scores { score, beside: deviation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_hidden_patches() {
        // Half of the pixels are hidden, and off by 0.2.
        let truth = [0.0, 0.5, -0.5, 1.0];
        let found = of_hidden(&[0.0, 0.5, -0.3, 0.8], &truth, 0.5, None);
        assert!((found.beside - 0.04).abs() < 1e-7, "{found:?}");
        assert!((found.score - 20.0).abs() < 1e-5, "{found:?}");
        assert_eq!(of_hidden(&[f32::NAN, 0.5, -0.5, 1.0], &truth, 0.5, None).score, f64::NEG_INFINITY);
        let some = of_hidden(&[9.0, 0.5, -0.3, 0.8], &truth, 0.5, Some(&[0.0, 1.0, 1.0, 1.0]));
        assert!((some.beside - 2.0 * 0.08 / 3.0).abs() < 1e-6, "{some:?}");
    }

    #[test]
    fn constant_embeddings_explain_no_variance() {
        let wanted = [1.0, -1.0, -1.0, 1.0, 3.0, 0.0];
        assert_eq!(of_embeddings(&wanted, &wanted, 2).score, 1.0);
        let mean = [1.0, 0.0].repeat(3);
        let found = of_embeddings(&mean, &wanted, 2);
        assert!(found.score.abs() < 1e-12, "{found:?}");
        let deviation = ((8.0f64 / 3.0).sqrt() + (2.0f64 / 3.0).sqrt()) / 2.0;
        assert!((found.beside - deviation).abs() < 1e-12, "{found:?}");
        let alike = of_embeddings(&mean, &mean, 2);
        assert_eq!((alike.score, alike.beside), (f64::NEG_INFINITY, 0.0));
    }
}
