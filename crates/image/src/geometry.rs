//! Reversible geometry: an image is padded, cropped or resized for something that needs other sizes, and the result is put
//! back in place.
//!
//! The steps are kept as JSON beside the image. Padding and cropping are exact: padding is cut off again, and a crop is
//! inserted into the image it came from. Resizing loses detail that the smaller size cannot hold; [`Geometry::is_exact`]
//! and the JSON state this, and [`Geometry::round_trip_psnr`] measures it for an image.

use crate::error::{Error, Result, request};
use crate::image::lengths;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The fill outside of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Surround {
    Zero,
    /// The edge pixel again and again.
    Edge,
    /// The image in a mirror at its edge pixel, as often as need be.
    Reflect,
}

/// One change; sizes and places of all axes, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    Pad { before: Vec<usize>, after: Vec<usize>, with: Surround },
    Crop { start: Vec<usize>, size: Vec<usize> },
    Resize { size: Vec<usize> },
}

/// Steps from images of one shape to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    from: Vec<usize>,
    steps: Vec<Step>,
}

/// Elements of the largest image that a record may speak of.
const MOST: usize = 1 << 40;

impl Geometry {
    /// # Errors
    /// If there are no pixels, or more than can be.
    pub fn new(from: &[usize]) -> Result<Geometry> {
        volume(from)?;
        Ok(Geometry { from: from.to_vec(), steps: Vec::new() })
    }

    /// # Errors
    /// If the step does not fit the shape so far.
    pub fn then(mut self, step: Step) -> Result<Geometry> {
        volume(&step.shape(&self.shape())?)?;
        self.steps.push(step);
        Ok(self)
    }

    /// Pads behind so that every size is a multiple of `of`, as networks with strides want it.
    ///
    /// # Errors
    /// If the multiple is 0.
    pub fn to_multiple(self, of: usize, with: Surround) -> Result<Geometry> {
        if of == 0 {
            return request("sizes that are multiples of 0");
        }
        let after: Vec<usize> = self.shape().iter().map(|n| n.next_multiple_of(of) - n).collect();
        let before = vec![0; after.len()];
        self.then(Step::Pad { before, after, with })
    }

    /// The shape of what comes out.
    pub fn shape(&self) -> Vec<usize> {
        let next = |shape: Vec<usize>, step: &Step| step.shape(&shape).unwrap_or(shape);
        self.steps.iter().fold(self.from.clone(), next)
    }

    /// Whether what is taken back is the image to the bit.
    pub fn is_exact(&self) -> bool {
        !self.steps.iter().any(|s| matches!(s, Step::Resize { .. }))
    }

    /// # Errors
    /// If the image is of another size.
    pub fn apply(&self, image: &[f64]) -> Result<Vec<f64>> {
        Ok(self.stages(image)?.pop().unwrap_or_default().1)
    }

    /// Takes back what was done: `made` is of [`Geometry::shape`], and `original` the image that it was made of, which
    /// fills what was cut away.
    ///
    /// # Errors
    /// If an image is of another size.
    pub fn undo(&self, made: &[f64], original: &[f64]) -> Result<Vec<f64>> {
        let stages = self.stages(original)?;
        same_size(made.len(), volume(&self.shape())?)?;
        let mut values = made.to_vec();
        for (at, step) in self.steps.iter().enumerate().rev() {
            let (shape, before) = &stages[at];
            let now = &stages[at + 1].0;
            values = match step {
                Step::Pad { before: start, .. } => cut(&values, now, start, shape),
                Step::Crop { start, size } => {
                    let mut whole = before.clone();
                    for_each(size, |index, i| whole[offset(index, start, shape)] = values[i]);
                    whole
                }
                Step::Resize { .. } => resize(&values, now, shape),
            };
        }
        Ok(values)
    }

