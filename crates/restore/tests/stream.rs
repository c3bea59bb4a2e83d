//! Files restored piece by piece beside the same images restored whole.

use clearshot_image::{Axis, DType, Description, Dim, Image, WriteOptions, Writer};
use clearshot_physics::{Correlation, Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{METHODS, Method, Noise, Reach, stabilised};
use clearshot_restore::stream::{Cut, Report, StreamError, TileSide, Work, run};
use clearshot_scenes::{Camera, Scene};
use std::ops::ControlFlow;
use std::path::Path;

fn save(path: &Path, values: &[f32], shape: &[usize], dtype: DType) {
    let axes = [Axis::T, Axis::Z, Axis::Y, Axis::X];
    let dims = axes[4 - shape.len()..].iter().zip(shape).map(|(&a, &n)| Dim::new(a, n)).collect();
    let description = Description::new("", path, dims, dtype);
    let mut writer = Writer::create(path, &description, &WriteOptions::default()).unwrap();
    let whole: Vec<_> = shape.iter().map(|&n| 0..n).collect();
    writer.write(&whole, &dtype.encode_f32(values, None).0).unwrap();
    writer.finish().unwrap();
}

/// Restores a file into another and reads that.
fn restored(from: &Path, cut: &Cut, work: Work<'_>) -> (Vec<f32>, Report) {
    let image = Image::open(from).unwrap();
    let to = from.with_extension("out.tif");
    let options = WriteOptions { replace: true, provenance: None };
    let mut writer = Writer::create(&to, &image.description, &options).unwrap();
    let mut told = 0;
    let report = run(&image, &mut writer, &image.description, cut, work, &mut |done, total| {
        assert!(done == told + 1 && done <= total);
        told = done;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(told, report.pieces);
    writer.finish().unwrap();
    let out = Image::open(&to).unwrap();
    (out.read_f32(&out.whole()).unwrap(), report)
}

fn noisy(shape: &[usize]) -> Vec<f32> {
    let truth = Scene::Filaments.generate(8, 0, shape).unwrap();
    Camera::for_peak(20.0).take(&truth, shape, 8, 0).unwrap().values
}

#[test]
fn pieces_have_the_bits_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    let shape = [301, 263];
    let image = noisy(&shape);
    save(&path, &image, &shape, DType::F32);
    for row in &METHODS {
        let whole = row.method.run(&image, &shape, Noise::white(4.0)).unwrap();
        let sides: &[usize] = if row.name == "bm3d" { &[131] } else { &[48, 131, 1000] };
        for &side in sides {
            let cut = Cut { volume: false, tile: TileSide::Pixels(side), reach: row.method.reach() };
            let mut each = |piece: &clearshot_restore::stream::Piece<'_>| {
                Ok(row.method.run(piece.values, piece.shape, Noise::white(4.0))?)
            };
            let (pieces, report) = restored(&path, &cut, Work::Restore(&mut each));
            match cut.reach {
                Reach::Within { .. } => {
                    assert_eq!(report.pieces, 301usize.div_ceil(side) * 263usize.div_ceil(side));
                    let apart = pieces.iter().zip(&whole).filter(|(a, b)| a != b).count();
                    assert_eq!(apart, 0, "{} in pieces of {side}", row.name);
                }
                // Total variation: blended pieces differ by a fiftieth of the noise (4), and nowhere by a quarter.
                Reach::Fading { .. } => {
                    let n = whole.len() as f32;
                    let square: f32 = pieces.iter().zip(&whole).map(|(a, b)| (a - b) * (a - b)).sum();
                    let far = pieces.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(
                        (square / n).sqrt() < 0.08 && far < 1.0,
                        "{} {side}: {} {far}",
                        row.name,
                        (square / n).sqrt()
                    );
                }
            }
        }
    }
}

fn apart(a: &[f32], b: &[f32]) -> (f32, f32) {
    let square: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    ((square / a.len() as f32).sqrt(), a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
}

/// Total variation that has heard its pieces takes the steps of the whole in each, and has its bits.
#[test]
fn total_variation_in_pieces_is_that_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let noise = 4.0;
    for (name, shape, scene) in
        [("a.tif", [301, 263], Scene::Filaments), ("b.tif", [260, 300], Scene::Nuclei)]
    {
        let path = folder.path().join(name);
        let truth = scene.generate(8, 0, &shape).unwrap();
        let image = Camera::for_peak(20.0).take(&truth, &shape, 8, 0).unwrap().values;
        save(&path, &image, &shape, DType::F32);
        let method = Method::by_name("tv").unwrap();
        let whole = method.run(&image, &shape, Noise::white(noise)).unwrap();
        for side in [64, 131] {
            let mut said = Vec::new();
            let widened = |start: usize, n: usize| {
                let inside = start..(start + side).min(n);
                let wide = start.saturating_sub(64)..(inside.end + 64).min(n);
                (inside.start - wide.start..inside.end - wide.start, wide)
            };
            for y in (0..shape[0]).step_by(side) {
                for x in (0..shape[1]).step_by(side) {
                    let ((inner_y, rows), (inner_x, columns)) = (widened(y, shape[0]), widened(x, shape[1]));
                    let size = [rows.len(), columns.len()];
                    let of_row = |row: usize| &image[row * shape[1]..][columns.clone()];
                    let piece: Vec<f32> = rows.flat_map(of_row).copied().collect();
                    said.extend(
                        method.says(&piece, &size, &[inner_y, inner_x], Noise::white(noise)).unwrap(),
                    );
                }
            }
            let settled = method.settled(&said);
            let cut = Cut { volume: false, tile: TileSide::Pixels(side), reach: settled.reach() };
            assert!(matches!(cut.reach, Reach::Within { .. }));
            let mut each = |piece: &clearshot_restore::stream::Piece<'_>| {
                Ok(settled.run(piece.values, piece.shape, Noise::white(noise))?)
            };
            let (pieces, _) = restored(&path, &cut, Work::Restore(&mut each));
            assert!(
                pieces == settled.run(&image, &shape, Noise::white(noise)).unwrap(),
                "{name} {side}: the bits of the whole"
            );
            let (rms, _) = apart(&pieces, &whole);
            assert!(rms <= 1e-3 * noise, "{name} {side}: {}", rms / noise);
        }
    }
}

