//! A simple segmenter: Otsu's threshold, and the connected components above it.
//!
//! It allows restorations to be compared by the objects found in them, with a segmenter without weights or settings.

use crate::error::require;
use crate::{ImageRef, MetricError};

/// The threshold that parts a histogram of `bins` equal bins best (Otsu, 1979): the centre of the last
/// bin of the lower class, as scikit-image gives it. Pixels above it are foreground. An image of one
/// value gives that value.
///
/// # Errors
/// If a pixel is not finite or there are fewer than two bins.
pub fn otsu(image: ImageRef<'_>, bins: usize) -> Result<f64, MetricError> {
    require(bins >= 2, "the number of bins", bins as f64, "two or more")?;
    let data = image.data();
    if let Some(index) = data.iter().position(|x| !x.is_finite()) {
        return Err(MetricError::Pixel { what: "image", index, got: data[index], needed: "a finite value" });
    }
    let low = data.iter().copied().fold(f64::INFINITY, f64::min);
    let high = data.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if low == high {
        return Ok(low);
    }
    let step = (high - low) / bins as f64;
    let edge = |i: usize| if i == bins { high } else { low + i as f64 * step };
    let centre: Vec<f64> = (0..bins).map(|i| 0.5 * (edge(i) + edge(i + 1))).collect();
    Ok(best_split(&histogram(data, low, high, bins, edge), &centre))
}

/// Counts; a bin holds its lower edge, and the last its upper edge too.
fn histogram(data: &[f64], low: f64, high: f64, bins: usize, edge: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut counts = vec![0.0; bins];
    for &x in data {
        let mut bin = (((x - low) / (high - low) * bins as f64) as usize).min(bins - 1);
        // The quotient's rounding may put a value that lies on an edge into the neighbouring bin.
        if bin > 0 && x < edge(bin) {
            bin -= 1;
        } else if bin + 1 < bins && x >= edge(bin + 1) {
            bin += 1;
        }
        counts[bin] += 1.0;
    }
    counts
}

/// The centre behind which the variance between the two classes is largest.
fn best_split(counts: &[f64], centre: &[f64]) -> f64 {
    let all: f64 = counts.iter().sum();
    let moment: f64 = counts.iter().zip(centre).map(|(n, c)| n * c).sum();
    let (mut weight, mut below) = (0.0, 0.0);
    let (mut best, mut threshold) = (f64::NEG_INFINITY, centre[0]);
    for i in 0..counts.len() - 1 {
        weight += counts[i];
        below += counts[i] * centre[i];
        let between = weight * (all - weight) * (below / weight - (moment - below) / (all - weight)).powi(2);
        if between > best {
            (best, threshold) = (between, centre[i]);
        }
    }
    threshold
}

/// Which neighbours belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connectivity {
    /// Those that share a face: 4 in a plane, 6 in a volume.
    Faces,
    /// Those that share a corner at least: 8 in a plane, 26 in a volume.
    Corners,
}

/// An image of objects: 0 is background, the rest are numbered from 1 in the order of their first
/// pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    pub data: Vec<u32>,
    pub shape: Vec<usize>,
    /// The number of objects.
    pub count: usize,
}

impl Labels {
    /// The connected parts of a mask.
    ///
    /// # Errors
    /// If the shape has not 2 or 3 axes, is empty, or is not that of the mask.
    pub fn connected(
        mask: &[bool],
        shape: &[usize],
        connectivity: Connectivity,
    ) -> Result<Labels, MetricError> {
        check_shape(mask.len(), shape)?;
        let mut forest: Vec<u32> = (0..mask.len() as u32).collect();
        let before = earlier_neighbours(shape.len(), connectivity);
        let mut at = vec![0; shape.len()];
        for i in (0..mask.len()).filter(|&i| mask[i]) {
            crate::fourier::unravel(i, shape, &mut at);
            for j in before.iter().filter_map(|step| neighbour(&at, step, shape)).filter(|&j| mask[j]) {
                join(&mut forest, i as u32, j as u32);
            }
        }
        Ok(numbered(&mut forest, mask, shape))
    }

    /// The objects of an image: what is above Otsu's threshold of 256 bins, in connected parts.
    ///
    /// # Errors
    /// As [`otsu`].
    pub fn by_otsu(image: ImageRef<'_>, connectivity: Connectivity) -> Result<Labels, MetricError> {
        let threshold = otsu(image, 256)?;
        let mask: Vec<bool> = image.data().iter().map(|&x| x > threshold).collect();
        Labels::connected(&mask, image.shape(), connectivity)
    }
}

/// Pixels are counted in 32 bits here.
pub(crate) fn check_shape(len: usize, shape: &[usize]) -> Result<(), MetricError> {
    if !(2..=3).contains(&shape.len()) {
        return Err(MetricError::Rank { shape: shape.to_vec() });
    }
    if shape.contains(&0) {
        return Err(MetricError::Empty { shape: shape.to_vec() });
    }
    let fills = shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s)) == Some(len);
    if fills && u32::try_from(len).is_ok() {
        return Ok(());
    }
    Err(MetricError::Length { shape: shape.to_vec(), got: len })
}

