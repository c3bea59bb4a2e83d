//! Damaged files: everything in the folder of hostile files, good files cut off at many places, and good files
//! with bits turned over. Each must give an error or a read, within two seconds and 256 MiB, and never panic.
//!
//! `CLEARSHOT_MUTATIONS` sets how many bits are turned over in all (default: 1500). Every format is tried on
//! files written here; the sample files of `CLEARSHOT_DATA` are used besides, where they are.

use clearshot_image::{Axis, DType, Description, Dim, Image, WriteOptions, Writer, copy};
use clearshot_tensor::noise::Key;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Counts what is allocated, so that the largest amount can be asked for.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn data() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::var_os("CLEARSHOT_DATA").map_or(root.join("../shared/data"), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no sample files at {} (set CLEARSHOT_DATA)", folder.display());
    None
}

/// Opens a file, asks for every image in it, and reads the first and the last corner of each.
fn exercise(path: &Path) -> bool {
    let Ok(first) = Image::open(path) else { return false };
    let mut well = true;
    for item in 0..first.description.items.len().min(4) {
        let Ok(image) = Image::open_item(path, &item.to_string()) else {
            well = false;
            continue;
        };
        for (level, shape) in image.description.levels.iter().enumerate().take(3) {
            let corner = |n: usize| n.min(if shape.len() > 4 { 16 } else { 200 });
            let start: Vec<_> = shape.iter().map(|&n| 0..corner(n)).collect();
            let end: Vec<_> = shape.iter().map(|&n| n - corner(n)..n).collect();
            well &= image.read_level(level, &start).is_ok();
            well &= image.read_level(level, &end).is_ok();
        }
    }
    well
}

/// The same with its limits.
fn within_limits(path: &Path, what: &str) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let outcome = std::panic::catch_unwind(|| exercise(path));
    let (seconds, peak) = (start.elapsed().as_secs_f64(), PEAK.load(Ordering::Relaxed) - before);
    assert!(outcome.is_ok(), "{what}: panicked");
    assert!(seconds < 2.0, "{what}: took {seconds:.1} s");
    assert!(peak < 256 << 20, "{what}: took {} MiB", peak >> 20);
}

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Key { seed, step: 0, stream: 0 }.fill_uniform(0, &mut values);
    values
}

/// One file of every format that can be written from nothing.
fn written(folder: &Path) -> Vec<PathBuf> {
    let (z, y, x) = (3, 70, 90);
    let values: Vec<f64> = noise(1, z * y * x).iter().map(|v| f64::from(v * 4000.0)).collect();
    let mut files = Vec::new();
    for name in [
        "a.tif",
        "a.ome.tif",
        "a.npy",
        "a.npz",
        "a.nii",
        "a.nii.gz",
        "a.fits",
        "a.fits.gz",
        "a.zarr.zip",
        "plane.png",
    ] {
        let path = folder.join(name);
        let planes = if name.ends_with("png") { 1 } else { z };
        let mut dims = vec![Dim::new(Axis::Z, z), Dim::new(Axis::Y, y), Dim::new(Axis::X, x)];
        if planes == 1 {
            dims.remove(0);
        }
        let description = Description::new("made", &path, dims, DType::U16);
        let mut bytes = Vec::new();
        DType::U16.encode(&values[..planes * y * x], &mut bytes);
        let mut writer = Writer::create(&path, &description, &WriteOptions::default()).unwrap();
        let whole: Vec<_> = description.shape().iter().map(|&n| 0..n).collect();
        writer.write(&whole, &bytes).unwrap();
        writer.finish().unwrap();
        files.push(path);
    }
    files
}

fn samples(data: &Path) -> Vec<PathBuf> {
    [
        "tiff/ome2010_18x24y5z1t2c8b.ome.tiff",
        "tiff/it_subsubifds.tif",
        "tiff/n2v_flybrain_lzw.tiff",
        "tiff/it_int16_zstd.tif",
        "tiff/viv_multi-channel.ome.tif",
        "tiff/rand_uint16.ome.tiff",
        "zarr/neuroglancer_simple_0.5.zip",
        "medical/fits_compressed_with_nan.fits",
        "medical/fits_m13_hcomp.fits",
        "medical/fits_test0.fits",
        "medical/nrs_zstat1.nii.gz",
        "medical/pd_MR_small.dcm",
        "medical/pd_SC_rgb_rle_2frame.dcm",
        "medical/pd_image_dfl.dcm",
        "medical/pd_MR_small_jp2klossless.dcm",
    ]
    .iter()
    .map(|name| data.join(name))
    .filter(|p| p.exists())
    .collect()
}

