//! Instance segmentation: from label images to the targets of the network, and from its output back to labels, also for
//! touching objects.
//!
//! The maps are those of CytoDL's instance segmentation. Every object has a core, and each of its other pixels has a vector
//! to the nearest pixel of the core. Cores of touching objects are separate, so prediction finds them as connected
//! components and assigns every other pixel to the core that its vector points to. Channels, last axis: depth in a core,
//! foreground, the vector along each axis, boundary; targets have two more, the weight of a pixel and the number of its
//! object. Here, the core is the part of an object deeper than half of its deepest pixel, where CytoDL erodes by a fixed
//! number of pixels and repairs what this breaks: objects of every size have a core, and its size is proportional to
//! theirs.

use clearshot_metrics::MetricError;
use clearshot_metrics::distance::Nearest;
use clearshot_metrics::segment::{Connectivity, Labels};
use std::collections::BTreeMap;

/// How deep in a core a pixel is; above zero in cores, and far below it elsewhere.
pub const CORE: usize = 0;
/// Above zero in objects.
pub const FOREGROUND: usize = 1;
/// The first of the vectors' components, in the order of axes.
pub const VECTOR: usize = 2;

/// The depth of pixels outside cores.
const OUTSIDE: f32 = -10.0;
/// What a network says of a pixel that is about as likely in a core as not: a mean of [`OUTSIDE`] and the three pixels or so that cores are deep. CytoDL asks for 0, which
/// takes a network that is three quarters sure.
const IN_DOUBT: f32 = -3.0;
/// The share of an object's depth at which its core begins.
const SHARE: f64 = 0.5;
/// The additional weight of pixels at contacts between objects.
const CONTACT: f32 = 10.0;
/// Pixels of the smallest core.
const LEAST: usize = 4;

/// Channels that a network gives for images of so many axes.
pub const fn channels(dims: usize) -> usize {
    dims + 3
}

/// Channels of its targets.
pub const fn target_channels(dims: usize) -> usize {
    dims + 5
}

/// The boundary's channel.
pub const fn boundary(dims: usize) -> usize {
    VECTOR + dims
}

/// The channel of how much pixels count.
pub const fn weight(dims: usize) -> usize {
    VECTOR + dims + 1
}

/// The channel of objects' numbers.
pub const fn label(dims: usize) -> usize {
    VECTOR + dims + 2
}

/// A box of an image: where it begins, and its size.
#[derive(Clone, Debug, PartialEq)]
struct Region {
    origin: Vec<usize>,
    size: Vec<usize>,
}

impl Region {
    /// The image's indices of its pixels, in its own order.
    fn pixels(&self, image: &[usize]) -> Vec<usize> {
        (0..self.size.iter().product()).map(|i| flat(&self.place(i), image)).collect()
    }

    /// The image's coordinates of its pixel.
    fn place(&self, i: usize) -> Vec<usize> {
        place(i, &self.size).iter().zip(&self.origin).map(|(at, from)| at + from).collect()
    }
}

fn place(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (to, n) in at.iter_mut().zip(shape).rev() {
        (*to, i) = (i % n, i / n);
    }
    at
}

fn flat(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |i, (at, n)| i * n + at)
}

/// The boxes of objects, one pixel wider on each side within the image.
fn regions(labels: &[u32], shape: &[usize]) -> BTreeMap<u32, Region> {
    let mut ends: BTreeMap<u32, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (i, &label) in labels.iter().enumerate().filter(|(_, l)| **l > 0) {
        let at = place(i, shape);
        let (low, high) = ends.entry(label).or_insert_with(|| (at.clone(), at.clone()));
        for (a, &at) in at.iter().enumerate() {
            (low[a], high[a]) = (low[a].min(at), high[a].max(at));
        }
    }
    let wider = |(low, high): (Vec<usize>, Vec<usize>)| {
        let origin: Vec<usize> = low.iter().map(|l| l.saturating_sub(1)).collect();
        let last = high.iter().zip(shape).map(|(h, n)| (h + 1).min(n - 1));
        let size = last.zip(&origin).map(|(last, from)| last + 1 - from).collect();
        Region { origin, size }
    };
    ends.into_iter().map(|(label, ends)| (label, wider(ends))).collect()
}

