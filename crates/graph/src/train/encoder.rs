//! Rates of the layers of an encoder that was trained before: the first ones know what is common to all images and are to change least.

/// What stands in front of the names of an encoder's parameters, and of those of its blocks.
const ENCODER: &str = "encoder.";
const BLOCKS: &str = "blocks.";
const FIRST: &str = "patch_embed.";

/// Shares of the rate by layer, as BEiT and masked autoencoders are tuned (Bao et al. 2022, He et al. 2022): the embedding of patches is layer 0, block `i` layer `i + 1`, and what
/// comes behind the blocks the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderRates {
    /// Of the last layer.
    pub share: f64,
    /// Of each layer, relative to the next.
    pub decay: f64,
    pub blocks: usize,
}

impl EncoderRates {
    /// The share of the rate that a parameter of this name learns at.
    pub fn share_of(&self, name: &str) -> f64 {
        let Some(own) = name.strip_prefix(ENCODER) else { return 1.0 };
        let number = |rest: &str| rest.split('.').next().and_then(|n| n.parse::<usize>().ok());
        let below = match own.strip_prefix(BLOCKS).and_then(number) {
            Some(block) => self.blocks.saturating_sub(block),
            None if own.starts_with(FIRST) => self.blocks + 1,
            None => 0,
        };
        self.share * self.decay.powi(below as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `get_layer_id_for_vit` of He et al.'s util/lr_decay.py: decay to the power of blocks + 1 less the layer.
    #[test]
    fn layers_learn_at_the_rates_of_masked_autoencoders() {
        let rates = EncoderRates { share: 0.5, decay: 0.75, blocks: 4 };
        let layers = [
            ("encoder.patch_embed.proj.weight", 0),
            ("encoder.blocks.0.attn.qkv.bias", 1),
            ("encoder.blocks.3.norm1.weight", 4),
            ("encoder.norm.weight", 5),
        ];
        for (name, layer) in layers {
            assert_eq!(rates.share_of(name), 0.5 * 0.75f64.powi(5 - layer), "{name}");
        }
        assert_eq!(rates.share_of("decoder.up.0.conv.weight"), 1.0);
        assert_eq!(rates.share_of("ema.encoder.norm.weight"), 1.0);
        let many = EncoderRates { share: 1.0, decay: 0.5, blocks: 12 };
        assert_eq!(many.share_of("encoder.blocks.11.mlp.fc1.weight"), 0.5);
    }
}