    /// The PSNR in dB of an image after everything was done and taken back, its own range being the peak; none where
    /// nothing but rounding was lost. Pixels that are not finite do not count, and where others become so it is minus
    /// infinity.
    ///
    /// # Errors
    /// If the image is of another size.
    pub fn round_trip_psnr(&self, image: &[f64]) -> Result<Option<f64>> {
        let back = self.undo(&self.apply(image)?, image)?;
        let (mut low, mut high, mut square, mut count) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0usize);
        for (&a, b) in image.iter().zip(&back).filter(|(a, _)| a.is_finite()) {
            (low, high, count) = (low.min(a), high.max(a), count + 1);
            square += if b.is_finite() { (a - b).powi(2) } else { f64::INFINITY };
        }
        let square = square / count.max(1) as f64;
        let rounding = 1e-12 * low.abs().max(high.abs());
        Ok((square.sqrt() > rounding).then(|| 10.0 * ((high - low).powi(2) / square).log10()))
    }

    /// The record that goes beside the image.
    pub fn to_json(&self) -> Value {
        serde_json::json!({"from": self.from, "to": self.shape(), "exact": self.is_exact(), "steps": self.steps})
    }

    /// # Errors
    /// If it is not such a record, or its steps are inconsistent.
    pub fn from_json(record: &Value) -> Result<Geometry> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Record {
            from: Vec<usize>,
            to: Vec<usize>,
            exact: bool,
            steps: Vec<Step>,
        }
        let wrong = |what: String| Error::Request { what: format!("a record of a geometry: {what}") };
        let record = Record::deserialize(record).map_err(|e| wrong(e.to_string()))?;
        let mut geometry = Geometry::new(&record.from)?;
        for step in record.steps {
            geometry = geometry.then(step)?;
        }
        if (geometry.shape(), geometry.is_exact()) != (record.to, record.exact) {
            return Err(wrong("its steps lead to another shape than it says".into()));
        }
        Ok(geometry)
    }

    /// Shape and values before the first step and after each.
    fn stages(&self, image: &[f64]) -> Result<Vec<(Vec<usize>, Vec<f64>)>> {
        same_size(image.len(), volume(&self.from)?)?;
        let mut stages = vec![(self.from.clone(), image.to_vec())];
        for step in &self.steps {
            let (shape, values) = &stages[stages.len() - 1];
            let next = step.shape(shape)?;
            let made = match step {
                Step::Pad { before, with, .. } => pad(values, shape, before, *with, &next),
                Step::Crop { start, size } => cut(values, shape, start, size),
                Step::Resize { size } => resize(values, shape, size),
            };
            stages.push((next, made));
        }
        Ok(stages)
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Pad { before, after, .. } => {
                write!(f, "padding by {} before and {} behind", lengths(before), lengths(after))
            }
            Step::Crop { start, size } => {
                write!(
                    f,
                    "cutting {} at {}",
                    lengths(size),
                    start.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
                )
            }
            Step::Resize { size } => write!(f, "resizing to {}", lengths(size)),
        }
    }
}

impl Step {
    /// The resulting shape.
    fn shape(&self, shape: &[usize]) -> Result<Vec<usize>> {
        let axes = |lists: &[&Vec<usize>]| match lists.iter().all(|l| l.len() == shape.len()) {
            true => Ok(()),
            false => request(format!("{self} for an image of {} axes", shape.len())),
        };
        let sum = |parts: [usize; 3]| parts.iter().try_fold(0usize, |a, &b| a.checked_add(b));
        match self {
            Step::Pad { before, after, .. } => {
                axes(&[before, after])?;
                let sizes: Option<Vec<usize>> =
                    (0..shape.len()).map(|a| sum([before[a], shape[a], after[a]])).collect();
                sizes.ok_or_else(|| Error::Request { what: format!("{self} is larger than an image can be") })
            }
            Step::Crop { start, size } => {
                axes(&[start, size])?;
                let inside =
                    |a: usize| size[a] > 0 && sum([start[a], size[a], 0]).is_some_and(|e| e <= shape[a]);
                match (0..shape.len()).all(inside) {
                    true => Ok(size.clone()),
                    false => request(format!("{self} of an image of {}", lengths(shape))),
                }
            }
            Step::Resize { size } => {
                axes(&[size])?;
                Ok(size.clone())
            }
        }
    }
}

