//! Noise by absolute voxel coordinates, so that it does not depend on tiles, batches or devices.
//!
//! A row of [`BLOCK`] pixels has its own key, made from the seed of the image and the position of the row in the whole
//! image. A tile asks for the rows that it covers, so overlapping tiles get the same noise.

use crate::Error;
use clearshot_graph::{Builder, Type, Value, ops::NoiseKind};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};

/// Pixels along X that share a key. A tile begins at a multiple of it.
pub const BLOCK: usize = 16;

/// Distinguishes several draws of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// What a sampler adds.
    Steps,
    /// The values of known pixels.
    Known,
    /// The start of sampling.
    Start,
}

/// An image, or a tile of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub seed: u64,
    /// Z, Y and X of its first voxel in the whole image.
    pub origin: [usize; 3],
}

impl Tile {
    /// A whole image.
    pub fn whole(seed: u64) -> Tile {
        Tile { seed, origin: [0; 3] }
    }
}

/// The keys of a batch's rows.
#[derive(Clone, Debug)]
pub struct Keys {
    shape: Shape,
    /// One for each row of each image.
    rows: Vec<u64>,
}

/// Sizes along Z, Y and X, and channels. Batches of points, `[N, C]`, are rows of one pixel.
fn sizes(shape: Shape) -> [usize; 4] {
    match *shape {
        [_, z, y, x, c] => [z, y, x, c],
        [_, y, x, c] => [1, y, x, c],
        [_, x, c] => [1, 1, x, c],
        [_, c] => [1, 1, 1, c],
        _ => [1, 1, 1, 1],
    }
}

/// Rows of a batch, and values of one.
fn grid(shape: Shape) -> [usize; 2] {
    let [z, y, x, c] = sizes(shape);
    let batch = shape.first().copied().unwrap_or(1);
    [batch * z * y * x.div_ceil(BLOCK), BLOCK * c]
}

/// SplitMix64's step: every bit of the result depends on every bit of the input.
pub(crate) fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Keys {
    /// # Errors
    /// If there is not one tile for each image of `shape`, or a tile does not begin at a multiple of
    /// [`BLOCK`] along X.
    pub fn new(shape: Shape, tiles: &[Tile]) -> Result<Keys, Error> {
        let batch = shape.first().copied().unwrap_or(1);
        if tiles.len() != batch {
            let (got, must) = (tiles.len().to_string(), format!("{batch}, one for each image"));
            return Err(Error::Setting { what: "the number of seeds", got, must });
        }
        let [z, y, x, _] = sizes(shape);
        let mut rows = Vec::with_capacity(grid(shape)[0]);
        for tile in tiles {
            let [oz, oy, ox] = tile.origin;
            if ox % BLOCK != 0 {
                let must = format!("a multiple of {BLOCK}");
                return Err(Error::Setting { what: "the X of a tile's origin", got: ox.to_string(), must });
            }
            for (z, y) in (0..z).flat_map(|z| (0..y).map(move |y| (z, y))) {
                for block in 0..x.div_ceil(BLOCK) {
                    let place = [oz + z, oy + y, ox / BLOCK + block];
                    rows.push(place.iter().fold(mixed(tile.seed), |h, &p| mixed(h ^ p as u64)));
                }
            }
        }
        Ok(Keys { shape, rows })
    }

    fn key(&self, row: usize, step: u32, stream: Stream) -> Key {
        Key { seed: self.rows[row], step, stream: stream as u32 }
    }

    /// What the graph's key input holds for a step.
    pub fn tensor(&self, step: u32, stream: Stream) -> Tensor {
        let words = (0..self.rows.len()).flat_map(|r| self.key(r, step, stream).words()).collect();
        Tensor::i32([self.rows.len(), 4], words)
    }

    /// The noise itself, as the graph makes it.
    pub fn draw(&self, step: u32, stream: Stream) -> Tensor {
        let [_, _, x, c] = sizes(self.shape);
        let blocks = x.div_ceil(BLOCK);
        let mut values = Vec::with_capacity(self.shape.len());
        let mut row = vec![0.0f32; BLOCK * c];
        for r in 0..self.rows.len() {
            let pixels = BLOCK.min(x - r % blocks * BLOCK);
            self.key(r, step, stream).fill_normal(0, &mut row);
            values.extend_from_slice(&row[..pixels * c]);
        }
        Tensor::f32(self.shape, values)
    }
}

/// Adds the input `name` for keys of a batch of this shape.
pub(crate) fn key_input(b: &mut Builder, name: &str, shape: Shape) -> Value {
    b.input(name, Type::i32([grid(shape)[0], 4]))
}

/// Adds normal noise of this shape.
pub(crate) fn normal(b: &mut Builder, key: Value, shape: Shape) -> Value {
    let rows = b.noise(NoiseKind::Normal, key, grid(shape));
    let [z, y, x, c] = sizes(shape);
    let batch = shape.first().copied().unwrap_or(1);
    let padded = b.reshape(rows, [batch * z * y, x.div_ceil(BLOCK) * BLOCK, c]);
    let cut = b.slice(padded, 1, 0, x);
    b.reshape(cut, shape)
}
