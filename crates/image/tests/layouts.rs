//! Byte orders, packings and fields that writers of other programs use and ours does not: files made by hand, whose
//! values are known. What reads them wrongly gives a picture all the same, so nothing else would tell.

use clearshot_image::dataset::list::Listing;
use clearshot_image::dataset::{CropSpec, Dataset};
use clearshot_image::{Axis, DType, Description, Dim, Image, Mosaic, WriteOptions, Writer, copy};
use std::path::Path;

fn whole(image: &Image) -> Vec<f64> {
    let region: Vec<_> = image.shape().iter().map(|&n| 0..n).collect();
    image.read_f64(&region).unwrap()
}

fn opened(path: &Path, bytes: &[u8]) -> Image {
    std::fs::write(path, bytes).unwrap();
    Image::open(path).unwrap()
}

/// A little-endian TIFF of one strip, which follows the header and the description; resolutions say where they are.
fn tiff(tags: &[(u16, u32)], description: &str, pixels: &[u8]) -> Vec<u8> {
    let text = [description.as_bytes(), &[0]].concat();
    let strip = 8 + text.len() as u32;
    let mut all: Vec<(u16, u16, u32, u32)> =
        tags.iter().map(|&(tag, v)| (tag, if (282..=283).contains(&tag) { 5 } else { 4 }, 1, v)).collect();
    all.extend([(273, 4, 1, strip), (279, 4, 1, pixels.len() as u32)]);
    if !description.is_empty() {
        all.push((270, 2, text.len() as u32, 8));
    }
    all.sort_unstable();
    let mut out = b"II*\0".to_vec();
    out.extend((strip + pixels.len() as u32).to_le_bytes());
    out.extend([&text[..], pixels, &(all.len() as u16).to_le_bytes()].concat());
    for (tag, kind, count, value) in all {
        out.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        out.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    out.extend([0; 4]);
    out
}

#[test]
fn packed_bits_and_bytes_from_the_lowest_bit_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed.tif");
    // Two rows of three values of 12 bits; each begins with a whole byte.
    let pixels = [0xFF, 0xF8, 0x01, 0x7A, 0xB0, 0x00, 0x1C, 0xDE, 0x80, 0x00];
    let truth = [4095.0, 2049.0, 1963.0, 1.0, 3294.0, 2048.0];
    let tags = [(256, 3), (257, 2), (258, 12), (259, 1), (262, 1), (277, 1), (278, 2)];
    assert_eq!(whole(&opened(&path, &tiff(&tags, "", &pixels))), truth);
    let turned: Vec<u8> = pixels.iter().map(|b| b.reverse_bits()).collect();
    let tags = [&tags[..], &[(266, 2)]].concat();
    assert_eq!(whole(&opened(&path, &tiff(&tags, "", &turned))), truth);
}

#[test]
fn imagej_says_how_far_planes_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.tif");
    // One directory, two planes behind each other.
    let tags = [(256, 2), (257, 1), (258, 8), (259, 1), (262, 1), (277, 1), (278, 1)];
    let text = "ImageJ=1.54f\nimages=2\nslices=2\nunit=um\nspacing=-2.5\n";
    let image = opened(&path, &tiff(&tags, text, &[1, 2, 3, 4]));
    let z = image.description.dim(Axis::Z).unwrap();
    assert_eq!((z.len, z.step, whole(&image)), (2, Some(2.5), vec![1.0, 2.0, 3.0, 4.0]));
}

#[test]
fn resolutions_are_pixels_a_centimetre() {
    let folder = tempfile::tempdir().unwrap();
    let rational = |a: u32, b: u32| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let pixels = [vec![1, 2, 3, 4], rational(20_000, 1), rational(100_000, 4)].concat();
    let tags = [(256, 2), (257, 2), (258, 8), (259, 1), (262, 1), (277, 1), (278, 2), (282, 13), (283, 21)];
    for (unit, steps) in [(3, [Some(0.4), Some(0.5)]), (1, [None, None])] {
        let tags = [&tags[..], &[(296, unit)]].concat();
        let image = opened(&folder.path().join("a.tif"), &tiff(&tags, "", &pixels));
        assert_eq!(image.description.dims.iter().map(|d| d.step).collect::<Vec<_>>(), steps);
        assert_eq!(whole(&image), [1.0, 2.0, 3.0, 4.0]);
    }
}

/// Every axis its own.
#[test]
fn steps_of_axes_are_not_mistaken_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let steps = [0.75, 0.5, 0.25];
    let axes = [Axis::Z, Axis::Y, Axis::X];
    let dims: Vec<Dim> =
        axes.iter().zip(steps).map(|(&a, step)| Dim::stepped(a, 3, Some(step), "µm")).collect();
    for name in ["a.ome.tif", "a.tif", "a.ome.zarr", "a.nii", "a.fits"] {
        let path = folder.path().join(name);
        let description = Description::new("made", &path, dims.clone(), DType::U16);
        let mut writer = Writer::create(&path, &description, &WriteOptions::default()).unwrap();
        writer.write(&[0..3, 0..3, 0..3], &[0; 54]).unwrap();
        writer.finish().unwrap();
        for (dim, step) in Image::open(&path).unwrap().description.dims.iter().zip(steps) {
            let got = dim.step.unwrap();
            assert!((got - step).abs() < 1e-6, "{name}: {got} for {step}");
        }
    }
}

