//! Files written and read again: every format, type and order of writing; what may not happen to existing
//! files; tiles through files; data sets from files.

use clearshot_image::dataset::{CropSpec, Dataset, Entry, LastRows, Listing, Normaliser, Range, Rows, Split};
use clearshot_image::tiles::{Edge, TileSpec, Window, process};
use clearshot_image::{
    Axis, Channel, DType, Description, Dim, Error, Image, Provenance, WriteOptions, Writer, copy, not_kept,
};
use clearshot_tensor::noise::Key;
use std::path::Path;

fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut values = vec![0.0f32; count];
    Key { seed, step: 0, stream: 0 }.fill_uniform(0, &mut values);
    values.into_iter().map(f64::from).collect()
}

fn dims(axes: &str, shape: &[usize]) -> Vec<Dim> {
    axes.chars()
        .zip(shape)
        .map(|(letter, &len)| {
            let axis = Axis::from_letter(letter).unwrap();
            match axis {
                Axis::Z => Dim::stepped(axis, len, Some(0.5), "µm"),
                Axis::Y | Axis::X => Dim::stepped(axis, len, Some(0.125), "µm"),
                Axis::T => Dim::stepped(axis, len, Some(2.0), "s"),
                _ => Dim::new(axis, len),
            }
        })
        .collect()
}

fn bytes_of(dtype: DType, shape: &[usize], seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let values: Vec<f64> = noise(seed, shape.iter().product()).iter().map(|v| v * 120.0).collect();
    dtype.encode(&values, &mut bytes);
    bytes
}

fn write(path: &Path, description: &Description, bytes: &[u8]) {
    let options =
        WriteOptions { provenance: Some(serde_json::json!({"made": "for a test"})), replace: false };
    let mut writer = Writer::create(path, description, &options).unwrap();
    let whole: Vec<_> = description.shape().iter().map(|&n| 0..n).collect();
    writer.write(&whole, bytes).unwrap();
    writer.finish().unwrap();
}

fn whole(image: &Image) -> Vec<u8> {
    image.read(&image.whole()).unwrap()
}

/// What of the formats holds which types and axes.
const HOLDS: &[(&str, &[&str], bool)] = &[
    ("tif", &["YX", "ZYX", "TZCYX", "YXS", "CZYX"], true),
    ("ome.tif", &["YX", "ZCYX", "TZCYX", "YXS"], false),
    ("ome.zarr", &["YX", "ZYX", "TCZYX"], true),
    ("zarr.zip", &["YX", "ZYX", "TCZYX"], true),
    ("npy", &["YX"], true),
    ("npz", &["YX"], true),
    ("nii", &["ZYX", "TZYX"], false),
    ("nii.gz", &["ZYX"], false),
    ("fits", &["YX", "ZYX", "TZYX"], false),
];

#[test]
fn every_format_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    for &(ending, axes, any_type) in HOLDS {
        for &axes in axes {
            let shape: Vec<usize> = axes
                .chars()
                .map(|c| match c {
                    'T' => 2,
                    'C' | 'S' => 3,
                    'Z' => 4,
                    'Y' => 33,
                    _ => 47,
                })
                .collect();
            for dtype in DType::ALL {
                if !any_type
                    && (dtype == DType::F16
                        || (ending == "ome.tif" && dtype.bits() == 64 && !dtype.is_float()))
                {
                    continue;
                }
                let path = folder.path().join(format!("{axes}-{dtype}.{ending}"));
                let description = Description::new("made", &path, dims(axes, &shape), dtype);
                let bytes = bytes_of(dtype, &shape, 7);
                write(&path, &description, &bytes);
                let image = Image::open(&path).unwrap();
                let d = &image.description;
                assert_eq!((d.dtype, d.shape()), (dtype, shape.clone()), "{}", path.display());
                assert!(whole(&image) == bytes, "{}", path.display());
                let record = d.provenance.as_ref().map(|p| p["made"].clone());
                assert_eq!(record, Some("for a test".into()), "{}", path.display());
                if !ending.starts_with("np") {
                    assert_eq!(d.axes(), axes, "{}", path.display());
                    // A plain TIFF of a type that ImageJ lacks has no place for a unit.
                    let lost = ending == "tif" && !matches!(dtype, DType::U8 | DType::U16 | DType::F32);
                    let colour_lost = ending == "tif" && axes == "YXS" && dtype != DType::U8;
                    let order_lost = ending == "tif" && axes == "CZYX";
                    if !lost && !colour_lost && !order_lost {
                        let step = d.dim(Axis::X).and_then(|d| d.step).unwrap();
                        assert!((step - 0.125).abs() < 1e-6, "{}: {step}", path.display());
                    }
                }
            }
        }
    }
}

