//! Views of an image: tiles, profiles along a line, a histogram. All of them read regions, from the pyramid of the file if
//! it has one, and memory does not depend on the size of the file.

use crate::refusal::{Refusal, of_image};
use clearshot_image::{Axis, Description, Image};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Pixels of a tile's side.
pub const TILE: usize = 256;
/// Values that are read at a time, and those from which on a tile is made of some rows only.
const AT_ONCE: usize = 4 << 20;
const MOST_READ: usize = 64 << 20;
/// Images that are kept open.
const OPEN: usize = 8;
/// Points of a profile, at most, and of them those that are read together.
const MOST_POINTS: usize = 4096;
const TOGETHER: usize = 128;
const BINS: usize = 256;

/// An opened image under its path, its item and what tells that the file is another one now.
type Opened = (PathBuf, Option<String>, Option<SystemTime>, u64, Arc<Image>);

#[derive(Default)]
pub struct Viewer {
    open: Mutex<VecDeque<Opened>>,
}

impl Viewer {
    /// # Errors
    /// If it is not an image.
    pub fn open(&self, path: &Path, item: Option<&str>) -> Result<Arc<Image>, Refusal> {
        let about = fs::metadata(path).map_err(|_| Refusal::ours())?;
        let (changed, bytes) = (about.modified().ok(), about.len());
        let lock = || self.open.lock().unwrap_or_else(|e| e.into_inner());
        let is_it = |o: &Opened| o.0 == path && o.1.as_deref() == item && o.2 == changed && o.3 == bytes;
        let found = {
            let mut open = lock();
            open.iter().position(is_it).and_then(|at| open.remove(at))
        };
        // Others are not kept waiting while a file is opened.
        let opened = match found {
            Some(opened) => opened,
            None => {
                let image = Image::open_named(path, item).map_err(|e| of_image(&e, path))?;
                (path.to_path_buf(), item.map(str::to_string), changed, bytes, Arc::new(image))
            }
        };
        let mut open = lock();
        let image = Arc::clone(&opened.4);
        open.push_back(opened);
        if open.len() > OPEN {
            open.pop_front();
        }
        Ok(image)
    }
}

/// A plane of an image: one position along every axis but Y and X.
pub struct Plane<'i> {
    image: &'i Image,
    at: Vec<usize>,
    y: usize,
    x: usize,
}

/// Values of a part of a plane, row after row.
pub struct Part {
    pub values: Vec<f32>,
    pub height: usize,
    pub width: usize,
}

