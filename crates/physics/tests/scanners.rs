//! CT and MR: the Radon transform and filtered backprojection beside scikit-image, k-space beside numpy, adjoints, and what is found of a scanner from its data.

use clearshot_physics::operator::{Complex, KSpace, Radon, random_rows};
use clearshot_physics::tomography::{
    FILTERS, Filter, FilteredBackprojection, binned_places, centre_of_rotation, line_integrals,
};
use clearshot_tensor::noise::Key;
use serde_json::Value;
use std::path::Path;

fn cases(name: &str) -> Vec<Value> {
    let folder =
        std::env::var("CLEARSHOT_REFS").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../refs").into());
    let text = std::fs::read_to_string(Path::new(&folder).join("scanner").join(name)).expect("a reference");
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn complex(value: &Value) -> Vec<Complex<f64>> {
    numbers(&value["re"])
        .into_iter()
        .zip(numbers(&value["im"]))
        .map(|(re, im)| Complex::new(re, im))
        .collect()
}

fn normal(n: usize, stream: u32) -> Vec<f64> {
    let key = Key { seed: 23, step: 0, stream };
    (0..n as u64).map(|i| key.normal(i).into()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[track_caller]
fn near(got: &[f64], wanted: &[f64], what: &str) {
    let size = dot(wanted, wanted).sqrt() / (wanted.len() as f64).sqrt();
    assert_eq!(got.len(), wanted.len(), "{what}");
    let apart = got.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart < 1e-10 * size, "{what}: {apart} of {size}");
}

#[test]
fn radon_and_filtered_backprojection_are_scikit_images() {
    for case in cases("radon.json") {
        let side = case["side"].as_u64().expect("a number") as usize;
        let angles = numbers(&case["angles"]);
        let sinogram = Radon::new(side, &angles).unwrap().apply(&numbers(&case["image"])).unwrap();
        near(&sinogram, &numbers(&case["sinogram"]), "radon");
        for (name, filter) in FILTERS {
            let centre = (side / 2) as f64;
            let back = FilteredBackprojection::new(side, &angles, side, centre, filter).unwrap();
            near(&back.slice(&numbers(&case["noisy"])).unwrap(), &numbers(&case["slices"][name]), name);
        }
    }
}

#[test]
fn the_adjoint_of_radon_is_its_transpose() {
    for (side, angles) in [(11, vec![0.0, 17.0, 90.0, 133.3]), (16, vec![-45.0, 0.0, 181.0])] {
        let radon = Radon::new(side, &angles).unwrap();
        let (x, y) = (normal(side * side, 1), normal(side * angles.len(), 2));
        let (ax, aty) = (radon.apply(&x).unwrap(), radon.adjoint(&y).unwrap());
        let (a, b) = (dot(&ax, &y), dot(&x, &aty));
        assert!((a - b).abs() < 1e-12 * (dot(&ax, &ax) * dot(&y, &y)).sqrt(), "{a} {b}");
    }
}

#[test]
fn k_space_is_numpys_and_its_adjoint_is_its_transpose() {
    for case in cases("kspace.json") {
        let size = [0, 1].map(|i| case["size"][i].as_u64().expect("a number") as usize);
        let read: Vec<bool> = case["read"].as_array().expect("a list").iter().map(|v| v == true).collect();
        let scanner = KSpace::new(size, &read).unwrap();
        let parts = |v: &[Complex<f64>]| v.iter().flat_map(|v| [v.re, v.im]).collect::<Vec<f64>>();
        let samples = scanner.apply(&complex(&case["image"])).unwrap();
        near(&parts(&samples), &parts(&complex(&case["samples"])), "samples");
        near(&parts(&scanner.adjoint(&samples).unwrap()), &parts(&complex(&case["back"])), "back");
        let of = |stream| -> Vec<Complex<f64>> {
            let (re, im) = (normal(size[0] * size[1], stream), normal(size[0] * size[1], stream + 1));
            re.into_iter().zip(im).map(|(re, im)| Complex::new(re, im)).collect()
        };
        let (x, y) = (of(3), of(5));
        // As real numbers side by side, for which the adjoint is a transpose.
        let (a, b) = (
            dot(&parts(&scanner.apply(&x).unwrap()), &parts(&y)),
            dot(&parts(&x), &parts(&scanner.adjoint(&y).unwrap())),
        );
        assert!((a - b).abs() < 1e-12 * dot(&parts(&x), &parts(&x)), "{a} {b}");
    }
}

#[test]
fn rows_that_are_read_are_as_many_as_asked_for_and_the_middle_is_among_them() {
    let key = Key { seed: 1, step: 2, stream: 3 };
    let read = random_rows(64, 4.0, 0.08, key);
    assert_eq!(read.iter().filter(|r| **r).count(), 16);
    assert!([0, 1, 2, 62, 63].iter().all(|i| read[*i]), "{read:?}");
    assert_eq!(read, random_rows(64, 4.0, 0.08, key));
    assert_ne!(read, random_rows(64, 4.0, 0.08, Key { step: 3, ..key }));
    assert!(random_rows(9, 1.0, 0.1, key).iter().all(|r| *r));
}

/// Two disks, one off the middle, as a scanner sees them whose centre of rotation lies at `centre`.
fn shadows(places: usize, angles: &[f64], centre: f64) -> Vec<f64> {
    let scale = places as f64;
    let disks = [(0.05, -0.02, 0.22, 1.0), (0.12, 0.1, 0.06, 1.5)];
    let mut all = vec![];
    for angle in angles {
        let (sin, cos) = angle.to_radians().sin_cos();
        for place in 0..places {
            let t = place as f64 - centre;
            let chord = |&(x, y, r, v): &(f64, f64, f64, f64)| {
                let off = t - scale * (x * cos - y * sin);
                2.0 * v * ((scale * r).powi(2) - off * off).max(0.0).sqrt()
            };
            all.push(disks.iter().map(chord).sum());
        }
    }
    all
}

#[test]
fn the_centre_of_rotation_is_found_wherever_it_is() {
    let angles: Vec<f64> = (0..91).map(|i| 180.0 * f64::from(i) / 91.0).collect();
    for (places, centre) in [(96, 47.5), (96, 41.25), (257, 139.0)] {
        let sinogram = shadows(places, &angles, centre);
        let found = centre_of_rotation(&sinogram, places, &angles).unwrap();
        assert!((found - centre).abs() <= 0.125, "{found} in place of {centre}");
        // Disks come out where they are and as large as they are, to a few per cent.
        let back = FilteredBackprojection::new(places, &angles, places, found, Filter::Ramp).unwrap();
        let slice = back.slice(&sinogram).unwrap();
        let at = |x: f64, y: f64| {
            let pixel = |v: f64| (places / 2) as f64 + v * places as f64;
            slice[pixel(y).round() as usize * places + pixel(x).round() as usize]
        };
        assert!((at(-0.1, -0.02) - 1.0).abs() < 0.05, "{}", at(-0.1, -0.02));
        assert!((at(0.12, 0.1) - 2.5).abs() < 0.15, "{}", at(0.12, 0.1));
        assert!(at(-0.35, 0.0).abs() < 0.05, "{}", at(-0.35, 0.0));
    }
    // Behind noise, and where places of a larger detector are averaged.
    for (places, centre) in [(96, 41.25), (200, 93.4), (640, 296.2)] {
        let mut sinogram = shadows(places, &angles, centre);
        let highest = sinogram.iter().copied().fold(0.0, f64::max);
        let noise = normal(sinogram.len(), 9);
        sinogram.iter_mut().zip(noise).for_each(|(v, n)| *v += 0.03 * highest * n);
        let found = centre_of_rotation(&sinogram, places, &angles).unwrap();
        let near = 0.5 * (places / 128).max(1) as f64;
        assert!((found - centre).abs() <= near, "{found} in place of {centre}");
    }
    assert!(centre_of_rotation(&[1.0; 20], 10, &[0.0, 90.0]).unwrap_err().to_string().contains("angles"));
    assert!(centre_of_rotation(&[], 0, &[0.0, 60.0, 120.0]).unwrap_err().to_string().contains("places"));
    assert!(
        centre_of_rotation(&[0.0; 30], 10, &[0.0, 60.0, 120.0]).unwrap_err().to_string().contains("object")
    );
}

#[test]
fn counts_become_line_integrals_by_flats_and_darks() {
    let (flat, dark) = ([1010.0, 510.0], [10.0, 10.0]);
    let light = |flat: f64, integral: f64| 10.0 + (flat - 10.0) * f64::exp(-integral);
    let counts = [light(1010.0, 0.5), light(510.0, 2.0), light(1010.0, 0.0), 9.0];
    near(&line_integrals(&counts, &flat, &dark).unwrap(), &[0.5, 2.0, 0.0, 1e3f64.ln()], "integrals");
    let refused = line_integrals(&counts, &[1010.0, 10.0], &dark).unwrap_err().to_string();
    assert!(refused.contains("pixel 1") && refused.contains("flat"), "{refused}");
    assert!(line_integrals(&counts[..3], &flat, &dark).is_err());
    assert!(line_integrals(&counts, &[], &[]).unwrap_err().to_string().contains("places"));
    near(&binned_places(&[1.0, 3.0, 9.0, 5.0, 7.0, 9.0], 3, 2), &[2.0, 6.0], "blocks");
    assert!(Filter::named("rampe").unwrap_err().to_string().contains("shepp-logan"));
    assert!(FilteredBackprojection::new(8, &[0.0], 8, 9.0, Filter::Ramp).is_err());
    assert!(Radon::new(4, &[]).is_err() && Radon::new(4, &[f64::NAN]).is_err());
}
