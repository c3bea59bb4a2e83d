//! JPEG files: read whole, with a warning, and never written.

use clearshot_image::Image;
use std::path::PathBuf;

fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(name)
}

/// Nothing may be far from what was packed, at a quality of 95.
fn check(name: &str, shape: &[usize], truth: impl Fn(usize, usize, usize) -> usize) {
    let image = Image::open(picture(name)).unwrap();
    assert_eq!(image.description.shape(), shape);
    assert!(image.description.warnings.iter().any(|w| w.contains("8 bits")), "{name}");
    let region: Vec<_> = shape.iter().map(|n| 0..*n).collect();
    let samples = shape.get(2).copied().unwrap_or(1);
    for (i, value) in image.read(&region).unwrap().iter().enumerate() {
        let (pixel, c) = (i / samples, i % samples);
        let wanted = truth(pixel / shape[1], pixel % shape[1], c);
        assert!(usize::from(*value).abs_diff(wanted) <= 4, "{name}, value {i}: {value}, {wanted}");
    }
}

/// Sequential in grey, progressive in colour.
#[test]
fn ramps_come_back() {
    check("grey.jpg", &[20, 27], |y, x, _| 40 + 5 * x + 3 * y);
    check("colour.jpg", &[20, 27, 3], |y, x, c| [40 + 5 * x, 200 - 4 * y - 2 * x, 60 + 3 * y][c]);
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