fn volume(shape: &[usize]) -> Result<usize> {
    let count = shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s)).filter(|n| (1..=MOST).contains(n));
    count.ok_or_else(|| Error::Request {
        what: format!("an image of {} is larger than an image can be", lengths(shape)),
    })
}

fn same_size(got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Length { expected, got }) }
}

/// Calls `f(index, number)` for every pixel of a shape, row-major.
fn for_each(shape: &[usize], mut f: impl FnMut(&[usize], usize)) {
    let mut index = vec![0; shape.len()];
    for i in 0..shape.iter().product() {
        f(&index, i);
        for a in (0..shape.len()).rev() {
            index[a] += 1;
            if index[a] < shape[a] {
                break;
            }
            index[a] = 0;
        }
    }
}

/// The number of the pixel at `start + index` of a shape.
fn offset(index: &[usize], start: &[usize], shape: &[usize]) -> usize {
    (0..shape.len()).fold(0, |n, a| n * shape[a] + start[a] + index[a])
}

fn cut(values: &[f64], shape: &[usize], start: &[usize], size: &[usize]) -> Vec<f64> {
    let mut out = vec![0.0; size.iter().product()];
    for_each(size, |index, i| out[i] = values[offset(index, start, shape)]);
    out
}

fn pad(values: &[f64], shape: &[usize], before: &[usize], with: Surround, to: &[usize]) -> Vec<f64> {
    let inside = |place: usize, before: usize, n: usize| {
        let at = place as i64 - before as i64;
        match with {
            Surround::Zero => (0..n as i64).contains(&at).then_some(at as usize),
            Surround::Edge => Some(at.clamp(0, n as i64 - 1) as usize),
            Surround::Reflect if n == 1 => Some(0),
            Surround::Reflect => {
                let turn = at.rem_euclid(2 * (n as i64 - 1)) as usize;
                Some(turn.min(2 * (n - 1) - turn))
            }
        }
    };
    let mut out = vec![0.0; to.iter().product()];
    for_each(to, |index, i| {
        let at =
            (0..shape.len()).try_fold(0, |n, a| Some(n * shape[a] + inside(index[a], before[a], shape[a])?));
        out[i] = at.map_or(0.0, |at| values[at]);
    });
    out
}

/// One axis after the other: between pixels linearly where it grows, the mean of what a pixel covers where it shrinks.
/// Pixels are areas, so that the image's corners stay where they are.
fn resize(values: &[f64], from: &[usize], to: &[usize]) -> Vec<f64> {
    let (mut values, mut shape) = (values.to_vec(), from.to_vec());
    for axis in 0..shape.len() {
        if shape[axis] == to[axis] {
            continue;
        }
        let taps = taps(shape[axis], to[axis]);
        let inner: usize = shape[axis + 1..].iter().product();
        let outer: usize = shape[..axis].iter().product();
        let mut out = Vec::with_capacity(outer * to[axis] * inner);
        for o in 0..outer {
            for tap in &taps {
                let of = |i: usize| {
                    tap.iter().map(|(at, w)| w * values[(o * shape[axis] + at) * inner + i]).sum::<f64>()
                };
                out.extend((0..inner).map(of));
            }
        }
        shape[axis] = to[axis];
        values = out;
    }
    values
}

