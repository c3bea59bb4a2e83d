//! Scenes and camera images are pure functions with fixed bits, and the noise of the camera is as stated.

use clearshot_physics::Psf;
use clearshot_scenes::{Camera, Converter, SCENES, Scene, SceneError, benchmark_scenes, mosaic};
use clearshot_tensor::Fnv1a;

/// Of the bits.
fn hash(values: &[f32]) -> u64 {
    let mut hash = Fnv1a::default();
    values.iter().for_each(|v| hash.add(&v.to_bits().to_le_bytes()));
    hash.finish()
}

#[test]
fn hashes_are_fixed() {
    let expected: Vec<[u64; 3]> = vec![
        [0x5BCE_03C6_7415_AFD2, 0x03B1_C51E_7AFF_DBAD, 0xD3AE_CB65_A02B_828A],
        [0x3938_AE50_4586_6332, 0x8C5B_9C34_B30D_074F, 0x8319_773F_9FCD_469D],
        [0x5C9B_9C07_BDD5_AC4B, 0x58C6_2F74_E55D_0F7B, 0x9165_4023_6D9A_2360],
        [0x9127_B042_FAB2_B99F, 0x3590_C974_0107_45AC, 0x71FC_02E8_8D44_5CB7],
        [0xAE13_ED93_0DFD_BB15, 0xABB0_DEBB_9268_E17F, 0x6C21_21C7_DF78_6D85],
        [0x006B_0507_DC89_2D8B, 0x3FEA_AE8C_8784_2EDB, 0x12AE_9F68_EC4F_F3EF],
        [0xD4EC_9182_4299_DEC6, 0xB1DA_4D33_23FA_F8DB, 0xAFA0_E5A8_05EE_A84E],
        [0xCE35_0714_0049_8E88, 0x1F2D_D549_3F61_CDE6, 0x2C2B_F340_EDAB_26B5],
        [0x153A_966B_5FA8_199E, 0xEBA6_75EF_58FC_7034, 0xF2BF_3D92_1C42_ED3C],
        [0x7BCF_B19B_9C5A_CDE9, 0x8E40_F68C_67EB_EDBC, 0x2846_F072_3858_03CA],
        [0x19AF_C651_06F0_30B8, 0x3C10_B099_D090_22FA, 0x258F_523F_6194_DEDB],
        [0xF58D_591E_E94B_BE2C, 0x071F_3880_A036_D77C, 0xFFEB_194A_9518_4128],
    ];
    let got: Vec<[u64; 3]> = SCENES
        .iter()
        .map(|kind| {
            let plane = kind.scene.generate(7, 3, &[96, 80]).unwrap();
            let volume = kind.scene.generate(7, 3, &[11, 40, 36]).unwrap();
            let picture = Camera::for_peak(20.0).take(&plane, &[96, 80], 7, 3).unwrap();
            [hash(&plane), hash(&volume), hash(&picture.values)]
        })
        .collect();
    assert_eq!(got, expected, "{got:#018X?}");
}

#[test]
fn a_scene_is_a_function_of_its_seed_index_and_size() {
    for kind in &SCENES {
        let make = |seed, index| kind.scene.generate(seed, index, &[64, 48]).unwrap();
        let it = make(1, 2);
        assert_eq!(it, make(1, 2));
        assert_ne!(it, make(1, 3));
        assert_ne!(it, make(2, 2));
        assert_eq!(Scene::by_name(kind.name), Ok(kind.scene));
        for shape in [&[8, 8][..], &[129, 33], &[1, 32, 40], &[5, 20, 24]] {
            for index in 0..6 {
                let x = kind.scene.generate(9, index, shape).unwrap();
                assert_eq!(x.len(), shape.iter().product::<usize>());
                assert!(x.iter().all(|v| (0.0..=1.0).contains(v)), "{} {shape:?}", kind.name);
            }
        }
    }
}

