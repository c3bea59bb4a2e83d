//! How an image was taken, as the vector that networks are conditioned on.
//!
//! ```text
//! [one-hot of the domain, log10(scale) - 2.5, read noise / scale, background / scale]
//! ```
//!
//! The scale is the number of electrons that a normalised intensity of 1 stands for; read noise and
//! background are in electrons too. The code has an inverse, so that what a model was trained on can be
//! read back from its data.

use crate::Error;

/// What the picture is of; the order is that of the one-hot part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    Microscopy,
    Medical,
    Photography,
    Astronomy,
}

/// Every domain.
pub const DOMAINS: &[Domain] = &[Domain::Microscopy, Domain::Medical, Domain::Photography, Domain::Astronomy];

/// Values of the vector.
pub const WIDTH: usize = DOMAINS.len() + 3;

/// The middle of the range of scales, as a power of ten.
const LOG_SCALE: f64 = 2.5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acquisition {
    pub domain: Domain,
    /// Electrons at an intensity of 1.
    pub scale: f64,
    /// Standard deviation, in electrons.
    pub read_noise: f64,
    /// Mean, in electrons.
    pub background: f64,
}

impl Acquisition {
    /// # Errors
    /// If the scale is not positive, or another value is negative or no number.
    pub fn encode(&self) -> Result<[f64; WIDTH], Error> {
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
        let mut code = [0.0; WIDTH];
        code[self.domain as usize] = 1.0;
        let rest = &mut code[DOMAINS.len()..];
        rest[0] = self.scale.log10() - LOG_SCALE;
        rest[1] = self.read_noise / self.scale;
        rest[2] = self.background / self.scale;
        Ok(code)
    }

    /// The inverse of [`Acquisition::encode`]; the domain is the largest of its part.
    pub fn decode(code: &[f64; WIDTH]) -> Acquisition {
        let (domains, rest) = code.split_at(DOMAINS.len());
        let largest = (0..domains.len()).fold(0, |best, i| if domains[i] > domains[best] { i } else { best });
        let scale = 10f64.powf(rest[0] + LOG_SCALE);
        Acquisition {
            domain: DOMAINS[largest],
            scale,
            read_noise: rest[1] * scale,
            background: rest[2] * scale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back() {
        for (i, &domain) in DOMAINS.iter().enumerate() {
            for scale in [0.7, 31.0, 4.2e4] {
                let taken =
                    Acquisition { domain, scale, read_noise: 1.6 * i as f64, background: 0.01 * scale };
                let code = taken.encode().unwrap();
                assert_eq!(code[..DOMAINS.len()].iter().sum::<f64>(), 1.0);
                let back = Acquisition::decode(&code);
                assert_eq!(back.domain, domain);
                for (a, b) in [
                    (back.scale, scale),
                    (back.read_noise, taken.read_noise),
                    (back.background, taken.background),
                ] {
                    assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} {b}");
                }
            }
        }
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let good = Acquisition { domain: Domain::Medical, scale: 100.0, read_noise: 2.0, background: 3.0 };
        for (bad, key) in [
            (Acquisition { scale: 0.0, ..good }, "scale"),
            (Acquisition { scale: f64::INFINITY, ..good }, "scale"),
            (Acquisition { read_noise: -1.0, ..good }, "read_noise"),
            (Acquisition { background: f64::NAN, ..good }, "background"),
        ] {
            match bad.encode() {
                Err(Error::Unsupported { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{other:?}"),
            }
        }
    }
}
