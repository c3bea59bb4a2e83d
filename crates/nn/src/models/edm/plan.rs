//! The layers of EDM's networks as a list, from the first to the last.

use super::Family;
use super::block::Block;
use crate::layers::Resample;

/// A layer and the last part of its parameters' names.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub name: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Conv {
        out: usize,
    },
    Block(Block),
    /// The image of the next level.
    AuxDown,
    /// The level's image added to its features.
    AuxSkip {
        out: usize,
    },
    /// The level's image, filtered by a layer of its own, averaged with its features.
    AuxResidual {
        out: usize,
    },
    /// The image so far, as large as the next level.
    AuxUp,
    /// An image made of a level's features, added to the image so far.
    AuxOut,
    /// The image made of the last features.
    Out,
}

/// What the list follows from.
pub(super) struct Shape<'a> {
    pub family: Family,
    pub resolution: usize,
    pub model_channels: usize,
    pub channel_mult: &'a [usize],
    pub num_blocks: usize,
    pub attn_resolutions: &'a [usize],
    pub encoder: Encoder,
    /// Every level of the way up makes an image.
    pub skip_decoder: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoder {
    Standard,
    Skip,
    Residual,
}

/// Channels of one head in ADM.
const HEAD: usize = 64;

impl Shape<'_> {
    fn heads(&self, channels: usize, attend: bool) -> Option<usize> {
        let heads = match self.family {
            Family::Song => 1,
            // So few channels that they fill no head have no attention.
            Family::Dhariwal => channels / HEAD,
        };
        (attend && heads > 0).then_some(heads)
    }

    fn attends(&self, level: usize) -> bool {
        self.attn_resolutions.contains(&(self.resolution >> level))
    }

    fn piece(&self, level: usize, name: &str, kind: Kind) -> Piece {
        let side = self.resolution >> level;
        Piece { name: format!("{side}x{side}_{name}"), kind }
    }

    /// The way down and the way up.
    pub fn pieces(&self) -> [Vec<Piece>; 2] {
        let block = |from, to, resample, attend| {
            Kind::Block(Block { from, to, resample, heads: self.heads(to, attend) })
        };
        let mut encoder = vec![];
        let mut skips = vec![];
        let mut channels = 0;
        for (level, mult) in self.channel_mult.iter().enumerate() {
            let width = self.model_channels * mult;
            if level == 0 {
                channels = if self.family == Family::Song { self.model_channels } else { width };
                encoder.push(self.piece(level, "conv", Kind::Conv { out: channels }));
            } else {
                encoder.push(self.piece(level, "down", block(channels, channels, Resample::Down, false)));
                match self.encoder {
                    Encoder::Standard => {}
                    Encoder::Skip => {
                        encoder.push(self.piece(level, "aux_down", Kind::AuxDown));
                        encoder.push(self.piece(level, "aux_skip", Kind::AuxSkip { out: channels }));
                    }
                    Encoder::Residual => {
                        encoder.push(self.piece(level, "aux_residual", Kind::AuxResidual { out: channels }));
                    }
                }
            }
            skips.push(channels);
            for i in 0..self.num_blocks {
                let kind = block(channels, width, Resample::None, self.attends(level));
                encoder.push(self.piece(level, &format!("block{i}"), kind));
                channels = width;
                skips.push(channels);
            }
        }
        let last = self.channel_mult.len() - 1;
        let mut decoder = vec![];
        for (level, mult) in self.channel_mult.iter().enumerate().rev() {
            if level == last {
                decoder.push(self.piece(level, "in0", block(channels, channels, Resample::None, true)));
                decoder.push(self.piece(level, "in1", block(channels, channels, Resample::None, false)));
            } else {
                decoder.push(self.piece(level, "up", block(channels, channels, Resample::Up, false)));
            }
            let width = self.model_channels * mult;
            for i in 0..=self.num_blocks {
                let from = channels + skips.pop().expect("the way down keeps one for every block");
                // Song's way up attends in the last block of a level only.
                let here = self.family == Family::Dhariwal || i == self.num_blocks;
                let kind = block(from, width, Resample::None, here && self.attends(level));
                decoder.push(self.piece(level, &format!("block{i}"), kind));
                channels = width;
            }
            if self.family == Family::Song && (self.skip_decoder || level == 0) {
                if self.skip_decoder && level < last {
                    decoder.push(self.piece(level, "aux_up", Kind::AuxUp));
                }
                decoder.push(self.piece(level, "aux", Kind::AuxOut));
            }
        }
        if self.family == Family::Dhariwal {
            decoder.push(Piece { name: String::new(), kind: Kind::Out });
        }
        [encoder, decoder]
    }
}