/// From pixels of a mask to the nearest outside of it; the image's edge is not outside.
fn depths(inside: &[bool], size: &[usize]) -> Vec<f64> {
    let outside: Vec<bool> = inside.iter().map(|m| !m).collect();
    let longest = size.iter().copied().max().unwrap_or(1) as f64;
    let far = Nearest::of(&outside, size, &vec![1.0; size.len()]).squared;
    far.into_iter().map(|d| if d.is_finite() { d.sqrt() } else { longest }).collect()
}

/// The largest connected part of a mask, the first of several.
fn largest(mask: &[bool], size: &[usize]) -> Result<Vec<bool>, MetricError> {
    let parts = Labels::connected(mask, size, Connectivity::Faces)?;
    let mut counts = vec![0usize; parts.count + 1];
    parts.data.iter().filter(|l| **l > 0).for_each(|&l| counts[l as usize] += 1);
    let best = (1..counts.len()).fold(0, |best, l| if counts[l] > counts[best] { l } else { best });
    Ok(parts.data.iter().map(|&l| l > 0 && l as usize == best).collect())
}

/// What a network should say of the pixels of a label image of (Z,) Y, X, see the module. 0 is background; labels are numbers below 2^24.
///
/// # Errors
/// If the image has not two or three axes, or is empty.
pub fn targets(labels: &[f32], shape: &[usize]) -> Result<Vec<f32>, MetricError> {
    let dims = shape.len();
    let each = target_channels(dims);
    let numbers: Vec<u32> = labels.iter().map(|l| l.max(0.0) as u32).collect();
    let mut out = vec![0.0; labels.len() * each];
    for (pixel, &number) in out.chunks_exact_mut(each).zip(&numbers) {
        pixel[CORE] = OUTSIDE;
        pixel[weight(dims)] = 0.5;
        pixel[label(dims)] = number as f32;
    }
    for (number, region) in regions(&numbers, shape) {
        let pixels = region.pixels(shape);
        let inside: Vec<bool> = pixels.iter().map(|&p| numbers[p] == number).collect();
        let depth = depths(&inside, &region.size);
        let deepest =
            inside.iter().zip(&depth).filter(|(m, _)| **m).fold(0.0, |most: f64, (_, d)| most.max(*d));
        let core: Vec<bool> = inside.iter().zip(&depth).map(|(m, d)| *m && *d > SHARE * deepest).collect();
        let core = largest(&core, &region.size)?;
        let core_depth = depths(&core, &region.size);
        let nearest = Nearest::of(&core, &region.size, &vec![1.0; dims]).pixel;
        for i in (0..pixels.len()).filter(|&i| inside[i]) {
            let (own, to) = (region.place(i), region.place(nearest[i] as usize));
            let pixel = &mut out[pixels[i] * each..][..each];
            pixel[FOREGROUND] = 1.0;
            for a in 0..dims {
                pixel[VECTOR + a] = to[a] as f32 - own[a] as f32;
            }
            let others = neighbours(&own, shape).map(|n| numbers[n]).filter(|n| *n != number);
            let (mut is_boundary, mut touches) = (false, false);
            others.for_each(|n| (is_boundary, touches) = (true, touches || n > 0));
            pixel[boundary(dims)] = f32::from(u8::from(is_boundary));
            // Pixels of objects count twice, those with a vector to learn four times, contacts far more.
            pixel[weight(dims)] += if core[i] { 0.5 } else { 1.5 } + if touches { CONTACT } else { 0.0 };
            if core[i] {
                pixel[CORE] = core_depth[i] as f32;
            }
        }
    }
    Ok(out)
}

/// The indices of pixels that share a face with one.
fn neighbours<'a>(at: &'a [usize], shape: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    (0..2 * at.len()).filter_map(move |k| {
        let (axis, is_up) = (k / 2, k % 2 == 1);
        let moved = if is_up { at[axis] + 1 } else { at[axis].checked_sub(1)? };
        let stride: usize = shape[axis + 1..].iter().product();
        let own = flat(at, shape) - at[axis] * stride;
        (moved < shape[axis]).then(|| own + moved * stride)
    })
}

