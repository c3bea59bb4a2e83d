//! Pictures for viewing: planes as PNG with contrast, colours, a scale bar and labels, alone or side by side.
//!
//! Pictures are not for measuring: contrast is stretched and large planes are averaged down. Letters are drawn here
//! ([`font`]), so a picture is the same on every machine.

mod canvas;
mod font;
mod scale_bar;

pub use canvas::{BLACK, Canvas, Rgb, WHITE, text_height, text_width};
pub use scale_bar::PixelSize;

use crate::copy::bands;
use crate::error::{Result, request};
use crate::grid::{Grid, Region, extent};
use crate::image::{Axis, Image};

/// Which values are black and white. Values that are not finite are shown in [`INVALID`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub low: f32,
    pub high: f32,
    /// Values in [0, 1] are raised to this power: less than one brings out the dark.
    pub gamma: f32,
}

/// The colour of NaN.
pub const INVALID: Rgb = [200, 0, 60];

impl Stretch {
    pub fn range(low: f32, high: f32) -> Stretch {
        Stretch { low, high, gamma: 1.0 }
    }

    /// From the percentile `low` to the percentile `high` of the finite values; 0.1 and 99.9 serve most images.
    pub fn percentiles(values: &[f32], low: f64, high: f64) -> Stretch {
        // Some hundred thousand values tell the percentiles of any number.
        let stride = (values.len() / 262_144).max(1);
        let mut sample: Vec<f32> = values.iter().copied().step_by(stride).filter(|v| v.is_finite()).collect();
        if sample.is_empty() {
            return Stretch::range(0.0, 1.0);
        }
        sample.sort_by(f32::total_cmp);
        let at = |p: f64| sample[((p / 100.0).clamp(0.0, 1.0) * (sample.len() - 1) as f64).round() as usize];
        Stretch::range(at(low), at(high))
    }

    /// From 0 to 1.
    fn shown(&self, value: f32) -> f32 {
        let span = self.high - self.low;
        let share = if span > 0.0 {
            ((value - self.low) / span).clamp(0.0, 1.0)
        } else {
            f32::from(value > self.high)
        };
        if self.gamma == 1.0 { share } else { share.powf(self.gamma) }
    }
}

/// How values in [0, 1] are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    Grey,
    /// From black to a channel's colour.
    Tint(Rgb),
    /// From black over green and pink to white, brighter all the way (cubehelix; Green, 2011): for maps of errors.
    Helix,
}

impl Colours {
    fn of(self, share: f32) -> Rgb {
        let byte = |v: f32| (v.clamp(0.0, 1.0) * 255.0).round() as u8;
        match self {
            Colours::Grey => [byte(share); 3],
            Colours::Tint(colour) => colour.map(|c| (f32::from(c) * share).round() as u8),
            Colours::Helix => {
                let angle = std::f32::consts::TAU * (0.5 / 3.0 + 1.0 - 1.5 * share);
                let amplitude = share * (1.0 - share) / 2.0;
                let (sin, cos) = angle.sin_cos();
                [[-0.14861, 1.78277], [-0.29227, -0.90649], [1.97294, 0.0]]
                    .map(|[c, s]| byte(share + amplitude * (c * cos + s * sin)))
            }
        }
    }
}

/// One plane of a picture.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Written above it.
    pub label: String,
    pub values: Vec<f32>,
    /// Y, X.
    pub shape: [usize; 2],
    pub stretch: Stretch,
    pub colours: Colours,
    /// With a scale bar, if it is known.
    pub pixel: Option<PixelSize>,
}

impl Panel {
    /// Grey, between the 0.1th and the 99.9th percentile.
    ///
    /// # Errors
    /// If the values do not fill the shape, or a side is zero.
    pub fn new(label: &str, values: Vec<f32>, shape: [usize; 2]) -> Result<Panel> {
        if shape[0].checked_mul(shape[1]) != Some(values.len()) || values.is_empty() {
            return request(format!(
                "a picture of {} x {} pixels from {} values",
                shape[0],
                shape[1],
                values.len()
            ));
        }
        let stretch = Stretch::percentiles(&values, 0.1, 99.9);
        Ok(Panel { label: label.into(), values, shape, stretch, colours: Colours::Grey, pixel: None })
    }