/// Volumes of Silicon Graphics and tifffile, whose tiles have a depth: read as planes they would be wrong.
#[test]
fn a_volume_in_one_directory_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume.tif");
    let made = |deep: &[(u16, u16)]| {
        let mut tags =
            vec![(256u16, 4u16), (257, 2), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 2)];
        tags.extend([(279, 8)].iter().chain(deep));
        let mut file = b"II*\0\x10\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08".to_vec();
        file.extend((tags.len() as u16).to_le_bytes());
        for (tag, value) in tags {
            file.extend([tag.to_le_bytes(), 3u16.to_le_bytes()].concat());
            file.extend([1u32.to_le_bytes(), u32::from(value).to_le_bytes()].concat());
        }
        file.extend([0; 4]);
        std::fs::write(&path, file).unwrap();
        Image::open(&path)
    };
    assert_eq!(whole(&made(&[(32997, 1), (32998, 1)]).unwrap()), [1, 2, 3, 4, 5, 6, 7, 8]);
    for deep in [(32997, 5), (32998, 16)] {
        let said = made(&[deep]).err().unwrap().to_string();
        assert!(said.contains("volume.tif") && said.contains(&deep.1.to_string()), "{said}");
    }
}

/// What a header says beside the type of the pixels stays when they become another type.
#[test]
fn headers_outlive_a_change_of_type() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = bytes_of(DType::F32, &[2, 3, 4], 5);
    let again = |name: &str| {
        let before = Image::open(folder.path().join(name)).unwrap();
        let mut d = before.description.clone();
        assert!(d.rescale.is_some(), "{name}");
        (d.dtype, d.bits, d.rescale) = (DType::F32, 32, None);
        let path = folder.path().join(format!("float_{name}"));
        write(&path, &d, &bytes);
        let after = Image::open(&path).unwrap();
        assert_eq!((after.description.dtype, after.description.rescale), (DType::F32, None), "{name}");
        assert!(whole(&after) == bytes, "{name}");
        std::fs::read(path).unwrap()
    };
    let cards = "SIMPLE  = T|BITPIX  = 16|NAXIS   = 3|NAXIS1  = 4|NAXIS2  = 3|NAXIS3  = 2|BSCALE  = 0.5|BZERO   = 3|\
                 BLANK   = -1|CRVAL1  = 12.5|OBJECT  = 'M 31'|END";
    let mut fits: Vec<u8> = cards.split('|').flat_map(|c| format!("{c:<80}").into_bytes()).collect();
    fits.resize(2880, b' ');
    fits.resize(2 * 2880, 1);
    std::fs::write(folder.path().join("a.fits"), fits).unwrap();
    let text = String::from_utf8_lossy(&again("a.fits")).into_owned();
    for kept in ["CRVAL1  = 12.5", "OBJECT  = 'M 31'"] {
        assert!(text.contains(kept), "{kept}");
    }
    assert!(text[80..].starts_with("BITPIX  =") && !text.contains("BLANK") && !text.contains("BSCALE"));
    for big in [false, true] {
        // A non-diagonal affine in the rows of the s-form.
        let mut head = vec![0u8; 352 + 48];
        let mut put = |at: usize, data: &[u8]| {
            let data: Vec<u8> = if big { data.iter().rev().copied().collect() } else { data.to_vec() };
            head[at..at + data.len()].copy_from_slice(&data);
        };
        put(0, &348u32.to_le_bytes());
        for (i, n) in [3u16, 4, 3, 2, 1, 1, 1, 1].iter().enumerate() {
            put(40 + 2 * i, &n.to_le_bytes());
        }
        put(70, &4u16.to_le_bytes());
        put(72, &16u16.to_le_bytes());
        (0..8).for_each(|i| put(76 + 4 * i, &1f32.to_le_bytes()));
        put(108, &352f32.to_le_bytes());
        put(112, &2f32.to_le_bytes());
        put(116, &7f32.to_le_bytes());
        put(254, &1u16.to_le_bytes());
        (0..12).for_each(|i| put(280 + 4 * i, &(i as f32 - 5.5).to_le_bytes()));
        head[344..348].copy_from_slice(b"n+1\0");
        std::fs::write(folder.path().join("a.nii"), &head).unwrap();
        let made = again("a.nii");
        assert!(made[254..256] == head[254..256] && made[280..328] == head[280..328], "big endian: {big}");
        std::fs::remove_file(folder.path().join("float_a.nii")).unwrap();
    }
}