impl<'i> Plane<'i> {
    /// `at` is as in `C1,Z12`; axes that are not named are at 0, or in the middle for Z.
    ///
    /// # Errors
    /// If there is no such plane.
    pub fn new(image: &'i Image, at: &str) -> Result<Plane<'i>, Refusal> {
        let d = &image.description;
        let (Some(y), Some(x)) = (d.position(Axis::Y), d.position(Axis::X)) else {
            return Err(Refusal::new(422, format!("axes {}: a picture needs Y and X", d.axes())));
        };
        let middle = |axis, len: usize| if axis == Axis::Z { len / 2 } else { 0 };
        let mut position: Vec<usize> = d.dims.iter().map(|dim| middle(dim.axis, dim.len)).collect();
        for part in at.split(',').filter(|p| !p.is_empty()) {
            let wrong = || {
                Refusal::bad(format!(
                    "at={part}: there is no such plane; axes and their lengths are {}",
                    sizes(d)
                ))
            };
            let letter = part.chars().next().and_then(Axis::from_letter).ok_or_else(wrong)?;
            let number: usize = part[1..].parse().map_err(|_| wrong())?;
            let axis = d.position(letter).filter(|&a| a != y && a != x).ok_or_else(wrong)?;
            if number >= d.dims[axis].len {
                return Err(wrong());
            }
            position[axis] = number;
        }
        Ok(Plane { image, at: position, y, x })
    }

    pub fn size(&self) -> [usize; 2] {
        let shape = self.image.shape();
        [shape[self.y], shape[self.x]]
    }

    /// Values of a region of a level, row after row.
    fn read(&self, level: usize, rows: Range<usize>, columns: Range<usize>) -> Result<Vec<f64>, Refusal> {
        let mut region: Vec<Range<usize>> = self.at.iter().map(|&a| a..a + 1).collect();
        let (height, width) = (rows.len(), columns.len());
        (region[self.y], region[self.x]) = (rows, columns);
        let refuse = |e| of_image(&e, &self.image.description.path);
        let values = self.image.decode(&self.image.read_level(level, &region).map_err(refuse)?);
        if self.y < self.x {
            return Ok(values);
        }
        Ok((0..height * width).map(|i| values[i % width * height + i / width]).collect())
    }

    /// The coarsest level of the file whose pixels are at most `scale` of the full image's wide, and how wide they are.
    fn level(&self, scale: usize) -> (usize, usize) {
        let levels = &self.image.description.levels;
        let factor = |level: &Vec<usize>| {
            let by = (levels[0][self.x] as f64 / level[self.x].max(1) as f64).round() as usize;
            let fits = |a: usize| {
                let n = if a == self.y || a == self.x { levels[0][a] / by.max(1) } else { levels[0][a] };
                level[a].abs_diff(n) <= usize::from(a == self.y || a == self.x)
            };
            (by.is_power_of_two() && by <= scale && (0..level.len()).all(fits)).then_some(by)
        };
        let usable = levels.iter().enumerate().filter_map(|(n, level)| factor(level).map(|by| (n, by)));
        usable.max_by_key(|(_, by)| *by).unwrap_or((0, 1))
    }

    /// Means over squares of `2^zoom` pixels: the tile in this column and row. Where more than 64 million values would be read for it, only the middle
    /// row of each square is. Squares without a finite value are NaN.
    ///
    /// # Errors
    /// If there is no such tile, or the file cannot be read.
    pub fn tile(&self, zoom: u32, column: usize, row: usize) -> Result<Part, Refusal> {
        let outside = || Refusal::new(404, "there is no such tile");
        let scale = 1usize.checked_shl(zoom).filter(|_| zoom <= 24).ok_or_else(outside)?;
        let (level, by) = self.level(scale);
        let shape = &self.image.description.levels[level];
        let (height, width, step) = (shape[self.y], shape[self.x], scale / by);
        let span = |n: usize, len: usize| {
            let first = n.checked_mul(TILE * step).filter(|f| *f < len)?;
            Some(first..(first + TILE * step).min(len))
        };
        let (rows, columns) =
            (span(row, height).ok_or_else(outside)?, span(column, width).ok_or_else(outside)?);
        let out = [rows.len().div_ceil(step), columns.len().div_ceil(step)];
        let few = rows.len().saturating_mul(columns.len()) > MOST_READ;
        let mut sums = vec![[0f64; 2]; out[0] * out[1]];
        let band = match few {
            true => 1,
            false => (AT_ONCE / columns.len().max(1)).max(1),
        };
        let mut first = rows.start + if few { (step / 2).min(rows.len() - 1) } else { 0 };
        while first < rows.end {
            let end = (first + band).min(rows.end);
            let values = self.read(level, first..end, columns.clone())?;
            for (i, v) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
                let y = (first + i / columns.len() - rows.start) / step;
                let [sum, count] = &mut sums[y * out[1] + i % columns.len() / step];
                (*sum, *count) = (*sum + v, *count + 1.0);
            }
            first = if few { first + step } else { end };
        }
        let values = sums.iter().map(|[sum, count]| (sum / count) as f32).collect();
        Ok(Part { values, height: out[0], width: out[1] })
    }

    /// Values along a line between centres of pixels, linearly between neighbours, one a pixel's length.
    ///
    /// # Errors
    /// If the line leaves the image or is too long.
    pub fn profile(&self, from: [f64; 2], to: [f64; 2]) -> Result<Vec<f32>, Refusal> {
        let size = self.size();
        let inside = |p: &[f64; 2]| (0..2).all(|a| p[a] >= 0.0 && p[a] <= (size[a] - 1) as f64);
        if !(inside(&from) && inside(&to)) {
            return Err(Refusal::bad("the line leaves the image"));
        }
        let length = (from[0] - to[0]).hypot(from[1] - to[1]);
        let points = (length.ceil() as usize + 1).min(MOST_POINTS);
        let place = |i: usize| {
            let part = i as f64 / (points - 1).max(1) as f64;
            [0, 1].map(|a| (from[a] + (to[a] - from[a]) * part).clamp(0.0, (size[a] - 1) as f64))
        };
        let mut out = Vec::with_capacity(points);
        let mut first = 0;
        while first < points {
            // As many points as lie in a box that is not too large.
            let mut many = TOGETHER.min(points - first);
            let bounds = |many: usize| {
                let (a, b) = (place(first), place(first + many - 1));
                [0, 1].map(|i| {
                    let low = a[i].min(b[i]).floor() as usize;
                    low..((a[i].max(b[i]).floor() as usize) + 2).min(size[i])
                })
            };
            while many > 1 && bounds(many).iter().map(ExactSizeIterator::len).product::<usize>() > AT_ONCE {
                many /= 2;
            }
            let [rows, columns] = bounds(many);
            let values = self.read(0, rows.clone(), columns.clone())?;
            for i in first..first + many {
                let [y, x] = place(i);
                let [top, left] = [y.floor() as usize, x.floor() as usize];
                let at = |dy: usize, dx: usize| {
                    let (r, c) = ((top + dy).min(rows.end - 1), (left + dx).min(columns.end - 1));
                    values[(r - rows.start) * columns.len() + c - columns.start]
                };
                let (py, px) = (y - top as f64, x - left as f64);
                let mix =
                    |a: f64, b: f64, part: f64| if part == 0.0 { a } else { a * (1.0 - part) + b * part };
                out.push(mix(mix(at(0, 0), at(0, 1), px), mix(at(1, 0), at(1, 1), px), py) as f32);
            }
            first += many;
        }
        Ok(out)
    }

