//! The figure of a measured camera: noise against brightness, correlation of neighbouring pixels, clipping. Drawn as SVG
//! here, so that a report needs no other files.

use super::plot::escape;
use super::plot::{number, ticks};
use clearshot_physics::calibration::measurement::{CameraMeasurement, Source};
use clearshot_physics::correlation::REACH;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
/// Left, right, top and bottom of the curve.
const CURVE: [f64; 4] = [78.0, 478.0, 44.0, 346.0];
/// Left and top of the map of correlations, and the side of one of its squares.
const MAP: [f64; 2] = [552.0, 60.0];
const SQUARE: f64 = 26.0;
const BLUE: [f64; 3] = [0.0, 114.0, 178.0];
const ORANGE: [f64; 3] = [213.0, 94.0, 0.0];

/// The figure of a camera, as the text of an SVG file.
pub fn camera(measured: &CameraMeasurement, title: &str) -> String {
    let mut out = String::new();
    let head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">"
    );
    put(&mut out, &head);
    put(&mut out, &format!("<title>{}</title>", escape(title)));
    put(&mut out, &format!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>"));
    text(&mut out, [CURVE[0], 24.0], "start\" font-weight=\"bold\" font-size=\"14", title);
    curve(&mut out, measured);
    map(&mut out, measured);
    ends(&mut out, measured);
    put(&mut out, "</svg>");
    out
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{line}").expect("writing to a string");
}

/// Text at a place; `anchor` may carry further attributes.
fn text(out: &mut String, [x, y]: [f64; 2], anchor: &str, words: &str) {
    put(out, &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(words)));
}

fn line(out: &mut String, from: [f64; 2], to: [f64; 2], stroke: &str) {
    put(
        out,
        &format!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {stroke}/>",
            from[0], from[1], to[0], to[1]
        ),
    );
}

/// Variance against brightness: measured points with their errors, and the line.
fn curve(out: &mut String, measured: &CameraMeasurement) {
    let fit = &measured.fit;
    let [left, right, top, bottom] = CURVE;
    let finite = |v: &f64| v.is_finite();
    let levels = || fit.points.iter().map(|p| p.level).chain([fit.offset]).filter(finite);
    let (low, high) = levels().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    let pad = (0.04 * (high - low)).max(1e-6 * high.abs()).max(1e-9);
    let (x0, x1) = (low - pad, high + pad);
    let most = fit.points.iter().map(|p| p.variance + p.error).filter(finite).fold(0.0, f64::max);
    let y1 = 1.08 * most.max(fit.line.variance(high)).max(f64::MIN_POSITIVE);
    let at = |x: f64, y: f64| {
        [left + (x - x0) / (x1 - x0) * (right - left), bottom - (y / y1).clamp(0.0, 1.0) * (bottom - top)]
    };
    for tick in ticks(0.0, y1) {
        let [_, y] = at(x0, tick);
        line(out, [left, y], [right, y], "stroke=\"#e4e4e4\"");
        line(out, [left - 5.0, y], [left, y], "stroke=\"#222\"");
        text(out, [left - 8.0, y + 4.0], "end", &number(tick));
    }
    for tick in ticks(x0, x1) {
        let [x, _] = at(tick, 0.0);
        line(out, [x, bottom], [x, bottom + 5.0], "stroke=\"#222\"");
        text(out, [x, bottom + 19.0], "middle", &number(tick));
    }
    put(
        out,
        &format!(
            "<path d=\"M{left} {top} V{bottom} H{right}\" fill=\"none\" stroke=\"#222\" stroke-width=\"1.2\"/>"
        ),
    );
    text(out, [0.5 * (left + right), bottom + 40.0], "middle", "brightness (counts)");
    put(
        out,
        &format!(
            "<text transform=\"translate(20 {:.1}) rotate(-90)\" text-anchor=\"middle\">variance of the noise (counts²)</text>",
            0.5 * (top + bottom)
        ),
    );
    let start =
        if fit.line.slope > 0.0 { (fit.line.pivot - fit.line.at_pivot / fit.line.slope).max(x0) } else { x0 };
    line(
        out,
        at(start, fit.line.variance(start)),
        at(x1, fit.line.variance(x1)),
        "stroke=\"#d55e00\" stroke-width=\"2\"",
    );
    for p in fit.points.iter().filter(|p| p.level.is_finite() && p.variance.is_finite()) {
        let [x, y] = at(p.level, p.variance);
        let [[_, low], [_, high]] =
            [p.variance - p.error, p.variance + p.error].map(|v| at(p.level, v.max(0.0)));
        line(out, [x, low], [x, high], "stroke=\"#0072b2\" stroke-width=\"1\"");
        put(out, &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"#0072b2\"/>"));
    }
    let [x, _] = at(fit.offset, 0.0);
    if x >= left {
        line(out, [x, bottom], [x, top + 72.0], "stroke=\"#777\" stroke-dasharray=\"3 4\"");
        let (anchor, x) = if x < 0.5 * (left + right) { ("start", x + 5.0) } else { ("end", x - 5.0) };
        text(out, [x, top + 82.0], anchor, "offset");
    }
    legend(out, measured);
}