#[test]
fn names_and_colours_of_channels_survive() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.ome.tif", "a.ome.zarr"] {
        let path = folder.path().join(name);
        let mut description = Description::new("made", &path, dims("CYX", &[2, 20, 30]), DType::U16);
        let channel = |name: &str, color| Channel {
            name: Some(name.to_string()),
            color: Some(color),
            emission_nm: None,
        };
        description.channels = vec![channel("DAPI & <co>", [0, 0, 255]), channel("GFP \"x\"", [0, 255, 0])];
        write(&path, &description, &bytes_of(DType::U16, &[2, 20, 30], 1));
        assert_eq!(Image::open(&path).unwrap().description.channels, description.channels, "{name}");
    }
}

#[test]
fn regions_are_written_in_any_order_and_read_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [3, 150, 170];
    let bytes = bytes_of(DType::U16, &shape, 2);
    for name in ["a.tif", "a.ome.tif", "a.ome.zarr", "a.npy", "a.nii.gz", "a.fits"] {
        let path = folder.path().join(name);
        let description = Description::new("made", &path, dims("ZYX", &shape), DType::U16);
        let mut writer = Writer::create(&path, &description, &WriteOptions::default()).unwrap();
        let at = |z: usize, y: usize, x: usize| ((z * shape[1] + y) * shape[2] + x) * 2;
        let part = |r: &[std::ops::Range<usize>]| -> Vec<u8> {
            let mut out = Vec::new();
            for z in r[0].clone() {
                for y in r[1].clone() {
                    out.extend_from_slice(&bytes[at(z, y, r[2].start)..at(z, y, r[2].end)]);
                }
            }
            out
        };
        for z in [1, 0, 2] {
            for y in [70..150, 0..13, 13..70] {
                for x in [100..170, 0..100] {
                    let region = [z..z + 1, y.clone(), x];
                    writer.write(&region, &part(&region)).unwrap();
                }
            }
        }
        writer.finish().unwrap();
        let image = Image::open(&path).unwrap();
        assert!(whole(&image) == bytes, "{name}");
        for region in
            [[0..1, 5..6, 7..8], [1..3, 30..141, 60..61], [0..3, 149..150, 0..170], [2..2, 0..1, 0..1]]
        {
            assert!(image.read(&region).unwrap() == part(&region), "{name} {region:?}");
        }
        assert!(matches!(image.read(&[0..4, 0..1, 0..1]), Err(Error::Region { .. })));
    }
}

#[test]
fn existing_files_stay_and_unfinished_ones_never_appear() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.tif", "a.ome.zarr", "a.npy", "a.png", "a.nii.gz", "a.fits", "a.zarr.zip"] {
        let path = folder.path().join(name);
        let description = Description::new("made", &path, dims("YX", &[40, 50]), DType::U8);
        let options = WriteOptions::default();
        // Dropped half way: nothing is left behind.
        let mut writer = Writer::create(&path, &description, &options).unwrap();
        writer.write(&[0..10, 0..50], &[1; 500]).unwrap();
        drop(writer);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
        // Finished half way: an error, and nothing is left behind.
        let mut writer = Writer::create(&path, &description, &options).unwrap();
        writer.write(&[0..10, 0..50], &[1; 500]).unwrap();
        assert!(matches!(writer.finish(), Err(Error::Incomplete { .. })), "{name}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
        let first = bytes_of(DType::U8, &[40, 50], 3);
        let mut writer = Writer::create(&path, &description, &options).unwrap();
        writer.write(&[0..40, 0..50], &first).unwrap();
        writer.finish().unwrap();
        assert!(matches!(Writer::create(&path, &description, &options), Err(Error::Exists { .. })), "{name}");
        assert!(whole(&Image::open(&path).unwrap()) == first);
        // Replacing, dropped half way: the old one is still there.
        let replace = WriteOptions { replace: true, ..WriteOptions::default() };
        let mut writer = Writer::create(&path, &description, &replace).unwrap();
        writer.write(&[0..10, 0..50], &[1; 500]).unwrap();
        drop(writer);
        assert!(whole(&Image::open(&path).unwrap()) == first, "{name}");
        let mut writer = Writer::create(&path, &description, &replace).unwrap();
        writer.write(&[0..40, 0..50], &[9; 2000]).unwrap();
        writer.finish().unwrap();
        assert!(whole(&Image::open(&path).unwrap()) == [9; 2000], "{name}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{name}");
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap()
        } else {
            std::fs::remove_file(&path).unwrap()
        }
    }
}

