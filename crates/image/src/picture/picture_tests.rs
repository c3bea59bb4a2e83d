use super::*;
use crate::{DType, Description, Dim, WriteOptions, Writer};

#[test]
fn contrast_goes_from_percentile_to_percentile() {
    let values: Vec<f32> = (0..1001).map(|i| i as f32).collect();
    let stretch = Stretch::percentiles(&values, 10.0, 90.0);
    assert_eq!((stretch.low, stretch.high), (100.0, 900.0));
    assert_eq!([50.0, 100.0, 500.0, 900.0, 2000.0].map(|v| stretch.shown(v)), [0.0, 0.0, 0.5, 1.0, 1.0]);
    assert_eq!(Stretch { gamma: 0.5, ..Stretch::range(0.0, 4.0) }.shown(1.0), 0.5);
    // Flat and empty planes are shown too.
    assert_eq!(Stretch::percentiles(&[3.0; 9], 0.1, 99.9).shown(3.0), 0.0);
    assert_eq!(Stretch::percentiles(&[f32::NAN; 9], 0.1, 99.9), Stretch::range(0.0, 1.0));
}

#[test]
fn colours_grow_brighter() {
    assert_eq!(Colours::Grey.of(0.5), [128; 3]);
    assert_eq!(Colours::Tint([255, 0, 10]).of(0.5), [128, 0, 5]);
    let light = |c: Rgb| 0.30 * f64::from(c[0]) + 0.59 * f64::from(c[1]) + 0.11 * f64::from(c[2]);
    let helix: Vec<f64> = (0..=100).map(|i| light(Colours::Helix.of(i as f32 / 100.0))).collect();
    assert!(helix.windows(2).all(|w| w[1] > w[0] - 1.0));
    assert_eq!((helix[0], helix[100]), (0.0, 255.0));
}

#[test]
fn panels_stand_side_by_side_under_their_labels() {
    let plane = |v: f32| Panel {
        stretch: Stretch::range(0.0, 1.0),
        ..Panel::new("A b", vec![v; 40 * 60], [40, 60]).unwrap()
    };
    let mut broken = plane(0.5);
    broken.values[0] = f32::NAN;
    let canvas = side_by_side(&[plane(1.0), broken, plane(0.0)], 2, 120);
    // Twice as large, letters of size 1: gaps of 4, heads of 15.
    assert_eq!((canvas.width(), canvas.height()), (2 * 124 + 4, 2 * (80 + 15) + 4));
    assert_eq!(canvas.pixel(4, 15), WHITE);
    assert_eq!(canvas.pixel(128, 15), INVALID);
    assert_eq!(canvas.pixel(130, 15), [128; 3]);
    assert_eq!(canvas.pixel(4, 95 + 15), BLACK);
    let ink = (0..canvas.width())
        .flat_map(|x| (0..15).map(move |y| (x, y)))
        .filter(|&(x, y)| canvas.pixel(x, y) == BLACK);
    // Two labels of the letters A and b.
    assert_eq!(ink.count(), 2 * (18 + 16));
    assert!(Panel::new("", vec![0.0; 5], [2, 3]).is_err());
    assert!(Panel::new("", vec![], [0, 3]).is_err());
}

#[test]
fn a_picture_is_a_png_that_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.png");
    let mut canvas = Canvas::new(7, 5, [1, 2, 3]);
    canvas.set(6, 4, [250, 0, 9]);
    canvas.set(7, 0, WHITE);
    canvas.save(&path, false).unwrap();
    assert!(canvas.save(&path, false).is_err());
    canvas.save(&path, true).unwrap();
    let image = Image::open(&path).unwrap();
    assert_eq!(image.shape(), [5, 7, 3]);
    let bytes = image.read(&image.whole()).unwrap();
    assert_eq!(bytes[..3], [1, 2, 3]);
    assert_eq!(bytes[5 * 7 * 3 - 3..], [250, 0, 9]);
    assert!(Canvas::new(0, 3, BLACK).png().is_err());
}

#[test]
fn large_planes_are_averaged_down_and_keep_their_scale() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.ome.tif");
    let dims = vec![
        Dim::new(Axis::Z, 2),
        Dim::stepped(Axis::Y, 50, Some(0.5), "µm"),
        Dim::stepped(Axis::X, 71, Some(0.5), "µm"),
    ];
    let mut writer =
        Writer::create(&path, &Description::new("", &path, dims, DType::F32), &WriteOptions::default())
            .unwrap();
    let values: Vec<f64> =
        (0..2 * 50 * 71).map(|i| (i / 71 % 50 * 1000 + i % 71 + i / 3550) as f64).collect();
    let mut bytes = Vec::new();
    DType::F32.encode(&values, &mut bytes);
    writer.write(&[0..2, 0..50, 0..71], &bytes).unwrap();
    writer.finish().unwrap();
    let image = Image::open(&path).unwrap();
    let panel = Panel::of_image("z 1", &image, &[1..2, 0..50, 0..71], 20).unwrap();
    assert_eq!(panel.shape, [13, 18]);
    assert_eq!(panel.pixel, Some(PixelSize { step: 2.0, unit: "µm".into() }));
    // Means of 4 x 4 pixels, and of 2 x 3 in the corner.
    assert_eq!(panel.values[0], 1500.0 + 1.5 + 1.0);
    assert_eq!(panel.values[13 * 18 - 1], 48500.0 + 69.0 + 1.0);
    assert!(Panel::of_image("", &image, &[0..2, 0..50, 0..71], 20).is_err());
}