/// How bright scenes are, on the average of twelve.
#[test]
fn scenes_are_as_bright_as_they_should_be() {
    let bounds = [(0.025, 0.05), (0.055, 0.10), (0.003, 0.008), (0.17, 0.25), (0.40, 0.60)];
    for (kind, (low, high)) in benchmark_scenes().zip(bounds) {
        let mean: f64 = (0..12)
            .map(|i| {
                let x = kind.scene.generate(5, i, &[128, 128]).unwrap();
                x.iter().map(|&v| f64::from(v)).sum::<f64>() / 16384.0 / 12.0
            })
            .sum();
        assert!((low..high).contains(&mean), "{}: {mean}", kind.name);
    }
}

/// Kinds that are drawn as a microscope shows them: every one of many scenes has something to see, as an ensemble they are
/// as dark as fluorescence is, and neither all sharp nor all blurred.
#[test]
fn varied_scenes_are_never_empty_and_never_alike() {
    for kind in SCENES.iter().filter(|k| !k.benchmark) {
        let (mut means, mut fine) = (Vec::new(), Vec::new());
        for index in 0..40 {
            let x = kind.scene.generate(6, index, &[96, 96]).unwrap();
            let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / 9216.0;
            let largest = x.iter().copied().fold(0.0, f32::max);
            let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / 9216.0;
            assert!(largest > 0.9 && variance > 1e-5, "{} {index}: {largest} {variance}", kind.name);
            let steps = |row: &[f32]| row.windows(2).map(|v| f64::from(v[1] - v[0]).powi(2)).sum::<f64>();
            let steps = x.chunks(96).map(steps).sum::<f64>() / 9120.0;
            means.push(mean);
            fine.push(steps / variance);
        }
        means.sort_by(f64::total_cmp);
        fine.sort_by(f64::total_cmp);
        assert!((0.04..0.5).contains(&means[20]), "{}: {means:.3?}", kind.name);
        assert!(means[35] > 3.0 * means[4], "{}: {means:.3?}", kind.name);
        // The share of variance between neighbours: the sharpest has many times that of the smoothest.
        assert!(fine[39] > 8.0 * fine[0], "{}: {fine:.4?}", kind.name);
    }
}

/// Stacks of specimens in three dimensions: neighbouring planes are more alike than planes far from each other, which show something
/// else, and every one of many stacks has something to see.
#[test]
fn stacks_change_from_plane_to_plane() {
    let shape = [24, 40, 40];
    for kind in SCENES.iter().filter(|k| !k.benchmark) {
        let (mut near, mut far, mut all) = (0.0, 0.0, 0.0);
        for index in 0..6 {
            let x = kind.scene.generate(2, index, &shape).unwrap();
            let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let largest = x.iter().copied().fold(0.0, f32::max);
            assert!(largest > 0.9 && variance > 1e-5, "{} {index}: {largest} {variance}", kind.name);
            let plane = |z: usize| &x[z * 1600..(z + 1) * 1600];
            let apart = |a: usize, b: usize| -> f64 {
                plane(a).iter().zip(plane(b)).map(|(u, v)| f64::from(u - v).powi(2)).sum::<f64>() / 1600.0
            };
            near += (0..23).map(|z| apart(z, z + 1)).sum::<f64>() / 23.0;
            far += (0..12).map(|z| apart(z, z + 12)).sum::<f64>() / 12.0;
            all += variance;
        }
        assert!(near > 0.0 && far > 2.0 * near && far > 0.3 * all, "{}: {near} {far} {all}", kind.name);
    }
}

