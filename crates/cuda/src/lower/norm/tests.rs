//! Every way of a norm and of its gradient that the card takes, not only the one that is fastest there, against
//! the first one, which the op's own cases hold to the reference. Passes and says so where there is no GPU.

use super::super::trial::{check, run};
use super::super::{Kernel, Math, Node};
use super::whole::runs;
use super::{Way, bias, grad_way, grad_ways, norm_way, norm_ways};
use crate::context::Context;
use clearshot_graph::Type;
use clearshot_graph::ops::int8::Grid;
use clearshot_graph::ops::{Norm, NormGrad, Unary};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape};
use half::bf16;

fn drawn(ty: Type, stream: u32) -> Vec<u8> {
    let mut values = vec![0.0f32; ty.shape.len()];
    Key { seed: 11, step: 0, stream }.fill_normal(0, &mut values);
    // Means that differ from channel to channel, as images have them.
    let c = ty.shape.channels();
    values.iter_mut().enumerate().for_each(|(i, v)| *v += (i % c % 7) as f32 - 2.0);
    match ty.dtype {
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
    }
}

fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f64()).collect(),
        DType::F8 => bytes.iter().map(|b| clearshot_tensor::F8(*b).to_f32().into()).collect(),
        DType::U8 => bytes.iter().map(|b| (*b).into()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))).collect(),
    }
}

/// Whether every way gives what the first gives; says so.
fn agree(n: &Node<'_>, x: &[Vec<u8>], ways: &[Way], make: &dyn Fn(Way) -> Kernel) -> (bool, Vec<Vec<u8>>) {
    let (mut right, mut truth) = (true, vec![]);
    let sizes: Vec<usize> = n.y.iter().map(Type::bytes).collect();
    // All are asked for before the first is needed, and so compiled side by side.
    let kernels: Vec<Kernel> = ways.iter().map(|way| make(*way)).collect();
    for (way, kernel) in ways.iter().zip(&kernels) {
        let name = format!("{:?} {way:?}", n.x[0]);
        let got = run(n.cx, kernel, x, &sizes, &name);
        if truth.is_empty() {
            truth = got;
            continue;
        }
        for (i, ty) in n.y.iter().enumerate() {
            let (a, b) = (values(ty.dtype, &got[i]), values(ty.dtype, &truth[i]));
            let limit = match ty.dtype {
                DType::F32 => 1e-4,
                // A value that lies between two may go to either.
                DType::F8 => 1.5e-2,
                _ => 2e-3,
            };
            right &= check(&name, &format!("output {i}"), &a, &b, limit);
        }
    }
    (right, truth)
}

#[test]
fn sections_are_whole_groups_and_runs_cover_all_channels() {
    for (parts, groups) in [
        (vec![128], 32),
        (vec![256, 128], 32),
        (vec![512, 256], 32),
        (vec![160, 32, 64], 32),
        (vec![64], 1),
        (vec![384], 3),
        (vec![8, 8, 8, 8], 4),
        (vec![24, 40], 16),
    ] {
        let all: usize = parts.iter().sum();
        let (width, mut next) = (all / groups, vec![0; parts.len()]);
        assert_eq!(runs(&parts, width, 8, 1).len(), parts.len(), "{parts:?}: one section cuts nothing");
        let runs = runs(&parts, width, 8, 2);
        let mut before = 0;
        for (i, r) in runs.iter().enumerate() {
            assert_eq!(r.start, next[r.part], "{parts:?}: runs of a part follow each other");
            assert!(r.count > 0 && r.count % 8 == 0, "{parts:?}: whole vectors");
            if i > 0 && runs[i - 1].section != r.section {
                assert_eq!((before % width, r.section), (0, 1), "{parts:?}: a section begins with a group");
            }
            next[r.part] += r.count;
            before += r.count;
        }
        assert_eq!(next, parts);
        assert!(runs.len() <= parts.len() + 1 && runs[0].section == 0);
    }
}

/// Sizes of samples and pixels, channels of each part, groups, type, whether there is a bias.
type Case = (&'static [usize], &'static [usize], usize, DType, bool);

