//! Files as other and older programs pack them: CCITT fax and LZW from before TIFF 6.0, predictors of 12-bit values, FITS in gzip.
//! `pictures/make_old_writers.py` made the TIFF files: fax by libtiff, and LZW that libtiff reads. Contents have a closed form.

use clearshot_image::{Axis, DType, Description, Dim, Image, WriteOptions, Writer, copy};
use std::io::Write;
use std::path::{Path, PathBuf};

fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(name)
}

fn values(path: &Path) -> Vec<f64> {
    let image = Image::open(path).unwrap_or_else(|e| panic!("{e}"));
    image.read_f64(&image.whole()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Rings, a row that is black and one that is white, in strips of 16 rows; the last has 13.
#[test]
fn fax_of_every_kind() {
    let pixel = |y: usize, x: usize| y != 20 && (((x * x + 3 * y * y) / 700).is_multiple_of(3) || y == 7);
    let truth: Vec<f64> = (0..45 * 203).map(|i| f64::from(u8::from(pixel(i / 203, i % 203)))).collect();
    let folder = tempfile::tempdir().unwrap();
    for kind in ["huffman", "group3", "group3_2d", "group4"] {
        let path = picture(&format!("fax_{kind}.tif"));
        assert_eq!(Image::open(&path).unwrap().shape(), [45, 203]);
        assert!(values(&path) == truth, "{kind}");
        // A copy is packed otherwise and has the same pixels.
        let out = folder.path().join(format!("{kind}.tif"));
        copy(&path, &out, false).unwrap();
        assert!(values(&out) == truth, "{kind}, copied");
    }
}

/// Every 31st bit of the rows in turn is wrong: an error or other pixels, and never a panic.
#[test]
fn damaged_fax_is_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.tif");
    for kind in ["huffman", "group3", "group3_2d", "group4"] {
        let good = std::fs::read(picture(&format!("fax_{kind}.tif"))).unwrap();
        // Strips lie between the header and the directory.
        let directory = u32::from_le_bytes(good[4..8].try_into().unwrap()) as usize;
        let mut refused = 0;
        for bit in (64..8 * directory).step_by(31) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bytes).unwrap();
            refused += usize::from(Image::open(&path).is_ok_and(|i| i.read(&i.whole()).is_err()));
        }
        assert!(refused > 10, "{kind}: {refused}");
    }
}

#[test]
fn lzw_from_the_lowest_bit_on() {
    let truth: Vec<f64> = (0..80 * 90)
        .map(|i| (i / 90, i % 90))
        .map(|(y, x): (usize, usize)| ((x * y + 7 * (x ^ y)) % 251) as f64)
        .collect();
    assert!(values(&picture("lzw_old.tif")) == truth);
}

/// Two rows of four values of 12 bits as differences, of which some are below zero.
#[test]
fn differences_of_12_bits() {
    let truth = [[4095u16, 1, 2049, 2048], [0, 4095, 0, 7]];
    let mut strip = Vec::new();
    for row in truth {
        let difference = |i: usize| if i == 0 { row[0] } else { row[i].wrapping_sub(row[i - 1]) & 0xFFF };
        for pair in [[0, 1], [2, 3]] {
            let [a, b] = pair.map(difference);
            strip.extend([(a >> 4) as u8, ((a & 15) << 4 | b >> 8) as u8, b as u8]);
        }
    }
    let entries = [
        (256u16, 4u32),
        (257, 2),
        (258, 12),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, 2),
        (279, 12),
        (317, 2),
    ];
    let mut bytes =
        [b"II*\0".as_slice(), &20u32.to_le_bytes(), &strip, &(entries.len() as u16).to_le_bytes()].concat();
    for (tag, value) in entries {
        bytes.extend(
            [&tag.to_le_bytes()[..], &4u16.to_le_bytes(), &1u32.to_le_bytes(), &value.to_le_bytes()].concat(),
        );
    }
    bytes.extend([0; 4]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(values(&path), truth.as_flattened().iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
}

/// A FITS file of a plane, a second image behind it, packed by gzip: read, and written with both images.
#[test]
fn fits_in_gzip() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let plain = at("plain.fits");
    let description =
        Description::new("made", &plain, vec![Dim::new(Axis::Y, 31), Dim::new(Axis::X, 47)], DType::U16);
    let truth: Vec<f64> = (0..31 * 47).map(|i| f64::from(i * 37 % 60_000)).collect();
    let mut pixels = Vec::new();
    DType::U16.encode(&truth, &mut pixels);
    let mut writer = Writer::create(&plain, &description, &WriteOptions::default()).unwrap();
    writer.write(&[0..31, 0..47], &pixels).unwrap();
    writer.finish().unwrap();
    let mut bytes = std::fs::read(&plain).unwrap();
    let cards = [
        "XTENSION= 'IMAGE   '",
        "BITPIX  = 8",
        "NAXIS   = 2",
        "NAXIS1  = 3",
        "NAXIS2  = 1",
        "PCOUNT  = 0",
        "GCOUNT  = 1",
        "EXTNAME = 'DEEP'",
        "END",
    ];
    cards.iter().for_each(|c| bytes.extend(format!("{c:<80}").bytes()));
    bytes.resize(bytes.len().next_multiple_of(2880), b' ');
    bytes.extend([5, 6, 7]);
    bytes.resize(bytes.len().next_multiple_of(2880), 0);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&bytes).unwrap();
    std::fs::write(at("a.fits.gz"), packed.finish().unwrap()).unwrap();
    assert_eq!(values(&at("a.fits.gz")), truth);
    for name in ["b.fits.gz", "b.fits"] {
        copy(at("a.fits.gz"), at(name), false).unwrap();
        assert_eq!(values(&at(name)), truth, "{name}");
        let second = Image::open_item(at(name), "DEEP").unwrap();
        assert_eq!(second.read_f64(&second.whole()).unwrap(), [5.0, 6.0, 7.0], "{name}");
    }
    assert!(std::fs::read(at("b.fits.gz")).unwrap().starts_with(&[0x1F, 0x8B]));
    copy(&plain, at("c.fits.gz"), false).unwrap();
    assert_eq!(values(&at("c.fits.gz")), truth);
    // Cut off: an error that names the file.
    let whole = std::fs::read(at("a.fits.gz")).unwrap();
    std::fs::write(at("cut.fits.gz"), &whole[..whole.len() / 2]).unwrap();
    let Err(said) = Image::open(at("cut.fits.gz")) else { panic!("half of a file is opened") };
    assert!(said.to_string().contains("cut.fits.gz"), "{said}");
}
