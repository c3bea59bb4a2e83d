//! Line plots as SVG, drawn here so that a report is a single file.

use std::fmt::Write;

/// A line of a plot: x, y and the interval of y.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64, f64, f64)>,
    /// Drawn strongly.
    pub strong: bool,
}

/// Colours that people who see colours differently tell apart (Okabe and Ito, 2008).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// The lines over a logarithmic x axis where x spans more than a factor of 3, with their legend beside them.
pub fn lines(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let (width, height) = (640.0, 300.0);
    let (left, right, top, bottom) = (56.0, 190.0, 30.0, 44.0);
    let points = || series.iter().flat_map(|s| &s.points);
    let finite = |p: &&(f64, f64, f64, f64)| [p.0, p.1, p.2, p.3].iter().all(|v| v.is_finite());
    let (mut x0, mut x1, mut y0, mut y1) =
        (f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY);
    for p in points().filter(finite) {
        (x0, x1) = (x0.min(p.0), x1.max(p.0));
        (y0, y1) = (y0.min(p.2.min(p.1)), y1.max(p.3.max(p.1)));
    }
    if x0 > x1 {
        return String::new();
    }
    let logarithmic = x0 > 0.0 && x1 / x0 > 3.0;
    let scale = |x: f64| if logarithmic { x.ln() } else { x };
    let (a, b) = if x0 == x1 { (scale(x0) - 1.0, scale(x1) + 1.0) } else { (scale(x0), scale(x1)) };
    let pad = (0.06 * (y1 - y0)).max(1e-9);
    let (y0, y1) = (y0 - pad, y1 + pad);
    let at_x = |x: f64| left + (scale(x) - a) / (b - a) * (width - left - right);
    let at_y = |y: f64| height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom);
    let mut out = String::new();
    let mut put = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    put(format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">"
    ));
    put(format!("<title>{}</title>", escape(title)));
    put(format!("<text x=\"{left}\" y=\"18\" font-weight=\"bold\">{}</text>", escape(title)));
    for tick in ticks(y0, y1) {
        let y = at_y(tick);
        put(format!(
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            width - right,
            left - 6.0,
            y + 4.0,
            number(tick)
        ));
    }
    let mut xs: Vec<f64> = points().map(|p| p.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let stride = xs.len().div_ceil(8).max(1);
    for x in xs.iter().step_by(stride) {
        let place = at_x(*x);
        put(format!(
            "<line x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{top}\" y2=\"{}\" stroke=\"#eee\"/><text x=\"{place:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            height - bottom,
            height - bottom + 16.0,
            number(*x)
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        left + (width - left - right) / 2.0,
        height - 8.0,
        escape(x_label)
    ));
    put(format!(
        "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        top + (height - top - bottom) / 2.0,
        escape(y_label)
    ));
    for (i, s) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let dash = if i >= COLOURS.len() { " stroke-dasharray=\"4 3\"" } else { "" };
        let stroke = if s.strong { 3.0 } else { 1.5 };
        let mut path = String::new();
        for (j, p) in s.points.iter().filter(finite).enumerate() {
            let (x, y) = (at_x(p.0), at_y(p.1));
            write!(path, "{}{x:.1} {y:.1}", if j == 0 { "M" } else { " L" }).expect("writing to a string");
            put(format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                at_y(p.2),
                at_y(p.3)
            ));
        }
        put(format!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{stroke}\"{dash}/>"
        ));
        let y = top + 8.0 + 16.0 * i as f64;
        let x = width - right + 14.0;
        put(format!(
            "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"{stroke}\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 20.0,
            x + 26.0,
            y + 4.0,
            escape(&s.name)
        ));
    }
    put("</svg>".into());
    out
}

/// Round numbers across an interval, about five of them.
pub(super) fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).take(50).map(|i| i as f64 * step).collect()
}

pub(super) fn number(v: f64) -> String {
    let text = format!("{v:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Text inside an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(19.2, 41.0), [20.0, 25.0, 30.0, 35.0, 40.0]);
        assert_eq!(ticks(0.0, 1.0).len(), 6);
    }

    #[test]
    fn names_are_escaped_and_empty_input_gives_empty_output() {
        let s = |points| Series { name: "<b>&".into(), points, strong: true };
        let svg = lines("a<b", "x", "y", &[s(vec![(5.0, 1.0, 0.5, 1.5), (100.0, 2.0, 1.5, 2.5)])]);
        assert!(svg.contains("&lt;b&gt;&amp;") && !svg.contains("<b>") && svg.ends_with("</svg>\n"));
        assert_eq!(lines("a", "x", "y", &[s(vec![])]), "");
        assert!(lines("a", "x", "y", &[s(vec![(1.0, 1.0, 1.0, 1.0)])]).contains("circle"));
    }
}
