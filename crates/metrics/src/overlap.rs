//! Agreement of two segmentations: Dice and IoU of masks, average precision of objects.
//!
//! Average precision is that of cell segmentation, TP / (TP + FP + FN) at a threshold of IoU. An object counts as found if
//! it can be matched; at thresholds below one half an object may fit several, and the matching with the most pairs is used.

use crate::MetricError;
use crate::error::require;
use crate::segment::Labels;
use std::collections::BTreeMap;

/// How many pixels are in both masks, in the first, and in the second.
fn sizes(a: &[bool], b: &[bool]) -> Result<[f64; 3], MetricError> {
    if a.len() != b.len() {
        return Err(MetricError::Pixels { what: "second mask", shape: vec![a.len()], got: b.len() });
    }
    let count = |f: fn(bool, bool) -> bool| a.iter().zip(b).filter(|&(&a, &b)| f(a, b)).count() as f64;
    Ok([count(|a, b| a && b), count(|a, _| a), count(|_, b| b)])
}

/// Twice the common pixels over the sum of both; 1 if both masks are empty.
///
/// # Errors
/// If the masks differ in length.
pub fn dice(a: &[bool], b: &[bool]) -> Result<f64, MetricError> {
    let [both, a, b] = sizes(a, b)?;
    Ok(if a + b == 0.0 { 1.0 } else { 2.0 * both / (a + b) })
}

/// The common pixels over those of either; 1 if both masks are empty.
///
/// # Errors
/// If the masks differ in length.
pub fn iou(a: &[bool], b: &[bool]) -> Result<f64, MetricError> {
    let [both, a, b] = sizes(a, b)?;
    Ok(if a + b == 0.0 { 1.0 } else { both / (a + b - both) })
}

/// What was found at one threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    pub threshold: f64,
    pub found: usize,
    /// Objects of the restored image without a true one.
    pub invented: usize,
    /// True objects without one in the restored image.
    pub missed: usize,
}

impl Precision {
    /// TP / (TP + FP + FN); 1 if there are no objects at all.
    pub fn average_precision(&self) -> f64 {
        let all = self.found + self.invented + self.missed;
        if all == 0 { 1.0 } else { self.found as f64 / all as f64 }
    }
}

/// Matches objects at each threshold: a pair matches if its IoU is at least that.
///
/// # Errors
/// If the shapes differ or a threshold is not above 0 and at most 1.
pub fn precision(truth: &Labels, found: &Labels, thresholds: &[f64]) -> Result<Vec<Precision>, MetricError> {
    if truth.shape != found.shape || truth.data.len() != found.data.len() {
        let (expected, got) = (truth.shape.clone(), found.shape.clone());
        return Err(MetricError::Shape { what: "restored image's labels", expected, got });
    }
    let needed = "above 0 and at most 1";
    thresholds.iter().try_for_each(|&t| require(t > 0.0 && t <= 1.0, "a threshold", t, needed))?;
    let pairs = object_ious(truth, found);
    let (n, m) = (areas(truth).len(), areas(found).len());
    let at = |&threshold: &f64| {
        let matched = matching(&pairs, threshold);
        Precision { threshold, found: matched, invented: m - matched, missed: n - matched }
    };
    Ok(thresholds.iter().map(at).collect())
}

/// The number of pixels of each object.
fn areas(labels: &Labels) -> BTreeMap<u32, usize> {
    let mut areas = BTreeMap::new();
    labels.data.iter().filter(|&&l| l > 0).for_each(|&l| *areas.entry(l).or_insert(0) += 1);
    areas
}

/// The IoU of every two objects that touch.
fn object_ious(truth: &Labels, found: &Labels) -> BTreeMap<(u32, u32), f64> {
    let (a, b) = (areas(truth), areas(found));
    let mut common: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let touching = truth.data.iter().zip(&found.data).filter(|&(&t, &f)| t > 0 && f > 0);
    touching.for_each(|(&t, &f)| *common.entry((t, f)).or_insert(0) += 1);
    let iou = |((t, f), n): ((u32, u32), usize)| ((t, f), n as f64 / (a[&t] + b[&f] - n) as f64);
    common.into_iter().map(iou).collect()
}

