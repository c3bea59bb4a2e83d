//! The layout of tiles: their positions, their input, and the part of their result that is used.
//!
//! For a local network, the result of a pixel depends on a bounded neighbourhood and on the position of the pixel
//! modulo the stride. [`Layout::cores`] gives each tile a core and a halo as wide as that neighbourhood, at positions
//! that are multiples of the stride: every pixel is computed once, by the tile whose core contains it, and the result
//! does not depend on the tile size. [`Layout::windows`] is for networks with a global receptive field: tiles overlap,
//! and results are blended by windows whose weights sum to one.
//!
//! Beyond the image border a tile contains the reflected image, without repeating the edge pixel. A local network sees
//! a margin of it and then its padding, as at the edges of its training crops: tiles are moved inward so that none
//! extends further, and small images cost little more than their own pixels.

use std::ops::Range;

/// Tiles along one axis.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    len: usize,
    /// Where each tile's first pixel lies; before the image for halos.
    starts: Vec<isize>,
    /// Pixels that a tile sees.
    seen: usize,
    /// The part of a tile's pixels that is taken from the network.
    given: Range<usize>,
    /// The pixels of the image that each tile answers for.
    kept: Vec<Range<usize>>,
    /// Pixels to each side of what a tile in the midst of the image answers for.
    halo: usize,
    /// The weight of each answered pixel of each tile; none where all are 1.
    weights: Option<Vec<Vec<f32>>>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    lines: Vec<Line>,
}

/// One tile: its number along each axis.
pub type Place = Vec<usize>;

impl Layout {
    /// Cores of `core` pixels with halos around them, for an image of `size` pixels with margins of at most `margin`
    /// reflected pixels; cores, halos and margins are multiples of `align`.
    pub fn cores(
        size: &[usize],
        core: &[usize],
        halo: &[usize],
        margin: &[usize],
        align: &[usize],
    ) -> Layout {
        let line = |a: usize| {
            let (len, core, halo) = (size[a], core[a], halo[a]);
            let margin = margin[a].min(halo);
            let padded = len.next_multiple_of(align[a]) + 2 * margin;
            let seen = (core + 2 * halo).min(padded);
            let (mut starts, mut kept) = (vec![], vec![]);
            let mut answered = 0;
            while answered < len {
                // Counted from where the margin begins.
                let start = (starts.len() * core).min(padded - seen);
                let end = match start == padded - seen {
                    true => len,
                    false => (start + seen - halo - margin).min(len),
                };
                starts.push(start as isize - margin as isize);
                kept.push(answered..end);
                answered = end;
            }
            Line { len, starts, seen, given: margin..seen - margin, kept, halo, weights: None }
        };
        Layout { lines: (0..size.len()).map(line).collect() }
    }

    /// Tiles of `tile` pixels that overlap by at least `overlap`, moved inward at the far edge.
    pub fn windows(size: &[usize], tile: &[usize], overlap: &[usize]) -> Layout {
        let line = |a: usize| {
            let (len, tile, overlap) = (size[a], tile[a], overlap[a].min(tile[a] - 1));
            let last = len.saturating_sub(tile);
            let count = last.div_ceil(tile - overlap) + 1;
            let starts: Vec<isize> = (0..count).map(|i| (i * (tile - overlap)).min(last) as isize).collect();
            let weights = Some(windows(len, tile, overlap, &starts));
            let kept = starts.iter().map(|&s| s as usize..(s as usize + tile).min(len)).collect();
            Line { len, starts, seen: tile, given: 0..tile, kept, halo: 0, weights }
        };
        Layout { lines: (0..size.len()).map(line).collect() }
    }

    pub fn size(&self) -> Vec<usize> {
        self.lines.iter().map(|l| l.len).collect()
    }

    /// Pixels of the image.
    pub fn pixels(&self) -> usize {
        self.lines.iter().map(|l| l.len).product()
    }

    /// The input size of a tile along each axis.
    pub fn seen(&self) -> Vec<usize> {
        self.lines.iter().map(|l| l.seen).collect()
    }

    /// The largest core of a tile along each axis.
    pub fn core(&self) -> Vec<usize> {
        let most = |l: &Line| l.kept.iter().map(|k| k.len()).max().unwrap_or(0);
        self.lines.iter().map(most).collect()
    }

    /// The input pixels on each side of the core: pixels of the image if there are several tiles, otherwise reflected
    /// ones.
    pub fn around(&self) -> Vec<usize> {
        self.lines.iter().map(|l| if l.starts.len() == 1 { l.given.start } else { l.halo }).collect()
    }

    /// The part of the input for which the network returns results.
    pub fn given(&self) -> Vec<Range<usize>> {
        self.lines.iter().map(|l| l.given.clone()).collect()
    }

