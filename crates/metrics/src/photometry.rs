//! Brightness of sources, and the share that is found: aperture sums and completeness.
//!
//! A pixel counts with the exact share of its area inside the circle, so the area of the aperture is pi r^2 for every
//! position of its centre. Coordinates are `[y, x]` in pixels; pixel 0 covers -0.5 to 0.5. The background is the median of
//! an annulus, on which a few neighbours have little effect.

use crate::error::{require, require_positive};
use crate::{ImageRef, MetricError};

/// The sum over a circle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aperture {
    /// NaN if a pixel that the circle touches is.
    pub sum: f64,
    /// How much of the circle lies in the image, in pixels: less than pi r^2 at the border.
    pub area: f64,
}

/// Sums a plane over a circle.
///
/// # Errors
/// If the image is a volume, the radius is not above zero, or the centre is not finite.
pub fn aperture(image: ImageRef<'_>, centre: [f64; 2], radius: f64) -> Result<Aperture, MetricError> {
    let [h, w] = image.plane()?;
    check_circle(centre, radius)?;
    let mut total = Aperture { sum: 0.0, area: 0.0 };
    for y in span(centre[0], radius, h) {
        for x in span(centre[1], radius, w) {
            let area = overlap(y as f64 - centre[0], x as f64 - centre[1], radius);
            if area > 0.0 {
                total.sum += area * image.data()[y * w + x];
                total.area += area;
            }
        }
    }
    Ok(total)
}

fn check_circle(centre: [f64; 2], radius: f64) -> Result<(), MetricError> {
    require_positive("the radius", radius)?;
    centre.iter().try_for_each(|&c| require(c.is_finite(), "the centre", c, "a finite place"))
}

/// The pixels of an axis that may touch the circle; casts to whole numbers stop at the ends.
fn span(centre: f64, radius: f64, n: usize) -> std::ops::Range<usize> {
    let (first, end) = ((centre - radius - 0.5).floor(), (centre + radius + 1.5).ceil());
    (first as usize).min(n)..(end as usize).min(n)
}

/// The area that a circle about the origin has in common with the unit square about (y, x).
fn overlap(y: f64, x: f64, r: f64) -> f64 {
    let (y0, y1) = (y - 0.5, y + 0.5);
    let (x0, x1) = ((x - 0.5).max(-r), (x + 0.5).min(r));
    let half = |x: f64| (r * r - x * x).max(0.0).sqrt();
    // The primitive of the half chord.
    let under = |x: f64| 0.5 * (x * half(x) + r * r * (x / r).clamp(-1.0, 1.0).asin());
    // Where the circle crosses the square's horizontal sides; between these, each end of the chord is
    // bounded either by the circle or by the side.
    let mut cuts = vec![x0, x1];
    for side in [y0, y1].into_iter().filter(|s| s.abs() < r) {
        cuts.extend([-half(side), half(side)].iter().filter(|&&c| c > x0 && c < x1));
    }
    cuts.sort_by(f64::total_cmp);
    let part = |from: f64, to: f64| {
        let chord = half(0.5 * (from + to));
        if to <= from || chord.min(y1) <= (-chord).max(y0) {
            return 0.0;
        }
        let (arc, width) = (under(to) - under(from), to - from);
        let top = if chord < y1 { arc } else { y1 * width };
        let bottom = if -chord > y0 { -arc } else { y0 * width };
        top - bottom
    };
    if x0 < x1 { cuts.windows(2).map(|c| part(c[0], c[1])).sum() } else { 0.0 }
}

/// A source above its background.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flux {
    /// The aperture's sum less the background under it.
    pub flux: f64,
    /// A pixel's background.
    pub background: f64,
    pub area: f64,
}

/// The flux in a circle over the median of the pixels whose centres lie `inner..=outer` away.
///
/// # Errors
/// As [`aperture`], or if the annulus holds no pixel or a NaN.
pub fn flux(
    image: ImageRef<'_>,
    centre: [f64; 2],
    radius: f64,
    inner: f64,
    outer: f64,
) -> Result<Flux, MetricError> {
    let Aperture { sum, area } = aperture(image, centre, radius)?;
    check_circle(centre, outer)?;
    let [h, w] = image.plane()?;
    let mut ring = vec![];
    for y in span(centre[0], outer, h) {
        for x in span(centre[1], outer, w) {
            let away = (y as f64 - centre[0]).hypot(x as f64 - centre[1]);
            if (inner..=outer).contains(&away) {
                ring.push(image.data()[y * w + x]);
            }
        }
    }
    if ring.is_empty() {
        return Err(MetricError::Count { what: "the annulus", got: 0, needed: "one pixel or more" });
    }
    require(!ring.iter().any(|x| x.is_nan()), "a pixel of the annulus", f64::NAN, "a number")?;
    ring.sort_by(f64::total_cmp);
    let background = 0.5 * (ring[(ring.len() - 1) / 2] + ring[ring.len() / 2]);
    Ok(Flux { flux: sum - background * area, background, area })
}

/// A source that is known to be there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Source {
    pub centre: [f64; 2],
    pub flux: f64,
}

/// Which sources were found.
#[derive(Clone, Debug, PartialEq)]
pub struct Matches {
    /// For each source the detection that is its own, if any.
    pub of_source: Vec<Option<usize>>,
    /// Detections that belong to no source.
    pub spurious: usize,
}

impl Matches {
    /// The share of sources with a flux in `low..high` that were found; NaN if there are none.
    pub fn completeness(&self, sources: &[Source], low: f64, high: f64) -> f64 {
        let within = sources.iter().zip(&self.of_source).filter(|(s, _)| s.flux >= low && s.flux < high);
        let (found, all) = within.fold((0u32, 0u32), |(f, n), (_, m)| (f + u32::from(m.is_some()), n + 1));
        f64::from(found) / f64::from(all)
    }
}

/// Gives detections to sources, the nearest pairs first, each once and none farther than `radius`.
///
/// # Errors
/// If the radius is not above zero.
pub fn match_sources(sources: &[Source], found: &[[f64; 2]], radius: f64) -> Result<Matches, MetricError> {
    require_positive("the radius", radius)?;
    let away = |s: &Source, f: &[f64; 2]| (s.centre[0] - f[0]).hypot(s.centre[1] - f[1]);
    let mut pairs: Vec<(f64, usize, usize)> = vec![];
    for (i, s) in sources.iter().enumerate() {
        let near = found.iter().enumerate().map(|(j, f)| (away(s, f), i, j));
        pairs.extend(near.filter(|&(d, ..)| d <= radius));
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut taken = vec![false; found.len()];
    let mut of_source = vec![None; sources.len()];
    for (_, i, j) in pairs {
        if of_source[i].is_none() && !taken[j] {
            (of_source[i], taken[j]) = (Some(j), true);
        }
    }
    Ok(Matches { of_source, spurious: taken.iter().filter(|&&t| !t).count() })
}

#[cfg(test)]
#[path = "photometry_tests.rs"]
mod tests;
