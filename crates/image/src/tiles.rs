//! Cuts images into tiles of one shape, and stitches tiles.
//!
//! A [`Tiling`] defines the positions of tiles: along each axis they are a stride apart and overlap; at the far edge the
//! last one is shifted inward, or extends beyond the edge, where the image is reflected. A [`Stitcher`] blends results with
//! windows. It holds one row of tiles and passes on what no later tile can change. Blending is a running weighted mean, so
//! where overlapping tiles agree the result is bit-identical to their value.

use crate::error::{Error, Result, request};
use crate::grid::{Region, indices, strides};
use crate::image::Image;
use crate::writer::Writer;
use std::ops::Range;

/// What a tile sees beyond the image's edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Nothing: the last tile is moved inward. An axis shorter than a tile is reflected all the same.
    Shift,
    /// The image reflected, the edge pixel not repeated.
    Reflect,
}

/// How much a pixel of a tile counts where tiles overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// Falls off over the overlap in a straight line.
    Linear,
    /// Falls off over the overlap as a squared cosine.
    Cosine,
    /// A Gaussian over the whole tile, with this part of its length as standard deviation.
    Gaussian(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TileSpec {
    /// One length and one overlap an axis of the image.
    pub tile: Vec<usize>,
    pub overlap: Vec<usize>,
    pub edge: Edge,
    pub window: Window,
}

/// One tile: which it is along each axis, and where in the image its first pixel lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    pub index: Vec<usize>,
    pub origin: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Tiling {
    pub shape: Vec<usize>,
    pub tile: Vec<usize>,
    starts: Vec<Vec<usize>>,
    windows: Vec<Vec<f64>>,
}

impl Tiling {
    /// # Errors
    /// When lengths do not match the image's axes, are zero, or overlaps are not shorter than tiles.
    pub fn new(shape: &[usize], spec: &TileSpec) -> Result<Tiling> {
        let rank = shape.len();
        if spec.tile.len() != rank || spec.overlap.len() != rank {
            return request(format!(
                "tiles of {:?} overlapping by {:?} for an image of shape {shape:?}: one number an axis is needed",
                spec.tile, spec.overlap
            ));
        }
        for a in 0..rank {
            if spec.tile[a] == 0 || shape[a] == 0 || spec.overlap[a] >= spec.tile[a] {
                return request(format!(
                    "axis {a} of length {} in tiles of {} overlapping by {}",
                    shape[a], spec.tile[a], spec.overlap[a]
                ));
            }
        }
        let starts = (0..rank).map(|a| starts(shape[a], spec.tile[a], spec.overlap[a], spec.edge)).collect();
        let windows = (0..rank).map(|a| window(spec.tile[a], spec.overlap[a], spec.window)).collect();
        Ok(Tiling { shape: shape.to_vec(), tile: spec.tile.clone(), starts, windows })
    }

    /// How many tiles there are along each axis.
    pub fn counts(&self) -> Vec<usize> {
        self.starts.iter().map(Vec::len).collect()
    }

    pub fn count(&self) -> usize {
        self.counts().iter().product()
    }

    /// All tiles in row-major order, which is the order in which a [`Stitcher`] takes them.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        let counts = self.counts();
        (0..self.count()).map(move |mut number| {
            let mut index = vec![0; counts.len()];
            for a in (0..counts.len()).rev() {
                index[a] = number % counts[a];
                number /= counts[a];
            }
            let origin = index.iter().zip(&self.starts).map(|(&i, s)| s[i]).collect();
            Tile { index, origin }
        })
    }

    /// The part of the image that a tile covers.
    pub fn region(&self, tile: &Tile) -> Vec<Range<usize>> {
        (0..self.shape.len())
            .map(|a| tile.origin[a]..(tile.origin[a] + self.tile[a]).min(self.shape[a]))
            .collect()
    }

    /// The stored values of a tile, reflected where it hangs over.
    pub fn read(&self, image: &Image, tile: &Tile) -> Result<Vec<f64>> {
        let region = self.region(tile);
        let inside: Vec<usize> = region.iter().map(|r| r.len()).collect();
        // Reflection may reach further back than the covered part.
        let wide: Vec<Range<usize>> =
            (0..region.len())
                .map(|a| {
                    if inside[a] < self.tile[a] {
                        self.reflected(a, tile.origin[a])
                    } else {
                        region[a].clone()
                    }
                })
                .collect();
        let bytes = image.read(&wide)?;
        let mut values = Vec::new();
        image.dtype().decode(&bytes, &mut values);
        if inside == self.tile {
            return Ok(values);
        }
        let shape: Vec<usize> = wide.iter().map(|r| r.len()).collect();
        let maps: Vec<Vec<usize>> = (0..shape.len())
            .map(|a| {
                (0..self.tile[a])
                    .map(|i| reflect(tile.origin[a] + i, self.shape[a]) - wide[a].start)
                    .collect()
            })
            .collect();
        Ok(gather(&values, &shape, &maps))
    }

    /// What an axis of a tile that hangs over reads.
    fn reflected(&self, axis: usize, origin: usize) -> Range<usize> {
        let read = (0..self.tile[axis]).map(|i| reflect(origin + i, self.shape[axis]));
        let (low, high) = read.fold((usize::MAX, 0), |(low, high), i| (low.min(i), high.max(i)));
        low..high + 1
    }

    /// Whether tiles share pixels along an axis.
    fn overlaps(&self, axis: usize) -> bool {
        self.starts[axis].windows(2).any(|pair| pair[1] < pair[0] + self.tile[axis])
    }
}