#[test]
fn images_that_a_format_cannot_hold_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, axes, shape, dtype, expected) in [
        ("a.png", "ZYX", vec![2, 5, 5], DType::U8, "one picture"),
        ("a.png", "YX", vec![5, 5], DType::F32, "float32"),
        ("a.dcm", "YX", vec![5, 5], DType::U16, "only from a DICOM"),
        ("a.fits", "YX", vec![5, 5], DType::F16, "float16"),
        ("a.ome.tif", "IYX", vec![2, 5, 5], DType::U8, "axes T C Z"),
        ("a.jpg", "YX", vec![5, 5], DType::U8, "not written"),
        ("a.xyz", "YX", vec![5, 5], DType::U8, "its extension is not"),
        ("a.nii.gz", "YX", vec![5, 5], DType::F16, "float16"),
    ] {
        let path = folder.path().join(name);
        let description = Description::new("made", &path, dims(axes, &shape), dtype);
        let error = Writer::create(&path, &description, &WriteOptions::default()).err().unwrap().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        if !["a.fits", "a.nii.gz"].contains(&name) {
            assert_eq!(Writer::check(&path, &description).unwrap_err().to_string(), error);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn provenance_contains_earlier_steps() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b, c) =
        (folder.path().join("a.tif"), folder.path().join("b.ome.zarr"), folder.path().join("c.npy"));
    let description = Description::new("made", &a, dims("YX", &[8, 9]), DType::U16);
    write(&a, &description, &bytes_of(DType::U16, &[8, 9], 1));
    copy(&a, &b, false).unwrap();
    copy(&b, &c, false).unwrap();
    let value = Image::open(&c).unwrap().description.provenance.unwrap();
    let record: Provenance = serde_json::from_value(value).unwrap();
    assert_eq!((record.program.as_str(), record.source.as_str()), ("clearshot", "b.ome.zarr"));
    let earlier: Provenance = serde_json::from_value(record.earlier.unwrap()).unwrap();
    assert_eq!(earlier.source, "a.tif");
    assert_eq!(earlier.earlier.unwrap()["made"], "for a test");
}

#[test]
fn metadata_that_a_format_does_not_keep_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ome.tif");
    let mut description = Description::new("made", &path, dims("CYX", &[2, 20, 30]), DType::U16);
    let channel = |name: &str| Channel { name: Some(name.to_string()), ..Channel::default() };
    description.channels = vec![channel("red"), channel("green")];
    write(&path, &description, &bytes_of(DType::U16, &[2, 20, 30], 1));
    let before = Image::open(&path).unwrap().description;
    for (name, lost) in [
        ("b.ome.zarr", vec![]),
        ("c.ome.tif", vec![]),
        ("d.nii", vec!["names (red, green)"]),
        ("e.npy", vec!["CYX became IYX", "step 0.125 µm of axis Y", "step 0.125 µm of axis X", "names (red"]),
    ] {
        let output = folder.path().join(name);
        copy(&path, &output, false).unwrap();
        let told = not_kept(&before, &Image::open(&output).unwrap().description);
        assert_eq!(told.len(), lost.len(), "{name}: {told:?}");
        for (told, lost) in told.iter().zip(lost) {
            assert!(told.contains(lost), "{name}: {told}");
        }
    }
}

