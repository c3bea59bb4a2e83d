//! Writers that do not come to their end, of every format: killed at several moments, and on a disk that is full. The
//! old file remains complete, and a full disk is reported as such.

#![cfg(unix)]

use clearshot_image::{Axis, DType, Description, Dim, Error, Image, WriteOptions, Writer, copy};
use clearshot_tensor::noise::Key;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// One name for every format that is written, and for each of its forms that is written in another way.
const NAMES: [&str; 13] = [
    "a.tif",
    "a.ome.tif",
    "a.ome.zarr",
    "a.zarr.zip",
    "a.npy",
    "a.npz",
    "a.nii",
    "a.nii.gz",
    "a.fits",
    "a.png",
    "a.dcm",
    "deflated.dcm",
    "folder.zarr",
];

/// Sizes of the file that is there, and of the one that is never completed.
fn sizes(name: &str) -> [Vec<usize>; 2] {
    if name.ends_with("png") {
        [vec![20, 24], vec![8000, 512]]
    } else {
        [vec![2, 20, 24], vec![300, 256, 256]]
    }
}

/// A DICOM file of frames, which are written only from others.
fn dicom(path: &Path, shape: &[usize], deflated: bool) {
    let element = |group: u16, number: u16, kind: &[u8; 2], value: &[u8]| {
        let tag = [group.to_le_bytes(), number.to_le_bytes()].concat();
        let pad = if value.len() % 2 == 1 { &[0u8][..] } else { &[] };
        let length = value.len() + pad.len();
        let head = match kind {
            b"OW" => [&kind[..], &[0, 0], &(length as u32).to_le_bytes()].concat(),
            _ => [&kind[..], &(length as u16).to_le_bytes()].concat(),
        };
        [tag, head, value.to_vec(), pad.to_vec()].concat()
    };
    let short = |number: u16, value: u16| element(0x28, number, b"US", &value.to_le_bytes());
    let syntax = if deflated { &b"1.2.840.10008.1.2.1.99"[..] } else { b"1.2.840.10008.1.2.1" };
    let meta = element(2, 0x10, b"UI", syntax);
    let length = element(2, 0, b"UL", &(meta.len() as u32).to_le_bytes());
    let set = [
        element(8, 0x16, b"UI", b"1.2.840.10008.5.1.4.1.1.7.3"),
        element(8, 0x18, b"UI", b"1.2.3.4"),
        element(8, 0x60, b"CS", b"OT"),
        short(2, 1),
        element(0x28, 4, b"CS", b"MONOCHROME2 "),
        element(0x28, 8, b"IS", shape[0].to_string().as_bytes()),
        short(0x10, shape[1] as u16),
        short(0x11, shape[2] as u16),
        short(0x100, 16),
        short(0x101, 16),
        short(0x102, 15),
        short(0x103, 0),
        element(0x7fe0, 0x10, b"OW", &vec![3; shape.iter().product::<usize>() * 2]),
    ]
    .concat();
    let set = match deflated {
        true => {
            let mut packed = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut packed, &set).unwrap();
            packed.finish().unwrap()
        }
        false => set,
    };
    std::fs::write(path, [vec![0; 128], b"DICM".to_vec(), length, meta, set].concat()).unwrap();
}

/// What is to be written under a name; `beside` has room for what that takes.
fn described(name: &str, path: &Path, shape: &[usize], beside: &Path) -> Description {
    if name.ends_with("dcm") {
        let source = beside.join(format!("source-{}.dcm", shape[0]));
        dicom(&source, shape, name.starts_with("deflated"));
        return Image::open(&source).unwrap().description;
    }
    let axes = [Axis::Z, Axis::Y, Axis::X];
    let dims = axes[3 - shape.len()..].iter().zip(shape).map(|(&axis, &n)| Dim::new(axis, n)).collect();
    Description::new("made", path, dims, DType::U16)
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let key = Key { seed, step: 0, stream: 0 };
    (0..bytes.div_ceil(16) as u64)
        .flat_map(|i| key.block(i).map(u32::to_le_bytes))
        .flatten()
        .take(bytes)
        .collect()
}

/// The file that is there beforehand, and its pixels.
fn old_file(name: &str, path: &Path, beside: &Path) -> Vec<u8> {
    let description = described(name, path, &sizes(name)[0], beside);
    if name.ends_with("dcm") {
        copy(&description.path, path, false).unwrap();
    } else {
        let mut writer = Writer::create(path, &description, &WriteOptions::default()).unwrap();
        let whole: Vec<_> = description.shape().iter().map(|&n| 0..n).collect();
        writer.write(&whole, &noise(1, description.shape().iter().product::<usize>() * 2)).unwrap();
        writer.finish().unwrap();
    }
    let image = Image::open(path).unwrap();
    image.read(&image.whole()).unwrap()
}