/// The objects of what a network says of the pixels of an image of (Z,) Y, X, `each` channels to a pixel of which [`channels`] are looked at: parts of the foreground that
/// hold one core are objects, in others each pixel goes to the core that is nearest to where it points. Cores of less than 4 pixels that do not reach the image's edge are none, and
/// parts without a core no objects.
///
/// # Errors
/// If the image has not two or three axes, or is empty.
pub fn objects(maps: &[f32], each: usize, shape: &[usize]) -> Result<Labels, MetricError> {
    let of = |channel: usize| maps.iter().skip(channel).step_by(each).copied();
    let foreground: Vec<bool> = of(FOREGROUND).map(|v| v > 0.0).collect();
    let is_core: Vec<bool> = of(CORE).zip(&foreground).map(|(v, fg)| *fg && v > IN_DOUBT).collect();
    let parts = Labels::connected(&foreground, shape, Connectivity::Faces)?;
    let cores = kept(Labels::connected(&is_core, shape, Connectivity::Faces)?);
    let mut found = vec![0u32; foreground.len()];
    for (part, region) in regions(&parts.data, shape) {
        let pixels = region.pixels(shape);
        let own = |p: usize| if parts.data[p] == part { cores[p] } else { 0 };
        let in_part: Vec<u32> = pixels.iter().map(|&p| own(p)).collect();
        let Some(&first) = in_part.iter().find(|c| **c > 0) else { continue };
        let is_single = in_part.iter().all(|c| *c == 0 || *c == first);
        let mask: Vec<bool> = in_part.iter().map(|c| *c > 0).collect();
        let nearest = match is_single {
            true => vec![],
            false => Nearest::of(&mask, &region.size, &vec![1.0; shape.len()]).pixel,
        };
        for (i, &p) in pixels.iter().enumerate().filter(|(_, p)| parts.data[**p] == part) {
            found[p] = match (is_single, in_part[i]) {
                (true, _) => first,
                (false, 0) => {
                    in_part
                        [nearest[pointed(&maps[p * each..], &place(i, &region.size), &region.size)] as usize]
                }
                (false, core) => core,
            };
        }
    }
    Ok(numbered(found, shape))
}

/// The index of the pixel of a region that a pixel of it points at, or of the one at its edge.
fn pointed(maps: &[f32], at: &[usize], size: &[usize]) -> usize {
    let to = |a: usize| {
        let v = f64::from(maps[VECTOR + a]);
        let v = if v.is_finite() { v } else { 0.0 };
        (at[a] as f64 + v).round().clamp(0.0, (size[a] - 1) as f64) as usize
    };
    flat(&(0..at.len()).map(to).collect::<Vec<_>>(), size)
}

/// Cores that are large enough, or reach the edge of the image, where others may be cut off.
fn kept(cores: Labels) -> Vec<u32> {
    let mut counts = vec![0usize; cores.count + 1];
    for (i, &core) in cores.data.iter().enumerate().filter(|(_, c)| **c > 0) {
        let at = place(i, &cores.shape);
        // A volume of one plane has nothing but edges along Z.
        let reaches = at.iter().zip(&cores.shape).any(|(at, n)| *n > 1 && (*at == 0 || at + 1 == *n));
        counts[core as usize] += if reaches { LEAST } else { 1 };
    }
    cores.data.into_iter().map(|c| if counts[c as usize] >= LEAST { c } else { 0 }).collect()
}

