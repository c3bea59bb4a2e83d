//! A scale bar whose length is a round number of micrometres, with its label.

use super::canvas::{BLACK, Canvas, WHITE, text_height, text_width};
use crate::image::{Axis, Description};

/// How large a pixel is.
#[derive(Clone, Debug, PartialEq)]
pub struct PixelSize {
    pub step: f64,
    pub unit: String,
}

impl PixelSize {
    /// The step along X, where the file states one.
    pub fn of(description: &Description) -> Option<PixelSize> {
        let dim = description.dim(Axis::X)?;
        Some(PixelSize { step: dim.step?, unit: dim.unit.clone()? }).filter(|p| p.unit != "pixel")
    }

    /// Of pixels that are so many times larger.
    pub fn times(&self, factor: f64) -> PixelSize {
        PixelSize { step: self.step * factor, unit: self.unit.clone() }
    }

    /// The longest bar of 1, 2 or 5 times a power of ten that is at most so many pixels long: its length in pixels and
    /// what it is called.
    fn bar(&self, most: f64) -> Option<(f64, String)> {
        let room = most * self.step;
        if !(room.is_finite() && room > 0.0 && self.step > 0.0) {
            return None;
        }
        let power = 10f64.powi(room.log10().floor() as i32);
        // A length that rounding put just above the room is as good as the room.
        let times = [5.0, 2.0, 1.0].into_iter().find(|t| t * power <= room * (1.0 + 1e-9))?;
        let length = times * power;
        Some((length / self.step, name(length, &self.unit)))
    }
}

/// Lengths of the metric system with prefixes for a thousand each.
const METRIC: [&str; 6] = ["pm", "nm", "µm", "mm", "m", "km"];

/// A round number with its unit, in the prefix that leaves 1 to 999 before it.
fn name(length: f64, unit: &str) -> String {
    let unit = match unit {
        "micrometer" | "micron" | "um" | "\u{3bc}m" => "µm",
        "nanometer" => "nm",
        "millimeter" => "mm",
        "centimeter" => "cm",
        "meter" => "m",
        "angstrom" | "Å" => "A",
        other => other,
    };
    let (length, unit) = if unit == "cm" { (length * 10.0, "mm") } else { (length, unit) };
    let Some(place) = METRIC.iter().position(|m| *m == unit) else {
        return format!("{} {unit}", tidy(length));
    };
    let thousands = (length.log10() / 3.0 + 1e-9).floor() as isize;
    let to = (place as isize + thousands).clamp(0, METRIC.len() as isize - 1);
    format!("{} {}", tidy(length / 1000f64.powi((to - place as isize) as i32)), METRIC[to as usize])
}

/// Without the digits that rounding made.
fn tidy(value: f64) -> String {
    let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// Draws the bar into the lower right corner, where there is room for it.
pub fn draw(canvas: &mut Canvas, pixel: &PixelSize, size: usize) {
    let Some((length, name)) = pixel.bar(canvas.width() as f64 / 3.0) else { return };
    let (length, thick, margin) = (length.round() as usize, 2 * size, 4 * size);
    let wide = length.max(text_width(&name, size));
    let high = thick + 2 * size + text_height(size);
    if length < 2 || wide + 2 * margin > canvas.width() || high + 2 * margin > canvas.height() {
        return;
    }
    let right = canvas.width() - margin;
    let top = canvas.height() - margin - thick;
    let left = right - (wide + length) / 2;
    canvas.fill(left - 1, top - 1, length + 2, thick + 2, BLACK);
    canvas.fill(left, top, length, thick, WHITE);
    let x = right - (wide + text_width(&name, size)) / 2;
    canvas.outlined_text(x, top - 2 * size - text_height(size), size, WHITE, BLACK, &name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_round_and_named() {
        let bar = |step: f64, unit: &str, most: f64| {
            let (pixels, name) = PixelSize { step, unit: unit.into() }.bar(most).expect("a bar");
            (pixels.round() as i64, name)
        };
        assert_eq!(bar(0.1, "µm", 100.0), (100, "10 µm".to_string()));
        assert_eq!(bar(0.065, "micrometer", 85.0), (77, "5 µm".to_string()));
        assert_eq!(bar(0.004, "um", 100.0), (50, "200 nm".to_string()));
        assert_eq!(bar(6.5, "µm", 400.0), (308, "2 mm".to_string()));
        assert_eq!(bar(0.5, "nm", 3.0), (2, "1 nm".to_string()));
        assert_eq!(bar(0.5, "nm", 1.5), (1, "500 pm".to_string()));
        assert_eq!(bar(0.2, "arcsec", 128.0), (100, "20 arcsec".to_string()));
        assert_eq!(bar(0.02, "deg", 10.0), (10, "0.2 deg".to_string()));
        assert_eq!(bar(0.1, "cm", 300.0), (200, "200 mm".to_string()));
        assert!(PixelSize { step: f64::NAN, unit: "m".into() }.bar(3.0).is_none());
        assert!(PixelSize { step: 1.0, unit: "m".into() }.bar(0.0).is_none());
    }

    #[test]
    fn a_bar_has_its_length_in_pixels() {
        let grey = [90; 3];
        let mut canvas = Canvas::new(300, 100, grey);
        draw(&mut canvas, &PixelSize { step: 0.25, unit: "µm".into() }, 1);
        let white = |y: usize| (0..300).filter(|&x| canvas.pixel(x, y) == WHITE).count();
        assert_eq!(white(100 - 4 - 1), 80, "20 µm of 0.25 µm");
        assert!((0..100).any(|y| (1..40).contains(&white(y))), "the number");
        // Too little room: nothing.
        let mut small = Canvas::new(12, 9, grey);
        draw(&mut small, &PixelSize { step: 0.25, unit: "µm".into() }, 1);
        assert_eq!(small, Canvas::new(12, 9, grey));
    }
}
