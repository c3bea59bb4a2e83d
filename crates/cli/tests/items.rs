//! Files with several images: every image is restored, into a file of the same kind where that holds them all.

mod measured;
mod program;

use clearshot_image::{DType, Image};
use measured::{CAMERA, conditional, counts, model, read, write};
use program::{clearshot, folder, must};
use std::path::{Path, PathBuf};

const SIZES: [[usize; 2]; 2] = [[24, 32], [40, 28]];

fn pixels(path: &Path, item: usize) -> (Image, Vec<f64>) {
    let image = Image::open_number(path, item).unwrap_or_else(|e| panic!("{e}"));
    let values = image.read_f64(&image.whole()).expect("pixels");
    (image, values)
}

fn image(n: usize) -> Vec<u16> {
    counts(&SIZES[n], n as u64 + 1).iter().map(|v| v.round().clamp(0.0, 65535.0) as u16).collect()
}

/// A directory of a TIFF: (tag, type, count, value or where it lies).
fn directory(entries: &[(u16, u16, u32, u32)], next: u32) -> Vec<u8> {
    let mut out = (entries.len() as u16).to_le_bytes().to_vec();
    for (tag, kind, count, value) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    out.extend(next.to_le_bytes());
    out
}

/// An OME-TIFF of two series of other sizes.
fn two_series(path: &Path) {
    let series = |n: usize| {
        let [y, x] = SIZES[n];
        format!(
            "<Image ID=\"Image:{n}\" Name=\"field {n}\"><Pixels ID=\"Pixels:{n}\" DimensionOrder=\"XYCZT\" Type=\"uint16\" SizeX=\"{x}\" SizeY=\"{y}\" SizeC=\"1\" SizeZ=\"1\" SizeT=\"1\" PhysicalSizeX=\"0.{n}5\" PhysicalSizeY=\"0.{n}5\"><Channel ID=\"Channel:{n}:0\" Name=\"dye {n}\"/><TiffData IFD=\"{n}\" PlaneCount=\"1\"/></Pixels></Image>"
        )
    };
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><OME xmlns=\"http://www.openmicroscopy.org/Schemas/OME/2016-06\">{}{}</OME>\0",
        series(0),
        series(1)
    );
    let mut file = b"II*\0".to_vec();
    let mut at = 8u32;
    let mut body = Vec::new();
    let mut put = |bytes: &[u8]| {
        let here = at;
        body.extend(bytes);
        at += bytes.len() as u32;
        here
    };
    let text = put(xml.as_bytes());
    let data = [0, 1].map(|n| put(&image(n).iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()));
    let (first, entries) = (at, 10u32);
    for n in 0..2usize {
        let [y, x] = SIZES[n].map(|v| v as u32);
        let mut list = vec![
            (256, 3, 1, x),
            (257, 3, 1, y),
            (258, 3, 1, 16),
            (259, 3, 1, 1),
            (262, 3, 1, 1),
            (273, 4, 1, data[n]),
            (277, 3, 1, 1),
            (278, 3, 1, y),
            (279, 4, 1, x * y * 2),
        ];
        if n == 0 {
            list.insert(5, (270, 2, xml.len() as u32, text));
        }
        let next = if n == 0 { first + 2 + 12 * entries + 4 } else { 0 };
        body.extend(directory(&list, next));
    }
    file.extend(first.to_le_bytes());
    file.extend(body);
    std::fs::write(path, file).expect("a file");
}

fn card(key: &str, value: &str) -> String {
    format!("{:<80}", format!("{key:<8}= {value:>20}"))
}

/// A FITS of an empty first unit, two images, and the marks of the second.
fn extensions(path: &Path) {
    let padded = |mut bytes: Vec<u8>, with: u8| {
        bytes.resize(bytes.len().next_multiple_of(2880), with);
        bytes
    };
    let mut file = padded(
        [card("SIMPLE", "T"), card("BITPIX", "8"), card("NAXIS", "0"), format!("{:<80}", "END")]
            .concat()
            .into_bytes(),
        b' ',
    );
    for (name, n) in [("'ONE     '", 0), ("'TWO     '", 1), ("'DQ      '", 1)] {
        let [y, x] = SIZES[n];
        let cards = [
            card("XTENSION", "'IMAGE   '"),
            card("BITPIX", "16"),
            card("NAXIS", "2"),
            card("NAXIS1", &x.to_string()),
            card("NAXIS2", &y.to_string()),
            card("PCOUNT", "0"),
            card("GCOUNT", "1"),
            card("EXTNAME", name),
            format!("{:<80}", "END"),
        ];
        file.extend(padded(cards.concat().into_bytes(), b' '));
        file.extend(padded(image(n).iter().flat_map(|v| (*v as i16).to_be_bytes()).collect(), 0));
    }
    std::fs::write(path, file).expect("a file");
}

