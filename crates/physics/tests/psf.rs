//! PSFs: their sums, centres and widths, what rescaling keeps, beads, and what is refused.

use clearshot_physics::psf::beads::{Search, average};
use clearshot_physics::psf::{Background, NEGLIGIBLE, Optics};
use clearshot_physics::{PhysicsError, Psf};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Data, Tensor};

fn close(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance * b.abs(), "{a} is not {b}");
}

fn check_sum_and_centre(psf: &Psf) {
    assert!((psf.values().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!(psf.centroid().iter().all(|c| c.abs() < 0.01), "{:?}", psf.centroid());
}

#[test]
fn gaussians_have_their_widths() {
    for sigmas in [vec![1.5, 1.5], vec![0.8, 3.2], vec![2.0, 1.0, 1.4]] {
        let psf = Psf::gaussian(&sigmas).unwrap();
        check_sum_and_centre(&psf);
        for (spread, sigma) in psf.spread().iter().zip(&sigmas) {
            close(*spread, *sigma, 1e-4);
        }
    }
    let sharp = Psf::gaussian(&[0.0, 2.0]).unwrap();
    assert_eq!(sharp.shape()[0], 1);
    assert_eq!(Psf::delta(3).unwrap().values(), [1.0]);
    // Even sizes: the origin is the pixel at half the size.
    let even = Psf::gaussian_within(&[1.0, 1.0], &[8, 8]).unwrap();
    assert_eq!(even.origin(), [4, 4]);
    let peak = even.values().iter().copied().fold(0.0, f64::max);
    assert_eq!(even.values()[4 * 8 + 4], peak);
}

#[test]
fn airy_patterns_have_airys_width() {
    let optics = Optics { wavelength: 520.0, numerical_aperture: 1.2, refractive_index: 1.33 };
    let psf = Psf::airy(&optics, [20.0, 20.0], [101, 101]).unwrap();
    check_sum_and_centre(&psf);
    // Half the peak at 0.51456 wavelength / NA.
    psf.fwhm().iter().for_each(|w| close(w * 20.0, 0.514_56 * 520.0 / 1.2, 0.01));
    // The first dark ring: 0.60983 wavelength / NA from the centre.
    let row: Vec<f64> = (50..101).map(|x| psf.values()[50 * 101 + x]).collect();
    let dark =
        (0..40).min_by(|&a, &b| row[a].total_cmp(&row[b])).filter(|&i| i < 20).map(|i| i as f64 * 20.0);
    let dark = dark.unwrap_or_else(|| row.windows(2).position(|w| w[1] > w[0]).unwrap() as f64 * 20.0);
    assert!((dark - 0.609_83 * 520.0 / 1.2).abs() <= 20.0, "{dark}");
}

#[test]
fn the_focus_in_three_dimensions_is_airys_in_its_plane() {
    let optics = Optics { wavelength: 0.52, numerical_aperture: 0.8, refractive_index: 1.0 };
    let voxel = [0.25, 0.06, 0.06];
    let psf = Psf::born_wolf(&optics, voxel, [21, 41, 41]).unwrap();
    assert!((psf.values().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    let airy = Psf::airy(&optics, [0.06, 0.06], [41, 41]).unwrap();
    let plane = &psf.values()[10 * 41 * 41..11 * 41 * 41];
    let (scale, peak) = (plane.iter().sum::<f64>(), airy.values().iter().copied().fold(0.0, f64::max));
    for (a, b) in plane.iter().zip(airy.values()) {
        assert!((a / scale - b).abs() < 2e-3 * peak, "{} {b}", a / scale);
    }
    // On the axis the intensity is sinc^2 of z NA^2 / (2 n wavelength); half at 0.88589 wavelength n / NA^2 x 2 / 2.
    let axis: Vec<f64> = (0..21).map(|z| psf.values()[(z * 41 + 20) * 41 + 20]).collect();
    for (z, v) in axis.iter().enumerate() {
        let u = std::f64::consts::PI * (z as f64 - 10.0) * 0.25 * 0.64 / (2.0 * 0.52);
        let expected = if u == 0.0 { 1.0 } else { (u.sin() / u).powi(2) };
        assert!((v / axis[10] - expected).abs() < 0.02, "{z}: {} {expected}", v / axis[10]);
    }
    // Light is the same in every plane, but for what leaves the window.
    let of_plane = |z: usize| psf.values()[z * 41 * 41..(z + 1) * 41 * 41].iter().sum::<f64>();
    close(of_plane(9), of_plane(10), 0.02);
}

#[test]
fn rescaling_keeps_widths_in_nanometres() {
    for (from, to, sigma) in [
        (781.25, 97.65, 1.6),
        (100.0, 65.0, 2.0),
        (65.0, 100.0, 3.5),
        (50.0, 150.0, 7.0),
        (80.0, 80.0, 2.0),
        (65.0, 260.0, 4.5),
        (100.0, 130.0, 1.3),
    ] {
        let psf = Psf::gaussian(&[sigma, sigma]).unwrap();
        let other = psf.rescaled(&[from; 2], &[to; 2]).unwrap();
        check_sum_and_centre(&other);
        for (a, b) in psf.fwhm().iter().zip(other.fwhm()) {
            close(b * to, a * from, 0.02);
        }
        for (a, b) in psf.spread().iter().zip(other.spread()) {
            close(b * to, a * from, 0.02);
        }
    }
    let volume = Psf::gaussian(&[1.5, 2.0, 2.0])
        .unwrap()
        .rescaled(&[300.0, 100.0, 100.0], &[200.0, 60.0, 130.0])
        .unwrap();
    let spread = volume.spread();
    close(spread[0] * 200.0, 1.5 * 300.0, 0.03);
    close(spread[1] * 60.0, 200.0, 0.03);
    close(spread[2] * 130.0, 200.0, 0.03);
}

#[test]
fn shifting_and_broadening_do_what_they_say() {
    let psf = Psf::gaussian_within(&[1.5, 1.5], &[21, 21]).unwrap();
    let moved = psf.shifted(&[0.4, -1.3]).unwrap();
    let centre = moved.centroid();
    assert!((centre[0] - 0.4).abs() < 1e-3 && (centre[1] + 1.3).abs() < 1e-3, "{centre:?}");
    check_sum_and_centre(&moved.centred().unwrap());
    let broad = psf.broadened(&[2.0, 0.0]).unwrap();
    check_sum_and_centre(&broad);
    let (a, b) = (psf.spread(), broad.spread());
    close(b[0] * b[0], a[0] * a[0] + 4.0, 1e-3);
    close(b[1], a[1], 1e-9);
    let crop = psf.cropped([5, 30]).unwrap();
    assert_eq!((crop.shape()[0], crop.shape()[1]), (5, 21));
    check_sum_and_centre(&crop);
}

/// Beads off the pixel grid, of different heights, on a background, with noise; two of them too close.
#[test]
fn beads_average_to_their_psf() {
    let (height, width, sigma) = (120, 150, 1.7);
    let beads = [
        (20.3, 25.8, 900.0),
        (22.7, 80.1, 500.0),
        (60.5, 40.5, 1200.0),
        (90.2, 110.9, 700.0),
        (95.0, 30.0, 800.0),
        (95.0, 38.0, 800.0),
    ];
    let key = Key { seed: 3, step: 0, stream: 0 };
    let mut image = vec![0.0; height * width];
    for (i, v) in image.iter_mut().enumerate() {
        let (y, x) = ((i / width) as f64, (i % width) as f64);
        let light = |&(by, bx, a): &(f64, f64, f64)| {
            a * (-((y - by).powi(2) + (x - bx).powi(2)) / (2.0 * sigma * sigma)).exp()
        };
        *v = 100.0 + beads.iter().map(light).sum::<f64>() + 2.0 * f64::from(key.normal(i as u64));
    }
    let tensor = Tensor::new([height, width], Data::F64(image)).unwrap();
    let search = Search { radius: vec![8, 8], least: 0.2, background: Background::Median };
    let (psf, count) = average(&tensor, &search).unwrap();
    assert_eq!(count, 4);
    check_sum_and_centre(&psf);
    psf.fwhm().iter().for_each(|w| close(*w, 2.354_82 * sigma, 0.03));
    let none = average(&tensor, &Search { radius: vec![70, 70], ..search.clone() }).unwrap_err();
    assert_eq!(none.to_string(), "0 beads that stand alone, and at least 1 are needed");
    assert!(average(&tensor, &Search { least: 0.0, ..search.clone() }).is_err());
    assert!(average(&tensor, &Search { radius: vec![8], ..search }).is_err());
}

/// A bead counts whose surroundings are its own: none within two radii, and none cut off by the edge.
#[test]
fn beads_that_share_their_surroundings_or_lose_some_do_not_count() {
    let (height, width) = (90, 120);
    let image = |beads: &[(usize, usize)]| {
        let light = |i: usize| {
            let (y, x) = ((i / width) as f64, (i % width) as f64);
            let one = |&(by, bx): &(usize, usize)| {
                500.0 * (-((y - by as f64).powi(2) + (x - bx as f64).powi(2)) / 4.5).exp()
            };
            beads.iter().map(one).sum::<f64>()
        };
        Tensor::new([height, width], Data::F64((0..height * width).map(light).collect())).unwrap()
    };
    let search = Search { radius: vec![8, 8], least: 0.2, background: Background::None };
    let count = |beads: &[(usize, usize)]| average(&image(beads), &search).map(|(_, n)| n);
    assert_eq!(count(&[(20, 30)]).unwrap(), 1);
    // 12 pixels apart: each lies in the other's surroundings, though not in its box.
    assert_eq!(count(&[(20, 30), (60, 40), (60, 52)]).unwrap(), 1);
    assert_eq!(count(&[(20, 30), (60, 40), (60, 57)]).unwrap(), 3);
    // The last row and column that leave room for a radius are 81 and 111.
    assert_eq!(count(&[(20, 30), (81, 111)]).unwrap(), 2);
    for edge in [(82, 60), (60, 112), (7, 60), (60, 7)] {
        assert_eq!(count(&[(20, 30), edge]).unwrap(), 1, "{edge:?}");
    }
    assert_eq!(count(&[(20, 30), (8, 60), (60, 8)]).unwrap(), 3);
}

/// All light of a PSF may lie between the places that coarser pixels are sampled at.
#[test]
fn light_between_coarse_pixels_is_not_lost() {
    for at in 2..7 {
        let mut values = vec![0.0; 81];
        values[4 * 9 + at] = 1.0;
        let coarse = Psf::new([9, 9], values).unwrap().rescaled(&[1.0, 1.0], &[4.0, 4.0]).unwrap();
        let centre = coarse.centroid();
        // What the kernel has below zero is cut off, which moves the middle by a twentieth of a pixel.
        let off = centre[1] - (at as f64 - 4.0) / 4.0;
        assert!(off.abs() < 0.06 && centre[0].abs() < 1e-9, "{at}: {centre:?}");
    }
}

#[test]
fn impossible_psfs_are_refused_by_name() {
    let bytes = Tensor::new([2, 2], Data::U8(vec![1, 2, 3, 4])).unwrap();
    let e = Psf::measured(&bytes, Background::None).unwrap_err();
    assert!(matches!(e, PhysicsError::EightBitPsf { .. }) && e.to_string().contains("8 bits"), "{e}");
    let search = Search { radius: vec![1, 1], least: 0.5, background: Background::None };
    assert!(matches!(average(&bytes, &search).unwrap_err(), PhysicsError::EightBitPsf { .. }));
    let negative = Tensor::f32([2, 2], vec![1.0, -0.5, 3.0, 4.0]);
    let e = Psf::measured(&negative, Background::None).unwrap_err();
    assert!(e.to_string().starts_with("the PSF is -0.5 at pixel 1"), "{e}");
    assert_eq!(Psf::measured(&negative, Background::Value(1.0)).unwrap().values(), [0.0, 0.0, 0.4, 0.6]);
    assert!(matches!(
        Psf::measured(&Tensor::zeros([3, 3]), Background::None).unwrap_err(),
        PhysicsError::DarkPsf { .. }
    ));
    assert!(Psf::measured(&Tensor::full([3, 3], f32::NAN), Background::Value(0.0)).is_err());
    assert!(Psf::measured(&Tensor::zeros([3]), Background::None).is_err());
    assert!(
        Psf::gaussian(&[1.0]).is_err()
            && Psf::gaussian(&[1.0, -1.0]).is_err()
            && Psf::gaussian(&[1.0, f64::NAN]).is_err()
    );
    // Slips in a unit: nanometres for pixels, or the other way round.
    assert!(Psf::gaussian(&[1e5, 1e5]).unwrap_err().to_string().contains("pixels"));
    assert!(Psf::gaussian(&[1.0, f64::MAX]).is_err());
    assert!(Psf::gaussian(&[2.0, 2.0]).unwrap().rescaled(&[1e6, 1e6], &[1.0, 1.0]).is_err());
    let far = Optics { wavelength: 0.5, numerical_aperture: 0.9, refractive_index: 1.0 };
    assert!(Psf::born_wolf(&far, [1.0, 1e9, 1e9], [3, 9, 9]).unwrap_err().to_string().contains("voxel size"));
    assert!(Psf::airy(&far, [0.1, 0.1], [usize::MAX, 2]).is_err());
    let optics = Optics { wavelength: 500.0, numerical_aperture: 1.4, refractive_index: 1.0 };
    assert!(Psf::airy(&optics, [50.0, 50.0], [9, 9]).unwrap_err().to_string().contains("refractive index"));
    let psf = Psf::gaussian(&[1.0, 1.0]).unwrap();
    assert!(psf.rescaled(&[1.0, 0.0], &[1.0, 1.0]).is_err() && psf.rescaled(&[1.0], &[1.0]).is_err());
    assert!(
        psf.cropped([0, 3]).is_err() && psf.cropped([3]).is_err() && psf.shifted(&[f64::NAN, 0.0]).is_err()
    );
}

#[test]
fn a_psf_fits_its_image_or_is_refused() {
    // Of 31 planes, most of whose light lies in the middle one.
    let narrow = Psf::gaussian_within(&[0.3, 1.0, 1.0], &[31, 9, 9]).unwrap();
    let fitted = narrow.fitting([3, 20, 20]).unwrap();
    assert_eq!(fitted.psf.shape()[..], [3, 9, 9]);
    assert!(fitted.outside > 0.0 && fitted.outside < 1e-3, "{}", fitted.outside);
    assert!((fitted.psf.values().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    // What was cropped off is what is missing.
    let kept: f64 = narrow.values()[14 * 81..17 * 81].iter().sum();
    assert!((1.0 - kept - fitted.outside).abs() < 1e-12);
    // An even image has room for an odd PSF, whose middle stays its middle.
    let even = narrow.fitting([4, 20, 20]).unwrap().psf;
    assert_eq!((&even.shape()[..], even.origin()[0]), (&[3, 9, 9][..], 1));
    assert!(even.centroid().iter().all(|c| c.abs() < 1e-12));
    // One that fits is left alone.
    assert_eq!(narrow.fitting([31, 9, 9]).unwrap().psf, narrow);
    // Light beyond the image, along any axis: refused with both sizes.
    let wide = Psf::gaussian_within(&[4.0, 1.0, 1.0], &[31, 9, 9]).unwrap();
    for image in [[3, 20, 20], [25, 20, 20], [40, 5, 20]] {
        let refused = wide.fitting(image).unwrap_err();
        assert!(matches!(refused, PhysicsError::PsfTooLarge { .. }), "{refused:?}");
        let said = refused.to_string();
        let [z, y, x] = image;
        assert!(said.contains("[31,9,9]") && said.contains(&format!("[{z},{y},{x}]")), "{said}");
        assert!(said.contains("crop"), "{said}");
    }
    assert!(matches!(wide.fitting([40, 40]), Err(PhysicsError::Shape { .. })));
}

#[test]
fn gaussians_are_made_to_fit() {
    let fitted = Psf::gaussian_fitting(&[2.0, 1.5, 1.5], &[3, 40, 40]).unwrap();
    assert_eq!(fitted.psf.shape()[..], [3, 17, 17]);
    // A normal variable within 0.75 standard deviations.
    assert!((1.0 - fitted.outside - 0.546_745_3).abs() < 1e-6, "{}", fitted.outside);
    let roomy = Psf::gaussian_fitting(&[2.0, 1.5, 1.5], &[64, 64, 64]).unwrap();
    assert_eq!((roomy.psf, roomy.outside), (Psf::gaussian(&[2.0, 1.5, 1.5]).unwrap(), 0.0));
    // A single plane is sharp across itself.
    let flat = Psf::gaussian_fitting(&[2.0, 1.0, 1.0], &[1, 40, 40]).unwrap();
    assert_eq!(flat.psf.shape()[0], 1);
    assert!(
        flat.outside < NEGLIGIBLE,
        "sharp along an axis of one pixel, so nothing is lost: {}",
        flat.outside
    );
    // More than half of the light outside is a slip, and so is another number of axes.
    for (sigmas, image) in [([50.0, 1.0], [40, 40]), ([1.0, 1e9], [40, 40]), ([20.0, 20.0], [40, 40])] {
        let refused = Psf::gaussian_fitting(&sigmas, &image).unwrap_err();
        assert!(matches!(refused, PhysicsError::PsfMisses { .. }), "{refused:?}");
        assert!(refused.to_string().contains("[40,40]"), "{refused}");
    }
    // A normal variable within 64 / 90, along both axes.
    let said = Psf::gaussian_fitting(&[90.0, 90.0], &[128, 128]).unwrap_err().to_string();
    assert!(said.starts_with("73 % of the light") && said.contains("[901,901]"), "{said}");
    assert!(Psf::gaussian_fitting(&[18.0, 18.0], &[40, 40]).is_ok());
    assert!(Psf::gaussian_fitting(&[1.0, 1.0], &[40, 40, 40]).is_err());
    assert!(Psf::gaussian_fitting(&[1.0, f64::NAN], &[40, 40]).is_err());
}
