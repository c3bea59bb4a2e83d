//! Conditions in addition to the image: a network that gets them as further channels uses them, and equals the
//! unconditional network if they are zero.

use clearshot_diffusion::precondition::{Preconditioned, Prediction};
use clearshot_diffusion::{Condition, Denoiser, Level, LevelInputs};
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Type};
use clearshot_nn::models::unet2d::UNet2DConfig;
use clearshot_nn::{Weights, weights};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::collections::BTreeMap;

/// Channels of the image and of the condition.
const IMAGE: usize = 2;
const CONDITION: usize = 3;

fn config(in_channels: usize) -> UNet2DConfig {
    UNet2DConfig {
        in_channels,
        out_channels: IMAGE,
        block_out_channels: vec![8, 8],
        down_block_types: vec!["DownBlock2D".into(), "AttnDownBlock2D".into()],
        up_block_types: vec!["AttnUpBlock2D".into(), "UpBlock2D".into()],
        layers_per_block: 1,
        norm_num_groups: 4,
        ..UNet2DConfig::default()
    }
}

fn fresh(in_channels: usize, seed: u64) -> Weights {
    weights::initial(&config(in_channels).resolve().unwrap().parameters().unwrap(), seed)
}

/// The unconditional network's weights, and its own for what comes from the condition.
fn widened(narrow: &Weights) -> Weights {
    let mut wide = fresh(IMAGE + CONDITION, 2);
    let first = &wide["conv_in.weight"];
    let (shape, own, theirs) = (first.shape(), first.to_f64(), narrow["conv_in.weight"].to_f64());
    let value = |i: usize| match (i / shape.channels(), i % shape.channels()) {
        (tap, c) if c < IMAGE => theirs[tap * IMAGE + c],
        _ => own[i],
    };
    let mixed = Tensor::f32(shape, (0..shape.len()).map(|i| value(i) as f32).collect());
    wide.extend(narrow.clone());
    wide.insert("conv_in.weight".into(), mixed);
    wide
}

fn values(shape: Shape, stream: u32) -> Array {
    let key = Key { seed: 5, step: 0, stream };
    Array::new(shape, (0..shape.len() as u64).map(|i| f64::from(key.normal(i))).collect())
}

/// The estimate for a fixed x, with a condition or without.
fn estimate(prediction: Prediction, held: &Weights, condition: Option<&Array>) -> Array {
    let shape = Shape::from([2, 8, 8, IMAGE]);
    let channels = IMAGE + condition.map_or(0, |_| CONDITION);
    let network = config(channels).resolve().unwrap();
    let denoiser = Preconditioned { network, prediction, learned_variance: false };
    let mut b = Builder::new();
    let x = b.input("x", Type::f32(shape));
    let image = condition.map(|c| b.input("c", Type::f32(c.shape)));
    let mut levels = LevelInputs::new(2);
    let given = Condition { image, ..Condition::default() };
    let estimate = denoiser.denoise(&mut b, x, &mut levels, &given);
    b.output("x0", estimate.x0);
    let mut all: BTreeMap<String, Array> =
        held.iter().map(|(n, w)| (n.clone(), Array::from_tensor(w))).collect();
    all.insert("x".into(), values(shape, 1));
    all.extend(condition.map(|c| ("c".to_string(), c.clone())));
    let level = Level::new(0.8, 0.6, 300.0);
    all.extend(levels.at(&level).map(|(n, t)| (n.to_string(), Array::from_tensor(&t))));
    run(&b.finish().unwrap(), &mut all, Precision::F64).unwrap().remove("x0").unwrap()
}

#[test]
fn a_condition_has_an_effect_and_zeros_have_none() {
    let narrow = fresh(IMAGE, 1);
    let wide = widened(&narrow);
    let shape = Shape::from([2, 8, 8, CONDITION]);
    let kinds =
        [Prediction::Noise, Prediction::Sample, Prediction::Velocity, Prediction::Edm { sigma_data: 0.5 }];
    for prediction in kinds {
        let free = estimate(prediction, &narrow, None);
        let silent = estimate(prediction, &wide, Some(&Array::from_fn(shape, |_| 0.0)));
        let off = silent.relative_error(&free);
        assert!(off < 1e-12, "{prediction:?}: {off:e}");
        // One channel of one image is heard in that image, and in no other.
        let c = values(shape, 2);
        let told = estimate(prediction, &wide, Some(&c));
        assert!(told.relative_error(&free) > 1e-2, "{prediction:?}");
        for channel in 0..CONDITION {
            let half = c.data.len() / 2;
            let mut other = c.clone();
            other.data[..half].iter_mut().skip(channel).step_by(CONDITION).for_each(|v| *v += 1.0);
            let changed = estimate(prediction, &wide, Some(&other));
            let pixels = told.data.len() / 2;
            assert_ne!(changed.data[..pixels], told.data[..pixels], "{prediction:?} channel {channel}");
            assert_eq!(changed.data[pixels..], told.data[pixels..], "{prediction:?} channel {channel}");
        }
    }
}