/// What is written in 8 bits is what would be written in 16, rounded: values that differ in their last bits may fall to either side.
#[test]
fn every_way_rounds_to_8_bits() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    if !cx.gpu.has_eighths() {
        return eprintln!("skipped: a card of compute capability {:?}", cx.gpu.capability);
    }
    let _turn = cx.turn();
    let mut right = true;
    let cases: [(&[usize], &[usize], bool); 5] = [
        (&[1, 128, 128], &[128], true),
        (&[8, 64, 64], &[256, 128], false),
        (&[2, 90, 91], &[128], true),
        (&[2, 32, 32], &[512], false),
        (&[3, 40, 30], &[160, 32], false),
    ];
    for (sizes, channels, has_bias) in cases {
        let of = |dtype, c: usize| Type { dtype, shape: Shape::new(&[sizes, &[c]].concat()) };
        let c = channels.iter().sum();
        let f32s = |shape: Shape| Type { dtype: DType::F32, shape };
        let (channel, sample) = (f32s(Shape::from([c])), f32s(Shape::from([sizes[0], c])));
        let act = Some(Unary::Silu);
        let a = Norm {
            groups: 32,
            eps: 1e-5,
            parts: channels.len(),
            film: false,
            act,
            rounded: false,
            bias: has_bias,
        };
        let mut x: Vec<Type> = channels.iter().map(|c| of(DType::BF16, *c)).collect();
        x.extend([channel, channel]);
        x.extend(has_bias.then_some(Type { dtype: DType::BF16, ..sample }));
        let bytes: Vec<Vec<u8>> = x.iter().zip(0..).map(|(t, i)| drawn(*t, i)).collect();
        let stats = f32s(Shape::from([sizes[0], 32, 2]));
        let kinds = [DType::F32, DType::F8].map(|dtype| [of(dtype, c), stats]);
        let [wide, narrow] =
            [0, 1].map(|i| Node { cx: &cx, math: Math { tf32: false }, x: x.clone(), y: &kinds[i] });
        let name = format!("{sizes:?} {channels:?}");
        let exact = run(
            &cx,
            &norm_way(&wide, &a, Way::Chunks(4)).unwrap(),
            &bytes,
            &[kinds[0][0].bytes(), stats.bytes()],
            "fp32",
        );
        let wanted: Vec<f64> = values(DType::F32, &exact[0])
            .iter()
            .map(|v| f64::from(clearshot_tensor::F8::from_f32(*v as f32).to_f32()))
            .collect();
        let (same, out) =
            agree(&narrow, &bytes, &norm_ways(&narrow, &a), &|way| norm_way(&narrow, &a, way).unwrap());
        right &= same & check(&name, "rounded", &values(DType::F8, &out[0]), &wanted, 1.5e-2);

        let grids: Vec<Grid> = (0..c).map(|i| Grid::between(-0.3, 2.0 + 0.1 * (i % 7) as f32)).collect();
        let of_grid = |of: fn(&Grid) -> f32| grids.iter().map(of).collect::<Vec<f32>>();
        let numbers = [of_grid(|g| 1.0 / g.step), of_grid(|g| g.zero.into())].concat();
        let a = Norm { rounded: true, ..a };
        let (mut x, mut bytes) = (x, bytes);
        x.insert(channels.len() + 2, f32s(Shape::from([2, c])));
        bytes.insert(channels.len() + 2, numbers.iter().flat_map(|v| v.to_ne_bytes()).collect());
        let kinds = [of(DType::U8, c), stats];
        let whole = Node { cx: &cx, math: Math { tf32: false }, x, y: &kinds };
        let (same, out) =
            agree(&whole, &bytes, &norm_ways(&whole, &a), &|way| norm_way(&whole, &a, way).unwrap());
        let number = |(i, v): (usize, f64)| f64::from(grids[i % c].round(v as f32));
        let wanted: Vec<f64> = values(DType::F32, &exact[0]).into_iter().enumerate().map(number).collect();
        right &= same & check(&name, "whole numbers", &values(DType::U8, &out[0]), &wanted, 2e-3);
    }
    assert!(right, "ways that are off are named above");
}

#[test]
fn every_way_gives_the_same() {
    let cx = match Context::get(0) {
        Ok(cx) => cx,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let _turn = cx.turn();
    let math = Math { tf32: false };
    let f32s = |shape: Shape| Type { dtype: DType::F32, shape };
    let mut right = true;
    // Each costs several programs.
    let cases: [Case; 9] = [
        (&[1, 256, 256], &[128], 32, DType::BF16, true),
        (&[2, 90, 91], &[128], 32, DType::BF16, true),
        (&[1, 32, 32], &[512], 32, DType::BF16, false),
        (&[1, 100, 9], &[384], 3, DType::BF16, true),
        (&[1, 12, 12, 12], &[64], 32, DType::F32, false),
        (&[2, 50, 60], &[64], 1, DType::BF16, false),
        // More than shared memory holds, and groups that reach from one part into the other.
        (&[1, 256, 250], &[256, 128], 32, DType::BF16, false),
        (&[1, 61, 47], &[512, 256], 32, DType::BF16, true),
        (&[3, 40, 30], &[160, 32, 64], 32, DType::BF16, false),
    ];
    for (sizes, channels, groups, dtype, has_bias) in cases {
        let with = |c: usize| Type { dtype, shape: Shape::new(&[sizes, &[c]].concat()) };
        let (samples, c) = (sizes[0], channels.iter().sum());
        let image = with(c);
        let (channel, sample) = (f32s(Shape::from([c])), f32s(Shape::from([samples, c])));
        let stats = f32s(Shape::from([samples, groups, 2]));
        let parts = channels.len();
        let a = Norm {
            groups,
            eps: 1e-5,
            parts,
            film: false,
            act: Some(Unary::Silu),
            rounded: false,
            bias: has_bias,
        };
        let mut x: Vec<Type> = channels.iter().map(|c| with(*c)).collect();
        x.extend([channel, channel]);
        x.extend(has_bias.then_some(Type { dtype, ..sample }));
        let bytes: Vec<Vec<u8>> = x.iter().zip(0..).map(|(t, i)| drawn(*t, i)).collect();
        let y = [image, stats];
        let n = Node { cx: &cx, math, x, y: &y };
        let (same, out) = agree(&n, &bytes, &norm_ways(&n, &a), &|way| norm_way(&n, &a, way).unwrap());
        right &= same;
        if parts > 1 {
            continue;
        }
        let a = NormGrad { norm: a, addends: 1 };
        let mut x = vec![image, stats, channel, channel, image, image];
        let mut inputs = vec![
            bytes[0].clone(),
            out[1].clone(),
            bytes[1].clone(),
            bytes[2].clone(),
            drawn(image, 9),
            drawn(image, 10),
        ];
        if let Some(b) = bias(&a.norm, &bytes) {
            x.push(Type { dtype, ..sample });
            inputs.push(b.clone());
        }
        let mut y = vec![image, channel, channel];
        y.extend(has_bias.then_some(sample));
        let n = Node { cx: &cx, math, x, y: &y };
        right &= agree(&n, &inputs, &grad_ways(&n, &a), &|way| grad_way(&n, &a, way).unwrap()).0;
    }
    assert!(right, "ways that are off are named above");
}
