//! Scenes of 4 x 4 pixels, worked out by hand.

use super::*;

const SHAPE: [usize; 2] = [4, 4];

fn view(x: &[f64]) -> ImageRef<'_> {
    ImageRef::new(x, &SHAPE).unwrap()
}

fn places(mask: &[bool]) -> Vec<usize> {
    (0..mask.len()).filter(|&i| mask[i]).collect()
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-12, "{a} {b}");
}

#[test]
fn shapes_hold_the_pixels_they_should() {
    let disk = Pattern::disk(SHAPE, [1.0, 1.0], 1.0, 2.0, 0.0).unwrap();
    assert_eq!(places(&disk.mask), [1, 4, 5, 6, 9]);
    close(disk.values.iter().sum(), 10.0);
    let line = Pattern::line(SHAPE, [2.0, 0.0], [2.0, 2.0], 1.0, 0.05).unwrap();
    assert_eq!(places(&line.mask), [8, 9, 10]);
    let diagonal = Pattern::line(SHAPE, [0.0, 0.0], [3.0, 3.0], 1.0, 1.0).unwrap();
    assert_eq!(places(&diagonal.mask), [0, 5, 10, 15]);
    let dot = Pattern::line(SHAPE, [1.0, 1.0], [1.0, 1.0], 1.0, 1.0).unwrap();
    assert_eq!(places(&dot.mask), [5]);
}

/// Mirrored borders lose nothing: the blurred disk has the sum of the sharp one.
#[test]
fn blur_keeps_the_sum() {
    let disk = Pattern::disk([40, 30], [20.0, 14.0], 5.0, 2.0, 3.0).unwrap();
    let sharp = Pattern::disk([40, 30], [20.0, 14.0], 5.0, 2.0, 0.0).unwrap();
    assert_eq!(disk.mask, sharp.mask);
    assert!((disk.values.iter().sum::<f64>() - sharp.values.iter().sum::<f64>()).abs() < 1e-9);
    assert!(disk.values[20 * 30 + 14] < 2.0 && disk.values[20 * 30 + 22] > 0.0);
}

/// Without: 3 everywhere. With: half of a dot of 4 pixels of height 2 came through, so the difference
/// is 1 inside: 10 log10(9 / 1), gain 1/2.
#[test]
fn responses_by_hand() {
    let mask: Vec<bool> = (0..16).map(|i| [5, 6, 9, 10].contains(&i)).collect();
    let values = mask.iter().map(|&m| if m { 2.0 } else { 0.0 }).collect();
    let pattern = Pattern { values, mask };
    let without = [3.0; 16];
    assert_eq!(pattern.insert(view(&without)).unwrap()[5], 5.0);
    let with: Vec<f64> = pattern.mask.iter().map(|&m| if m { 4.0 } else { 3.0 }).collect();
    let got = pattern.response(view(&with), view(&without)).unwrap();
    close(got.signal_to_artefact, 10.0 * 9f64.log10());
    close(got.gain, 0.5);
    let gone = pattern.response(view(&without), view(&without)).unwrap();
    assert_eq!((gone.signal_to_artefact, gone.gain), (f64::INFINITY, 0.0));
    let kept = pattern.response(view(&pattern.insert(view(&without)).unwrap()), view(&without)).unwrap();
    close(kept.gain, 1.0);
    // What the run with the pattern makes of the rest of the scene says nothing: the scene is that without it.
    let spilled: Vec<f64> = pattern.mask.iter().map(|&m| if m { 4.0 } else { 30.0 }).collect();
    close(pattern.response(view(&spilled), view(&without)).unwrap().signal_to_artefact, 10.0 * 9f64.log10());
    // Of one image alone: 9 outside over 16 inside.
    close(power_ratio(view(&with), &pattern.mask).unwrap(), 10.0 * (9.0f64 / 16.0).log10());
}

/// A line of 0.05 that came back as 0.03: the error is 0.02 inside, and nothing else counts.
#[test]
fn omission_by_hand() {
    let line = Pattern::line(SHAPE, [1.0, 0.0], [1.0, 3.0], 1.0, 0.05).unwrap();
    let truth = line.insert(view(&[0.5; 16])).unwrap();
    let mut image = [0.9; 16];
    image[4..8].fill(0.53);
    close(omission_psnr(view(&truth), view(&image), &line.mask, 1.0).unwrap(), 20.0 * 50f64.log10());
}

#[test]
fn odd_input_is_refused() {
    assert!(Pattern::disk(SHAPE, [50.0, 1.0], 1.0, 2.0, 0.0).is_err());
    assert!(Pattern::disk(SHAPE, [f64::NAN, 1.0], 1.0, 2.0, 0.0).is_err());
    assert!(Pattern::disk(SHAPE, [1.0, 1.0], 1.0, 2.0, -1.0).is_err());
    assert!(Pattern::disk(SHAPE, [1.0, 1.0], 0.0, 2.0, 1.0).is_err());
    assert!(Pattern::disk([0, 4], [1.0, 1.0], 1.0, 2.0, 0.0).is_err());
    assert!(Pattern::line(SHAPE, [0.0; 2], [1.0; 2], f64::NAN, 1.0).is_err());
    let all = Pattern::disk(SHAPE, [1.0, 1.0], 9.0, 2.0, 0.0).unwrap();
    assert!(all.response(view(&[1.0; 16]), view(&[1.0; 16])).is_err());
    assert!(power_ratio(view(&[1.0; 16]), &[true; 16]).is_err());
    assert!(all.insert(ImageRef::new(&[1.0; 4], &[2, 2]).unwrap()).is_err());
}