    /// A plane of a file (`region` has one position along every axis but Y and X), averaged down so that no side has
    /// more than `most` pixels. Memory depends on `most` and on the file's chunks.
    ///
    /// # Errors
    /// If the file cannot be read, or the region is not a plane.
    pub fn of_image(label: &str, image: &Image, region: &Region, most: usize) -> Result<Panel> {
        let d = &image.description;
        let (Some(y), Some(x)) = (d.position(Axis::Y), d.position(Axis::X)) else {
            return request(format!("axes {}: a picture needs Y and X", d.axes()));
        };
        let size = extent(region);
        if y > x || size.iter().enumerate().any(|(a, &n)| if a == y || a == x { n == 0 } else { n != 1 }) {
            return request(format!("a region of {size:?} of axes {} is not a plane of Y and X", d.axes()));
        }
        let factor = size[y].max(size[x]).div_ceil(most.max(1));
        let shape = [size[y].div_ceil(factor), size[x].div_ceil(factor)];
        let mut sums = vec![[0f64; 2]; shape[0] * shape[1]];
        let whole = Grid::new(size.clone(), image.grid(0).chunk.clone());
        for band in bands(&whole, &whole, image.dtype().bytes())? {
            let place: Vec<_> =
                band.iter().zip(region).map(|(b, r)| r.start + b.start..r.start + b.end).collect();
            let values = image.read_f64(&place)?;
            for (i, v) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
                let row = (band[y].start + i / band[x].len()) / factor;
                let column = (band[x].start + i % band[x].len()) / factor;
                let [sum, count] = &mut sums[row * shape[1] + column];
                (*sum, *count) = (*sum + v, *count + 1.0);
            }
        }
        // Where nothing is finite, 0 / 0 says so.
        let values = sums.iter().map(|[sum, count]| (sum / count) as f32).collect();
        let mut panel = Panel::new(label, values, shape)?;
        panel.pixel = PixelSize::of(d).map(|p| p.times(factor as f64));
        Ok(panel)
    }

    /// The plane alone, each pixel `zoom` pixels wide, with its scale bar.
    pub fn draw(&self, zoom: usize) -> Canvas {
        let zoom = zoom.max(1);
        let mut canvas = Canvas::new(self.shape[1] * zoom, self.shape[0] * zoom, BLACK);
        for (i, &v) in self.values.iter().enumerate() {
            let colour = if v.is_finite() { self.colours.of(self.stretch.shown(v)) } else { INVALID };
            canvas.fill(i % self.shape[1] * zoom, i / self.shape[1] * zoom, zoom, zoom, colour);
        }
        if let Some(pixel) = &self.pixel {
            let size = letters(canvas.width());
            scale_bar::draw(&mut canvas, &pixel.times(1.0 / zoom as f64), size);
        }
        canvas
    }
}

/// The size of letters on a canvas.
fn letters(width: usize) -> usize {
    (width / 320).clamp(1, 4)
}

/// Panels in rows of `columns`, each under its label, on white. Small ones are enlarged by whole factors until
/// they are at least `least` pixels wide.
pub fn side_by_side(panels: &[Panel], columns: usize, least: usize) -> Canvas {
    let columns = columns.clamp(1, panels.len().max(1));
    let widest = panels.iter().map(|p| p.shape[1]).max().unwrap_or(1);
    let zoom = least.div_ceil(widest.max(1)).clamp(1, 16);
    let drawn: Vec<Canvas> = panels.iter().map(|p| p.draw(zoom)).collect();
    let width = drawn.iter().map(Canvas::width).max().unwrap_or(0);
    let height = drawn.iter().map(Canvas::height).max().unwrap_or(0);
    let size = letters(width);
    let gap = 4 * size;
    let head = text_height(size) + 2 * gap;
    let rows = panels.len().div_ceil(columns);
    let mut canvas = Canvas::new(columns * (width + gap) + gap, rows * (height + head) + gap, WHITE);
    for (i, (panel, picture)) in panels.iter().zip(&drawn).enumerate() {
        let (x, y) = (gap + i % columns * (width + gap), i / columns * (height + head));
        // What is too long for the panel loses its end.
        let fits = (width + size) / text_width("mm", size).saturating_sub(text_width("m", size)).max(1);
        let label: String = panel.label.chars().take(fits).collect();
        canvas.text(x, y + gap, size, BLACK, &label);
        canvas.place(x, y + head, picture);
    }
    canvas
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