/// Steps to the neighbours that come before a pixel in row-major order.
fn earlier_neighbours(rank: usize, connectivity: Connectivity) -> Vec<Vec<i64>> {
    let steps = (0..3usize.pow(rank as u32) / 2).map(|code| {
        (0..rank).map(|axis| (code / 3usize.pow((rank - 1 - axis) as u32) % 3) as i64 - 1).collect()
    });
    let face = |step: &Vec<i64>| step.iter().map(|s| s.abs()).sum::<i64>() == 1;
    steps.filter(|step| connectivity == Connectivity::Corners || face(step)).collect()
}

fn neighbour(at: &[usize], step: &[i64], shape: &[usize]) -> Option<usize> {
    at.iter().zip(step).zip(shape).try_fold(0usize, |place, ((&i, &s), &n)| {
        let i = i.checked_add_signed(s as isize).filter(|&i| i < n)?;
        Some(place * n + i)
    })
}

fn root(forest: &mut [u32], mut i: u32) -> u32 {
    while forest[i as usize] != i {
        // Halves the path on the way.
        forest[i as usize] = forest[forest[i as usize] as usize];
        i = forest[i as usize];
    }
    i
}

/// The earlier root becomes the root of both, so a root is its part's first pixel.
fn join(forest: &mut [u32], a: u32, b: u32) {
    let (a, b) = (root(forest, a), root(forest, b));
    forest[a.max(b) as usize] = a.min(b);
}

fn numbered(forest: &mut [u32], mask: &[bool], shape: &[usize]) -> Labels {
    let mut data = vec![0; mask.len()];
    let mut count = 0;
    for i in (0..mask.len()).filter(|&i| mask[i]) {
        let first = root(forest, i as u32) as usize;
        if first == i {
            count += 1;
            data[i] = count as u32;
        } else {
            data[i] = data[first];
        }
    }
    Labels { data, shape: shape.to_vec(), count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(rows: &[&str], connectivity: Connectivity) -> Labels {
        let mask: Vec<bool> = rows.iter().flat_map(|r| r.bytes().map(|b| b == b'#')).collect();
        Labels::connected(&mask, &[rows.len(), rows[0].len()], connectivity).unwrap()
    }

    #[test]
    fn parts_join_late_and_keep_their_order() {
        let rows = ["#.#.#", "#.#..", "###.#", "....#", "#...."];
        let faces = labels(&rows, Connectivity::Faces);
        let expected = [1, 0, 1, 0, 2, 1, 0, 1, 0, 0, 1, 1, 1, 0, 3, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0];
        assert_eq!((faces.data.as_slice(), faces.count), (&expected[..], 4));
        let corners = labels(&["#.#", ".#.", "..."], Connectivity::Corners);
        assert_eq!((corners.count, corners.data[2]), (1, 1));
        assert_eq!(labels(&["#.#", ".#.", "..."], Connectivity::Faces).count, 3);
    }

    #[test]
    fn volumes_have_6_or_26_neighbours() {
        assert_eq!(earlier_neighbours(3, Connectivity::Faces).len(), 3);
        assert_eq!(earlier_neighbours(3, Connectivity::Corners).len(), 13);
        let mut mask = [false; 8];
        (mask[0], mask[7]) = (true, true);
        let count = |c| Labels::connected(&mask, &[2, 2, 2], c).unwrap().count;
        assert_eq!((count(Connectivity::Faces), count(Connectivity::Corners)), (2, 1));
        assert_eq!(Labels::connected(&[false; 4], &[2, 2], Connectivity::Faces).unwrap().count, 0);
        assert!(Labels::connected(&mask, &[2, 2], Connectivity::Faces).is_err());
    }

    /// A bin holds its lower edge and what lies below the next one, whatever the quotient is rounded to.
    #[test]
    fn values_on_edges_belong_to_the_bin_above() {
        for (low, high, bins) in [(0.1, 0.7, 7), (-3.3, 1.1, 49), (1e-3, 65_535.7, 256), (0.3, 0.9, 10)] {
            let step = (high - low) / bins as f64;
            let edge = |i: usize| if i == bins { high } else { low + i as f64 * step };
            for i in 0..bins {
                let bin_of = |x: f64| histogram(&[x], low, high, bins, edge).iter().position(|&c| c == 1.0);
                assert_eq!(bin_of(edge(i)), Some(i), "{low} {high} {bins}");
                assert_eq!(bin_of(edge(i + 1).next_down()), Some(i), "{low} {high} {bins}");
            }
            assert_eq!(histogram(&[high], low, high, bins, edge)[bins - 1], 1.0);
        }
    }

    /// Two spikes: every threshold between them separates equally well, and the first is taken.
    #[test]
    fn otsu_parts_two_values() {
        let x = [0.0, 0.0, 0.0, 10.0, 10.0, 0.0];
        let image = ImageRef::new(&x, &[2, 3]).unwrap();
        assert_eq!(otsu(image, 5).unwrap(), 1.0);
        assert_eq!(Labels::by_otsu(image, Connectivity::Faces).unwrap().data, [0, 0, 0, 1, 1, 0]);
        let flat = ImageRef::new(&[3.0; 4], &[2, 2]).unwrap();
        assert_eq!(otsu(flat, 256).unwrap(), 3.0);
        assert_eq!(Labels::by_otsu(flat, Connectivity::Faces).unwrap().count, 0);
        assert!(otsu(ImageRef::new(&[f64::NAN; 4], &[2, 2]).unwrap(), 256).is_err());
    }
}
