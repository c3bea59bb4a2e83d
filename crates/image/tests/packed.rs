//! Pixels packed by JPEG-LS, JPEG 2000, LERC and WebP, within DICOM and TIFF, and DICOM's rarer plain layouts. `pictures/make_packed.py`
//! made the files with CharLS, OpenJPEG, LERC and libwebp. What is packed without loss has a closed form; what is packed with loss is
//! compared with what those libraries read, which is kept beside it.

use clearshot_image::{Image, copy};
use std::path::{Path, PathBuf};

fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(name)
}

fn values(path: &Path) -> Vec<f64> {
    let image = Image::open(path).unwrap_or_else(|e| panic!("{e}"));
    image.read_f64(&image.whole()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Flat squares, slopes and what looks like noise: 0 to 4095, as `scene` of make_packed.py.
fn scene(y: usize, x: usize, shift: usize) -> i64 {
    let (y, x) = (y as i64, (x + shift) as i64);
    match (x / 8 + y / 8) % 3 {
        0 => 900,
        1 => 40 * y + 11 * x,
        _ => (x * y * 7 + 13 * (x ^ y) + x * x) % 4096,
    }
}

/// A plane of `height` x `width` by a function of the scene and of the place.
fn plane(height: usize, width: usize, value: impl Fn(i64, usize, usize) -> i64) -> Vec<f64> {
    (0..height * width)
        .map(|i| (i / width, i % width))
        .map(|(y, x)| value(scene(y, x, 0), y, x) as f64)
        .collect()
}

fn colours(height: usize, width: usize) -> Vec<f64> {
    let pixel = |i: usize| [0, 3, 40].map(|shift| (scene(i / width, i % width, shift) >> 4) as f64);
    (0..height * width).flat_map(pixel).collect()
}

/// The file has these values, and so has its copy, which is packed otherwise.
fn check(name: &str, truth: &[f64]) {
    let path = picture(name);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join(name);
    assert!(values(&path) == truth, "{name}");
    copy(&path, &out, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(values(&out) == truth, "{name}, copied");
}

/// The file has the values that another library reads, to within `tolerance`.
fn check_near(name: &str, tolerance: f64) {
    let path = picture(name);
    let known = values(&path.with_extension("npy"));
    let found = values(&path);
    assert_eq!(found.len(), known.len(), "{name}");
    let worst = found.iter().zip(&known).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= tolerance, "{name}: {worst} from the reference");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join(name);
    copy(&path, &out, false).unwrap_or_else(|e| panic!("{e}"));
    assert!(values(&out) == found, "{name}, copied");
}

/// 12 and 16 bits, with a sign, components in planes, lines and pixels, and to within 2.
#[test]
fn jpeg_ls_equals_charls() {
    check("ls_12.dcm", &plane(45, 61, |v, _, _| v));
    check("ls_16.dcm", &plane(45, 61, |v, y, x| v * 16 + scene(y, x, 9) % 16));
    check("ls_signed.dcm", &plane(45, 61, |v, _, _| v - 2048));
    (0..3).for_each(|mode| check(&format!("ls_colour_{mode}.dcm"), &colours(30, 40)));
    check_near("ls_near.dcm", 0.0);
}

/// Tiles, precincts and blocks of several sizes, signs; without loss.
#[test]
fn lossless_jpeg_2000_is_exact() {
    check("j2k_tiles.dcm", &plane(75, 83, |v, _, _| v >> 4));
    check("j2k_precincts.dcm", &plane(75, 83, |v, _, _| v));
    check("j2k_signed.dcm", &plane(45, 61, |v, _, _| v * 8 - 16384));
}

/// The irreversible wavelet and colour transform, of 16 bits, with a sign, in tiles with two layers of quality, and in TIFF.
#[test]
fn lossy_jpeg_2000_is_within_one_of_openjpeg() {
    for name in ["j2k_lossy_16.dcm", "j2k_lossy_signed.dcm", "j2k_lossy_colour.dcm"] {
        check_near(name, 1.0);
    }
    check_near("j2k_34712.tif", 1.0);
    check_near("j2k_33005.tif", 1.0);
    // A level of the red or blue difference is nearly two of blue.
    check_near("j2k_33003.tif", 2.0);
}

#[test]
fn lerc_equals_esri() {
    check("lerc_u16.tif", &plane(45, 61, |v, _, _| v));
    check("lerc_i8_deflate.tif", &plane(45, 61, |v, _, _| v % 256 - 128));
    let sixty_fourths: Vec<f64> = plane(45, 61, |v, _, _| v).iter().map(|v| v / 64.0).collect();
    check("lerc_f32_zstd.tif", &sixty_fourths);
    check("lerc_colour.tif", &colours(45, 61));
    check_near("lerc_lossy.tif", 0.0);
}

#[test]
fn webp_equals_libwebp() {
    let truth = colours(45, 61);
    check("webp_lossless.tif", &truth);
    let with_opacity = truth.chunks_exact(3).flat_map(|p| [p[0], p[1], p[2], 255.0 - (p[0] / 3.0).floor()]);
    check("webp_alpha.tif", &with_opacity.collect::<Vec<_>>());
    check_near("webp_lossy.tif", 1.0);
}

/// Three frames of 105 bits each, so that two begin within a byte; and of 105 bytes in big-endian words, so that one begins within a word.
#[test]
fn bits_and_words() {
    check("bits.dcm", &plane(15, 21, |v, _, _| v % 2));
    check("words.dcm", &plane(15, 21, |v, _, _| v >> 4));
    let image = Image::open(picture("bits.dcm")).unwrap();
    assert_eq!((image.shape(), image.description.bits), (vec![3, 5, 21], 1));
}

/// Every 211th bit of the packed data in turn is wrong: an error or other values, and never a panic. The data are the last part of each
/// file of DICOM, and begin behind the header of each TIFF.
#[test]
fn damaged_data_are_refused_or_read() {
    std::panic::set_hook(Box::new(|_| {}));
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "ls_12.dcm",
        "ls_colour_2.dcm",
        "j2k_lossy_colour.dcm",
        "j2k_34712.tif",
        "lerc_u16.tif",
        "webp_lossy.tif",
    ] {
        let good = std::fs::read(picture(name)).unwrap();
        let path = folder.path().join(name);
        let start = if name.ends_with("dcm") { 8 * good.len().saturating_sub(900) } else { 64 };
        let mut refused = 0;
        for bit in (start..8 * good.len()).step_by(211) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bytes).unwrap();
            let read = || Image::open(&path).is_ok_and(|i| i.read(&i.whole()).is_err());
            refused +=
                usize::from(std::panic::catch_unwind(read).unwrap_or_else(|_| panic!("{name}, bit {bit}")));
        }
        assert!(refused > 3, "{name}: {refused}");
    }
    let _ = std::panic::take_hook();
}