#[test]
fn large_images_get_a_pyramid_of_means() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ome.zarr");
    let shape = [1100, 1030];
    let description = Description::new("made", &path, dims("YX", &shape), DType::U16);
    let bytes = bytes_of(DType::U16, &shape, 5);
    write(&path, &description, &bytes);
    let image = Image::open(&path).unwrap();
    assert_eq!(image.description.levels, [vec![1100, 1030], vec![550, 515], vec![275, 258]]);
    let mut fine = Vec::new();
    DType::U16.decode(&bytes, &mut fine);
    let mut coarse = Vec::new();
    DType::U16.decode(&image.read_level(1, &[0..550, 0..515]).unwrap(), &mut coarse);
    for (y, x) in [(0, 0), (17, 300), (549, 514)] {
        let four = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(dy, dx)| fine[(2 * y + dy) * 1030 + 2 * x + dx]);
        assert_eq!(coarse[y * 515 + x], (four.iter().sum::<f64>() / 4.0).round_ties_even());
    }
    // The same levels come through TIFF, and are made again where only the full resolution is written.
    let tiff = folder.path().join("b.ome.tif");
    copy(&path, &tiff, false).unwrap();
    let again = Image::open(&tiff).unwrap();
    assert_eq!(again.description.levels, image.description.levels);
    for (level, shape) in image.description.levels.iter().enumerate() {
        let region: Vec<_> = shape.iter().map(|&n| 0..n).collect();
        assert!(again.read_level(level, &region).unwrap() == image.read_level(level, &region).unwrap());
    }
    let remade = folder.path().join("c.ome.tif");
    write(&remade, &again.description, &bytes);
    let remade = Image::open(&remade).unwrap();
    for (level, shape) in image.description.levels.iter().enumerate() {
        let region: Vec<_> = shape.iter().map(|&n| 0..n).collect();
        assert!(remade.read_level(level, &region).unwrap() == image.read_level(level, &region).unwrap());
    }
}

#[test]
fn tiles_through_files_are_the_identity() {
    let folder = tempfile::tempdir().unwrap();
    for (input, output) in [("a.tif", "b.tif"), ("a.ome.zarr", "b.ome.zarr"), ("a.nii.gz", "b.nii.gz")] {
        let (input, output) = (folder.path().join(input), folder.path().join(output));
        let shape = [5, 101, 77];
        for dtype in [DType::U16, DType::F64] {
            let description = Description::new("made", &input, dims("ZYX", &shape), dtype);
            let bytes = bytes_of(dtype, &shape, 6);
            let replace = WriteOptions { replace: true, ..WriteOptions::default() };
            let mut writer = Writer::create(&input, &description, &replace).unwrap();
            writer.write(&[0..5, 0..101, 0..77], &bytes).unwrap();
            writer.finish().unwrap();
            let image = Image::open(&input).unwrap();
            for edge in [Edge::Shift, Edge::Reflect] {
                for (tile, overlap) in [([1, 32, 32], [0, 8, 8]), ([4, 64, 200], [2, 16, 9])] {
                    let spec = TileSpec {
                        tile: tile.to_vec(),
                        overlap: overlap.to_vec(),
                        edge,
                        window: Window::Gaussian(0.125),
                    };
                    let mut writer = Writer::create(&output, &image.description, &replace).unwrap();
                    let report = process(&image, &mut writer, &spec, &mut |_, v| Ok(v)).unwrap();
                    writer.finish().unwrap();
                    assert_eq!(report.clipped, 0);
                    assert!(whole(&Image::open(&output).unwrap()) == bytes, "{} {spec:?}", output.display());
                }
            }
        }
    }
}

