//! Camera parameters as options: impossible gains, noises and offsets are refused during parsing, in the same way for
//! all commands.

use std::path::PathBuf;
use std::str::FromStr;

/// Electrons per count.
///
/// # Errors
/// If it is not a number above zero.
pub fn gain<T: FromStr + Copy + Into<f64>>(text: &str) -> Result<T, String> {
    number(
        text,
        |g| g.is_finite() && g > 0.0,
        "the gain, in electrons per count, must be a number above zero",
    )
}

/// How many times the light of another exposure.
///
/// # Errors
/// If it is not a number above zero.
pub fn ratio<T: FromStr + Copy + Into<f64>>(text: &str) -> Result<T, String> {
    number(text, |r| r.is_finite() && r > 0.0, "a number above zero is needed")
}

/// A mean or a standard deviation of electrons.
///
/// # Errors
/// If it is not a number of zero or more.
pub fn amount<T: FromStr + Copy + Into<f64>>(text: &str) -> Result<T, String> {
    number(text, |n| n.is_finite() && n >= 0.0, "a number not below zero is needed")
}

/// Counts, which may be below zero.
///
/// # Errors
/// If it is not a number.
pub fn counts<T: FromStr + Copy + Into<f64>>(text: &str) -> Result<T, String> {
    number(text, f64::is_finite, "a number is needed")
}

/// What is measured where there is no object.
#[derive(Clone, Debug, PartialEq)]
pub enum Background {
    /// Mean electrons.
    Level(f64),
    /// Frames without an object.
    File(PathBuf),
}

impl Background {
    pub fn level(&self) -> Option<f64> {
        match self {
            Background::Level(electrons) => Some(*electrons),
            Background::File(_) => None,
        }
    }

    pub fn file(&self) -> Option<PathBuf> {
        match self {
            Background::Level(_) => None,
            Background::File(path) => Some(path.clone()),
        }
    }
}

/// Mean electrons, or a file.
///
/// # Errors
/// If it is a number below zero or not finite.
pub fn background(text: &str) -> Result<Background, String> {
    match text.trim().parse::<f64>() {
        Ok(_) => amount(text).map(Background::Level),
        Err(_) => Ok(Background::File(text.into())),
    }
}

fn number<T: FromStr + Copy + Into<f64>>(
    text: &str,
    fits: fn(f64) -> bool,
    needed: &str,
) -> Result<T, String> {
    text.trim().parse().ok().filter(|n: &T| fits((*n).into())).ok_or_else(|| needed.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_cameras_are_refused() {
        assert_eq!(gain::<f32>("0.46"), Ok(0.46));
        assert_eq!(amount::<f64>("0"), Ok(0.0));
        assert_eq!(counts::<f64>("-100"), Ok(-100.0));
        for text in ["0", "-1", "nan", "inf", "one", ""] {
            assert!(gain::<f32>(text).is_err(), "{text}");
        }
        assert!(["-1", "nan", "inf"].iter().all(|t| amount::<f32>(t).is_err()));
        assert!(["nan", "-inf", "1e"].iter().all(|t| counts::<f32>(t).is_err()));
    }
}
