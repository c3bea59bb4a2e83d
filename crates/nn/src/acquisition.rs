//! Acquisition parameters as the vector that networks are conditioned on.
//!
//! ```text
//! [one-hot of the domain, log10(scale) - 2.5, read noise / scale, background / scale]
//! ```
//!
//! The scale is the number of electrons at a normalised intensity of 1; read noise and background are in electrons too. The domains are
//! those of the training data, and a model may use only one of the two parts. The code is invertible, so that the conditions of a model's training can be read
//! back from its data. An unknown domain is a one-hot part of zeros, and so are the numbers of an unknown camera.

use crate::Error;

/// Numbers of the part that is about the camera.
pub const CAMERA: usize = 3;

/// The middle of the range of scales, as a power of ten.
const LOG_SCALE: f64 = 2.5;

/// The camera's part, in electrons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TakenBy {
    /// Electrons at an intensity of 1.
    pub scale: f64,
    /// Standard deviation.
    pub read_noise: f64,
    /// Mean.
    pub background: f64,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Acquisition {
    /// Which of the domains.
    pub domain: Option<usize>,
    pub camera: Option<TakenBy>,
}

/// The parts of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Domains of the one-hot part; 0 where there is none.
    pub domains: usize,
    /// Whether there is a part about the camera.
    pub camera: bool,
}

impl TakenBy {
    /// # Errors
    /// If the scale is not positive, or another value is negative or not finite.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |key, got: f64, supported: &str| {
            Err(Error::Unsupported { key, got: got.to_string(), supported: supported.into() })
        };
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return refuse("scale", self.scale, "positive numbers of electrons");
        }
        for (key, got) in [("read_noise", self.read_noise), ("background", self.background)] {
            if !(got >= 0.0 && got.is_finite()) {
                return refuse(key, got, "numbers of electrons from 0");
            }
        }
        Ok(())
    }
}

impl Code {
    /// Values of the vector.
    pub fn width(&self) -> usize {
        self.domains + if self.camera { CAMERA } else { 0 }
    }

    /// The vector of an image. What it has no part for is left out.
    ///
    /// # Errors
    /// If there is no such domain, the camera's scale is not positive, or another of its values is negative or not finite.
    pub fn encode(&self, of: &Acquisition) -> Result<Vec<f64>, Error> {
        let mut code = vec![0.0; self.width()];
        let (domains, rest) = code.split_at_mut(self.domains);
        if let Some(domain) = of.domain.filter(|_| self.domains > 0) {
            let place = domains.get_mut(domain).ok_or_else(|| Error::Unsupported {
                key: "domain",
                got: domain.to_string(),
                supported: format!("numbers below {}", self.domains),
            })?;
            *place = 1.0;
        }
        if let Some(camera) = of.camera.filter(|_| self.camera) {
            camera.check()?;
            rest[0] = camera.scale.log10() - LOG_SCALE;
            rest[1] = camera.read_noise / camera.scale;
            rest[2] = camera.background / camera.scale;
        }
        Ok(code)
    }

    /// The inverse of [`Code::encode`]; the domain is the largest of its part, if any of it is above zero.
    ///
    /// # Panics
    /// If the vector has another width.
    pub fn decode(&self, code: &[f64]) -> Acquisition {
        assert_eq!(code.len(), self.width(), "a vector of this code's width");
        let (domains, rest) = code.split_at(self.domains);
        let largest = (0..domains.len()).reduce(|best, i| if domains[i] > domains[best] { i } else { best });
        let camera = self.camera.then(|| {
            let scale = 10f64.powf(rest[0] + LOG_SCALE);
            TakenBy { scale, read_noise: rest[1] * scale, background: rest[2] * scale }
        });
        Acquisition { domain: largest.filter(|i| domains[*i] > 0.0), camera }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_invertible() {
        let whole = Code { domains: 4, camera: true };
        for domain in [None, Some(0), Some(1), Some(2), Some(3)] {
            for scale in [0.7, 31.0, 4.2e4] {
                let read_noise = 1.6 * domain.unwrap_or(0) as f64;
                let camera = TakenBy { scale, read_noise, background: 0.01 * scale };
                let taken = Acquisition { domain, camera: Some(camera) };
                let code = whole.encode(&taken).unwrap();
                assert_eq!(code[..4].iter().sum::<f64>(), if domain.is_some() { 1.0 } else { 0.0 });
                let back = whole.decode(&code);
                assert_eq!(back.domain, domain);
                let back = back.camera.unwrap();
                for (a, b) in
                    [(back.scale, scale), (back.read_noise, read_noise), (back.background, 0.01 * scale)]
                {
                    assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} {b}");
                }
                // Of one part alone, the other is gone.
                let alone = Code { domains: 4, camera: false };
                let back = alone.decode(&alone.encode(&taken).unwrap());
                assert_eq!(back, Acquisition { domain, camera: None });
                let alone = Code { domains: 0, camera: true };
                assert_eq!(alone.encode(&taken).unwrap(), code[4..]);
            }
        }
        // What is not known are zeros.
        assert_eq!(whole.encode(&Acquisition::default()).unwrap(), [0.0; 7]);
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let good = TakenBy { scale: 100.0, read_noise: 2.0, background: 3.0 };
        let code = Code { domains: 2, camera: true };
        let of = |domain, camera| code.encode(&Acquisition { domain: Some(domain), camera: Some(camera) });
        for (bad, key) in [
            (of(0, TakenBy { scale: 0.0, ..good }), "scale"),
            (of(0, TakenBy { scale: f64::INFINITY, ..good }), "scale"),
            (of(1, TakenBy { read_noise: -1.0, ..good }), "read_noise"),
            (of(1, TakenBy { background: f64::NAN, ..good }), "background"),
            (of(2, good), "domain"),
        ] {
            match bad {
                Err(Error::Unsupported { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{other:?}"),
            }
        }
    }
}
