//! Recommends a setting within limits of memory, time and quality.
//!
//! A method is evaluated at several sizes (and settings). Of those within all limits, the one with the best PSNR is
//! recommended, and the fastest if several are equal. If there is none, each is listed with the limits that it exceeds.

use serde::Serialize;

/// One setting that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    pub method: String,
    /// Pixels along each side.
    pub size: usize,
    pub psnr: f64,
    /// For one megapixel.
    pub seconds: f64,
    /// The process's peak, where the system tells.
    pub bytes: Option<usize>,
}

/// Limits; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    pub bytes: Option<usize>,
    /// For one megapixel.
    pub seconds: Option<f64>,
    pub psnr: Option<f64>,
}

/// What a trial breaks, in words; empty if it keeps every limit.
pub fn broken(trial: &Trial, limits: &Limits) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(most) = limits.bytes {
        match trial.bytes {
            Some(bytes) if bytes > most => out.push(format!("takes {bytes} bytes, and {most} are allowed")),
            Some(_) => {}
            None => out.push("its memory is not known on this system".into()),
        }
    }
    if let Some(most) = limits.seconds.filter(|most| trial.seconds > *most) {
        out.push(format!("takes {:.2} s per megapixel, and {most} are allowed", trial.seconds));
    }
    if let Some(least) = limits.psnr.filter(|least| trial.psnr < *least) {
        out.push(format!("reaches {:.2} dB, and {least} are asked for", trial.psnr));
    }
    out
}

/// The trial to use, if one keeps every limit.
pub fn recommend<'a>(trials: &'a [Trial], limits: &Limits) -> Option<&'a Trial> {
    let fits = trials.iter().filter(|t| broken(t, limits).is_empty());
    fits.max_by(|a, b| a.psnr.total_cmp(&b.psnr).then(b.seconds.total_cmp(&a.seconds)))
}

/// Resets what the system counts as the peak of this process's memory, where it can.
pub fn reset_peak() {
    // Without permission or on other systems the peak stays that of the whole run: too high, never too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_within_the_limits_is_recommended() {
        let trial = |size, psnr, seconds, bytes| Trial { method: "m".into(), size, psnr, seconds, bytes };
        let trials = [
            trial(64, 30.0, 1.0, Some(100)),
            trial(128, 32.0, 2.0, Some(400)),
            trial(256, 32.0, 3.0, Some(1600)),
            trial(512, 33.0, 9.0, None),
        ];
        let size = |limits: Limits| recommend(&trials, &limits).map(|t| t.size);
        assert_eq!(size(Limits::default()), Some(512));
        assert_eq!(size(Limits { seconds: Some(5.0), ..Limits::default() }), Some(128));
        assert_eq!(size(Limits { bytes: Some(200), ..Limits::default() }), Some(64));
        assert_eq!(size(Limits { bytes: Some(200), psnr: Some(31.0), ..Limits::default() }), None);
        let why = broken(&trials[0], &Limits { bytes: Some(50), seconds: Some(0.5), psnr: Some(31.0) });
        assert_eq!(why.len(), 3);
        assert!(broken(&trials[3], &Limits { bytes: Some(1), ..Limits::default() })[0].contains("not known"));
    }
}
