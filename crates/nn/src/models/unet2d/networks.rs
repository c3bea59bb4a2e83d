//! The networks that benchmarks time, by name.

use super::UNet2DConfig;

/// What tells a benchmark network from the others; all take two channels and give one.
pub struct Network {
    pub name: &'static str,
    layers: usize,
    channels: &'static [usize],
    /// Levels with attention, counted from the largest image, on the way down and on the way up.
    attention: [&'static [usize]; 2],
    head: usize,
    groups: usize,
}

pub const NETWORKS: &[Network] = &[
    Network {
        name: "heads8",
        layers: 2,
        channels: &[128, 256, 512, 512],
        attention: [&[1, 2], &[1, 2]],
        head: 8,
        groups: 8,
    },
    Network {
        name: "base",
        layers: 2,
        channels: &[128, 256, 512, 512],
        attention: [&[2], &[2]],
        head: 64,
        groups: 32,
    },
    Network {
        name: "small",
        layers: 2,
        channels: &[64, 128, 256],
        attention: [&[2], &[2]],
        head: 64,
        groups: 32,
    },
    Network { name: "tiny", layers: 1, channels: &[32, 64, 128], attention: [&[], &[]], head: 32, groups: 8 },
];

impl Network {
    pub fn config(&self) -> UNet2DConfig {
        let levels = 0..self.channels.len();
        let name = |with: &[usize], level: usize, way: &str| {
            format!("{}{way}Block2D", if with.contains(&level) { "Attn" } else { "" })
        };
        UNet2DConfig {
            in_channels: 2,
            out_channels: 1,
            layers_per_block: self.layers,
            block_out_channels: self.channels.to_vec(),
            down_block_types: levels.clone().map(|i| name(self.attention[0], i, "Down")).collect(),
            up_block_types: levels.rev().map(|i| name(self.attention[1], i, "Up")).collect(),
            attention_head_dim: Some(self.head),
            norm_num_groups: self.groups,
            ..UNet2DConfig::default()
        }
    }
}

/// The configuration of a benchmark network.
pub fn network(name: &str) -> Option<UNet2DConfig> {
    NETWORKS.iter().find(|n| n.name == name).map(Network::config)
}