#[test]
fn the_camera_has_the_noise_that_it_says() {
    let shape = [128, 128];
    let scene = vec![0.5f32; 128 * 128];
    let camera = Camera::for_peak(20.0);
    let y = camera.take(&scene, &shape, 1, 0).unwrap();
    let mean = y.values.iter().map(|&v| f64::from(v)).sum::<f64>() / 16384.0;
    let variance = y.values.iter().map(|&v| (f64::from(v) - 12.0).powi(2)).sum::<f64>() / 16384.0;
    // 10 electrons of the scene, 2 of the background, and read noise of 1.5; five standard errors.
    let truth: f64 = 12.0 + 1.5 * 1.5;
    assert!((mean - 12.0).abs() < 5.0 * (truth / 16384.0).sqrt(), "{mean}");
    assert!((variance - truth).abs() < 5.0 * ((2.0 * truth * truth + 12.0) / 16384.0).sqrt(), "{variance}");
    assert!(y.mean.iter().all(|m| (m - 12.0).abs() < 1e-5) && y.hot.is_empty() && y.flat.is_none());
    assert_ne!(y.values, camera.take(&scene, &shape, 1, 1).unwrap().values);
}

/// Mean and variance of every kind of scene's picture are those of its light, with a background and without, with read noise
/// and without; where there is no light and no read noise there is nothing.
#[test]
fn every_kind_of_scene_has_the_noise_of_its_light() {
    let shape = [61, 67];
    for kind in &SCENES {
        for (background, read_noise) in [(0.0, 0.0), (0.0, 1.5), (2.0, 1.5)] {
            let camera = Camera { background, read_noise, ..Camera::for_peak(17.0) };
            let (mut error, mut of_error, mut excess, mut of_excess) = (0.0, 0.0, 0.0, 0.0);
            for index in 0..8 {
                let truth = kind.scene.generate(31, index, &shape).unwrap();
                let y = camera.take(&truth, &shape, 31, index).unwrap();
                for (v, t) in y.values.iter().zip(&truth) {
                    let mean = 17.0 * f64::from(*t) + background;
                    let variance = mean + read_noise * read_noise;
                    let d = f64::from(*v) - mean;
                    assert!(variance > 0.0 || d == 0.0, "{}: light from nowhere", kind.name);
                    error += d;
                    of_error += variance;
                    excess += d * d - variance;
                    // The fourth central moment is 3 V^2 + the mean.
                    of_excess += 2.0 * variance * variance + mean;
                }
            }
            let (mean, spread) = (error / f64::sqrt(of_error), excess / f64::sqrt(of_excess));
            let what = format!("{} background {background} read noise {read_noise}", kind.name);
            assert!(mean.abs() < 4.0 && spread.abs() < 4.0, "{what}: {mean} and {spread} standard errors");
        }
    }
}

#[test]
fn defects_and_converters_follow_their_definitions() {
    let shape = [64, 64];
    let scene = vec![0.5f32; 64 * 64];
    let camera = Camera {
        converter: Some(Converter { gain: 0.5, offset: 100.0, bits: 12 }),
        flat_field: 0.02,
        hot_pixels: 0.01,
        psf: Some(Psf::gaussian(&[1.5, 1.5]).unwrap()),
        ..Camera::for_peak(1000.0)
    };
    let y = camera.take(&scene, &shape, 4, 9).unwrap();
    assert!(y.values.iter().all(|v| v.fract() == 0.0 && (0.0..=4095.0).contains(v)));
    let flat = y.flat.unwrap();
    assert!(flat.iter().all(|f| (f - 1.0).abs() <= 0.02) && flat.iter().any(|f| (f - 1.0).abs() > 0.015));
    assert!((15..80).contains(&y.hot.len()), "{}", y.hot.len());
    // 520 electrons are 1140 counts; hot pixels have at least a peak more.
    let usual = y.values.iter().enumerate().filter(|(i, _)| !y.hot.contains(i));
    assert!(usual.clone().all(|(_, v)| (900.0..1400.0).contains(v)));
    assert!(y.hot.iter().all(|&i| y.values[i] > 2500.0));
}

