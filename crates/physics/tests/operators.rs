//! Every operator against its definition, its adjoint and its graph.

use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Type};
use clearshot_physics::operator::Real;
use clearshot_physics::{Boundary, Operator, PhysicsError, Pooling, Psf};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape, Tensor};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn normal(n: usize, stream: u32) -> Vec<f64> {
    let key = Key { seed: 17, step: 0, stream };
    (0..n as u64).map(|i| key.normal(i).into()).collect()
}

fn lopsided_psf(shape: &[usize], stream: u32) -> Psf {
    let shape = Shape::new(shape);
    Psf::new(shape, normal(shape.len(), stream).iter().map(|v| v.abs() + 0.01).collect()).unwrap()
}

fn dot<T: Real>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x.to_f64_value() * y.to_f64_value()).sum()
}

fn norm<T: Real>(a: &[T]) -> f64 {
    dot(a, a).sqrt()
}

/// |<A x, y> - <x, A' y>| over the norms of the two sides' factors.
fn adjoint_error<T: Real>(operator: &Operator) -> f64 {
    let of = |n: usize, stream: u32| -> Vec<T> { normal(n, stream).into_iter().map(T::of).collect() };
    let (x, y) = (of(operator.domain().len(), 1), of(operator.range().len(), 2));
    let (ax, aty) = (operator.apply(&x).unwrap(), operator.adjoint(&y).unwrap());
    (dot(&ax, &y) - dot(&x, &aty)).abs() / (norm(&ax) * norm(&y)).max(norm(&x) * norm(&aty))
}

/// One of everything, on odd and even sizes, planes and volumes.
fn operators() -> Vec<(String, Operator)> {
    let mut all: Vec<(String, Operator)> = Vec::new();
    let images: [(&[usize], &[&[usize]]); 5] = [
        (&[12, 10], &[&[3, 3], &[4, 6], &[1, 5], &[12, 10]]),
        (&[7, 13], &[&[7, 2], &[5, 5]]),
        (&[1, 9], &[&[1, 3]]),
        (&[5, 6, 7], &[&[3, 3, 3], &[5, 2, 4]]),
        (&[1, 8, 5], &[&[1, 3, 4]]),
    ];
    for (image, psfs) in images {
        for (i, psf) in psfs.iter().enumerate() {
            for boundary in Boundary::ALL {
                let blur = Operator::blur(image, &lopsided_psf(psf, i as u32), boundary).unwrap();
                all.push((format!("{boundary:?} {image:?} {psf:?}"), blur));
            }
        }
        let n = image.iter().product();
        let seen: Vec<bool> = normal(n, 5).iter().map(|&v| v > -0.5).collect();
        all.push((format!("mask {image:?}"), Operator::mask(image, &seen).unwrap()));
        all.push((format!("diagonal {image:?}"), Operator::diagonal(image, normal(n, 6)).unwrap()));
        all.push((format!("identity {image:?}"), Operator::identity(image).unwrap()));
    }
    let downs: [(&[usize], &[usize]); 4] =
        [(&[12, 10], &[3, 2]), (&[7, 9], &[7, 1]), (&[4, 6, 9], &[2, 3, 1]), (&[2, 4, 4], &[1, 2, 2])];
    for (image, factors) in downs {
        for pooling in [Pooling::Sum, Pooling::Mean] {
            let down = Operator::down(image, factors, pooling).unwrap();
            all.push((format!("{pooling:?} {image:?} by {factors:?}"), down));
        }
    }
    // Blur, then bin, then what the mask leaves of it.
    let blur = Operator::blur([12, 10], &lopsided_psf(&[5, 3], 0), Boundary::Reflect).unwrap();
    let down = Operator::down([12, 10], &[2, 2], Pooling::Sum).unwrap();
    let mask = Operator::mask([6, 5], &(0..30).map(|i| i % 7 != 0).collect::<Vec<_>>()).unwrap();
    let chain = blur.then(down).unwrap().then(mask).unwrap();
    all.push(("blur, bin, mask".into(), chain));
    all
}

#[test]
fn adjoints_are_adjoint() {
    for (name, operator) in operators() {
        let (single, double) = (adjoint_error::<f32>(&operator), adjoint_error::<f64>(&operator));
        assert!(single < 1e-5, "{name}: f32 {single:e}");
        assert!(double < 1e-12, "{name}: f64 {double:e}");
    }
}

/// The definition, pixel by pixel: y[p] = sum over q of h[q] x[p - (q - origin)].
fn directly(x: &[f64], image: [usize; 3], psf: &Psf, size: [usize; 3], boundary: Boundary) -> Vec<f64> {
    let mut y = Vec::new();
    for z in 0..image[0] {
        for r in 0..image[1] {
            for c in 0..image[2] {
                let mut sum = 0.0;
                for (q, h) in psf.values().iter().enumerate() {
                    let tap = [q / (size[1] * size[2]), q / size[2] % size[1], q % size[2]];
                    let at = |p: usize, a: usize| {
                        boundary.source(p as isize - tap[a] as isize + (size[a] / 2) as isize, image[a])
                    };
                    if let (Some(z), Some(r), Some(c)) = (at(z, 0), at(r, 1), at(c, 2)) {
                        sum += h * x[(z * image[1] + r) * image[2] + c];
                    }
                }
                y.push(sum);
            }
        }
    }
    y
}