/// What points and line are, and the numbers of the line.
fn legend(out: &mut String, measured: &CameraMeasurement) {
    let fit = &measured.fit;
    let [left, _, top, _] = CURVE;
    let (x, y) = (left + 14.0, top + 12.0);
    put(out, &format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"#0072b2\"/>", x + 9.0, y - 4.0));
    let from = match measured.source {
        Source::Single => "in smooth places",
        Source::Repeats => "between repeats",
        Source::Movie => "between frames, at rest",
        Source::Flats => "between flats and darks",
    };
    text(out, [x + 26.0, y], "start", &format!("measured {from}, ± 1 standard error"));
    line(out, [x, y + 14.0], [x + 18.0, y + 14.0], "stroke=\"#d55e00\" stroke-width=\"2\"");
    let gain = match fit.gain_error.is_finite() {
        true => {
            let digits = (1 - fit.gain_error.max(1e-8).log10().floor() as i32).clamp(0, 8) as usize;
            format!("gain {:.digits$} ± {:.digits$} e⁻/count", fit.gain, fit.gain_error)
        }
        false => format!("gain assumed: {} e⁻/count", significant(fit.gain)),
    };
    text(out, [x + 26.0, y + 18.0], "start", &gain);
    let read = format!("read noise {} e⁻, offset {:.1} counts", significant(fit.read_noise), fit.offset);
    text(out, [x + 26.0, y + 36.0], "start", &read);
}

/// The correlation of neighbouring pixels, with its numbers.
fn map(out: &mut String, measured: &CameraMeasurement) {
    let [left, top] = MAP;
    let reach = REACH as isize;
    let side = SQUARE * (2 * REACH + 1) as f64;
    text(out, [left, top - 36.0], "start\" font-weight=\"bold", "Correlation of the noise of two pixels");
    let near = format!("± {} at each distance", significant(measured.fit.correlation_error));
    text(out, [left, top - 20.0], "start\" fill=\"#555", &near);
    for dy in -reach..=reach {
        for dx in -reach..=reach {
            let v = measured.fit.correlation.at(dy, dx);
            let (x, y) = (left + (dx + reach) as f64 * SQUARE, top + (dy + reach) as f64 * SQUARE);
            put(
                out,
                &format!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{SQUARE}\" height=\"{SQUARE}\" fill=\"{}\" stroke=\"#fff\"/>",
                    colour(v)
                ),
            );
            let ink = if v.abs() > 0.55 { "#fff" } else { "#333" };
            let words = match v {
                1.0 => "1".to_string(),
                v if v.abs() < 0.005 => "0".to_string(),
                v => format!("{v:.2}").replacen("0.", ".", 1),
            };
            let place = [x + 0.5 * SQUARE, y + 0.5 * SQUARE + 3.5];
            text(out, place, &format!("middle\" font-size=\"9.5\" fill=\"{ink}"), &words);
        }
    }
    for d in -reach..=reach {
        let along = (d + reach) as f64 * SQUARE + 0.5 * SQUARE;
        text(out, [left + along, top + side + 13.0], "middle\" font-size=\"10", &d.to_string());
        text(out, [left - 5.0, top + along + 3.5], "end\" font-size=\"10", &d.to_string());
    }
    text(out, [left + 0.5 * side, top + side + 28.0], "middle", "distance along X (pixels)");
    put(
        out,
        &format!(
            "<text transform=\"translate({:.1} {:.1}) rotate(-90)\" text-anchor=\"middle\">distance along Y (pixels)</text>",
            left - 24.0,
            top + 0.5 * side
        ),
    );
}