    /// A tile, without what another plane of the same size has there.
    ///
    /// # Errors
    /// If a file cannot be read, or the planes differ in size.
    pub fn tile_less(
        &self,
        other: Option<&Plane<'_>>,
        zoom: u32,
        column: usize,
        row: usize,
    ) -> Result<Part, Refusal> {
        let mut part = self.tile(zoom, column, row)?;
        if let Some(other) = other {
            let other = other.tile(zoom, column, row)?;
            if (other.height, other.width) != (part.height, part.width) {
                return Err(Refusal::bad("the files have not the same size"));
            }
            part.values.iter_mut().zip(&other.values).for_each(|(a, b)| *a -= b);
        }
        Ok(part)
    }

    /// Counts of values between the least and the greatest, and percentiles, of the plane at a size that a screen has; without
    /// what another plane has.
    ///
    /// # Errors
    /// If a file cannot be read, or the planes differ in size.
    pub fn histogram(&self, other: Option<&Plane<'_>>) -> Result<Value, Refusal> {
        let [height, width] = self.size();
        let mut zoom = 0;
        while (height >> zoom).max(width >> zoom) > 1024 {
            zoom += 1;
        }
        let mut values = Vec::new();
        for row in 0..(height.div_ceil(TILE << zoom)) {
            for column in 0..(width.div_ceil(TILE << zoom)) {
                let part = self.tile_less(other, zoom, column, row)?;
                values.extend(part.values.into_iter().filter(|v| v.is_finite()));
            }
        }
        if values.is_empty() {
            return Ok(json!({"count": 0}));
        }
        values.sort_by(f32::total_cmp);
        let at = |p: f64| values[((values.len() - 1) as f64 * p / 100.0).round() as usize];
        let (low, high) = (at(0.0), at(100.0));
        let mut bins = vec![0u32; BINS];
        for v in &values {
            let share = if high > low { (v - low) / (high - low) } else { 0.0 };
            bins[((share * BINS as f32) as usize).min(BINS - 1)] += 1;
        }
        Ok(json!({
            "count": values.len(), "min": low, "max": high, "p0.1": at(0.1), "p50": at(50.0), "p99.9": at(99.9), "bins": bins,
        }))
    }
}

fn sizes(d: &Description) -> String {
    d.dims.iter().map(|dim| format!("{}{}", dim.axis.letter(), dim.len)).collect::<Vec<_>>().join(",")
}

/// The description of an image for the viewer.
pub fn describe(image: &Image) -> Value {
    let d = &image.description;
    let dims: Vec<Value> = d
        .dims
        .iter()
        .map(
            |m| json!({"axis": m.axis.letter().to_string(), "length": m.len, "step": m.step, "unit": m.unit}),
        )
        .collect();
    let channels: Vec<Value> = d
        .channels
        .iter()
        .map(|c| json!({"name": c.name, "color": c.color, "emission_nm": c.emission_nm}))
        .collect();
    json!({
        "name": d.path.file_name().map(|n| n.to_string_lossy()), "format": d.format, "axes": d.axes(), "shape": d.shape(),
        "dims": dims, "dtype": d.dtype.name(), "bits": d.bits, "channels": channels, "levels": d.levels,
        "items": d.items, "item": d.item, "tile": TILE, "warnings": d.warnings, "provenance": d.provenance,
    })
}