/// The green pixel of the second row has a black level of its own.
#[test]
fn places_of_a_mosaic_have_their_own_black() {
    let mut mosaic = Mosaic::bayer("RGGB", 0.0, 110.0).unwrap();
    mosaic.black = vec![10.0, 30.0, 60.0, 85.0];
    let packed = mosaic.pack(&[60.0, 70.0, 60.0, 110.0], 2, 2).unwrap();
    assert_eq!(packed, [0.5, 0.5, 0.0, 1.0]);
}

#[test]
fn arrays_of_numpy_in_either_order() {
    let folder = tempfile::tempdir().unwrap();
    for (descr, fortran) in [("<i2", false), (">i2", false), ("<i2", true), (">i2", true)] {
        let order = if fortran { "True" } else { "False" };
        let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (2, 3), }}\n");
        let mut file = b"\x93NUMPY\x01\0".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.bytes());
        let values: [i16; 6] = if fortran { [1, -4, 2, 500, 3, 6] } else { [1, 2, 3, -4, 500, 6] };
        for v in values {
            file.extend(if descr.starts_with('>') { v.to_be_bytes() } else { v.to_le_bytes() });
        }
        let image = opened(&folder.path().join("a.npy"), &file);
        assert_eq!(whole(&image), [1.0, 2.0, 3.0, -4.0, 500.0, 6.0], "{descr} {order}");
        assert_eq!(image.read_f64(&[1..2, 1..3]).unwrap(), [500.0, 6.0], "{descr} {order}");
    }
}

#[test]
fn nifti_has_an_intercept_and_units() {
    let folder = tempfile::tempdir().unwrap();
    for (unit, name) in [(1u8, Some("m")), (2, Some("mm")), (3, Some("µm")), (0, None)] {
        let mut head = vec![0u8; 352];
        let mut put = |at: usize, data: &[u8]| head[at..at + data.len()].copy_from_slice(data);
        put(0, &348u32.to_le_bytes());
        for (i, n) in [2u16, 2, 1, 1, 1, 1, 1, 1].iter().enumerate() {
            put(40 + 2 * i, &n.to_le_bytes());
        }
        put(70, &4u16.to_le_bytes());
        put(72, &16u16.to_le_bytes());
        put(80, &0.5f32.to_le_bytes());
        put(84, &0.75f32.to_le_bytes());
        put(108, &352f32.to_le_bytes());
        put(112, &2f32.to_le_bytes());
        put(116, &(-7f32).to_le_bytes());
        put(123, &[unit]);
        put(344, b"n+1\0");
        head.extend([3i16.to_le_bytes(), (-4i16).to_le_bytes()].concat());
        let image = opened(&folder.path().join("a.nii"), &head);
        assert_eq!(whole(&image), [-1.0, -15.0]);
        let (x, y) = (image.description.dim(Axis::X).unwrap(), image.description.dim(Axis::Y).unwrap());
        assert_eq!((x.step, y.step, x.unit.as_deref()), (Some(0.5), Some(0.75), name));
    }
}

#[test]
fn fits_shifts_what_is_blank_with_the_rest_and_keeps_no_old_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let cards = "SIMPLE  = T|BITPIX  = 16|NAXIS   = 2|NAXIS1  = 3|NAXIS2  = 1|BZERO   = 32768|BLANK   = -5|\
                 CHECKSUM= 'abc'|DATASUM = '12'|OBJECT  = 'M 31'|END";
    let mut fits: Vec<u8> = cards.split('|').flat_map(|c| format!("{c:<80}").into_bytes()).collect();
    fits.resize(2880, b' ');
    fits.extend([-32_768i16, -5, 32_767].iter().flat_map(|v| v.to_be_bytes()));
    fits.resize(2 * 2880, 0);
    let (path, again) = (folder.path().join("a.fits"), folder.path().join("b.fits"));
    let image = opened(&path, &fits);
    copy(&path, &again, false).unwrap();
    for image in [image, Image::open(&again).unwrap()] {
        assert_eq!(image.dtype(), DType::U16);
        let values = whole(&image);
        assert!(values[0] == 0.0 && values[1].is_nan() && values[2] == 65_535.0, "{values:?}");
    }
    let text = String::from_utf8_lossy(&std::fs::read(&again).unwrap()).into_owned();
    assert!(text.contains("OBJECT  = 'M 31'") && !text.contains("CHECKSUM") && !text.contains("DATASUM"));
}

