//! The noise model of a denoiser: standard deviation, and correlation of neighbouring pixels.

use clearshot_physics::Correlation;

/// Gaussian noise with a uniform standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    pub deviation: f32,
    /// The correlation along Y and X; planes of a volume are independent of each other.
    pub correlation: Correlation,
}

impl Noise {
    /// Noise that is independent between pixels.
    pub const fn white(deviation: f32) -> Noise {
        Noise { deviation, correlation: Correlation::WHITE }
    }

    pub fn variance(&self) -> f32 {
        self.deviation * self.deviation
    }

    /// The same noise, with no correlation instead of a negligible one.
    pub(super) fn simplified(self) -> Noise {
        if self.correlation.is_white() { Noise::white(self.deviation) } else { self }
    }

    /// The same noise in an image that is multiplied by a factor.
    pub(super) fn scaled(self, by: f32) -> Noise {
        Noise { deviation: self.deviation * by, ..self }
    }
}
