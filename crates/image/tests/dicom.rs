//! What DICOM allows and few files do: measures of frames in functional groups, pixels with a fraction, values of
//! fewer bits than their type with a sign, colours as differences, frames in fragments. Files are made by hand; a
//! copy must say what the original says.

use clearshot_image::{Image, copy};
use std::path::{Path, PathBuf};

const EXPLICIT: &[u8] = b"1.2.840.10008.1.2.1";
const RLE: &[u8] = b"1.2.840.10008.1.2.5";
const JPEG_2000: &[u8] = b"1.2.840.10008.1.2.4.90";
const OPEN: u32 = u32::MAX;

fn element(group: u16, number: u16, kind: &[u8; 2], value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    if value.len() % 2 == 1 {
        value.push(if matches!(kind, b"UI" | b"OB" | b"OW") { 0 } else { b' ' });
    }
    [head(group, number, kind, value.len() as u32), value].concat()
}

fn head(group: u16, number: u16, kind: &[u8; 2], length: u32) -> Vec<u8> {
    let tag = [group.to_le_bytes(), number.to_le_bytes()].concat();
    let long = matches!(kind, b"OB" | b"OW" | b"OF" | b"OD" | b"SQ");
    let length = if long {
        [vec![0; 2], length.to_le_bytes().to_vec()].concat()
    } else {
        (length as u16).to_le_bytes().to_vec()
    };
    [tag, kind.to_vec(), length].concat()
}

/// An item, or the end of one or of a sequence.
fn item(number: u16, length: u32) -> Vec<u8> {
    [&0xFFFEu16.to_le_bytes()[..], &number.to_le_bytes(), &length.to_le_bytes()].concat()
}

/// A sequence of items, with lengths or closed by delimiters.
fn sequence(group: u16, number: u16, items: &[Vec<u8>], open: bool) -> Vec<u8> {
    if open {
        let each = |i: &Vec<u8>| [item(0xE000, OPEN), i.clone(), item(0xE00D, 0)].concat();
        let all = items.iter().flat_map(each).collect();
        return [head(group, number, b"SQ", OPEN), all, item(0xE0DD, 0)].concat();
    }
    let all: Vec<u8> =
        items.iter().flat_map(|i| [item(0xE000, i.len() as u32), i.clone()].concat()).collect();
    element(group, number, b"SQ", &all)
}

/// Pixels in fragments, with an empty table of offsets.
fn fragments(list: &[&[u8]]) -> Vec<u8> {
    let each = |f: &&[u8]| [item(0xE000, f.len() as u32), f.to_vec()].concat();
    [head(0x7FE0, 0x10, b"OB", OPEN), item(0xE000, 0), list.iter().flat_map(each).collect(), item(0xE0DD, 0)]
        .concat()
}

struct Case {
    syntax: &'static [u8],
    photometric: &'static [u8],
    frames: usize,
    samples: u16,
    planar: u16,
    allocated: u16,
    stored: u16,
    signed: u16,
    more: Vec<u8>,
    pixels: Vec<u8>,
}

impl Default for Case {
    fn default() -> Case {
        let (more, pixels) = (Vec::new(), Vec::new());
        let (syntax, photometric) = (EXPLICIT, &b"MONOCHROME2"[..]);
        Case {
            syntax,
            photometric,
            frames: 1,
            samples: 1,
            planar: 0,
            allocated: 16,
            stored: 16,
            signed: 0,
            more,
            pixels,
        }
    }
}

impl Case {
    /// A file of 2 rows and 4 columns.
    fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let short = |number: u16, value: u16| element(0x28, number, b"US", &value.to_le_bytes());
        let meta = element(2, 0x10, b"UI", self.syntax);
        let set = [
            element(8, 0x18, b"UI", b"1.2.3.4"),
            short(2, self.samples),
            element(0x28, 4, b"CS", self.photometric),
            short(6, self.planar),
            element(0x28, 8, b"IS", self.frames.to_string().as_bytes()),
            short(0x10, 2),
            short(0x11, 4),
            short(0x100, self.allocated),
            short(0x101, self.stored),
            short(0x103, self.signed),
            self.more.clone(),
            self.pixels.clone(),
        ];
        let length = element(2, 0, b"UL", &(meta.len() as u32).to_le_bytes());
        let path = folder.join(name);
        std::fs::write(&path, [vec![0; 128], b"DICM".to_vec(), length, meta, set.concat()].concat()).unwrap();
        path
    }
}

