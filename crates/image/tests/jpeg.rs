//! JPEG files: read whole, with a warning, and never written.

use clearshot_image::Image;
use std::path::PathBuf;

fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(name)
}

/// Ramps that were packed at a quality of 95, sequential in grey and progressive in colour: nothing is far from them.
#[test]
fn ramps_come_back() {
    let grey = |y: usize, x: usize, _: usize| 40 + 5 * x + 3 * y;
    let colour = |y: usize, x: usize, c: usize| [40 + 5 * x, 200 - 4 * y - 2 * x, 60 + 3 * y][c];
    let cases: [(&str, &[usize], &dyn Fn(usize, usize, usize) -> usize); 2] =
        [("grey.jpg", &[20, 27], &grey), ("colour.jpg", &[20, 27, 3], &colour)];
    for (name, shape, truth) in cases {
        let image = Image::open(picture(name)).unwrap();
        assert_eq!(image.description.shape(), shape);
        assert!(image.description.warnings.iter().any(|w| w.contains("8 bits")), "{name}");
        let region: Vec<_> = shape.iter().map(|n| 0..*n).collect();
        let values = image.read(&region).unwrap();
        let samples = shape.get(2).copied().unwrap_or(1);
        for (i, value) in values.iter().enumerate() {
            let (pixel, c) = (i / samples, i % samples);
            let wanted = truth(pixel / 27, pixel % 27, c);
            assert!(usize::from(*value).abs_diff(wanted) <= 4, "{name}, value {i}: {value}, {wanted}");
        }
    }
}

#[test]
fn cut_off_and_unwritten() {
    let whole = std::fs::read(picture("grey.jpg")).unwrap();
    let folder = std::env::temp_dir().join(format!("clearshot-jpeg-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("cut.jpg");
    for cut in [3, 20, 100, whole.len() / 2] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let told = Image::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(told.contains("cut.jpg"), "{cut} bytes: {told}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