/// For each new pixel of an axis, the old ones that it is made of and their shares.
fn taps(from: usize, to: usize) -> Vec<Vec<(usize, f64)>> {
    let ratio = from as f64 / to as f64;
    // Nothing of what is not finite would still not be finite.
    let some = |mut taps: Vec<(usize, f64)>| {
        taps.retain(|(_, share)| *share > 0.0);
        taps
    };
    let of = |i: usize| {
        if to > from {
            let centre = ((i as f64 + 0.5) * ratio - 0.5).clamp(0.0, (from - 1) as f64);
            let low = (centre as usize).min(from.saturating_sub(2));
            let share = centre - low as f64;
            return some(vec![(low, 1.0 - share), ((low + 1).min(from - 1), share)]);
        }
        let (start, end) = (i as f64 * ratio, (i + 1) as f64 * ratio);
        let covers = |at: usize| (end.min((at + 1) as f64) - start.max(at as f64)).max(0.0) / ratio;
        some((start as usize..(end.ceil() as usize).min(from)).map(|at| (at, covers(at))).collect())
    };
    (0..to).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that no arithmetic would leave alone.
    fn image(shape: &[usize], seed: u64) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..shape.iter().product::<usize>()).map(|_| next() as f64 / 3.0e15 - 1e3).collect()
    }

    fn bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn padding_and_cutting_come_back_to_the_bit() {
        for (seed, shape) in [vec![5, 7], vec![1, 1], vec![3, 4, 6], vec![2, 1, 9]].iter().enumerate() {
            for with in [Surround::Zero, Surround::Edge, Surround::Reflect] {
                let x = image(shape, 1 + seed as u64);
                let rank = shape.len();
                let start: Vec<usize> = shape.iter().map(|n| n / 3).collect();
                let size: Vec<usize> = shape.iter().map(|n| n - n / 3).collect();
                let geometry = Geometry::new(shape)
                    .unwrap()
                    .then(Step::Pad { before: (0..rank).collect(), after: vec![11; rank], with })
                    .unwrap()
                    .then(Step::Crop { start, size })
                    .unwrap()
                    .to_multiple(8, with)
                    .unwrap();
                assert!(geometry.is_exact() && geometry.shape().iter().all(|n| n % 8 == 0));
                let text = geometry.to_json().to_string();
                let read = Geometry::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
                assert_eq!(read, geometry);
                let made = read.apply(&x).unwrap();
                assert_eq!(bits(&read.undo(&made, &x).unwrap()), bits(&x), "{shape:?} {with:?}");
                assert_eq!(read.round_trip_psnr(&x).unwrap(), None);
                // What was changed in between arrives, and nothing else does.
                let doubled: Vec<f64> = made.iter().map(|v| 2.0 * v).collect();
                let back = read.undo(&doubled, &x).unwrap();
                assert!(back.iter().zip(&x).all(|(b, x)| *b == 2.0 * x || b == x));
            }
        }
    }

    #[test]
    fn surroundings_are_numpys() {
        // numpy.pad([1, 2, 3], (4, 3), mode=...)
        let x = [1.0, 2.0, 3.0];
        for (with, truth) in [
            (Surround::Zero, [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]),
            (Surround::Edge, [1, 1, 1, 1, 1, 2, 3, 3, 3, 3]),
            (Surround::Reflect, [1, 2, 3, 2, 1, 2, 3, 2, 1, 2]),
        ] {
            let step = Step::Pad { before: vec![4], after: vec![3], with };
            let made = Geometry::new(&[3]).unwrap().then(step).unwrap().apply(&x).unwrap();
            assert_eq!(made, truth.map(f64::from), "{with:?}");
        }
    }

    #[test]
    fn resizing_is_lossy_and_says_how_much() {
        let shape = [24, 31];
        let smooth: Vec<f64> =
            (0..24 * 31).map(|i| ((i / 31) as f64 / 9.0).sin() + ((i % 31) as f64 / 7.0).cos()).collect();
        let to = |size: &[usize]| {
            Geometry::new(&shape).unwrap().then(Step::Resize { size: size.to_vec() }).unwrap()
        };
        let small = to(&[17, 20]);
        assert!(!small.is_exact() && small.to_json()["exact"] == false);
        assert_eq!(small.to_json()["to"], serde_json::json!([17, 20]));
        assert_eq!(small.undo(&small.apply(&smooth).unwrap(), &smooth).unwrap().len(), 24 * 31);
        let of = |g: &Geometry, x: &[f64]| g.round_trip_psnr(x).unwrap().unwrap();
        let (fine, coarse, rough) =
            (of(&small, &smooth), of(&to(&[5, 6]), &smooth), of(&small, &image(&shape, 3)));
        assert!(fine > 35.0 && coarse < fine - 10.0 && rough < 20.0, "{fine} {coarse} {rough}");
        // A constant stays one, and the mean of an image that shrinks by a whole number stays.
        let flat = to(&[50, 9]).apply(&vec![2.5; 24 * 31]).unwrap();
        assert!(flat.iter().all(|v| (v - 2.5).abs() < 1e-12));
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        assert!((mean(&to(&[8, 31]).apply(&smooth).unwrap()) - mean(&smooth)).abs() < 1e-12);
    }

    #[test]
    fn the_loss_of_resizing_is_measured_for_odd_sizes_too() {
        let psnr = |from: usize, to: usize, image: &[f64]| {
            let step = Step::Resize { size: vec![to] };
            Geometry::new(&[from]).unwrap().then(step).unwrap().round_trip_psnr(image).unwrap()
        };
        // A constant loses nothing but rounding, whatever the sizes.
        for (from, to) in [(7, 3), (7, 5), (5, 11), (1, 4), (9, 1)] {
            assert_eq!(psnr(from, to, &vec![0.1; from]), None, "{from} {to}");
        }
        // A missing pixel does not count as a loss, its effect on others does.
        let mut image: Vec<f64> = (0..12).map(f64::from).collect();
        image[3] = f64::NAN;
        assert_eq!(psnr(12, 5, &image), Some(f64::NEG_INFINITY));
        assert_eq!(psnr(12, 12, &image), None);
        // Seen through a pad that is taken off again, it is there as it was.
        let step = Step::Pad { before: vec![2], after: vec![9], with: Surround::Reflect };
        let padded = Geometry::new(&[12]).unwrap().then(step).unwrap();
        assert_eq!(padded.round_trip_psnr(&image).unwrap(), None);
        // A new pixel that has nothing of it does not see it.
        let twice = Geometry::new(&[3]).unwrap().then(Step::Resize { size: vec![6] }).unwrap();
        let made = twice.apply(&[1.0, f64::INFINITY, 3.0]).unwrap();
        assert_eq!((made[0], made[5]), (1.0, 3.0));
    }

    #[test]
    fn impossible_steps_and_records_are_refused() {
        let g = || Geometry::new(&[4, 6]).unwrap();
        assert!(Geometry::new(&[4, 0]).is_err() && Geometry::new(&[usize::MAX, 2]).is_err());
        assert!(g().then(Step::Crop { start: vec![1, 1], size: vec![4, 2] }).is_err());
        assert!(g().then(Step::Crop { start: vec![usize::MAX, 1], size: vec![2, 2] }).is_err());
        assert!(g().then(Step::Resize { size: vec![4] }).is_err());
        assert!(g().then(Step::Resize { size: vec![0, 4] }).is_err());
        assert!(g().to_multiple(0, Surround::Edge).is_err());
        let after = vec![usize::MAX, 0];
        assert!(g().then(Step::Pad { before: vec![1, 1], after, with: Surround::Zero }).is_err());
        assert!(g().apply(&[0.0; 23]).is_err() && g().undo(&[0.0; 24], &[0.0; 23]).is_err());
        let good = g().then(Step::Resize { size: vec![2, 3] }).unwrap().to_json();
        for (key, value) in [
            ("to", serde_json::json!([2, 4])),
            ("exact", serde_json::json!(true)),
            ("from", serde_json::json!([4])),
            ("steps", serde_json::json!([{"turn": {"by": 90}}])),
            ("more", serde_json::json!(1)),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert!(Geometry::from_json(&bad).is_err(), "{key}");
        }
        assert!(Geometry::from_json(&good).is_ok());
    }
}