/// Grey at none, blue at 1, orange at -1.
fn colour(v: f64) -> String {
    let strong = if v >= 0.0 { BLUE } else { ORANGE };
    if v.abs() < 0.005 {
        return "#f3f3f3".into();
    }
    let share = v.abs().min(1.0).sqrt();
    let [r, g, b] = strong.map(|c| (255.0 + (c - 255.0) * share).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The shares of pixels at both ends of the range, as bars.
fn ends(out: &mut String, measured: &CameraMeasurement) {
    let ends = &measured.ends;
    let (left, top) = (MAP[0], MAP[1] + SQUARE * (2 * REACH + 1) as f64 + 50.0);
    let rows = [
        ("clipped below", ends.clipped_low, ends.at_lowest, ends.lowest),
        ("clipped above", ends.clipped_high, ends.at_highest, ends.highest),
    ];
    for (i, (name, clipped, share, value)) in rows.into_iter().enumerate() {
        let y = top + 18.0 * i as f64;
        text(out, [left, y], "start", name);
        let x = left + 92.0;
        put(
            out,
            &format!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"50\" height=\"9\" fill=\"#eee\"/><rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"9\" fill=\"#0072b2\"/>",
                y - 8.5,
                y - 8.5,
                if clipped { (50.0 * share).clamp(1.0, 50.0) } else { 0.0 }
            ),
        );
        let words = match clipped {
            true => format!("{} % of pixels, at {}", significant(100.0 * share), number(value)),
            false => "none".to_string(),
        };
        text(out, [x + 56.0, y], "start", &words);
    }
}

/// Three digits that say something.
fn significant(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return number(v);
    }
    let digits = (2 - v.abs().log10().floor() as i32).clamp(0, 8) as usize;
    let text = format!("{v:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_physics::Adu;
    use clearshot_physics::calibration::blind::Known;
    use clearshot_physics::calibration::repeats::from_series;
    use clearshot_tensor::noise::Key;

    #[test]
    fn a_figure_has_points_line_and_map() {
        let mut noise = vec![0f32; 3 * 64 * 64];
        Key { seed: 1, step: 0, stream: 0 }.fill_normal(0, &mut noise);
        let value = |(i, n): (usize, &f32)| {
            let level = (i % 4096) as f32 / 16.0;
            100.0 + level + n * (level + 4.0).sqrt()
        };
        let frames: Vec<f32> = noise.iter().enumerate().map(value).collect();
        let series = [frames.chunks(4096).map(Adu).collect()];
        let measured = from_series(&series, [64, 64], &Known::default()).unwrap();
        let svg = camera(&measured, "a <camera>");
        assert!(
            svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n") && svg.contains("a &lt;camera&gt;")
        );
        assert_eq!(svg.matches("<circle").count(), measured.fit.points.len() + 1);
        assert_eq!(svg.matches("<rect").count(), 1 + 81 + 4);
        assert!(svg.contains("e⁻/count") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn digits_that_say_something() {
        let cases = [(0.4567, "0.457"), (123.4, "123"), (0.0012345, "0.00123"), (0.0, "0"), (5e4, "50000")];
        cases.iter().for_each(|(v, t)| assert_eq!(significant(*v), *t));
    }
}