#[test]
fn blurring_is_its_definition() {
    for (image, size) in [([1, 9, 8], [1, 4, 5]), ([1, 6, 7], [1, 6, 7]), ([4, 5, 6], [3, 2, 5])] {
        let drop = usize::from(image[0] == 1);
        let psf = lopsided_psf(&size[drop..], 3);
        let x = normal(image.iter().product(), 4);
        for boundary in Boundary::ALL {
            let operator = Operator::blur(&image[drop..], &psf, boundary).unwrap();
            let (fast, slow) = (operator.apply(&x).unwrap(), directly(&x, image, &psf, size, boundary));
            let error = fast.iter().zip(&slow).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(error < 1e-13, "{boundary:?} {image:?} by {size:?}: {error:e}");
        }
    }
}

/// scipy.ndimage.convolve with modes wrap, constant, reflect, mirror and nearest, times 18.
#[test]
fn boundaries_are_scipys() {
    let x = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4].map(f64::from);
    let psf = Psf::new([3, 3], [1, 2, 0, 3, 5, 1, 0, 2, 4].map(f64::from).to_vec()).unwrap();
    let expected: [(Boundary, [u32; 20]); 5] = [
        (
            Boundary::Periodic,
            [65, 46, 55, 65, 90, 98, 76, 84, 81, 84, 96, 119, 108, 125, 104, 78, 64, 100, 112, 96],
        ),
        (
            Boundary::Zero,
            [38, 30, 41, 37, 32, 75, 76, 84, 81, 52, 75, 119, 108, 125, 86, 31, 58, 91, 105, 74],
        ),
        (
            Boundary::Reflect,
            [59, 44, 53, 55, 64, 96, 76, 84, 81, 70, 116, 119, 108, 125, 117, 62, 65, 105, 125, 98],
        ),
        (
            Boundary::Mirror,
            [65, 70, 61, 71, 66, 81, 76, 84, 81, 74, 91, 119, 108, 125, 115, 83, 83, 116, 128, 123],
        ),
        (
            Boundary::Replicate,
            [59, 44, 53, 55, 64, 96, 76, 84, 81, 70, 116, 119, 108, 125, 117, 62, 65, 105, 125, 98],
        ),
    ];
    for (boundary, expected) in expected {
        let y = Operator::blur([4, 5], &psf, boundary).unwrap().apply(&x).unwrap();
        for (got, want) in y.iter().zip(expected) {
            assert!((got * 18.0 - f64::from(want)).abs() < 1e-10, "{boundary:?}: {y:?}");
        }
    }
}

#[test]
fn light_is_kept() {
    // A unit-sum PSF leaves a flat image flat wherever the outside continues it, and keeps the sum where
    // it is periodic.
    let psf = lopsided_psf(&[5, 4], 9);
    for boundary in [Boundary::Periodic, Boundary::Reflect, Boundary::Mirror, Boundary::Replicate] {
        let operator = Operator::blur([11, 8], &psf, boundary).unwrap();
        assert!(
            operator.apply(&[7.0f64; 88]).unwrap().iter().all(|v| (v - 7.0).abs() < 1e-12),
            "{boundary:?}"
        );
    }
    let x = normal(88, 1);
    let y = Operator::blur([11, 8], &psf, Boundary::Periodic).unwrap().apply(&x).unwrap();
    assert!((x.iter().sum::<f64>() - y.iter().sum::<f64>()).abs() < 1e-12);
    let binned = Operator::down([8, 11], &[4, 11], Pooling::Sum).unwrap().apply(&x).unwrap();
    assert!((x.iter().sum::<f64>() - binned.iter().sum::<f64>()).abs() < 1e-12);
}

/// The graph's image `[N, (Z,) Y, X, C]` as its planes, each on the host.
fn each_plane(x: &Array, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let [n, s, c] = x.rows();
    let planes: Vec<Vec<f64>> = (0..n * c)
        .map(|p| f(&(0..s).map(|i| x.data[(p / c * s + i) * c + p % c]).collect::<Vec<_>>()))
        .collect();
    let out = planes[0].len();
    (0..n * out * c).map(|i| planes[i / (out * c) * c + i % c][i / c % out]).collect()
}