    pub fn counts(&self) -> Vec<usize> {
        self.lines.iter().map(|l| l.starts.len()).collect()
    }

    pub fn count(&self) -> usize {
        self.counts().iter().product()
    }

    /// Whether the results of tiles overlap.
    pub fn blends(&self) -> bool {
        self.lines.iter().any(|l| l.weights.is_some())
    }

    /// The number of input pixels per pixel of the image.
    pub fn work(&self) -> f64 {
        self.seen().iter().product::<usize>() as f64 * self.count() as f64 / self.pixels() as f64
    }

    /// The tile of this number, in row-major order.
    pub fn place(&self, mut number: usize) -> Place {
        let counts = self.counts();
        let mut place = vec![0; counts.len()];
        for a in (0..counts.len()).rev() {
            place[a] = number % counts[a];
            number /= counts[a];
        }
        place
    }

    /// Whether a tile contributes to any pixel of some boxes.
    pub fn answers_in(&self, place: &[usize], boxes: &[Vec<Range<usize>>]) -> bool {
        let kept: Vec<&Range<usize>> = self.lines.iter().zip(place).map(|(l, &i)| &l.kept[i]).collect();
        let meets = |(k, r): (&&Range<usize>, &Range<usize>)| k.start < r.end && r.start < k.end;
        boxes.iter().any(|r| kept.iter().zip(r).all(meets))
    }

    /// The index in the image of each input pixel of a tile, in row-major order.
    pub fn sees(&self, place: &[usize], out: &mut Vec<usize>) {
        out.clear();
        let map = |a: usize| -> Vec<usize> {
            let line = &self.lines[a];
            let start = line.starts[place[a]];
            (0..line.seen).map(|i| reflected(start + i as isize, line.len)).collect()
        };
        let maps: Vec<Vec<usize>> = (0..self.lines.len()).map(map).collect();
        let (last, outer) = maps.split_last().expect("an image has axes");
        let width = self.lines[self.lines.len() - 1].len;
        let mut bases = vec![0];
        for (line, map) in self.lines.iter().zip(outer) {
            bases = bases.iter().flat_map(|b| map.iter().map(move |i| b * line.len + i)).collect();
        }
        for base in bases {
            out.extend(last.iter().map(|i| base * width + i));
        }
    }

    /// Calls `put(pixel of the image, pixel of the tile's result, weight)` for each pixel to which a tile contributes;
    /// runs of pixels along the last axis are contiguous in both.
    pub fn answers(&self, place: &[usize], mut put: impl FnMut(usize, usize, f32)) {
        // The first pixel of the image, and the places of the pixels in what the tile gives.
        let ranges: Vec<(usize, Range<usize>)> = self
            .lines
            .iter()
            .zip(place)
            .map(|(l, &i)| {
                let first = l.kept[i].start;
                let from = (first as isize - l.starts[i]) as usize - l.given.start;
                (first, from..from + l.kept[i].len())
            })
            .collect();
        let weight = |a: usize, i: usize| self.lines[a].weights.as_ref().map_or(1.0, |w| w[place[a]][i]);
        let last = ranges.len() - 1;
        let rows: usize = ranges[..last].iter().map(|(_, r)| r.len()).product();
        for row in 0..rows {
            let (mut rest, mut index) = (row, vec![0; last]);
            for a in (0..last).rev() {
                index[a] = rest % ranges[a].1.len();
                rest /= ranges[a].1.len();
            }
            let (mut to, mut from, mut w) = (0, 0, 1.0);
            for a in 0..last {
                let inside = ranges[a].1.start + index[a];
                to = to * self.lines[a].len + ranges[a].0 + index[a];
                from = from * self.lines[a].given.len() + inside;
                w *= weight(a, inside);
            }
            let to = to * self.lines[last].len + ranges[last].0;
            let from = from * self.lines[last].given.len();
            for (i, x) in ranges[last].1.clone().enumerate() {
                put(to + i, from + x, w * weight(last, x));
            }
        }
    }
}

/// An index reflected into `0..len`, edge pixels not repeated.
fn reflected(i: isize, len: usize) -> usize {
    if len == 1 {
        return 0;
    }
    let period = 2 * (len as isize - 1);
    let i = i.rem_euclid(period);
    i.min(period - i) as usize
}