/// The size of the largest matching, by augmenting paths.
fn matching(pairs: &BTreeMap<(u32, u32), f64>, threshold: f64) -> usize {
    let mut edges: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (&(t, f), _) in pairs.iter().filter(|&(_, &iou)| iou >= threshold) {
        edges.entry(t).or_default().push(f);
    }
    let mut owner = BTreeMap::new();
    edges.keys().filter(|&&t| augment(t, &edges, &mut owner)).count()
}

/// Finds a partner for `start`, moving others to other partners; breadth first, so that long chains
/// need no deep stack.
fn augment(start: u32, edges: &BTreeMap<u32, Vec<u32>>, owner: &mut BTreeMap<u32, u32>) -> bool {
    let mut reached: BTreeMap<u32, u32> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(t) = queue.pop_front() {
        for &f in &edges[&t] {
            if reached.contains_key(&f) {
                continue;
            }
            reached.insert(f, t);
            match owner.get(&f) {
                Some(&other) => queue.push_back(other),
                None => {
                    reassign(f, start, &reached, owner);
                    return true;
                }
            }
        }
    }
    false
}

/// Walks back from a free object, giving each to the one it was reached from.
fn reassign(mut f: u32, start: u32, reached: &BTreeMap<u32, u32>, owner: &mut BTreeMap<u32, u32>) {
    loop {
        let t = reached[&f];
        let former = if t == start { None } else { owner.iter().find(|&(_, &o)| o == t).map(|(&f, _)| f) };
        owner.insert(f, t);
        let Some(former) = former else { return };
        f = former;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(data: &[u32]) -> Labels {
        let count = *data.iter().max().unwrap() as usize;
        Labels { data: data.to_vec(), shape: vec![1, data.len()], count }
    }

    #[test]
    fn masks_by_hand() {
        let (a, b) = ([true, true, true, false], [false, true, true, true]);
        assert_eq!((dice(&a, &b).unwrap(), iou(&a, &b).unwrap()), (4.0 / 6.0, 0.5));
        let none = [false; 4];
        assert_eq!((dice(&none, &none).unwrap(), iou(&none, &none).unwrap()), (1.0, 1.0));
        assert_eq!((dice(&a, &none).unwrap(), iou(&a, &none).unwrap()), (0.0, 0.0));
        assert!(dice(&a, &none[..3]).is_err());
    }

    /// IoUs: 1-1 2/3, 2-2 1/3, 3 has none; the restored image's 3 is invented.
    #[test]
    fn objects_by_hand() {
        let truth = labels(&[1, 1, 1, 0, 2, 2, 2, 0, 3, 0, 0]);
        let found = labels(&[1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 3]);
        let got = precision(&truth, &found, &[0.3, 0.5, 0.75]).unwrap();
        let counts: Vec<_> = got.iter().map(|p| (p.found, p.invented, p.missed)).collect();
        assert_eq!(counts, [(2, 1, 1), (1, 2, 2), (0, 3, 3)]);
        assert_eq!(got[0].average_precision(), 0.5);
        assert_eq!(got[1].average_precision(), 0.2);
        let none = labels(&[0; 11]);
        assert_eq!(precision(&none, &none, &[0.5]).unwrap()[0].average_precision(), 1.0);
        assert_eq!(precision(&truth, &none, &[0.5]).unwrap()[0].average_precision(), 0.0);
        assert!(precision(&truth, &labels(&[1]), &[0.5]).is_err());
        assert!(precision(&truth, &found, &[0.0]).is_err());
    }

    /// Taken in order, 1 would get a and leave 2 without; the largest matching has both, and three in
    /// the longer chain.
    #[test]
    fn matchings_are_the_largest() {
        let pairs = |list: &[(u32, u32)]| list.iter().map(|&p| (p, 0.4)).collect::<BTreeMap<_, _>>();
        assert_eq!(matching(&pairs(&[(1, 1), (1, 2), (2, 1)]), 0.3), 2);
        assert_eq!(matching(&pairs(&[(1, 1), (1, 2), (2, 1), (2, 3), (3, 1), (3, 3)]), 0.3), 3);
        assert_eq!(matching(&pairs(&[(1, 1), (2, 1), (3, 1)]), 0.3), 1);
        assert_eq!(matching(&pairs(&[(1, 1)]), 0.5), 0);
    }
}