#[test]
fn data_sets_pair_split_and_crop() {
    let folder = tempfile::tempdir().unwrap();
    for side in ["noisy", "clean"] {
        std::fs::create_dir(folder.path().join(side)).unwrap();
    }
    for n in 0..6 {
        let shape = [64, 80];
        let bytes = bytes_of(DType::U16, &shape, n);
        for (side, ending) in [("noisy", "tif"), ("clean", "npy")] {
            let path = folder.path().join(side).join(format!("cell{n}.{ending}"));
            write(&path, &Description::new("made", &path, dims("YX", &shape), DType::U16), &bytes);
        }
    }
    // Its partner is missing; another is damaged; another is too small.
    std::fs::remove_file(folder.path().join("clean/cell5.npy")).unwrap();
    std::fs::write(folder.path().join("noisy/cell4.tif"), b"II*\0garbage").unwrap();
    let small = folder.path().join("noisy/cell3.tif");
    std::fs::remove_file(&small).unwrap();
    write(&small, &Description::new("made", &small, dims("YX", &[8, 8]), DType::U16), &[0; 128]);
    let side = |s: &str| folder.path().join(s).to_string_lossy().into_owned();
    let listing = Listing::pairs(&side("noisy"), &side("clean")).unwrap();
    assert_eq!(listing.entries.len(), 5);
    assert!(listing.unpaired.len() == 1 && listing.unpaired[0].contains("cell5"), "{:?}", listing.unpaired);
    let spec = CropSpec { augment: true, scale: 0.02, ..CropSpec::plain(&[24, 24], 9) };
    let dataset = Dataset::new(listing.entries, spec).unwrap();
    assert_eq!((dataset.entries.len(), dataset.skipped.len()), (3, 2));
    // Pairs hold the same values here, so joint augmentation keeps them equal.
    let crops: Vec<_> = (0..40).map(|i| dataset.crop(i).unwrap()).collect();
    for crop in &crops {
        assert_eq!(crop.shape, [24, 24, 1]);
        assert_eq!(Some(&crop.input), crop.target.as_ref());
    }
    assert!((0..3).all(|e| crops.iter().any(|c| c.entry == e)));
    // Whatever threads ask for them, and in whatever order, they are the same crops.
    std::thread::scope(|scope| {
        for first in 0..3 {
            let (dataset, crops) = (&dataset, &crops);
            scope.spawn(move || {
                for i in (first..40).step_by(3).rev() {
                    assert_eq!(dataset.crop(i as u64).unwrap(), crops[i]);
                }
            });
        }
    });
    assert_ne!(crops[0].input, crops[1].input);
}

/// Crops of the first rows and crops of the last ones share no pixel, even where the last rows have room for one crop alone.
#[test]
fn crops_of_two_parts_share_no_pixel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cell.tif");
    let shape = [64, 80];
    let description = Description::new("made", &path, dims("YX", &shape), DType::U16);
    write(&path, &description, &bytes_of(DType::U16, &shape, 1));
    let listing = Listing::single(path.to_str().unwrap()).unwrap();
    let last = |least| LastRows { share: 0.2, least };
    for (crop, least, border) in [(8, 8, 51), (8, 32, 32), (32, 32, 32)] {
        let of = |rows: Rows| {
            let spec = CropSpec { rows, ..CropSpec::plain(&[crop, crop], 9) };
            Dataset::new(listing.entries.clone(), spec).unwrap()
        };
        let (upper, lower) = (of(Rows::First(last(least))), of(Rows::Last(last(least))));
        for i in 0..200 {
            assert!(upper.crop(i).unwrap().origin[0] + crop <= border, "{crop}: {i}");
            assert!(lower.crop(i).unwrap().origin[0] >= border, "{crop}: {i}");
        }
        let side = crop as f64;
        assert!((lower.distinct() - (64.0 - border as f64) / side * 80.0 / side).abs() < 1e-9);
    }
    assert_eq!(Rows::Last(last(32)).range(50, 32), None);
}