/// Files of pixels that are packed in ways that are only read.
const PACKED: [&str; 9] = [
    "ls_12.dcm",
    "ls_colour_1.dcm",
    "ls_near.dcm",
    "j2k_tiles.dcm",
    "j2k_lossy_colour.dcm",
    "bits.dcm",
    "j2k_34712.tif",
    "lerc_f32_zstd.tif",
    "webp_lossy.tif",
];

fn good_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = written(folder);
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures");
    files.extend(PACKED.iter().map(|name| pictures.join(name)));
    for file in &files {
        assert!(exercise(file), "{} is read", file.display());
    }
    if let Some(data) = data() {
        files.extend(samples(&data));
    }
    files
}

fn scratch(folder: &Path, like: &Path) -> PathBuf {
    folder.join(format!("broken-{}", like.file_name().unwrap().to_string_lossy()))
}

/// A plane of bytes in one PackBits strip, written by hand.
fn packed_bits(strip: &[u8]) -> Vec<u8> {
    let entries: [(u16, u32); 9] = [
        (256, 16),
        (257, 16),
        (258, 8),
        (259, 32773),
        (262, 1),
        (273, 122),
        (277, 1),
        (278, 16),
        (279, strip.len() as u32),
    ];
    let mut bytes =
        [b"II*\0".as_slice(), &8u32.to_le_bytes(), &(entries.len() as u16).to_le_bytes()].concat();
    for (tag, value) in entries {
        bytes.extend(
            [&tag.to_le_bytes()[..], &4u16.to_le_bytes(), &1u32.to_le_bytes(), &value.to_le_bytes()].concat(),
        );
    }
    bytes.extend([0; 4]);
    bytes.extend(strip);
    bytes
}

/// What fuzzing has found, each as the file that it made.
#[test]
fn inputs_found_by_fuzzing_stay_fixed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("found.tif");
    // Runs, up to the longest; repeating overflowed where overflow is checked.
    let runs = [[0x81, 7], [0x81, 9]].concat();
    std::fs::write(&path, packed_bits(&runs)).unwrap();
    let image = Image::open(&path).unwrap();
    assert!(image.read(&image.whole()).unwrap() == [vec![7; 128], vec![9; 128]].concat());
    for strip in [&[0x80, 0x80][..], &[0x81], &[0x7f], &[0xff, 1, 0x80]] {
        std::fs::write(&path, packed_bits(strip)).unwrap();
        assert!(!exercise(&path), "{strip:?}");
    }
}

/// One test, not several: the largest amount of memory is the process's, not a thread's.
#[test]
fn damaged_files_give_errors_within_limits() {
    std::panic::set_hook(Box::new(|_| {}));
    let folder = tempfile::tempdir().unwrap();
    if let Some(data) = data() {
        for entry in std::fs::read_dir(data.join("hostile")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e != "tsv") {
                within_limits(&path, &path.display().to_string());
            }
        }
    }
    let files = good_files(folder.path());
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        let broken = scratch(folder.path(), file);
        for place in 0..64 {
            let end = bytes.len() * place / 64;
            std::fs::write(&broken, &bytes[..end]).unwrap();
            within_limits(&broken, &format!("{} cut off at {end}", file.display()));
        }
    }
    let count = std::env::var("CLEARSHOT_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500usize);
    for (number, file) in files.iter().enumerate() {
        let good = std::fs::read(file).unwrap();
        let broken = scratch(folder.path(), file);
        for round in 0..count / files.len() {
            let mut bytes = good.clone();
            let key = Key { seed: number as u64, step: round as u32, stream: 7 };
            let words = key.block(0);
            // Half of the damage is done where headers usually are.
            let span = if words[0].is_multiple_of(2) { bytes.len().min(600) } else { bytes.len() };
            for word in &words[1..=1 + words[0] as usize % 3] {
                let bit = *word as usize % (span * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            std::fs::write(&broken, &bytes).unwrap();
            within_limits(&broken, &format!("{} with bits turned over, round {round}", file.display()));
        }
    }
    let _ = std::panic::take_hook();
}

#[test]
fn a_zarr_folder_with_damaged_metadata_gives_errors() {
    let Some(data) = data() else { return };
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.zarr");
    copy(data.join("zarr/xyc_v0.5.ome.zarr"), &good, false).unwrap();
    for file in ["zarr.json", "0/zarr.json", "0/c/0/0/0"] {
        let path = good.join(file);
        let bytes = std::fs::read(&path).unwrap();
        for place in 0..bytes.len().min(400) {
            let mut broken = bytes.clone();
            broken[place] ^= 1 << (place % 8);
            std::fs::write(&path, &broken).unwrap();
            assert!(std::panic::catch_unwind(|| exercise(&good)).is_ok(), "{file}, byte {place}");
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(exercise(&good));
}