#[test]
fn graphs_are_the_host() {
    for (name, operator) in operators() {
        let (n, c) = (2, 3);
        let batch = |space: Shape| {
            let mut sizes = vec![n];
            sizes.extend(space.iter());
            sizes.push(c);
            Shape::new(&sizes)
        };
        let (domain, range) = (batch(operator.domain()), batch(operator.range()));
        let mut b = Builder::new();
        let x = b.input("x", Type::f32(domain));
        let y = b.input("y", Type::f32(range));
        let forward = operator.build(&mut b, x);
        let back = operator.build_adjoint(&mut b, y).unwrap();
        b.output("ax", forward);
        b.output("aty", back);
        let graph = b.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
        let (x, y) = (Array::new(domain, normal(domain.len(), 7)), Array::new(range, normal(range.len(), 8)));
        let mut values = BTreeMap::from([("x".into(), x.clone()), ("y".into(), y.clone())]);
        let got = run(&graph, &mut values, Precision::F64).unwrap();
        let ax = Array::new(range, each_plane(&x, |p| operator.apply(p).unwrap()));
        let aty = Array::new(domain, each_plane(&y, |p| operator.adjoint(p).unwrap()));
        // The graph's kernel is rounded to f32.
        let errors = [got["ax"].relative_error(&ax), got["aty"].relative_error(&aty)];
        assert!(errors.iter().all(|e| *e < 1e-6), "{name}: {errors:?}");

        let mut session = compile(graph, &Device::cpu(Some(2)), &Options::default()).unwrap();
        session.set("x", &x.to_tensor(DType::F32)).unwrap();
        session.set("y", &y.to_tensor(DType::F32)).unwrap();
        session.run().unwrap();
        for (output, truth) in [("ax", &ax), ("aty", &aty)] {
            let error = Array::from_tensor(&session.get(output).unwrap()).relative_error(truth);
            assert!(error < 1e-5, "{name}: {output} by kernels {error:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn adjoints_hold_for_any_sizes(
        (height, width) in (1usize..24, 1usize..24),
        (k, l) in (1usize..24, 1usize..24),
        which in 0usize..5,
    ) {
        let psf = lopsided_psf(&[k, l], 2);
        match Operator::blur([height, width], &psf, Boundary::ALL[which]) {
            Ok(operator) => {
                prop_assert!(k <= height && l <= width);
                prop_assert!(adjoint_error::<f32>(&operator) < 1e-5);
                prop_assert!(adjoint_error::<f64>(&operator) < 1e-12);
            }
            Err(e) => {
                prop_assert!(k > height || l > width);
                let too_large = matches!(e, PhysicsError::PsfTooLarge { .. });
                prop_assert!(too_large);
            }
        }
    }
}

#[test]
fn impossible_operators_are_refused_by_name() {
    let e = Operator::blur([8, 8], &lopsided_psf(&[9, 3], 0), Boundary::Zero).unwrap_err();
    assert!(e.to_string().starts_with("a PSF of [9,3] pixels does not fit an image of [8,8]"), "{e}");
    let e = Operator::blur([4, 8, 8], &lopsided_psf(&[3, 3], 0), Boundary::Zero).unwrap_err();
    assert!(e.to_string().contains("a PSF of 3 axes"), "{e}");
    let e = Operator::down([9, 8], &[2, 2], Pooling::Sum).unwrap_err();
    assert!(e.to_string().contains("[9,8]") && e.to_string().contains("[2, 2]"), "{e}");
    assert!(Operator::down([9, 8], &[0, 2], Pooling::Sum).is_err());
    assert!(Operator::mask([3, 3], &[true; 8]).is_err());
    assert!(Operator::diagonal([1, 2], vec![1.0, f64::NAN]).is_err());
    assert!(Operator::identity([3, 0]).is_err() && Operator::identity([3]).is_err());
    let first = Operator::down([8, 8], &[2, 2], Pooling::Mean).unwrap();
    let e = first.clone().then(Operator::identity([8, 8]).unwrap()).unwrap_err();
    assert_eq!(e.to_string(), "an operator that gives [4,4] cannot be followed by one that takes [8,8]");
    assert!(first.apply(&[0.0f64; 63]).is_err() && first.adjoint(&[0.0f64; 17]).is_err());
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, 8, 7, 1]));
    first.build(&mut b, x);
    assert!(b.finish().unwrap_err().to_string().contains("[8,8]"));
}

/// To the bit: FFTs that share work between images must not share rounding.
#[test]
fn an_image_is_blurred_alike_alone_and_in_a_batch() {
    for boundary in Boundary::ALL {
        let operator = Operator::blur([11, 14], &lopsided_psf(&[5, 4], 1), boundary).unwrap();
        let images: Vec<f32> = normals_f32(5 * 11 * 14 * 2);
        let blurred = |from: usize, count: usize, threads: usize| {
            let shape = Shape::from([count, 11, 14, 2]);
            let mut b = Builder::new();
            let x = b.input("x", Type::f32(shape));
            let y = operator.build(&mut b, x);
            let back = operator.build_adjoint(&mut b, y).unwrap();
            b.output("y", back);
            let mut session =
                compile(b.finish().unwrap(), &Device::cpu(Some(threads)), &Options::default()).unwrap();
            let part = images[from * 308..(from + count) * 308].to_vec();
            session.set("x", &Tensor::f32(shape, part)).unwrap();
            session.run().unwrap();
            session.get("y").unwrap().as_f32().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let all = blurred(0, 5, 2);
        for i in 0..5 {
            assert_eq!(blurred(i, 1, 1), all[i * 308..(i + 1) * 308], "{boundary:?}, image {i}");
        }
    }
}

fn normals_f32(n: usize) -> Vec<f32> {
    normal(n, 12).iter().map(|&v| v as f32).collect()
}