#[test]
fn manifests_say_scene_domain_and_split() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..4 {
        let path = folder.path().join(format!("{n}.tif"));
        let description = Description::new("made", &path, dims("YX", &[16, 16]), DType::U8);
        write(&path, &description, &[n as u8 * 10; 256]);
    }
    let manifest = folder.path().join("list.csv");
    let text = "input,scene,domain,split\n0.tif,a,x,train\n1.tif,a,x,\n2.tif,b,y,test\n\"3.tif\",c,x,train\n";
    std::fs::write(&manifest, text).unwrap();
    let listing = Listing::manifest(&manifest).unwrap();
    let train = listing.split(Split::Train, 0.0, 0.0, 1);
    // The second file follows its scene.
    assert_eq!(train.iter().map(|e| e.scene.as_str()).collect::<Vec<_>>(), ["a", "a", "c"]);
    assert_eq!(listing.split(Split::Test, 0.0, 0.0, 1).len(), 1);
    let dataset = Dataset::new(listing.entries.clone(), CropSpec::plain(&[8, 8], 1)).unwrap();
    let domains: Vec<_> = dataset.domains().iter().map(|d| (d.name.as_str(), &d.entries[..])).collect();
    assert_eq!(domains, [("x", &[0, 1, 3][..]), ("y", &[2])]);
    let drawn =
        |domain| -> Vec<usize> { (0..300).map(|i| dataset.crop_of(domain, i).unwrap().entry).collect() };
    let files = drawn(0);
    for file in [0, 1, 3] {
        // A third of 300, within four standard deviations.
        let count = files.iter().filter(|&&f| f == file).count();
        assert!((67..=133).contains(&count), "{file}: {count}");
    }
    assert!(drawn(1).iter().all(|&f| f == 2));
    assert!(dataset.crop_of(2, 0).unwrap_err().to_string().contains("domain 2 of 2"));
    let text = "input,scene,split\n0.tif,a,train\n1.tif,a,test\n";
    std::fs::write(&manifest, text).unwrap();
    let error = Listing::manifest(&manifest).err().unwrap().to_string();
    assert!(error.contains("line 3") && error.contains("\"a\""), "{error}");
    std::fs::write(&manifest, "input,colour\n0.tif,red\n").unwrap();
    let error = Listing::manifest(&manifest).err().unwrap().to_string();
    assert!(error.contains("colour"), "{error}");
}

#[test]
fn numbers_too_large_for_32_bits_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.npy");
    let mut bytes = Vec::new();
    DType::F64.encode(&[1.0, f64::INFINITY, -2e38, f64::NAN, 1e300, 3.0], &mut bytes);
    write(&path, &Description::new("made", &path, dims("YX", &[2, 3]), DType::F64), &bytes);
    let image = Image::open(&path).unwrap();
    assert_eq!(image.read_f64(&[1..2, 1..2]).unwrap(), [1e300]);
    // Infinite is what it says.
    assert_eq!(image.read_f32(&[0..1, 0..3]).unwrap(), [1.0, f32::INFINITY, -2e38]);
    let said = image.read_f32(&[0..2, 0..3]).unwrap_err().to_string();
    assert!(said.contains("large.npy") && said.contains("1e300"), "{said}");
}

#[test]
fn crops_are_normalised_and_dark_ones_avoided() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let mut values = vec![0.0; 64 * 64];
    values[..64 * 16].fill(1000.0);
    let mut bytes = Vec::new();
    DType::U16.encode(&values, &mut bytes);
    write(&path, &Description::new("made", &path, dims("YX", &[64, 64]), DType::U16), &bytes);
    let image = Image::open(&path).unwrap();
    let normaliser = Normaliser::of(&image, Range::MinMax, false).unwrap();
    assert_eq!((normaliser.low, normaliser.high), (0.0, 1000.0));
    // What is not finite does not count.
    let odd = folder.path().join("odd.npy");
    let mut bytes = Vec::new();
    DType::F32.encode(&[f64::INFINITY, -2.0, f64::NAN, 5.0, f64::NEG_INFINITY, 3.0], &mut bytes);
    write(&odd, &Description::new("made", &odd, dims("YX", &[2, 3]), DType::F32), &bytes);
    for range in [Range::MinMax, Range::Percentiles { low: 0.0, high: 100.0 }] {
        let found = Normaliser::of(&Image::open(&odd).unwrap(), range, false).unwrap();
        assert_eq!((found.low, found.high), (-2.0, 5.0), "{range:?}");
    }
    let entry = Entry {
        input: path,
        target: None,
        mask: None,
        scene: "a".to_string(),
        domain: String::new(),
        split: None,
    };
    let spec =
        CropSpec { normaliser: Some(normaliser), least_mean: Some(-0.9), ..CropSpec::plain(&[8, 8], 3) };
    let dataset = Dataset::new(vec![entry], spec).unwrap();
    let bright = (0..50)
        .filter(|&i| {
            let crop = dataset.crop(i).unwrap();
            assert!(crop.input.iter().all(|v| (-1.0..=1.0).contains(v)));
            crop.input.iter().sum::<f32>() / 64.0 >= -0.9
        })
        .count();
    // A quarter of places would do; sixteen draws miss them all once in a hundred.
    assert!(bright >= 46, "{bright}");
}
