//! Networks of every architecture by name, in common sizes, for benchmarks and plans.
//!
//! The UNets of diffusers that benchmarks time have their own table, [`super::unet2d::NETWORKS`].

use super::{Network, unet2d};

/// A name for a configuration.
pub struct Named {
    pub name: &'static str,
    /// As a `config.json` has it.
    pub config: &'static str,
}

/// Every name beside those of [`unet2d::NETWORKS`].
pub const NAMED: &[Named] = &[
    Named {
        name: "condition",
        config: r#"{"_class_name": "UNet2DConditionModel", "in_channels": 2, "out_channels": 1,
            "block_out_channels": [64, 128, 256], "cross_attention_dim": 128,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"]}"#,
    },
    Named { name: "rosinality", config: r#"{"_class_name": "RosinalityUNet"}"# },
    Named {
        name: "ddpmpp",
        config: r#"{"_class_name": "EDM", "model_type": "SongUNet", "img_resolution": 64, "model_channels": 64,
            "dropout": 0.0}"#,
    },
    Named {
        name: "ncsnpp",
        config: r#"{"_class_name": "EDM", "model_type": "SongUNet", "img_resolution": 64, "model_channels": 64,
            "dropout": 0.0, "embedding_type": "fourier", "channel_mult_noise": 2, "encoder_type": "residual",
            "resample_filter": [1, 3, 3, 1]}"#,
    },
    Named {
        name: "adm",
        config: r#"{"_class_name": "EDM", "model_type": "DhariwalUNet", "img_resolution": 64,
            "model_channels": 64, "num_blocks": 2, "dropout": 0.0}"#,
    },
    Named {
        name: "dynunet2d",
        config: r#"{"_class_name": "DynUNet", "res_block": true, "kernel_size": [3, 3, 3, 3, 3],
            "strides": [1, 2, 2, 2, 2], "upsample_kernel_size": [2, 2, 2, 2]}"#,
    },
    Named {
        name: "dynunet3d",
        config: r#"{"_class_name": "DynUNet", "spatial_dims": 3, "res_block": true, "kernel_size": [3, 3, 3, 3],
            "strides": [1, 2, 2, 2], "upsample_kernel_size": [2, 2, 2]}"#,
    },
    Named { name: "multiscale", config: r#"{"_class_name": "MultiScale"}"# },
    Named { name: "growing", config: r#"{"_class_name": "Growing"}"# },
    Named { name: "local", config: r#"{"_class_name": "Local"}"# },
];

/// All names, the benchmarks' first.
pub fn names() -> impl Iterator<Item = &'static str> {
    unet2d::NETWORKS.iter().map(|n| n.name).chain(NAMED.iter().map(|n| n.name))
}

/// The network of this name.
pub fn named(name: &str) -> Option<Box<dyn Network>> {
    if let Some(config) = unet2d::network(name) {
        return Some(Box::new(config.resolve().ok()?));
    }
    let row = NAMED.iter().find(|n| n.name == name)?;
    super::read(row.config).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_network_and_stands_once() {
        for name in names() {
            let network = named(name).unwrap_or_else(|| panic!("{name} does not resolve"));
            network.inference(1, &vec![64; network.dims()]).unwrap();
            assert_eq!(names().filter(|n| *n == name).count(), 1, "{name}");
        }
        assert!(named("huge").is_none());
    }
}
