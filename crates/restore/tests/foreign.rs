//! Networks that others trained on whole images: tiles, halos and a package's steps, beside the network on the whole image.

#[path = "../../onnx/tests/zoo/mod.rs"]
mod zoo;

use clearshot_onnx::package::npy;
use clearshot_onnx::package::read::Package;
use clearshot_restore::foreign::{Foreign, ForeignError, Run};
use clearshot_runtime::{Device, Precision};
use clearshot_tensor::Tensor;
use std::ops::ControlFlow;
use std::path::Path;
use zoo::{FORMATS, files};

fn package(description: &str) -> (tempfile::TempDir, Foreign) {
    let folder = tempfile::tempdir().unwrap();
    files(description)
        .iter()
        .for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
    let foreign = Foreign::new(Package::open(folder.path()).unwrap(), Device::cpu(Some(2))).unwrap();
    (folder, foreign)
}

fn image(size: [usize; 2]) -> Vec<f32> {
    (0..size[0] * size[1]).map(|i| ((i * 7919) % 1013) as f32 / 200.0).collect()
}

fn run(foreign: &mut Foreign, size: [usize; 2], tile: Option<usize>) -> (Vec<f32>, usize, bool) {
    let settings = Run { tile, memory: None, precision: Precision::F32 };
    let layout = foreign.prepare(&size, &settings).unwrap();
    let mut told = 0;
    let made = foreign
        .run(&image(size), &layout, &mut |_, _| {
            told += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(told, layout.count());
    (made, layout.count(), layout.blends())
}

fn far(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn tiles_give_what_the_whole_image_does() {
    for description in FORMATS {
        let (_folder, mut foreign) = package(description);
        assert_eq!((foreign.dims(), foreign.channels(), foreign.made()), (2, 1, 2));
        let (whole, count, _) = run(&mut foreign, [50, 64], None);
        assert_eq!(count, 1);
        let (tiled, count, blends) = run(&mut foreign, [50, 64], Some(16));
        assert!(
            count >= 6 && !blends && far(&whole, &tiled) < 1e-4,
            "{count} tiles: {}",
            far(&whole, &tiled)
        );
        // What goes in and comes out is in the package's units.
        assert!(whole.iter().step_by(2).all(|v| (1.0..=11.0).contains(v)));
        assert!(whole.iter().skip(1).step_by(2).all(|v| (1.0..=21.0).contains(v)));
        // A size that the network does not take is continued by reflection.
        let (odd, count, _) = run(&mut foreign, [7, 13], None);
        assert_eq!((odd.len(), count), (7 * 13 * 2, 1));
    }
}

#[test]
fn tiles_of_a_fixed_size_keep_it() {
    let (_folder, mut free) = package(FORMATS[0]);
    let fixed = FORMATS[0].replace("{min: 8, step: 2}", "32");
    // The test image has another size, so the network alone is asked.
    let (_folder, mut foreign) = package(&fixed);
    let (whole, ..) = run(&mut free, [50, 70], None);
    let (tiled, count, blends) = run(&mut foreign, [50, 70], None);
    assert!(count > 4 && !blends && far(&whole, &tiled) < 1e-4, "{}", far(&whole, &tiled));
    // Smaller than a tile: the rest is reflected, and pixels far from it are the same.
    let (small, count, _) = run(&mut foreign, [32, 20], None);
    assert_eq!((small.len(), count), (32 * 20 * 2, 1));
}

#[test]
fn a_packages_own_test_is_run_and_errors_in_it_are_found() {
    for description in FORMATS {
        let (folder, mut foreign) = package(description);
        let found = foreign.check().unwrap().unwrap();
        assert!(found.difference < 1e-5, "{found:?}");
        let path = folder.path().join("test_output.npy");
        let [_, expected] = Package::open(folder.path()).unwrap().test.unwrap();
        let mut values = expected.to_f64();
        values[40] += 0.1;
        let planted = Tensor::f32(expected.shape(), values.into_iter().map(|v| v as f32).collect());
        std::fs::write(&path, npy::bytes(&planted)).unwrap();
        let mut foreign = Foreign::new(Package::open(folder.path()).unwrap(), Device::cpu(Some(1))).unwrap();
        let error = foreign.check().unwrap_err();
        assert!(
            matches!(error, ForeignError::Test(_)) && error.to_string().contains("1 of 128 values"),
            "{error}"
        );
    }
}

#[test]
fn networks_that_are_not_of_images_are_refused() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/golden");
    let open = |name: &str| Package::open(&golden.join(name)).map_err(ForeignError::from);
    // It makes images twice as large, less a rim.
    let error = open("small_opset18.onnx").and_then(|p| Foreign::new(p, Device::cpu(Some(1)))).err().unwrap();
    assert!(error.to_string().contains("keep their size"), "{error}");
    let mut stopped = Foreign::new(open("unet_opset9.onnx").unwrap(), Device::cpu(Some(1))).unwrap();
    let layout =
        stopped.prepare(&[16, 16], &Run { tile: None, memory: None, precision: Precision::F32 }).unwrap();
    let error = stopped.run(&image([16, 16]), &layout, &mut |_, _| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(error, ForeignError::Stopped));
}