/// Richardson-Lucy's pieces, with the steps and the overlap that the program takes, beside the whole.
#[test]
fn deconvolved_pieces_are_those_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [301, 263];
    for (sigma, scene) in [(1.5, Scene::Filaments), (2.5, Scene::Nuclei), (1.2, Scene::Stars)] {
        let path = folder.path().join(format!("{sigma}.tif"));
        let psf = Psf::gaussian(&[sigma, sigma]).unwrap();
        let camera = Camera { psf: Some(psf.clone()), ..Camera::for_peak(20.0) };
        let truth = scene.generate(8, 0, &shape).unwrap();
        let image = camera.take(&truth, &shape, 8, 0).unwrap().values;
        save(&path, &image, &shape, DType::F32);
        let usual = RichardsonLucy {
            background: camera.background as f32,
            read_noise: camera.read_noise as f32,
            ..RichardsonLucy::USUAL
        };
        let found = usual.run(Electrons(&image), &shape, &psf).unwrap();
        let mean = image.iter().map(|&v| f64::from(v)).sum::<f64>() / image.len() as f64;
        let start = Some(usual.start_of(mean));
        let settings = RichardsonLucy { start, stop: Stop::Levels(found.levels.unwrap()), ..usual };
        // The whole once more by the steps that were found is the same image.
        let again = settings.run(Electrons(&image), &shape, &psf).unwrap();
        assert_eq!((&again.values, again.steps), (&found.values, found.steps));
        let error = apart(&found.values, &truth.iter().map(|v| 20.0 * v).collect::<Vec<_>>()).0;
        for side in [90, 131] {
            let cut = Cut { volume: false, tile: TileSide::Pixels(side), reach: RichardsonLucy::reach(&psf) };
            let mut each = |piece: &clearshot_restore::stream::Piece<'_>| {
                Ok(settings.run(Electrons(piece.values), piece.shape, &psf)?.values)
            };
            let (pieces, report) = restored(&path, &cut, Work::Restore(&mut each));
            assert!(report.pieces >= 4);
            let (rms, far) = apart(&pieces, &found.values);
            println!("{sigma} {side}: {} steps, {rms} and {far} of {error}", found.steps);
            // A star's few pixels have most of the error: there half a percent of the peak is little.
            let little = (0.1 * error).max(0.005 * 20.0);
            assert!(rms < 0.005 * error && far < little, "{sigma} {side}: {rms} and {far} of {error}");
        }
    }
}