/// A plate of two wells with one field each, as version 0.5.
fn plate(at: &Path) {
    let root = at.join("plate.zarr");
    let group = |folder: PathBuf, attributes: serde_json::Value| {
        std::fs::create_dir_all(&folder).expect("a folder");
        let text = serde_json::json!({"zarr_format": 3, "node_type": "group", "attributes": attributes});
        std::fs::write(folder.join("zarr.json"), text.to_string()).expect("a file");
    };
    let wells = ["A/1", "B/2"];
    let listed: Vec<_> = wells
        .iter()
        .enumerate()
        .map(|(i, w)| serde_json::json!({"path": w, "rowIndex": i, "columnIndex": i}))
        .collect();
    group(
        root.clone(),
        serde_json::json!({"ome": {"version": "0.5", "plate": {
            "name": "trial", "rows": [{"name": "A"}, {"name": "B"}],
            "columns": [{"name": "1"}, {"name": "2"}], "wells": listed}}}),
    );
    for (n, well) in wells.iter().enumerate() {
        group(root.join(&well[..1]), serde_json::json!({}));
        group(
            root.join(well),
            serde_json::json!({"ome": {"version": "0.5", "well": {"images": [{"path": "0"}]}}}),
        );
        let values: Vec<f64> = image(n).iter().map(|v| f64::from(*v)).collect();
        write(&at.join("field.ome.zarr"), "YX", &SIZES[n], DType::U16, &values);
        std::fs::rename(at.join("field.ome.zarr"), root.join(well).join("0")).expect("renamed");
    }
}

/// Every verb restores both images as it does each alone.
#[test]
fn all_images_of_a_file_are_restored() {
    let at = folder("items");
    model(&at, "m", 1, 2, conditional());
    two_series(&at.join("in.ome.tif"));
    extensions(&at.join("in.fits"));
    plate(&at);
    std::fs::rename(at.join("plate.zarr"), at.join("in.zarr")).expect("renamed");
    for ending in ["ome.tif", "fits", "zarr"] {
        let input = at.join(format!("in.{ending}"));
        for (verb, line) in [
            (
                "restore",
                format!("restore in.{ending} -o restore.{ending} --model m.clearshot {CAMERA} --chi2"),
            ),
            ("denoise", format!("denoise --method median in.{ending} denoise.{ending} --save-mask")),
            (
                "deconvolve",
                format!("deconvolve --psf-sigma 1 --gain 0.5 --steps 2 in.{ending} deconvolve.{ending}"),
            ),
        ] {
            must(&line, &at);
            let output = at.join(format!("{verb}.{ending}"));
            for n in 0..2 {
                let (before, old) = pixels(&input, n);
                let (after, new) = pixels(&output, n);
                assert_eq!(after.shape(), SIZES[n], "{line}");
                assert_eq!(after.description.items, before.description.items, "{line}");
                assert_eq!(after.description.dtype, before.description.dtype, "{line}");
                let names =
                    |i: &Image| i.description.channels.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
                assert_eq!(names(&after), names(&before), "{line}");
                assert!(old.iter().zip(&new).filter(|(a, b)| a != b).count() > old.len() / 2, "{line} {n}");
                assert_eq!(after.description.provenance.expect("provenance")["operation"], verb);
            }
        }
    }
    // Each image has its own files beside the output.
    let beside = [
        "restore_0_chi2.ome.tif",
        "restore_1_chi2.ome.tif",
        "denoise_ONE_mask.fits",
        "denoise_B-2-0_mask.zarr",
    ];
    for name in beside {
        assert!(at.join(name).exists(), "{name}");
    }
    // What goes beside is of one image.
    assert_eq!(Image::open(at.join("restore_1_chi2.ome.tif")).expect("a map").description.items.len(), 1);
    // Masks are not images, and are copied.
    assert_eq!(pixels(&at.join("denoise.fits"), 2).1, pixels(&at.join("in.fits"), 2).1);
    // A plate stays one.
    let read = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(at.join(path)).expect(path)).expect("JSON")
    };
    for part in ["zarr.json", "A/zarr.json", "A/1/zarr.json", "B/2/zarr.json"] {
        assert_eq!(read(&format!("denoise.zarr/{part}")), read(&format!("in.zarr/{part}")), "{part}");
    }
    // The same again is done already; nothing hidden is left.
    let again = must(&format!("restore in.fits -o restore.fits --model m.clearshot {CAMERA} --chi2"), &at);
    assert!(again.contains("already done"), "{again}");
    let hidden = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with('.');
    let left: Vec<_> = std::fs::read_dir(&at).expect("a folder").flatten().filter(hidden).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// One image by its name or number; the others are copied, with a notice. Formats for a single image give several files.