/// Numbers from 1 on, in the order of first pixels.
fn numbered(found: Vec<u32>, shape: &[usize]) -> Labels {
    let mut numbers = BTreeMap::new();
    let mut number = |l: u32| {
        let next = numbers.len() as u32 + 1;
        if l == 0 { 0 } else { *numbers.entry(l).or_insert(next) }
    };
    let data: Vec<u32> = found.into_iter().map(&mut number).collect();
    Labels { data, shape: shape.to_vec(), count: numbers.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two disks that overlap, the second above, and a box at the edge.
    fn scene(height: usize, width: usize) -> Vec<f32> {
        let mut labels = vec![0.0; height * width];
        for y in 0..height {
            for x in 0..width {
                let in_disk = |cy: f64, cx: f64, r: f64| (y as f64 - cy).hypot(x as f64 - cx) <= r;
                let at = &mut labels[y * width + x];
                if in_disk(14.0, 12.0, 8.0) {
                    *at = 7.0;
                }
                if in_disk(14.0, 24.0, 7.0) {
                    *at = 3.0;
                }
                if y >= height - 4 && x < 10 {
                    *at = 9.0;
                }
            }
        }
        labels
    }

    #[test]
    fn targets_follow_the_definition() {
        let (height, width) = (30, 40);
        let labels = scene(height, width);
        let t = targets(&labels, &[height, width]).unwrap();
        let pixel = |y: usize, x: usize| &t[(y * width + x) * 7..][..7];
        // Background, far from everything.
        assert_eq!(pixel(0, 39), [-10.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0]);
        // The middle of the second disk: 7.x pixels deep, 4 of which are its core's.
        let middle = pixel(14, 24);
        assert!(middle[CORE] > 2.0 && middle[FOREGROUND] == 1.0 && middle[label(2)] == 3.0, "{middle:?}");
        assert_eq!((middle[VECTOR], middle[VECTOR + 1], middle[boundary(2)]), (0.0, 0.0, 0.0));
        // Its top: on the boundary, pointing down.
        let top = pixel(7, 24);
        assert!(top[VECTOR] >= 3.0 && top[VECTOR + 1] == 0.0 && top[boundary(2)] == 1.0, "{top:?}");
        assert_eq!(top[weight(2)], 2.0);
        // Where the two touch, pixels count most.
        let touching =
            (0..width).find(|x| labels[14 * width + x] == 7.0 && labels[14 * width + x + 1] == 3.0);
        assert_eq!(pixel(14, touching.unwrap())[weight(2)], 12.0);
        // The image's edge is not the end of an object.
        assert_eq!(pixel(29, 0)[boundary(2)], 0.0);
    }

    #[test]
    fn objects_of_perfect_maps_are_the_labels_in_planes_and_volumes() {
        let labels = scene(30, 40);
        for planes in [1, 5] {
            let labels = labels.repeat(planes);
            let shape = if planes == 1 { vec![30, 40] } else { vec![planes, 30, 40] };
            let dims = shape.len();
            let maps = targets(&labels, &shape).unwrap();
            // Logits of the foreground.
            let mut maps = maps;
            maps.chunks_exact_mut(target_channels(dims)).for_each(|p| p[FOREGROUND] -= 0.5);
            let found = objects(&maps, target_channels(dims), &shape).unwrap();
            assert_eq!(found.count, 3);
            // As numbered by their first pixels.
            let number = |l: f32| [0, 2, 1, 3][[0.0, 3.0, 7.0, 9.0].iter().position(|v| *v == l).unwrap()];
            assert!(found.data.iter().zip(&labels).all(|(f, l)| *f == number(*l)));
        }
    }

    #[test]
    fn specks_are_not_objects_and_nan_is_handled() {
        let shape = [12, 12];
        let mut maps = vec![-5.0; 144 * 5];
        // A foreground whose core has one pixel.
        for i in [5 * 12 + 5, 5 * 12 + 6] {
            maps[i * 5 + FOREGROUND] = 1.0;
        }
        maps[(5 * 12 + 5) * 5 + CORE] = 1.0;
        assert_eq!(objects(&maps, 5, &shape).unwrap().count, 0);
        let nothing = objects(&vec![f32::NAN; 144 * 5], 5, &shape).unwrap();
        assert_eq!(nothing.count, 0);
        // Two cores, and vectors that point nowhere.
        let mut maps = vec![f32::NAN; 144 * 5];
        for i in 0..144 {
            maps[i * 5 + FOREGROUND] = 1.0;
            maps[i * 5 + CORE] = if i % 12 < 3 || i % 12 > 8 { 1.0 } else { -9.0 };
        }
        let halves = objects(&maps, 5, &shape).unwrap();
        assert_eq!((halves.count, halves.data[5], halves.data[6]), (2, 1, 2));
        // An object that is all of an image.
        assert!(targets(&[4.0; 9], &[3, 3]).unwrap().iter().all(|v| v.is_finite()));
    }
}