#[test]
fn volumes_and_stacks_of_planes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    let shape = [2, 9, 40, 37];
    let image: Vec<f32> = (0..2).flat_map(|_| noisy(&[9, 40, 37])).collect();
    save(&path, &image, &shape, DType::F32);
    for name in ["gaussian", "median", "wiener", "nlm"] {
        let mut method = Method::by_name(name).unwrap();
        if name == "nlm" {
            method.set("search-radius", "2").unwrap();
        }
        for volume in [false, true] {
            let (count, inner) = if volume { (2, vec![9, 40, 37]) } else { (18, vec![40, 37]) };
            let pixels: usize = inner.iter().product();
            let whole: Vec<f32> = (0..count)
                .flat_map(|i| method.run(&image[i * pixels..][..pixels], &inner, Noise::white(4.0)).unwrap())
                .collect();
            let cut = Cut { volume, tile: TileSide::Pixels(16), reach: method.reach() };
            let mut each = |piece: &clearshot_restore::stream::Piece<'_>| {
                Ok(method.run(piece.values, piece.shape, Noise::white(4.0))?)
            };
            let (pieces, _) = restored(&path, &cut, Work::Restore(&mut each));
            assert!(pieces == whole, "{name}, volume {volume}");
        }
    }
}

#[test]
fn the_transform_keeps_pieces_exact() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    let shape = [260, 255];
    let image = noisy(&shape);
    save(&path, &image, &shape, DType::F32);
    let method = Method::by_name("bm3d").unwrap();
    let run = |values: &[f32], shape: &[usize]| {
        stabilised(&method, Electrons(values), shape, Electrons(1.5), &Correlation::WHITE).map(|e| e.0)
    };
    let whole = run(&image, &shape).unwrap();
    let cut = Cut { volume: false, tile: TileSide::Pixels(90), reach: method.reach() };
    let mut each = |piece: &clearshot_restore::stream::Piece<'_>| Ok(run(piece.values, piece.shape)?);
    assert!(restored(&path, &cut, Work::Restore(&mut each)).0 == whole);
}

#[test]
fn passing_on_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [3, 70, 51];
    let values: Vec<f32> = (0..3 * 70 * 51).map(|i| (i * 7 % 65_000) as f32).collect();
    for dtype in [DType::U16, DType::F32, DType::F64, DType::I32] {
        let path = folder.path().join("a.tif");
        let _ = std::fs::remove_file(&path);
        save(&path, &values, &shape, dtype);
        for tile in [TileSide::Auto, TileSide::Pixels(17)] {
            for volume in [false, true] {
                let cut = Cut { volume, tile, reach: Reach::Within { halo: 0, align: 1 } };
                assert!(restored(&path, &cut, Work::Pass).0 == values, "{dtype}");
            }
        }
    }
}

#[test]
fn a_piece_that_fails_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    let mut image = vec![1f32; 40 * 40];
    image[30 * 40 + 30] = f32::NAN;
    save(&path, &image, &[40, 40], DType::F32);
    let method = Method::by_name("median").unwrap();
    let cut = Cut { volume: false, tile: TileSide::Pixels(20), reach: method.reach() };
    let opened = Image::open(&path).unwrap();
    let mut writer =
        Writer::create(folder.path().join("b.tif"), &opened.description, &WriteOptions::default()).unwrap();
    let mut each = |piece: &clearshot_restore::stream::Piece<'_>| {
        Ok(method.run(piece.values, piece.shape, Noise::white(4.0))?)
    };
    let said = run(&opened, &mut writer, &opened.description, &cut, Work::Restore(&mut each), &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert!(said.unwrap_err().to_string().starts_with("part 4 of 4: the image is NaN"));
    let volume = Cut { volume: true, ..cut };
    let said = run(&opened, &mut writer, &opened.description, &volume, Work::Pass, &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert_eq!(said.unwrap_err().to_string(), "axes YX: Z, Y and X are needed for volumes");
}

/// Whoever is told of the progress can end it, after the piece that was told of.
#[test]
fn a_run_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    save(&path, &vec![1f32; 40 * 40], &[40, 40], DType::F32);
    let opened = Image::open(&path).unwrap();
    let options = WriteOptions::default();
    let mut writer = Writer::create(folder.path().join("b.tif"), &opened.description, &options).unwrap();
    let method = Method::by_name("median").unwrap();
    let cut = Cut { volume: false, tile: TileSide::Pixels(20), reach: method.reach() };
    let mut told = 0;
    let ended = run(&opened, &mut writer, &opened.description, &cut, Work::Pass, &mut |done, _| {
        told = done;
        if done == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(ended, Err(StreamError::Stopped)));
    assert_eq!(told, 2);
}
