//! What a block of the forward kernel makes, and what it holds of shared memory meanwhile: the tiles that are worth trying.

use super::{ALIGNMENT, Call, MOST_SHARED, Pace, ROW_BYTES, Sizes, is_whole, pace, takes};
use crate::lower::Node;
use clearshot_tensor::DType;

/// What a block of the forward kernel makes: 16 rows of 8 `blocks` pixels, and so many channels; or as many blocks as there
/// are `shares` together.
#[derive(Clone, Copy, Debug)]
pub(in crate::lower::conv) struct Tile {
    pub(super) blocks: usize,
    pub(super) channels: usize,
    pub(super) shares: usize,
    pub(super) feed: Feed,
    /// Bytes of a pixel's channels that come at a time.
    pub(super) row: usize,
}

/// How weights come to a block's shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Feed {
    /// For every tile again.
    Anew,
    /// Once: all its tiles need the same.
    Held,
}

/// Tiles worth trying for a convolution that sees `s`; where it is transposed, only those of whole boxes of 64 channels.
pub(in crate::lower::conv) fn tiles(n: &Node<'_>, s: &Sizes, call: &Call) -> Vec<Tile> {
    let fits = match pace(s) {
        Some(Pace::Whole) => true,
        Some(Pace::Halved) => !call.transposed && call.parts == 1 && is_whole(s.c, s.dtype),
        None => false,
    };
    let is_wide = s.dtype == DType::F32;
    if !takes(n, s) || !fits || (is_wide && call.transposed) {
        return vec![];
    }
    let (channels, transposed) = (call.channels, call.transposed);
    let wide = match channels {
        c if c <= 48 && !transposed => 48,
        c if c <= 64 => 64,
        c if !transposed && c.div_ceil(96) * 96 < c.div_ceil(128) * 128 => 96,
        _ => 128,
    };
    let count = |t: &Tile| (s.rows() / (128 * t.blocks)).max(1) * channels.div_ceil(t.channels);
    let sms = n.cx.gpu.multiprocessors;
    let large = Tile { blocks: 2, channels: wide, shares: 1, feed: Feed::Anew, row: ROW_BYTES };
    let mut all = vec![large];
    // Small images do not fill the card with large tiles.
    if count(&large) < 2 * sms {
        all.push(Tile { blocks: 1, ..large });
        if wide > 64 && count(&all[1]) < sms {
            all.push(Tile { channels: 64, ..all[1] });
        }
    }
    let summed = if transposed { s.k } else { s.c }.div_ceil(large.wide(s.dtype));
    let shared = |t: &Tile| {
        let tile = *t;
        [2, 4].map(|shares| Tile { shares, ..tile }).into_iter().filter(move |t| {
            let small = t.blocks == 1 && count(t) * t.shares <= sms;
            small && !is_wide && t.channels.is_multiple_of(64) && t.shares <= summed
        })
    };
    let shared: Vec<Tile> = all.iter().flat_map(shared).collect();
    if count(&large) >= sms {
        all.extend(large.holding(s, call));
        all.extend(large.holding_less(s, call));
    }
    all.extend(shared);
    all
}

impl Tile {
    /// Channels that come at a time.
    pub(super) fn wide(&self, dtype: DType) -> usize {
        self.row / dtype.bytes()
    }

    /// The same with its weights held, where they fit.
    pub(in crate::lower::conv) fn holding(self, s: &Sizes, call: &Call) -> Option<Tile> {
        let held = Tile { feed: Feed::Held, ..self };
        let suits = self.shares == 1
            && call.parts == 1
            && !(call.upsample && call.transposed)
            && pace(s) == Some(Pace::Whole);
        (suits && Room::new(s, call, held).is_some()).then_some(held)
    }

    /// The same with half as many channels at a time, for TF32: less comes in vain, and more is on its way.
    pub(in crate::lower::conv) fn holding_less(self, s: &Sizes, call: &Call) -> Option<Tile> {
        Tile { row: ROW_BYTES / 2, ..self }.holding(s, call).filter(|_| s.dtype == DType::F32)
    }
}

/// What a block of the forward kernel has in shared memory.
pub(super) struct Room {
    pub(super) patches: usize,
    /// Tiles of weights.
    pub(super) stages: usize,
    pub(super) bytes: usize,
}

impl Room {
    /// Nothing where weights are to be held and do not fit.
    pub(super) fn new(s: &Sizes, call: &Call, tile: Tile) -> Option<Room> {
        const MOST_STAGES: usize = 12;
        const MOST_PATCHES: usize = 8;
        let side = call.side(s);
        let (patch, stage) = (patch_bytes(side, tile), tile.channels * tile.row);
        // Results of 16 bits wait in shared memory.
        let results = if s.dtype == DType::F32 { 0 } else { 2 * tile.blocks * 64 * tile.channels * 2 };
        let fixed = ALIGNMENT + results;
        let left = MOST_SHARED - fixed;
        let (patches, stages) = match (tile.feed, side) {
            (Feed::Held, _) => {
                let summed = if call.transposed { s.k } else { s.c };
                let stages =
                    side * side * summed.div_ceil(tile.wide(s.dtype)) + call.side.map_or(0, |s| s.turns);
                ((left.checked_sub(stages * stage)? / patch).min(MOST_PATCHES), stages)
            }
            // With one tap, every patch goes with one tile of weights.
            (_, 1) => {
                let both = (left / (patch + stage)).min(8);
                (both, both)
            }
            _ => (2, ((left - 2 * patch) / stage).min(MOST_STAGES)),
        };
        let bytes = fixed + patches * patch + stages * stage;
        (patches >= 2).then_some(Room { patches, stages, bytes })
    }
}

/// Pixels of a tile and those around it, across and down.
pub(super) fn patch(side: usize, tile: Tile) -> [usize; 2] {
    [8 * tile.blocks + side - 1, 16 + side - 1]
}

fn patch_bytes(side: usize, tile: Tile) -> usize {
    (patch(side, tile).iter().product::<usize>() * tile.row).next_multiple_of(ALIGNMENT)
}