fn values(image: &Image) -> Vec<f64> {
    let mut out = Vec::new();
    image.dtype().decode(&image.read(&image.whole()).unwrap(), &mut out);
    out
}

/// The image and its copy, which has the same values.
fn both(case: &Case, folder: &Path, name: &str) -> [Image; 2] {
    let path = case.write(folder, name);
    let out = path.with_file_name(format!("copy-{name}"));
    copy(&path, &out, true).unwrap();
    let pair = [path, out].map(|p| Image::open(p).unwrap());
    assert_eq!(values(&pair[0]), values(&pair[1]), "{name}");
    pair
}

#[test]
fn frames_say_their_measures_in_groups() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let plain: Vec<u8> = (0..24u16).flat_map(u16::to_le_bytes).collect();
    let measures = [element(0x18, 0x88, b"DS", b"3"), element(0x28, 0x30, b"DS", b"0.4\\0.7")].concat();
    let scale = |slope: &str| {
        [element(0x28, 0x1052, b"DS", b"-5"), element(0x28, 0x1053, b"DS", slope.as_bytes())].concat()
    };
    let slopes = [["2", "2", "2"], ["2", "3", "2"]];
    for (open, shared, slopes) in [
        (false, true, slopes[0]),
        (true, true, slopes[0]),
        (true, false, slopes[0]),
        (false, false, slopes[1]),
    ] {
        let group = |slope: &str| {
            let measures = sequence(0x28, 0x9110, std::slice::from_ref(&measures), open);
            [measures, sequence(0x28, 0x9145, &[scale(slope)], open)].concat()
        };
        let more = match shared {
            true => sequence(0x5200, 0x9229, &[group(slopes[0])], open),
            false => sequence(0x5200, 0x9230, &slopes.map(group), open),
        };
        let pixels = element(0x7FE0, 0x10, b"OW", &plain);
        for image in both(
            &Case { frames: 3, more, pixels, ..Case::default() },
            folder,
            &format!("groups-{open}-{shared}.dcm"),
        ) {
            let d = &image.description;
            assert_eq!(d.axes(), "ZYX");
            assert_eq!(d.dims.iter().map(|d| d.step).collect::<Vec<_>>(), [Some(3.0), Some(0.4), Some(0.7)]);
            let differ = slopes[0] != slopes[1];
            assert_eq!(d.rescale.map(|r| (r.slope, r.intercept)), (!differ).then_some((2.0, -5.0)));
            assert_eq!(d.warnings.len(), usize::from(differ), "{:?}", d.warnings);
        }
    }
}

#[test]
fn pixels_may_have_a_fraction() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let wanted: Vec<f64> = (0..8).map(|i| f64::from(i) * 0.3f64 - 1.0).collect();
    let single: Vec<u8> = wanted.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    let double: Vec<u8> = wanted.iter().flat_map(|v| v.to_le_bytes()).collect();
    let case = |bits, pixels| Case { allocated: bits, stored: bits, pixels, ..Case::default() };
    for image in both(&case(32, element(0x7FE0, 8, b"OF", &single)), folder, "single.dcm") {
        let rounded: Vec<f64> = wanted.iter().map(|v| f64::from(*v as f32)).collect();
        assert_eq!(values(&image), rounded);
        assert_eq!(image.description.bits, 32);
    }
    for image in both(&case(64, element(0x7FE0, 9, b"OD", &double)), folder, "double.dcm") {
        assert_eq!(values(&image), wanted);
    }
}

#[test]
fn a_sign_is_carried_up_where_nothing_is_above_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Of 12 bits: above the sign there are zeros, the sign again, or something of another kind.
    let stored = [0x0000, 0x07FF, 0x0800, 0x0FFF, 0xF800, 0xFFFF, 0x8001, 0x1FFF];
    let meant = [0.0, 2047.0, -2048.0, -1.0, -2048.0, -1.0, -32767.0, 8191.0];
    let bytes: Vec<u8> = stored.iter().flat_map(|v: &u16| v.to_le_bytes()).collect();
    let plain =
        Case { stored: 12, signed: 1, pixels: element(0x7FE0, 0x10, b"OW", &bytes), ..Case::default() };
    // A segment for the upper bytes and one for the lower, each as one run of 8 literal bytes.
    let mut rle: Vec<u8> = [2u32, 64, 73].iter().flat_map(|v| v.to_le_bytes()).collect();
    rle.resize(64, 0);
    for byte in [1, 0] {
        rle.push(7);
        rle.extend(stored.iter().map(|v| v.to_le_bytes()[byte]));
    }
    let packed = Case { syntax: RLE, pixels: fragments(&[&rle]), stored: 12, signed: 1, ..Case::default() };
    for (case, name) in [(plain, "signs.dcm"), (packed, "signs-rle.dcm")] {
        both(&case, folder, name).iter().for_each(|image| assert_eq!(values(image), meant, "{name}"));
    }
    let unsigned = Case { stored: 12, pixels: element(0x7FE0, 0x10, b"OW", &bytes), ..Case::default() };
    let all = both(&unsigned, folder, "unsigned.dcm");
    assert_eq!(values(&all[0]), stored.map(f64::from));
}