fn starts(len: usize, tile: usize, overlap: usize, edge: Edge) -> Vec<usize> {
    if len <= tile {
        return vec![0];
    }
    let stride = tile - overlap;
    let count = (len - tile).div_ceil(stride) + 1;
    (0..count)
        .map(|i| match edge {
            Edge::Shift => (i * stride).min(len - tile),
            Edge::Reflect => i * stride,
        })
        .collect()
}

fn window(tile: usize, overlap: usize, window: Window) -> Vec<f64> {
    (0..tile)
        .map(|i| {
            let ramp = ((i.min(tile - 1 - i) + 1) as f64 / (overlap + 1) as f64).min(1.0);
            match window {
                Window::Linear => ramp,
                Window::Cosine => (ramp * std::f64::consts::FRAC_PI_2).sin().powi(2),
                Window::Gaussian(sigma) => {
                    let z = (i as f64 - (tile - 1) as f64 / 2.0) / (sigma * tile as f64);
                    (-0.5 * z * z).exp().max(1e-6)
                }
            }
        })
        .collect()
}

/// An index reflected into `0..len`, edge pixels not repeated.
fn reflect(i: usize, len: usize) -> usize {
    if len == 1 {
        return 0;
    }
    let period = 2 * (len - 1);
    let i = i % period;
    if i < len { i } else { period - i }
}

/// Element `maps[a][i_a]` of each axis, for every index of the result.
fn gather(values: &[f64], shape: &[usize], maps: &[Vec<usize>]) -> Vec<f64> {
    let from = strides(shape);
    let Some((last, outer)) = maps.split_last() else { return values.to_vec() };
    let ranges: Vec<Range<usize>> = outer.iter().map(|m| 0..m.len()).collect();
    let mut out = Vec::with_capacity(maps.iter().map(Vec::len).product());
    for index in indices(&ranges) {
        let base: usize = index.iter().enumerate().map(|(a, &i)| outer[a][i] * from[a]).sum();
        out.extend(last.iter().map(|&i| values[base + i]));
    }
    out
}

/// Takes results in the order of [`Tiling::tiles`] and hands on finished regions.
pub struct Stitcher<'a> {
    tiling: &'a Tiling,
    /// The axis along which a row of tiles moves; axes before it do not overlap.
    band: usize,
    mean: Vec<f64>,
    weight: Vec<f64>,
    /// What the buffers cover now; empty before the first tile.
    covers: Vec<Range<usize>>,
    next: usize,
    /// How many tiles come.
    count: usize,
}

type Emit<'e> = dyn FnMut(&Region, &[f64]) -> Result<()> + 'e;