#[test]
fn wrong_input_is_named() {
    let shape = |s: &[usize]| Scene::Nuclei.generate(1, 0, s).unwrap_err();
    assert!(matches!(shape(&[64]), SceneError::Rank { .. }));
    for bad in [&[7, 64][..], &[64, 0], &[0, 64, 64], &[20_000, 64], &[16_384, 16_384, 16_384]] {
        assert!(matches!(shape(bad), SceneError::Size { .. }), "{bad:?}");
    }
    assert_eq!(
        Scene::by_name("cats").unwrap_err().to_string(),
        "no scene is called 'cats'; there are filaments, nuclei, stars, phantom, dead-leaves, fibres, \
         mitochondria, membranes, reticulum, vesicles, tissue, textures"
    );
    let take = |camera: Camera| camera.take(&[0.5; 64], &[8, 8], 1, 0).map(|_| ());
    assert!(take(Camera::for_peak(5.0)).is_ok());
    for bad in [
        Camera::for_peak(0.0),
        Camera::for_peak(f64::NAN),
        Camera { read_noise: -1.0, ..Camera::for_peak(5.0) },
        Camera { hot_pixels: 2.0, ..Camera::for_peak(5.0) },
        Camera { converter: Some(Converter { gain: 1.0, offset: 0.0, bits: 60 }), ..Camera::for_peak(5.0) },
    ] {
        assert!(matches!(take(bad), Err(SceneError::Parameter { .. })));
    }
    assert!(Camera::for_peak(5.0).take(&[0.5; 63], &[8, 8], 1, 0).is_err());
}

/// Labels go with the picture that there is without them: nuclei are bright and the background is dark.
#[test]
fn labelled_scenes_are_the_same_pictures() {
    for shape in [&[96, 80][..], &[6, 48, 40]] {
        let (picture, labels) = Scene::Nuclei.generate_labelled(7, 3, shape).expect("a scene");
        assert_eq!(picture, Scene::Nuclei.generate(7, 3, shape).expect("a scene"));
        let of = |inside: bool| -> Vec<f32> {
            let there = picture.iter().zip(&labels).filter(|(_, l)| (**l > 0) == inside);
            there.map(|(v, _)| *v).collect()
        };
        let mean = |v: Vec<f32>| v.iter().sum::<f32>() / v.len().max(1) as f32;
        let (inside, outside) = (mean(of(true)), mean(of(false)));
        assert!(inside > 0.15 && outside < 0.05, "{inside} inside, {outside} outside");
        // A small stack may hold one nucleus alone.
        assert!(labels.iter().max() > Some(&(shape.len() == 2).into()), "{shape:?}");
    }
    let said = Scene::Stars.generate_labelled(0, 0, &[64, 64]).expect_err("no labels").to_string();
    assert!(said.contains("stars") && said.contains("nuclei"), "{said}");
}

/// A mosaic is a function of its seed and index, shows every kind somewhere, and brightness does not tell kinds apart: their means over many images are alike.
#[test]
fn mosaics_show_every_kind_as_brightly() {
    let kinds = [Scene::Fibres, Scene::Mitochondria, Scene::Vesicles];
    let (mut light, mut pixels) = ([0.0; 4], [0.0; 4]);
    for index in 0..24 {
        let (picture, labels) = mosaic(&kinds, 5, index, &[96, 80]).expect("a mosaic");
        if index == 0 {
            let again = mosaic(&kinds, 5, 0, &[96, 80]).expect("a mosaic");
            assert_eq!((&picture, &labels), (&again.0, &again.1));
        }
        assert!(picture.iter().all(|v| (0.0..=1.0).contains(v)));
        for (value, label) in picture.iter().zip(&labels) {
            light[usize::from(*label)] += f64::from(*value);
            pixels[usize::from(*label)] += 1.0;
        }
    }
    let all: f64 = pixels.iter().sum();
    assert!(pixels.iter().all(|n| (0.1..0.5).contains(&(n / all))), "{pixels:?}");
    assert_eq!(light[0], 0.0);
    let means: Vec<f64> = (1..4).map(|k| light[k] / pixels[k]).collect();
    assert!(means.iter().all(|m| (m / means[0] - 1.0).abs() < 0.3), "{means:?}");
    assert!(mosaic(&[], 0, 0, &[64, 64]).is_err() && mosaic(&kinds, 0, 0, &[8, 64, 64]).is_err());
}