#[test]
fn zarr_fills_turns_and_scales() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ome.zarr");
    std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
    let scale = |s: [f64; 3]| serde_json::json!([{"type": "scale", "scale": s}]);
    let axes: Vec<_> = ["z", "y", "x"]
        .iter()
        .map(|a| serde_json::json!({"name": a, "type": "space", "unit": "micrometer"}))
        .collect();
    let multiscale = serde_json::json!({
        "axes": axes, "coordinateTransformations": scale([2.0, 2.0, 4.0]),
        "datasets": [{"path": "0", "coordinateTransformations": scale([0.5, 1.0, 1.5])}],
    });
    let group = serde_json::json!({
        "zarr_format": 3, "node_type": "group",
        "attributes": {"ome": {"version": "0.5", "multiscales": [multiscale]}},
    });
    // The third axis comes first, then the first and the second.
    let array = serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": [2, 3, 8], "data_type": "uint16", "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "transpose", "configuration": {"order": [2, 0, 1]}},
                   {"name": "bytes", "configuration": {"endian": "big"}}],
    });
    std::fs::write(path.join("zarr.json"), group.to_string()).unwrap();
    std::fs::write(path.join("0/zarr.json"), array.to_string()).unwrap();
    let value = |z: usize, y: usize, x: usize| (1000 * z + 100 * y + x) as u16;
    let mut chunk = Vec::new();
    for x in 0..4 {
        for z in 0..2 {
            (0..3).for_each(|y| chunk.extend(value(z, y, x).to_be_bytes()));
        }
    }
    std::fs::write(path.join("0/c/0/0/0"), chunk).unwrap();
    let image = Image::open(&path).unwrap();
    let steps: Vec<_> = image.description.dims.iter().map(|d| d.step).collect();
    assert_eq!(steps, [Some(1.0), Some(2.0), Some(6.0)]);
    let values = whole(&image);
    for (i, got) in values.iter().enumerate() {
        let (z, y, x) = (i / 24, i / 8 % 3, i % 8);
        // The other chunk is not there.
        let truth = if x < 4 { value(z, y, x) } else { 7 };
        assert_eq!(*got, f64::from(truth), "{z} {y} {x}");
    }
}

/// What numcodecs makes of twice each of 0, 321, 642 ... by Blosc with LZ4 and its bits in planes.
#[test]
fn bits_in_planes_come_back() {
    let packed = "02013402800000008000000074000000140000005c00000013cc010013f001002300ff02002300ff0400400000ffff0c\
                  00020200032f0013cc2f0032f0cc33020040f03c0fc30400f000003ff003ffc00ffc00c0ff0300ff0f350022fcff0800\
                  51000000f0ff0700b00000000000000000000000";
    let bytes: Vec<u8> =
        (0..packed.len() / 2).map(|i| u8::from_str_radix(&packed[2 * i..2 * i + 2], 16).unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zarr");
    std::fs::create_dir_all(&path).unwrap();
    let meta = serde_json::json!({
        "zarr_format": 2, "shape": [8, 8], "chunks": [8, 8], "dtype": "<u2", "fill_value": 0, "order": "C",
        "filters": null,
        "compressor": {"id": "blosc", "cname": "lz4", "clevel": 9, "shuffle": 2, "blocksize": 0},
    });
    std::fs::write(path.join(".zarray"), meta.to_string()).unwrap();
    std::fs::write(path.join("0.0"), bytes).unwrap();
    let truth: Vec<f64> = (0..64).map(|i| f64::from(i / 2 * 321)).collect();
    assert_eq!(whole(&Image::open(&path).unwrap()), truth);
}

#[test]
fn crops_come_from_their_stated_place_and_unpaired_targets_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let name = |side: &str, n: usize| folder.path().join(side).join(format!("{n}.npy"));
    for side in ["out", "in"] {
        std::fs::create_dir(folder.path().join(side)).unwrap();
        let text = "{'descr': '<u2', 'fortran_order': False, 'shape': (20, 30), }\n";
        let mut file = b"\x93NUMPY\x01\0".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.bytes());
        file.extend((0..600u16).flat_map(u16::to_le_bytes));
        std::fs::write(name(side, 1), &file).unwrap();
        std::fs::write(name("out", 2), &file).unwrap();
    }
    let side = |s: &str| folder.path().join(s).to_string_lossy().into_owned();
    let listing = Listing::pairs(&side("in"), &side("out")).unwrap();
    assert!(listing.unpaired.len() == 1 && listing.unpaired[0].contains("2.npy"), "{:?}", listing.unpaired);
    let dataset = Dataset::new(listing.entries, CropSpec::plain(&[5, 7], 3)).unwrap();
    let mut seen = [[false; 2]; 2];
    for i in 0..400 {
        let crop = dataset.crop(i).unwrap();
        let [y, x] = crop.origin[..] else { panic!("{:?}", crop.origin) };
        let truth: Vec<f32> = (0..35).map(|k| ((y + k / 7) * 30 + x + k % 7) as f32).collect();
        assert_eq!((&crop.input, crop.target.as_ref()), (&truth, Some(&truth)), "{i}");
        for (axis, (at, last)) in [(y, 15), (x, 23)].into_iter().enumerate() {
            seen[axis][0] |= at == 0;
            seen[axis][1] |= at == last;
        }
    }
    // Every place of 16 and 24 is drawn, the first and the last too.
    assert_eq!(seen, [[true; 2]; 2]);
}
