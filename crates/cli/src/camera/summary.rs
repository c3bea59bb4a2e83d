//! A measured camera in words: each number with its uncertainty.

use clearshot::{KnownCamera, decimals};
use clearshot_physics::Correlation;
use clearshot_physics::calibration::blind::Doubt;
use clearshot_physics::calibration::measurement::{CameraMeasurement, FixedPattern, Source};
use clearshot_physics::calibration::{Calibration, Lines};
use std::io::Write;

pub fn print(
    measured: &CameraMeasurement,
    known: &KnownCamera,
    files: &[String],
    out: &mut impl Write,
) -> std::io::Result<()> {
    let fit = &measured.fit;
    let from = match measured.source {
        Source::Single => "single images, noise separated from structure",
        Source::Repeats => "repeats of one scene",
        Source::Movie if fit.doubts.contains(&Doubt::Moving) => "a movie, by its single frames",
        Source::Movie => "a movie, where nothing moved",
        Source::Flats => "flat fields",
    };
    let unit = if measured.source == Source::Single { "crops" } else { "frames" };
    let (frames, pixels) = (measured.frames, measured.pixels as f64 / 1e6);
    let of = match files {
        [one] => one.clone(),
        _ => format!("{} files", files.len()),
    };
    writeln!(out, "{of}: {from} ({frames} {unit}, {pixels:.2} million pixels)")?;
    let mut line = |key: &str, value: String| writeln!(out, "  {key:<14} {value}");
    let [low, high] = fit.gain_range;
    line(
        "gain",
        match (known.gain, fit.gain_error.is_finite()) {
            (Some(gain), _) => format!("{gain} electrons per count, as given"),
            (_, true) => {
                format!("{} +- {} electrons per count", decimals(fit.gain, 4), decimals(fit.gain_error, 4))
            }
            (_, false) => {
                format!(
                    "not determined by these images; assumed: {} electrons per count ({} to {} fit equally well)",
                    decimals(fit.gain, 4),
                    decimals(low, 4),
                    decimals(high, 4)
                )
            }
        },
    )?;
    let [low, high] = fit.offset_range;
    let range = match known.offset {
        Some(_) => "as given".into(),
        None => format!("{} to {} fit", decimals(low, 2), decimals(high, 2)),
    };
    line("offset", format!("{} counts ({range})", decimals(fit.offset, 2)))?;
    let [low, high] = fit.read_noise_range;
    let range = match known.read_noise {
        Some(_) => "as given".into(),
        None => format!("{} to {} fit", decimals(low, 2), decimals(high, 2)),
    };
    line("read noise", format!("{} electrons ({range})", decimals(fit.read_noise, 2)))?;
    if let Some(camera) = full(measured) {
        let well = camera.full_well().map_or(0.0, |e| e.0);
        let range = camera.dynamic_range_db().filter(|r| r.is_finite());
        let range = range.map_or(String::new(), |r| format!(", dynamic range {r:.1} dB"));
        line("full well", format!("{well:.0} electrons{range}"))?;
    }
    let [dark, bright] = fit.levels;
    line(
        "noise",
        format!(
            "standard deviation {} at {} counts, {} at {} counts",
            decimals(fit.line.deviation(dark), 3),
            decimals(dark, 1),
            decimals(fit.line.deviation(bright), 3),
            decimals(bright, 1)
        ),
    )?;
    line("correlation", correlation(&fit.correlation, fit.correlation_error))?;
    for (lines, when) in [
        (measured.changing_stripes, "new in every frame"),
        (measured.fixed_stripes, "the same in all frames"),
        (measured.stripes, "in the images"),
    ] {
        if let Some(lines) = lines {
            line("stripes", stripes(&lines, when))?;
        }
    }
    if let Some(pattern) = measured.pattern {
        line("fixed pattern", fixed(&pattern))?;
    }
    line("clipped", clipped(measured))?;
    line("rounding", rounding(measured))?;
    for doubt in fit.doubts.iter().filter(|d| **d != Doubt::GainNotSeen) {
        line("note", doubt.about().into())?;
    }
    Ok(())
}

/// The camera with the value at which its pixels are full, where that was seen or given.
fn full(measured: &CameraMeasurement) -> Option<Calibration> {
    let fit = &measured.fit;
    let camera = Calibration::uniform(fit.gain, fit.offset, fit.read_noise).ok()?;
    fit.saturation.map(|full| Calibration { saturation: Some(full), ..camera })
}

/// The standard error above which a correlation of zero says nothing.
const UNSURE: f64 = 0.2;

fn correlation(c: &Correlation, error: f64) -> String {
    if c.is_white() {
        return match error > UNSURE {
            true => format!("none assumed: these images do not determine it (+- {error:.3})"),
            false => format!("none: pixels are independent (+- {error:.3})"),
        };
    }
    format!(
        "{:.2} along X, {:.2} along Y, {:.2} and {:.2} along the diagonals, {:.2} over two pixels of X, {:.2} of Y (+- {error:.3})",
        c.at(0, 1),
        c.at(1, 0),
        c.at(1, 1),
        c.at(1, -1),
        c.at(0, 2),
        c.at(2, 0)
    )
}

fn stripes(lines: &Lines, when: &str) -> String {
    let one = |name: &str, s: &clearshot_physics::calibration::Stripes| match s.seen {
        true => {
            format!("{name} differ by {} +- {} counts", decimals(s.deviation, 3), decimals(s.error, 3))
        }
        false => format!("{name} by less than {} counts", decimals(s.error, 3)),
    };
    format!("{when}: {}, {}", one("rows", &lines.rows), one("columns", &lines.columns))
}

fn fixed(pattern: &FixedPattern) -> String {
    let mut parts = Vec::new();
    parts.extend(pattern.offset.map(|v| format!("offsets of pixels differ by {} counts", decimals(v, 3))));
    parts.extend(pattern.hot.map(|v| format!("{:.4} % of them are outliers", 100.0 * v)));
    parts.extend(pattern.sensitivity.map(|v| format!("sensitivities by {:.3} %", 100.0 * v)));
    parts.join(", ")
}

fn clipped(measured: &CameraMeasurement) -> String {
    let ends = &measured.ends;
    let one = |clipped: bool, share: f64, value: f64, side: &str| match clipped {
        true => {
            let places = if value.fract() == 0.0 { 0 } else { 3 };
            format!("{:.3} % of the pixels {side}, at {}", 100.0 * share, decimals(value, places))
        }
        false => format!("none {side}"),
    };
    format!(
        "{}, {}",
        one(ends.clipped_low, ends.at_lowest, ends.lowest, "below"),
        one(ends.clipped_high, ends.at_highest, ends.highest, "above")
    )
}

fn rounding(measured: &CameraMeasurement) -> String {
    let Some(step) = measured.ends.step else { return "none: values are not whole numbers".into() };
    let dark = measured.fit.line.variance(measured.fit.levels[0]).max(f64::MIN_POSITIVE);
    let share = 100.0 * measured.ends.rounding() / dark;
    format!("steps of {step}, {share:.2} % of the variance in the dark")
}