#[test]
fn one_image_by_name_and_files_apart() {
    let at = folder("items_one");
    two_series(&at.join("in.ome.tif"));
    let said = |line: &str| {
        let out = clearshot(line, &at);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let one = said("denoise --method median --item 1 in.ome.tif one.ome.tif");
    assert!(one.contains("the others are copied as they are"), "{one}");
    assert_eq!(pixels(&at.join("one.ome.tif"), 0).1, pixels(&at.join("in.ome.tif"), 0).1);
    assert_ne!(pixels(&at.join("one.ome.tif"), 1).1, pixels(&at.join("in.ome.tif"), 1).1);
    said("denoise --method median in.ome.tif all.ome.tif");
    assert_eq!(pixels(&at.join("one.ome.tif"), 1).1, pixels(&at.join("all.ome.tif"), 1).1);
    for (line, names) in [
        ("denoise --method median in.ome.tif apart.png", ["apart_0.png", "apart_1.png"]),
        ("denoise --method median --float in.ome.tif float.ome.tif", ["float_0.ome.tif", "float_1.ome.tif"]),
    ] {
        let text = said(line);
        assert!(text.contains("a file of its own") && text.contains("--item"), "{line}: {text}");
        for (n, name) in names.iter().enumerate() {
            assert_eq!(Image::open(at.join(name)).expect(name).shape()[..2], SIZES[n], "{name}");
        }
    }
    let none = program::refused("denoise --method median --item 7 in.ome.tif x.ome.tif", &at);
    assert!(none.contains('7'), "{none}");
}

/// Why pixels hold no measurement, in a mask; the same rule in every verb.
#[test]
fn masks_say_why() {
    let at = folder("masks");
    model(&at, "m", 1, 2, conditional());
    let mut values = counts(&[32, 32], 2);
    (values[7], values[100], values[333], values[500]) = (f64::NAN, f64::INFINITY, 4000.0, 3999.0);
    write(&at.join("x.tif"), "YX", &[32, 32], DType::F32, &values);
    let marks: Vec<f64> = (0..1024).map(|i| f64::from(i == 600)).collect();
    write(&at.join("m.tif"), "YX", &[32, 32], DType::U8, &marks);
    for (verb, line) in [
        ("restore", format!("restore x.tif -o restore.tif --model m.clearshot {CAMERA}")),
        ("denoise", "denoise --method median x.tif denoise.tif".to_string()),
        ("deconvolve", "deconvolve --psf-sigma 1 --gain 0.5 --steps 2 x.tif deconvolve.tif".to_string()),
    ] {
        must(&format!("{line} --saturation 4000 --mask m.tif --save-mask"), &at);
        let (mask, codes) = read(at.join(format!("{verb}_mask.tif")));
        assert_eq!(mask.dtype(), DType::U8);
        let expected = |i: usize| match i {
            7 | 100 => 1.0,
            333 => 2.0,
            600 => 3.0,
            _ => 0.0,
        };
        assert!(codes.iter().enumerate().all(|(i, c)| *c == expected(i)), "{verb}");
        // What was not finite is none in a file of floats; what was saturated is filled and not salt.
        let (_, restored) = read(at.join(format!("{verb}.tif")));
        assert!(restored.iter().enumerate().all(|(i, v)| v.is_nan() == [7, 100].contains(&i)), "{verb}");
        assert!(restored[333] < 1000.0, "{verb}: {}", restored[333]);
        assert!(program::refused(&format!("{line} --save-mask"), &at).contains("exists already"), "{verb}");
    }
}
