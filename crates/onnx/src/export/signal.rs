//! Conversion of file values to network values and back, as nodes: the counterpart of [`clearshot_model::signal`] on the host.

use super::settings::Settings;
use clearshot_graph::ops::{Binary, Unary};
use clearshot_graph::{Builder, Type, Value};
use clearshot_image::dataset::Normaliser;
use clearshot_model::Signal;
use clearshot_model::signal::LAGS;
use clearshot_tensor::{Shape, Tensor};

/// A number of the camera or of the image, as an input of the file.
pub struct Number {
    pub name: &'static str,
    /// How many there are.
    pub count: usize,
    pub about: &'static str,
}

/// What a model of electrons has to be given beside the image.
pub const NUMBERS: &[Number] = &[
    Number { name: "gain", count: 1, about: "electrons per count of the camera" },
    Number { name: "offset", count: 1, about: "counts of the camera without light" },
    Number { name: "read_noise", count: 1, about: "standard deviation of the read noise, in electrons" },
    Number {
        name: "background",
        count: 1,
        about: "mean of the signal where the object gives no light, in electrons",
    },
    Number {
        name: "peak",
        count: 1,
        about: "signal above the background at the image's bright end, in electrons",
    },
    Number {
        name: "noise_correlation",
        count: LAGS,
        about: "correlation of the noise of neighbouring pixels along X, along Y, along diagonals, and two pixels apart; zeros for none",
    },
];

/// The numbers above as values: inputs, or constants where the settings fix them.
pub(super) struct Camera {
    gain: Value,
    offset: Value,
    read_noise: Value,
    background: Value,
    peak: Value,
    correlation: Value,
}

impl Camera {
    pub fn new(b: &mut Builder, settings: &Settings) -> Camera {
        let mut each = NUMBERS.iter().map(|n| {
            let shape = if n.count == 1 { Shape::SCALAR } else { Shape::from([n.count]) };
            match settings.fixed.get(n.name) {
                Some(values) => b.constant(Tensor::f32(shape, values.clone())),
                None => b.input(n.name, Type::f32(shape)),
            }
        });
        let mut next = || each.next().expect("as many as the table has");
        Camera {
            gain: next(),
            offset: next(),
            read_noise: next(),
            background: next(),
            peak: next(),
            correlation: next(),
        }
    }

    fn variance(&self, b: &mut Builder) -> Value {
        b.unary(Unary::Square, self.read_noise)
    }

    /// Anscombe's transformation.
    fn anscombe(&self, b: &mut Builder, electrons: Value) -> Value {
        let variance = self.variance(b);
        let sum = b.add(electrons, variance);
        let sum = b.add_scalar(sum, 0.375);
        let positive = b.unary(Unary::Relu, sum);
        let root = b.unary(Unary::Sqrt, positive);
        b.mul_scalar(root, 2.0)
    }

    /// `v` between `low` and `low + width` as -1 to 1.
    fn scaled(b: &mut Builder, v: Value, low: Value, width: Value) -> Value {
        let above = b.sub(v, low);
        let share = b.div(above, width);
        let twice = b.mul_scalar(share, 2.0);
        b.add_scalar(twice, -1.0)
    }

    /// The input of the network from a measurement, as [`clearshot_model::Photons::condition`].
    fn condition(&self, b: &mut Builder, image: Value) -> Value {
        let above = b.sub(image, self.offset);
        let electrons = b.mul(above, self.gain);
        let normalised = Camera::scaled(b, electrons, self.background, self.peak);
        let bright = b.add(self.background, self.peak);
        let (low, high) = (self.anscombe(b, self.background), self.anscombe(b, bright));
        let range = b.sub(high, low);
        let stable = self.anscombe(b, electrons);
        let stable = Camera::scaled(b, stable, low, range);
        let log = b.unary(Unary::Log, self.peak);
        let brightness = b.mul_scalar(log, 0.5 / std::f64::consts::LN_10);
        let brightness = b.add_scalar(brightness, -0.5);
        let variance = self.variance(b);
        let dark = b.add(self.background, variance);
        let dark = b.unary(Unary::Sqrt, dark);
        let dark = b.div(dark, self.peak);
        let two = b.scalar(2.0);
        let dark = b.binary(Binary::Min, dark, two);
        let [brightness, dark] = [brightness, dark].map(|v| b.reshape(v, [1]));
        let one = b.constant(Tensor::full([1], 1.0));
        let numbers = b.concat(&[brightness, dark, self.correlation, one], 0);
        // The same numbers at every pixel, behind the two images of each channel.
        let shape = b.shape(image);
        let (axis, count) = (shape.rank() - 1, b.shape(numbers).len());
        let numbers = b.reshape(numbers, Shape::from([count]).padded_to(shape.rank()));
        let numbers = b.broadcast(numbers, shape.with(axis, count));
        let mut parts = vec![];
        for c in 0..shape.channels() {
            parts.extend([b.slice(normalised, axis, c, 1), b.slice(stable, axis, c, 1), numbers]);
        }
        b.concat(&parts, axis)
    }

    /// The counts that the network's numbers stand for.
    fn counts(&self, b: &mut Builder, x: Value) -> Value {
        let one_more = b.add_scalar(x, 1.0);
        let half = b.mul_scalar(one_more, 0.5);
        let scaled = b.mul(half, self.peak);
        let electrons = b.add(scaled, self.background);
        let counts = b.div(electrons, self.gain);
        b.add(counts, self.offset)
    }
}

/// How a model's pixels and numbers belong together.
pub(super) enum Scale<'a> {
    Photons(Camera),
    Fixed { input: &'a Normaliser, target: &'a Normaliser },
}

impl<'a> Scale<'a> {
    pub fn new(b: &mut Builder, signal: &'a Signal, settings: &Settings) -> Scale<'a> {
        match signal {
            Signal::Photons => Scale::Photons(Camera::new(b, settings)),
            Signal::Fixed { input, target } => {
                Scale::Fixed { input, target: target.as_ref().unwrap_or(input) }
            }
        }
    }

    /// The input of the network from the image.
    pub fn condition(&self, b: &mut Builder, image: Value) -> Value {
        match self {
            Scale::Photons(camera) => camera.condition(b, image),
            Scale::Fixed { input, .. } => {
                let factor = 2.0 / (input.high - input.low);
                let above = b.add_scalar(image, -input.low);
                let scaled = b.mul_scalar(above, factor);
                let y = b.add_scalar(scaled, -1.0);
                if input.clip { b.unary(Unary::Clamp(-1.0, 1.0), y) } else { y }
            }
        }
    }

    /// Pixels of what the network made.
    pub fn pixels(&self, b: &mut Builder, x: Value) -> Value {
        match self {
            Scale::Photons(camera) => camera.counts(b, x),
            Scale::Fixed { target, .. } => {
                let half = b.mul_scalar(x, 0.5 * (target.high - target.low));
                b.add_scalar(half, 0.5 * (target.high + target.low))
            }
        }
    }
}