#[test]
fn differences_of_colour_become_red_green_and_blue() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Luminance, blue and red difference, and the colours by the formula of DICOM's part 3, C.7.6.3.1.2.
    let ybr: [[u8; 3]; 8] = [
        [76, 85, 255],
        [150, 44, 21],
        [29, 255, 107],
        [128, 128, 128],
        [0, 128, 128],
        [255, 128, 128],
        [200, 20, 230],
        [90, 140, 100],
    ];
    let expected = |row: [u8; 3]| {
        let [y, b, r] = [f64::from(row[0]), f64::from(row[1]) - 128.0, f64::from(row[2]) - 128.0];
        [y + 1.402 * r, y - 0.344_136 * b - 0.714_136 * r, y + 1.772 * b].map(|v| v.clamp(0.0, 255.0))
    };
    let together: Vec<u8> = ybr.concat();
    let apart: Vec<u8> = (0..3).flat_map(|s| ybr.map(|p| p[s])).collect();
    let pairs: Vec<u8> = ybr.chunks(2).flat_map(|p| [p[0][0], p[1][0], p[0][1], p[0][2]]).collect();
    let mut rle: Vec<u8> = [3u32, 64, 73, 82].iter().flat_map(|v| v.to_le_bytes()).collect();
    rle.resize(64, 0);
    apart.chunks(8).for_each(|plane| {
        rle.push(7);
        rle.extend(plane);
    });
    rle.push(0);
    let base = || Case { samples: 3, allocated: 8, stored: 8, photometric: b"YBR_FULL", ..Case::default() };
    let plain = |bytes: &[u8]| element(0x7FE0, 0x10, b"OB", bytes);
    for (name, case) in [
        ("together.dcm", Case { pixels: plain(&together), ..base() }),
        ("apart.dcm", Case { pixels: plain(&apart), planar: 1, ..base() }),
        ("pairs.dcm", Case { pixels: plain(&pairs), photometric: b"YBR_FULL_422", ..base() }),
        ("rle.dcm", Case { pixels: fragments(&[&rle]), syntax: RLE, ..base() }),
    ] {
        for image in both(&case, folder, name) {
            assert_eq!(image.description.axes(), "YXS", "{name}");
            for (i, got) in values(&image).chunks(3).enumerate() {
                let source = if name == "pairs.dcm" {
                    [ybr[i][0], ybr[i / 2 * 2][1], ybr[i / 2 * 2][2]]
                } else {
                    ybr[i]
                };
                for (g, e) in got.iter().zip(expected(source)) {
                    assert!((g - e).abs() <= 0.5 + 1e-3, "{name}, pixel {i}: {got:?}");
                }
            }
        }
        let copied = case.write(folder, name).with_file_name(format!("copy-{name}"));
        let said = Image::open(copied).unwrap().description.tags;
        assert!(said.contains(&("photometric".into(), "RGB".into())), "{name}: {said:?}");
    }
}

#[test]
fn frames_in_fragments_end_with_their_marker() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Not pictures, so that reading says which frame it was given.
    let list: [&[u8]; 5] = [&[1, 2, 3, 4], &[5, 6, 0xFF, 0xD9], &[7, 0xFF, 0xD9, 0], &[8, 9], &[0xFF, 0xD9]];
    let case = |frames| Case { syntax: JPEG_2000, frames, pixels: fragments(&list), ..Case::default() };
    let opened = Image::open(case(3).write(folder, "fragments.dcm"));
    assert_eq!(opened.unwrap().shape(), [3, 2, 4]);
    let said = Image::open(case(4).write(folder, "fragments-4.dcm")).err().unwrap().to_string();
    assert!(said.contains("5 fragments for 4 frames"), "{said}");
}