/// Weights that rise over the overlap in a straight line, divided by their sum at each pixel.
fn windows(len: usize, tile: usize, overlap: usize, starts: &[isize]) -> Vec<Vec<f32>> {
    let ramp = |i: usize| ((i.min(tile - 1 - i) + 1) as f64 / (overlap + 1) as f64).min(1.0);
    let mut sums = vec![0.0; len.max(tile)];
    for &start in starts {
        (0..tile).for_each(|i| sums[start as usize + i] += ramp(i));
    }
    starts.iter().map(|&s| (0..tile).map(|i| (ramp(i) / sums[s as usize + i]) as f32).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> Vec<Layout> {
        let mut all = vec![];
        for (size, core, halo, align) in [
            (vec![100, 75], vec![32, 32], vec![32, 32], vec![16, 16]),
            (vec![7, 200], vec![32, 64], vec![64, 32], vec![16, 16]),
            (vec![1, 1], vec![32, 32], vec![32, 32], vec![16, 16]),
            (vec![5, 40, 33], vec![4, 32, 32], vec![8, 32, 32], vec![4, 16, 16]),
            (vec![500, 333], vec![48, 96], vec![64, 32], vec![16, 16]),
        ] {
            for margin in [0, 16, 32, 64] {
                all.push(Layout::cores(&size, &core, &halo, &vec![margin; size.len()], &align));
            }
            all.push(Layout::windows(&size, &core, &halo));
            all.push(Layout::windows(&size, &core, &core.iter().map(|c| c / 4).collect::<Vec<_>>()));
        }
        all
    }

    /// Every pixel is answered by a tile that sees a halo around it, or all that there is: the margin's end.
    #[test]
    fn answers_have_their_halo_and_tiles_their_places() {
        for (len, core, halo, margin) in [
            (500, 48, 64, 32),
            (512, 256, 128, 32),
            (1000, 64, 128, 16),
            (90, 512, 128, 32),
            (129, 16, 16, 0),
        ] {
            let layout = Layout::cores(&[len], &[core], &[halo], &[margin], &[16]);
            let line = &layout.lines[0];
            let far = len.next_multiple_of(16) + margin;
            for (&start, kept) in line.starts.iter().zip(&line.kept) {
                let end = start + line.seen as isize;
                assert_eq!((start + margin as isize) % 16, 0);
                assert!(!kept.is_empty() && start >= -(margin as isize) && end <= far as isize);
                assert!(start == -(margin as isize) || start + halo as isize <= kept.start as isize);
                assert!(end == far as isize || kept.end + halo <= end as usize);
            }
            assert!(line.kept.windows(2).all(|k| k[0].end == k[1].start) && line.kept[0].start == 0);
            assert_eq!(line.kept.last().unwrap().end, len);
        }
        // One tile sees a margin, not a halo; of several those at the edges answer for more.
        let of = |len: usize| Layout::cores(&[len], &[256], &[128], &[32], &[16]);
        assert_eq!((of(200).seen(), of(200).core(), of(200).around()), (vec![272], vec![200], vec![32]));
        assert_eq!((of(448).count(), of(449).count(), of(449).core()), (1, 2, vec![352]));
    }

    #[test]
    fn weights_of_each_pixel_sum_to_one_and_answers_are_what_was_seen() {
        for layout in layouts() {
            let mut sums = vec![0.0f64; layout.pixels()];
            let (mut seen, given) = (vec![], layout.given());
            let inner: Vec<usize> = given.iter().map(|g| g.len()).collect();
            for number in 0..layout.count() {
                let place = layout.place(number);
                layout.sees(&place, &mut seen);
                assert_eq!(seen.len(), layout.seen().iter().product::<usize>());
                layout.answers(&place, |to, from, weight| {
                    sums[to] += f64::from(weight);
                    // The same pixel, counted in what the tile sees.
                    let (mut rest, mut at, mut stride) = (from, 0, 1);
                    for a in (0..inner.len()).rev() {
                        at += (given[a].start + rest % inner[a]) * stride;
                        rest /= inner[a];
                        stride *= layout.seen()[a];
                    }
                    assert_eq!(seen[at], to, "{layout:?}");
                });
            }
            assert!(sums.iter().all(|s| (s - 1.0).abs() < 1e-6), "{:?}", layout.size());
        }
    }

    #[test]
    fn cores_answer_once_and_halos_are_reflected() {
        let layout = Layout::cores(&[3, 5], &[32, 32], &[32, 32], &[32, 32], &[32, 32]);
        assert_eq!((layout.count(), layout.blends()), (1, false));
        let mut seen = vec![];
        layout.sees(&[0, 0], &mut seen);
        // The row at y = 0: x from -32 on has the period 8.
        let row: Vec<usize> = seen[32 * 96..][..96].to_vec();
        assert_eq!(&row[32..45], [0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4]);
        assert_eq!(&row[28..33], [4, 3, 2, 1, 0]);
        assert_eq!(seen[31 * 96 + 32], 5);
        assert_eq!(Layout::cores(&[64, 65], &[32, 32], &[0, 0], &[0, 0], &[16, 16]).counts(), [2, 3]);
    }
}