impl<'a> Stitcher<'a> {
    pub fn new(tiling: &'a Tiling) -> Stitcher<'a> {
        Stitcher::of_some(tiling, tiling.count())
    }

    /// For so many of the tiles, in their order; what other tiles would add to the regions that are handed on is missing there.
    pub fn of_some(tiling: &'a Tiling, count: usize) -> Stitcher<'a> {
        let rank = tiling.shape.len();
        let band = (0..rank).find(|&a| tiling.overlaps(a)).unwrap_or(rank.saturating_sub(2));
        Stitcher { tiling, band, mean: Vec::new(), weight: Vec::new(), covers: Vec::new(), next: 0, count }
    }

    /// Bytes that the buffers take: a row of tiles, whatever the image's length.
    pub fn bytes(&self) -> usize {
        let size = |a: usize| if a <= self.band { self.tiling.tile[a] } else { self.tiling.shape[a] };
        (0..self.tiling.shape.len()).map(size).product::<usize>() * 16
    }

    /// Adds a tile's result; `emit` gets the regions that are finished with it.
    pub fn add(&mut self, tile: &Tile, values: &[f64], emit: &mut Emit) -> Result<()> {
        let t = self.tiling;
        let expected: usize = t.tile.iter().product();
        if values.len() != expected {
            return Err(Error::Length { expected, got: values.len() });
        }
        let region = t.region(tile);
        self.move_to(tile, &region, emit)?;
        let shape: Vec<usize> = self.covers.iter().map(|r| r.len()).collect();
        let to = strides(&shape);
        let from = strides(&t.tile);
        let last = region.len() - 1;
        let outer: Vec<Range<usize>> = region[..last].iter().map(|r| 0..r.len()).collect();
        let columns = region[last].len();
        for index in indices(&outer) {
            let weight: f64 = index.iter().enumerate().map(|(a, &i)| t.windows[a][i]).product();
            let source: usize = index.iter().zip(&from).map(|(i, s)| i * s).sum();
            let place: usize = index
                .iter()
                .enumerate()
                .map(|(a, &i)| (region[a].start + i - self.covers[a].start) * to[a])
                .sum::<usize>()
                + region[last].start
                - self.covers[last].start;
            for x in 0..columns {
                let w = weight * t.windows[last][x];
                let total = &mut self.weight[place + x];
                *total += w;
                let mean = &mut self.mean[place + x];
                let value = values[source + x];
                // Equal values are copied, so that infinities are preserved.
                let agrees = *total == w || value == *mean;
                *mean = if agrees { value } else { *mean + (value - *mean) * (w / *total) };
            }
        }
        self.next += 1;
        if self.next == self.count {
            self.flush(usize::MAX, emit)?;
        }
        Ok(())
    }

    /// Makes the buffers cover a tile's row, handing on what that row leaves behind.
    fn move_to(&mut self, tile: &Tile, region: &Region, emit: &mut Emit) -> Result<()> {
        let t = self.tiling;
        let same_slab = !self.covers.is_empty() && (0..self.band).all(|a| self.covers[a] == region[a]);
        let start = tile.origin[self.band];
        if same_slab && self.covers[self.band].start == start {
            return Ok(());
        }
        if same_slab {
            self.flush(start, emit)?;
        } else {
            self.flush(usize::MAX, emit)?;
        }
        let covers: Vec<Range<usize>> = (0..t.shape.len())
            .map(|a| if a <= self.band { region[a].clone() } else { 0..t.shape[a] })
            .collect();
        let size: usize = covers.iter().map(|r| r.len()).product();
        let mut mean = vec![0.0; size];
        let mut weight = vec![0.0; size];
        if same_slab {
            // What of the last row the next one still touches.
            let shape = |c: &[Range<usize>]| -> Vec<usize> { c.iter().map(|r| r.len()).collect() };
            let common = crate::grid::intersect(&self.covers, &covers);
            let (old, new) = (strides(&shape(&self.covers)), strides(&shape(&covers)));
            let inner: usize = covers[self.band + 1..].iter().map(|r| r.len()).product();
            let ranges: Vec<Range<usize>> = common[..=self.band].to_vec();
            for index in indices(&ranges) {
                let at = |c: &[Range<usize>], s: &[usize]| -> usize {
                    index.iter().enumerate().map(|(a, &i)| (i - c[a].start) * s[a]).sum()
                };
                let (from, to) = (at(&self.covers, &old), at(&covers, &new));
                mean[to..to + inner].copy_from_slice(&self.mean[from..from + inner]);
                weight[to..to + inner].copy_from_slice(&self.weight[from..from + inner]);
            }
        }
        self.mean = mean;
        self.weight = weight;
        self.covers = covers;
        Ok(())
    }

    /// Hands on what lies before `end` along the band's axis.
    fn flush(&mut self, end: usize, emit: &mut Emit) -> Result<()> {
        if self.covers.is_empty() {
            return Ok(());
        }
        let band = self.covers[self.band].clone();
        let done = band.start..end.clamp(band.start, band.end);
        if done.is_empty() {
            return Ok(());
        }
        let mut region = self.covers.clone();
        region[self.band] = done.clone();
        let inner: usize = self.covers[self.band + 1..].iter().map(|r| r.len()).product();
        let outer: usize = self.covers[..self.band].iter().map(|r| r.len()).product();
        if done == band {
            return emit(&region, &self.mean);
        }
        let mut part = Vec::with_capacity(outer * done.len() * inner);
        for o in 0..outer {
            let base = o * band.len() * inner;
            part.extend_from_slice(&self.mean[base..base + done.len() * inner]);
        }
        emit(&region, &part)
    }
}

/// What a tiled run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileReport {
    pub tiles: usize,
    /// Values that were clipped to the output's type, or NaN.
    pub clipped: usize,
}

/// The processing of a tile's values.
pub type Work<'w> = dyn FnMut(&Tile, Vec<f64>) -> Result<Vec<f64>> + 'w;

/// Reads tiles, works on each, and writes the stitched result in the image's own type. `work` gets stored
/// values and gives as many.
pub fn process(image: &Image, writer: &mut Writer, spec: &TileSpec, work: &mut Work) -> Result<TileReport> {
    let tiling = Tiling::new(&image.shape(), spec)?;
    let mut stitcher = Stitcher::new(&tiling);
    let mut report = TileReport::default();
    let dtype = image.dtype();
    for tile in tiling.tiles() {
        let values = work(&tile, tiling.read(image, &tile)?)?;
        let mut bytes = Vec::new();
        stitcher.add(&tile, &values, &mut |region, values| {
            bytes.clear();
            report.clipped += dtype.encode(values, &mut bytes);
            writer.write(region, &bytes)
        })?;
        report.tiles += 1;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// Cuts an array that is in memory, as `Tiling::read` cuts an image.
    fn cut(tiling: &Tiling, values: &[f64], tile: &Tile) -> Vec<f64> {
        let maps: Vec<Vec<usize>> = (0..tiling.shape.len())
            .map(|a| (0..tiling.tile[a]).map(|i| reflect(tile.origin[a] + i, tiling.shape[a])).collect())
            .collect();
        gather(values, &tiling.shape, &maps)
    }

    fn stitch(
        tiling: &Tiling,
        values: &[f64],
        work: impl Fn(&Tile, Vec<f64>) -> Vec<f64>,
    ) -> (Vec<f64>, Vec<u32>) {
        let mut out = vec![f64::NAN; values.len()];
        let mut seen = vec![0; values.len()];
        let s = strides(&tiling.shape);
        let mut stitcher = Stitcher::new(tiling);
        let limit = stitcher.bytes();
        for tile in tiling.tiles() {
            let result = work(&tile, cut(tiling, values, &tile));
            stitcher
                .add(&tile, &result, &mut |region, part| {
                    for (index, v) in indices(region).iter().zip(part) {
                        let at: usize = index.iter().zip(&s).map(|(i, s)| i * s).sum();
                        out[at] = *v;
                        seen[at] += 1;
                    }
                    Ok(())
                })
                .unwrap();
            assert!(stitcher.mean.len() * 16 <= limit);
        }
        (out, seen)
    }

    fn cases() -> Vec<(Vec<usize>, TileSpec)> {
        let mut list = Vec::new();
        for edge in [Edge::Shift, Edge::Reflect] {
            for window in [Window::Linear, Window::Cosine, Window::Gaussian(0.125)] {
                for (shape, tile, overlap) in [
                    (vec![100, 75], vec![32, 32], vec![8, 8]),
                    (vec![31, 200], vec![16, 64], vec![5, 0]),
                    (vec![5, 7], vec![8, 8], vec![2, 3]),
                    (vec![2, 3, 40, 41], vec![1, 1, 16, 16], vec![0, 0, 4, 15]),
                    (vec![9, 20, 23], vec![4, 8, 8], vec![1, 2, 7]),
                    (vec![3, 17, 19], vec![2, 8, 8], vec![0, 0, 0]),
                    (vec![1, 1], vec![4, 4], vec![1, 1]),
                ] {
                    list.push((shape, TileSpec { tile, overlap, edge, window }));
                }
            }
        }
        list
    }

    #[test]
    fn identity_is_exact_and_every_pixel_comes_once() {
        for (shape, spec) in cases() {
            let tiling = Tiling::new(&shape, &spec).unwrap();
            let count = shape.iter().product();
            let mut noise = vec![0.0f32; count];
            Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut noise);
            // Values with all bits of an f64 in use.
            let values: Vec<f64> = noise.iter().map(|&v| (f64::from(v) * 1.234_567_890_123).exp()).collect();
            let (out, seen) = stitch(&tiling, &values, |_, v| v);
            assert!(seen.iter().all(|&n| n == 1), "{shape:?} {spec:?}");
            assert_eq!(out, values, "{shape:?} {spec:?}");
        }
    }

    #[test]
    fn constants_stay_and_ramps_have_no_seam() {
        for (shape, spec) in cases() {
            let tiling = Tiling::new(&shape, &spec).unwrap();
            let count: usize = shape.iter().product();
            let (out, _) = stitch(&tiling, &vec![0.1; count], |_, v| v);
            assert!(out.iter().all(|&v| v == 0.1), "{shape:?} {spec:?}");
            // A ramp in absolute coordinates, computed by each tile from its origin.
            let full = tiling.tile.clone();
            let ramp = |origin: &[usize], size: &[usize]| -> Vec<f64> {
                let ranges: Vec<_> = size.iter().map(|&n| 0..n).collect();
                indices(&ranges)
                    .iter()
                    .map(|i| {
                        i.iter()
                            .zip(origin)
                            .enumerate()
                            .map(|(a, (i, o))| (a + 1) as f64 * (i + o) as f64 / 7.0)
                            .sum()
                    })
                    .collect()
            };
            let truth = ramp(&vec![0; shape.len()], &shape);
            let (out, _) = stitch(&tiling, &vec![0.0; count], |tile, _| ramp(&tile.origin, &full));
            for (o, t) in out.iter().zip(&truth) {
                assert!((o - t).abs() <= 1e-9 * t.abs().max(1.0), "{shape:?} {spec:?}: {o} {t}");
            }
        }
    }

    #[test]
    fn disagreeing_tiles_are_weighted_by_their_windows() {
        let spec = TileSpec { tile: vec![4], overlap: vec![2], edge: Edge::Shift, window: Window::Linear };
        let tiling = Tiling::new(&[6], &spec).unwrap();
        let (out, _) = stitch(&tiling, &[0.0; 6], |tile, _| vec![tile.index[0] as f64; 4]);
        let expected = [0.0, 0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0];
        for (o, e) in out.iter().zip(expected) {
            assert!((o - e).abs() < 1e-15, "{out:?}");
        }
    }

    #[test]
    fn one_tile_shape_and_the_count_follow_the_formula() {
        for (len, tile, overlap, edge, expected) in [
            (100, 32, 8, Edge::Shift, vec![0, 24, 48, 68]),
            (100, 32, 8, Edge::Reflect, vec![0, 24, 48, 72]),
            (32, 32, 8, Edge::Shift, vec![0]),
            (33, 32, 8, Edge::Reflect, vec![0, 24]),
        ] {
            assert_eq!(starts(len, tile, overlap, edge), expected);
        }
        let bad = TileSpec { tile: vec![4], overlap: vec![4], edge: Edge::Shift, window: Window::Linear };
        assert!(Tiling::new(&[9], &bad).is_err());
    }

    #[test]
    fn reflection_does_not_repeat_the_edge() {
        let seen: Vec<usize> = (0..9).map(|i| reflect(i, 4)).collect();
        assert_eq!(seen, [0, 1, 2, 3, 2, 1, 0, 1, 2]);
        assert_eq!(reflect(5, 1), 0);
    }
}