/// Writes the large file over it, slab by slab; `wrote` is called after each.
fn write_over(path: &Path, description: &Description, mut wrote: impl FnMut()) -> Result<(), Error> {
    let options = WriteOptions { replace: true, ..WriteOptions::default() };
    let mut writer = Writer::create(path, description, &options)?;
    let shape = description.shape();
    let step = if shape.len() == 2 { 40 } else { 1 };
    for start in (0..shape[0]).step_by(step) {
        let region: Vec<_> = shape
            .iter()
            .enumerate()
            .map(|(a, &n)| if a == 0 { start..(start + step).min(n) } else { 0..n })
            .collect();
        let bytes = region.iter().map(ExactSizeIterator::len).product::<usize>() * 2;
        writer.write(&region, &noise(2, bytes))?;
        wrote();
    }
    writer.finish()
}

/// The other half of the next test: writes without end until it is killed.
#[test]
#[ignore = "runs only as the process that the kill test starts"]
fn writer_to_be_killed() {
    let Some(path) = std::env::var_os("CLEARSHOT_KILL_TARGET").map(PathBuf::from) else { return };
    let name = path.file_name().unwrap().to_str().unwrap();
    let beside = path.parent().unwrap().with_extension("beside");
    let description = described(name, &path, &sizes(name)[1], &beside);
    loop {
        write_over(&path, &description, || std::fs::write(beside.join("begun"), "").unwrap()).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_the_old_file() {
    for name in NAMES {
        for milliseconds in [0, 20, 150] {
            let folder = tempfile::tempdir().unwrap();
            let (there, beside) = (folder.path().join("there"), folder.path().join("there.beside"));
            std::fs::create_dir_all(&there).unwrap();
            std::fs::create_dir_all(&beside).unwrap();
            let path = there.join(name);
            let old = old_file(name, &path, &beside);
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "writer_to_be_killed"])
                .env("CLEARSHOT_KILL_TARGET", &path)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            while !beside.join("begun").exists() {
                assert!(child.try_wait().unwrap().is_none(), "{name}: the writer ended by itself");
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(Duration::from_millis(milliseconds));
            child.kill().unwrap();
            child.wait().unwrap();
            let image = Image::open(&path).unwrap_or_else(|e| panic!("{name} after {milliseconds} ms: {e}"));
            let pixels = image.read(&image.whole()).unwrap();
            // Whole and old; on a fast machine it may be whole and new.
            if image.shape() == sizes(name)[0] {
                assert!(pixels == old, "{name} after {milliseconds} ms");
            } else {
                let slab =
                    noise(2, pixels.len() / image.shape()[0] * if name.ends_with("png") { 40 } else { 1 });
                assert!(
                    pixels.chunks(slab.len()).all(|s| s == &slab[..s.len()]),
                    "{name} after {milliseconds} ms"
                );
            }
        }
    }
}

/// The other half of the next test, in a file system of its own.
#[test]
#[ignore = "runs only as the process that the test of full disks starts"]
fn writer_on_a_full_disk() {
    let Some(folder) = std::env::var_os("CLEARSHOT_FULL_DISK").map(PathBuf::from) else { return };
    let beside = tempfile::tempdir().unwrap();
    for name in NAMES {
        let there = folder.join(name.replace('.', "-"));
        std::fs::create_dir(&there).unwrap();
        let path = there.join(name);
        let old = old_file(name, &path, beside.path());
        let description = described(name, &path, &sizes(name)[1], beside.path());
        let error = write_over(&path, &description, || ()).expect_err("there is no room");
        assert!(matches!(error, Error::DiskFull { .. }), "{name}: {error:?}");
        assert!(
            error.to_string().contains("disk is full") && error.to_string().contains(name),
            "{name}: {error}"
        );
        let image = Image::open(&path).unwrap();
        assert!(image.read(&image.whole()).unwrap() == old, "{name}");
        assert_eq!(std::fs::read_dir(&there).unwrap().count(), 1, "{name}: nothing is left beside it");
        println!("full: {name}");
    }
}

/// On a file system that is too small. Needs the right to make one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_the_old_file_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=2m tmpfs {0} || exit 77; CLEARSHOT_FULL_DISK={0} {1} --ignored --exact --nocapture writer_on_a_full_disk",
        folder.path().display(),
        std::env::current_exe().unwrap().display(),
    );
    let output = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output();
    let Some(output) = output.ok().filter(|o| o.status.code() != Some(77) && !o.stdout.is_empty()) else {
        eprintln!("skipped: no right to make a file system");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(NAMES.iter().all(|name| said.contains(&format!("full: {name}"))), "{said}");
}
