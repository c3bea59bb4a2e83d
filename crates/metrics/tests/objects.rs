//! Numbers that scikit-image and scipy give for scenes that a formula makes: thresholds, labels,
//! distances, and matched objects (cellpose's formula, with scipy's assignment).

use clearshot_metrics::ImageRef;
use clearshot_metrics::hausdorff::hausdorff;
use clearshot_metrics::overlap::{dice, iou, precision};
use clearshot_metrics::segment::{Connectivity, Labels, otsu};

struct Scene {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Scene {
    fn new(shape: &[usize], shift: f64) -> Scene {
        let value = |i: usize| {
            let (mut rest, mut v) = (i, 1.0);
            for k in (0..shape.len()).rev() {
                let (c, k1) = ((rest % shape[k]) as f64, k as f64);
                rest /= shape[k];
                v *= ((0.45 + 0.13 * k1) * c + 0.2 + shift * (k1 + 1.0)).sin();
            }
            v + 0.25 * (2.3 * i as f64).sin()
        };
        let data = (0..shape.iter().product()).map(value).collect();
        Scene { shape: shape.to_vec(), data }
    }

    fn view(&self) -> ImageRef<'_> {
        ImageRef::new(&self.data, &self.shape).unwrap()
    }

    fn mask(&self) -> Vec<bool> {
        let threshold = otsu(self.view(), 256).unwrap();
        self.data.iter().map(|&x| x > threshold).collect()
    }

    fn labels(&self, connectivity: Connectivity) -> Labels {
        Labels::by_otsu(self.view(), connectivity).unwrap()
    }
}

fn scenes(shape: &[usize]) -> (Scene, Scene) {
    (Scene::new(shape, 0.0), Scene::new(shape, 0.25))
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12 * expected.abs(), "{got} against {expected}");
}

#[test]
fn thresholds_equal_scikit_image() {
    let (a, b) = scenes(&[40, 37]);
    close(otsu(a.view(), 256).unwrap(), 0.0025327852108637527);
    close(otsu(b.view(), 256).unwrap(), -0.008408203158386529);
    let (a, b) = scenes(&[12, 15, 17]);
    close(otsu(a.view(), 256).unwrap(), -0.0031363643633834926);
    close(otsu(b.view(), 256).unwrap(), 0.005728486317305381);
}

/// The counts of both scenes, and the first one's sum of label times place.
#[test]
fn labels_equal_scipy() {
    let check = |shape: &[usize], connectivity, expected: (usize, usize, u64)| {
        let (a, b) = scenes(shape);
        let (a, b) = (a.labels(connectivity), b.labels(connectivity));
        let sum = a.data.iter().zip(1..).map(|(&l, place)| u64::from(l) * place).sum();
        assert_eq!((a.count, b.count, sum), expected);
    };
    check(&[40, 37], Connectivity::Faces, (88, 53, 32_622_631));
    check(&[40, 37], Connectivity::Corners, (5, 1, 554_486));
    check(&[12, 15, 17], Connectivity::Faces, (61, 38, 21_313_304));
    check(&[12, 15, 17], Connectivity::Corners, (3, 5, 2_363_248));
}

#[test]
fn matches_equal_the_assignment() {
    let check = |shape: &[usize], connectivity, expected: [usize; 5]| {
        let (a, b) = scenes(shape);
        let (a, b) = (a.labels(connectivity), b.labels(connectivity));
        let got = precision(&a, &b, &[0.1, 0.3, 0.5, 0.6, 0.7]).unwrap();
        for (p, found) in got.iter().zip(expected) {
            assert_eq!((p.found, p.invented, p.missed), (found, b.count - found, a.count - found));
        }
    };
    check(&[40, 37], Connectivity::Faces, [36, 35, 34, 29, 24]);
    check(&[40, 37], Connectivity::Corners, [1, 1, 1, 1, 0]);
    check(&[12, 15, 17], Connectivity::Faces, [10, 10, 10, 7, 7]);
    check(&[12, 15, 17], Connectivity::Corners, [2, 2, 2, 1, 1]);
}

/// Dice, IoU, the largest distance, and the 97th percentile with unequal spacing.
#[test]
fn distances_and_overlaps_equal_scipy() {
    let check = |shape: &[usize], spacing: &[f64], expected: [f64; 4]| {
        let (a, b) = scenes(shape);
        let (a, b) = (a.mask(), b.mask());
        close(dice(&a, &b).unwrap(), expected[0]);
        close(iou(&a, &b).unwrap(), expected[1]);
        close(hausdorff(&a, &b, shape, &vec![1.0; shape.len()], 100.0).unwrap(), expected[2]);
        close(hausdorff(&a, &b, shape, spacing, 97.0).unwrap(), expected[3]);
    };
    check(&[40, 37], &[2.0, 0.5], [0.8341168569509738, 0.7154377880184332, 4.123105625617661, 1.0]);
    let volume = [0.7486033519553073, 0.5982142857142857, 3.1622776601683795, 2f64.sqrt()];
    check(&[12, 15, 17], &[2.0, 0.5, 1.0], volume);
}
