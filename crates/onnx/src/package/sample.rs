//! The test image of a package: round spots of several sizes in the unit of the model, with typical noise.

use super::shape;
use crate::export::Settings;
use clearshot_model::{Model, Signal};
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;

/// Of the noise.
const SEED: u64 = 1;
/// The noise of files with a fixed range, as a part of that range.
const NOISE: f64 = 0.05;

/// Channels last, one image.
pub(super) fn image(model: &Model, settings: &Settings, size: &[usize]) -> Tensor {
    let channels = model.about.input_channels();
    let shape = shape(size, channels);
    let mut noise = vec![0.0f32; shape.len()];
    Key { seed: SEED, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let value = |i: usize| {
        let bright = spots(i / channels, size);
        let n = f64::from(noise[i]);
        match &model.about.signal {
            Signal::Photons => {
                let number = |name: &str| settings.fixed.get(name).map_or(0.0, |v| f64::from(v[0]));
                let mean = number("background") + number("peak") * bright;
                let deviation = (mean + number("read_noise").powi(2)).sqrt();
                ((mean + deviation * n) / number("gain") + number("offset")).round() as f32
            }
            Signal::Fixed { input, .. } => {
                (input.low + (input.high - input.low) * (bright + NOISE * n)) as f32
            }
        }
    };
    Tensor::f32(shape, (0..shape.len()).map(value).collect())
}

/// From 0 to 1 at a pixel.
fn spots(pixel: usize, size: &[usize]) -> f64 {
    let mut at = vec![0.0; size.len()];
    let mut rest = pixel;
    for axis in (0..size.len()).rev() {
        at[axis] = (rest % size[axis]) as f64 / size[axis] as f64;
        rest /= size[axis];
    }
    let spot = |place: f64, radius: f64| {
        let places = [place, (place * 2.7).fract(), (place * 5.3).fract()];
        let distance: f64 = at.iter().rev().zip(places).map(|(a, p)| (a - p).powi(2)).sum();
        (-0.5 * distance / (radius * radius)).exp()
    };
    (1..8).map(|i| spot(f64::from(i) / 8.0, 0.02 + 0.01 * f64::from(i))).fold(0.0, f64::max)
}
