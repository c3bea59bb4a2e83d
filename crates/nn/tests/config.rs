//! Configurations: what is accepted, what is refused, and in which words.

use clearshot_graph::{Builder, Type};
use clearshot_nn::Error;
use clearshot_nn::models::unet2d::{Extras, NETWORKS, SampleSize, UNet2DConfig, network};

fn refusal(json: &str) -> Error {
    match UNet2DConfig::from_json(json).and_then(|c| c.resolve()) {
        Err(e) => e,
        Ok(_) => panic!("accepted {json}"),
    }
}

#[test]
fn a_file_describes_its_contents() {
    let text = r#"{"_class_name": "UNet2DModel", "_diffusers_version": "0.42.1", "sample_size": [32, 48],
        "block_out_channels": [32, 64], "down_block_types": ["DownBlock2D", "UNetResAttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"], "norm_num_groups": 8, "mid_block_scale_factor": 1}"#;
    let config = UNet2DConfig::from_json(text).unwrap();
    assert_eq!(config.sample_size, Some(SampleSize::Sides([32, 48])));
    assert_eq!(config.bookkeeping["_diffusers_version"], "0.42.1");
    assert_eq!(config.attention_head_dim, Some(8), "what is not said is diffusers' default");
    assert_eq!(UNet2DConfig::from_json(&config.to_json()).unwrap(), config);
    assert_eq!(config.resolve().unwrap().multiple(), 2);
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    let error = refusal(r#"{"layer_per_block": 2}"#);
    assert_eq!(
        error.to_string(),
        "unknown key `layer_per_block` in the configuration; did you mean `layers_per_block`?"
    );
    assert!(matches!(refusal(r#"{"qqq": 2}"#), Error::UnknownKey { nearest: None, .. }));
}

#[test]
fn a_value_of_another_kind_is_named() {
    for (json, key) in [
        (r#"{"layers_per_block": "two"}"#, "layers_per_block"),
        (r#"{"in_channels": -1}"#, "in_channels"),
        (r#"{"norm_num_groups": null}"#, "norm_num_groups"),
        (r#"{"sample_size": [1, 2, 3]}"#, "sample_size"),
        (r#"{"act_fn": 3}"#, "act_fn"),
    ] {
        match refusal(json) {
            Error::Kind { key: named, .. } => assert_eq!(named, key),
            other => panic!("{json}: {other}"),
        }
    }
    assert!(matches!(refusal("[1]"), Error::NotJson { .. }));
    assert!(matches!(refusal("{\"in_channels\": "), Error::NotJson { .. }));
}

#[test]
fn unsupported_features_are_named_with_the_supported_ones() {
    for (json, key, supported) in [
        (r#"{"time_embedding_type": "sinus"}"#, "time_embedding_type", "positional, fourier, learned"),
        (r#"{"time_embedding_type": "learned"}"#, "num_train_timesteps", "a number"),
        (
            r#"{"down_block_types": ["SkipDownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D"]}"#,
            "down_block_types",
            "DownBlock2D, AttnDownBlock2D",
        ),
        (r#"{"down_block_types": ["DownBlock2D"]}"#, "down_block_types", "as many"),
        (r#"{"mid_block_type": "UNetMidBlock2DCrossAttn"}"#, "mid_block_type", "UNetMidBlock2D"),
        (r#"{"act_fn": "mish"}"#, "act_fn", "silu, swish, relu, gelu"),
        (r#"{"norm_num_groups": 33}"#, "norm_num_groups", "divisors"),
        (r#"{"attn_norm_num_groups": 33}"#, "attn_norm_num_groups", "divisors of 896"),
        (r#"{"attention_head_dim": 0}"#, "attention_head_dim", "1 to"),
        (r#"{"attention_head_dim": 500}"#, "attention_head_dim", "at most the 448"),
        (r#"{"downsample_padding": 2}"#, "downsample_padding", "0 and 1"),
        (r#"{"downsample_type": "fir"}"#, "downsample_type", "conv, resnet"),
        (r#"{"upsample_type": "fir"}"#, "upsample_type", "conv, resnet"),
        (r#"{"resnet_time_scale_shift": "spatial"}"#, "resnet_time_scale_shift", "default, scale_shift"),
        (r#"{"class_embed_type": "projection"}"#, "class_embed_type", "timestep, identity"),
        (r#"{"dropout": 1.0}"#, "dropout", "from 0"),
        (r#"{"layers_per_block": 0}"#, "layers_per_block", "1 to"),
        (r#"{"block_out_channels": []}"#, "block_out_channels", "1 to"),
        (r#"{"in_channels": 18446744073709551615}"#, "in_channels", "1 to"),
        (r#"{"norm_eps": 0}"#, "norm_eps", "positive"),
        (r#"{"freq_shift": 112}"#, "freq_shift", "less than 112"),
        (r#"{"mid_block_scale_factor": 0}"#, "mid_block_scale_factor", "positive"),
        (r#"{"_class_name": "UNet2DConditionModel"}"#, "_class_name", "UNet2DModel"),
    ] {
        match refusal(json) {
            Error::Unsupported { key: named, supported: words, .. } => {
                assert_eq!(named, key, "{json}");
                assert!(words.contains(supported), "{json}: {words}");
            }
            other => panic!("{json}: {other}"),
        }
    }
}

#[test]
fn impossible_levels_and_activations_of_a_dynunet_are_named() {
    let refused = |json: &str| {
        let text = format!(r#"{{"_class_name": "DynUNet", {json}}}"#);
        clearshot_nn::models::read(&text).map(|_| ()).unwrap_err().to_string()
    };
    // Twelve strides of 64 have a product that no number holds.
    let each = |value: &str, count: usize| vec![value; count].join(",");
    let (kernels, strides, ups) = (each("63", 12), each("64", 12), each("64", 11));
    let deep =
        format!(r#""kernel_size": [{kernels}], "strides": [{strides}], "upsample_kernel_size": [{ups}]"#);
    assert!(refused(&deep).contains("`strides`"), "{}", refused(&deep));
    for slope in [r#"["relu", {"negative_slope": 0.1}]"#, r#"["leakyrelu", {"negative_slope": "0.1"}]"#] {
        let said = refused(&format!(r#""act_name": {slope}"#));
        assert!(said.contains("negative_slope") && said.contains("leakyrelu"), "{said}");
    }
}

#[test]
fn errors_of_image_sizes_name_the_next_valid_size() {
    let error = |shape: [usize; 4], t: usize| {
        let mut b = Builder::new();
        let (x, t) = (b.input("x", Type::f32(shape)), b.input("t", Type::f32([t])));
        network("small").unwrap().build(&mut b, x, t);
        b.finish().map(|_| ()).unwrap_err().to_string()
    };
    let text = error([1, 30, 64, 2], 1);
    assert!(text.contains("30 x 64 pixels: 3 levels need multiples of 4, the next are 32 x 64"), "{text}");
    assert!(error([1, 32, 32, 3], 1).contains("expected [N, Y, X, 2]"));
    assert!(error([2, 32, 32, 2], 1).contains("expected [2], one a sample"));
}

#[test]
fn classes_are_asked_for_where_there_are_some() {
    let error = |config: UNet2DConfig, give: bool| {
        let mut b = Builder::new();
        let (x, t) = (b.input("x", Type::f32([1, 8, 8, 2])), b.input("t", Type::f32([1])));
        let class = give.then(|| b.input("class", Type::i32([1])));
        config.resolve().unwrap().build(&mut b, x, t, Extras { class, dropout_key: None });
        b.finish().map(|_| ()).unwrap_err().to_string()
    };
    let tiny = network("tiny").unwrap();
    assert!(error(tiny.clone(), true).contains("a network that has none"));
    assert!(error(UNet2DConfig { num_class_embeds: Some(3), ..tiny }, false).contains("needs classes"));
}

/// Numbers of values and of tensors, as diffusers counts them.
#[test]
fn benchmark_networks_have_the_parameters_of_their_namesakes() {
    let expected = [
        ("heads8", (102_436_737, 380)),
        ("base", (101_118_337, 330)),
        ("small", (15_723_201, 270)),
        ("tiny", (2_536_321, 154)),
    ];
    assert_eq!(NETWORKS.iter().map(|n| n.name).collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, (values, tensors)) in expected {
        let params = network(name).unwrap().resolve().unwrap().parameters().unwrap();
        let count: usize = params.iter().map(|p| p.shape.len()).sum();
        assert_eq!((count, params.len()), (values, tensors), "{name}");
    }
    assert!(network("huge").is_none());
}
