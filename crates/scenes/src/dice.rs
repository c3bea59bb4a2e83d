//! Random numbers drawn in sequence from a keyed stream.
//!
//! Scenes are built by loops that draw as they go; a counter over the keyed stream makes this a pure function of the key.
//! Everything except basic operations and roots comes from `libm`, so that a scene has the same bits on every machine.

use clearshot_tensor::noise::{Key, normals, unit};

pub(crate) struct Dice {
    key: Key,
    block: u64,
}

impl Dice {
    pub fn new(key: Key) -> Dice {
        Dice { key, block: 0 }
    }

    fn words(&mut self) -> [u32; 4] {
        self.block += 1;
        self.key.block(self.block - 1)
    }

    /// Uniform between the two.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * f64::from(unit(self.words()[0]))
    }

    /// A whole number from `low` to `high`, both included.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        (self.between(low as f64, (high + 1) as f64) as usize).min(high)
    }

    /// Log-uniform between the two, which are above zero.
    pub fn log_between(&mut self, low: f64, high: f64) -> f64 {
        low * libm::exp(self.between(0.0, libm::log(high / low)))
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.between(0.0, 1.0) < probability
    }

    /// Log-normal with median 1; `spread` is the standard deviation of the logarithm.
    pub fn lognormal(&mut self, spread: f64) -> f64 {
        libm::exp(spread * self.normals()[0])
    }

    pub fn angle(&mut self) -> f64 {
        self.between(0.0, std::f64::consts::TAU)
    }

    /// Two independent standard normal numbers.
    pub fn normals(&mut self) -> [f64; 2] {
        let [a, b, _, _] = normals(self.words());
        [f64::from(a), f64::from(b)]
    }

    /// Pareto's law less one, as numpy draws it.
    pub fn pareto(&mut self, exponent: f64) -> f64 {
        libm::pow(self.between(0.0, 1.0), -1.0 / exponent) - 1.0
    }

    /// Standard normal noise, one number a pixel.
    pub fn field(&mut self, pixels: usize) -> Vec<f64> {
        let mut values = vec![0f32; pixels];
        self.key.fill_normal(4 * self.block, &mut values);
        self.block += pixels.div_ceil(4) as u64;
        values.into_iter().map(f64::from).collect()
    }

    /// A rotation of space: rows are orthonormal. In a plane it turns y and x only.
    pub fn rotation(&mut self, volume: bool) -> [[f64; 3]; 3] {
        if !volume {
            let a = self.angle();
            let (s, c) = (libm::sin(a), libm::cos(a));
            return [[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]];
        }
        // A uniform unit quaternion is four normal numbers over their length.
        let ([a, b], [c, d]) = (self.normals(), self.normals());
        let n = (a * a + b * b + c * c + d * d).sqrt().max(1e-12);
        let [w, x, y, z] = [a / n, b / n, c / n, d / n];
        [
            [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - z * w), 2.0 * (x * z + y * w)],
            [2.0 * (x * y + z * w), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - x * w)],
            [2.0 * (x * z - y * w), 2.0 * (y * z + x * w), 1.0 - 2.0 * (x * x + y * y)],
        ]
    }
}
