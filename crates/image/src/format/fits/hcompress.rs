//! HCOMPRESS tiles: an H-transform (a two-dimensional Haar transform on integers) whose coefficients are
//! stored bit plane by bit plane as quadtrees. Lossless where the scale is one. (White, 1992.)

use crate::dtype::Order;
use crate::error::{Parsed, damaged};

/// Decodes a tile of `rows` x `columns` values.
pub fn decode(packed: &[u8], rows: usize, columns: usize) -> Parsed<Vec<i64>> {
    if packed.len() < 25 || packed[..2] != [0xDD, 0x99] {
        return damaged("an HCOMPRESS tile without its mark");
    }
    let be = Order::Big;
    let (nx, ny) = (be.u32(&packed[2..]) as usize, be.u32(&packed[6..]) as usize);
    let scale = i64::from(be.u32(&packed[10..]) as i32);
    if (nx, ny) != (rows, columns) {
        return damaged(format!("an HCOMPRESS tile of {nx} x {ny} for {rows} x {columns}"));
    }
    let sum = be.u64(&packed[14..]) as i64;
    let planes = [packed[22], packed[23], packed[24]].map(u32::from);
    if planes.iter().any(|&p| p > 60) {
        return damaged("an HCOMPRESS tile with too many bit planes");
    }
    let mut bits = Bits { data: &packed[25..], at: 0, held: 0, count: 0 };
    let mut a = vec![0i64; nx * ny];
    let (top, left) = (nx.div_ceil(2), ny.div_ceil(2));
    for (start, height, width, planes) in [
        (0, top, left, planes[0]),
        (left, top, ny / 2, planes[1]),
        (ny * top, nx / 2, left, planes[1]),
        (ny * top + left, nx / 2, ny / 2, planes[2]),
    ] {
        quadrant(&mut bits, &mut a, start, ny, height, width, planes)?;
    }
    if bits.take(4)? != 0 {
        return damaged("an HCOMPRESS tile that does not end where it should");
    }
    bits.align();
    for v in a.iter_mut().filter(|v| **v != 0) {
        if bits.take(1)? == 1 {
            *v = -*v;
        }
    }
    a[0] = sum;
    if scale > 1 {
        a.iter_mut().for_each(|v| *v = v.wrapping_mul(scale));
    }
    inverse(&mut a, nx, ny);
    Ok(a)
}

/// Bits from the highest down.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u32,
    count: u32,
}

impl Bits<'_> {
    fn take(&mut self, n: u32) -> Parsed<u32> {
        while self.count < n {
            let Some(&byte) = self.data.get(self.at) else {
                return damaged("an HCOMPRESS tile that is cut off");
            };
            self.at += 1;
            self.held = self.held << 8 | u32::from(byte);
            self.count += 8;
        }
        self.count -= n;
        Ok(self.held >> self.count & ((1 << n) - 1))
    }

    /// The rest of the last byte is not used.
    fn align(&mut self) {
        self.count = 0;
    }

    /// One of sixteen patterns of a two by two block, the likely ones short.
    fn pattern(&mut self) -> Parsed<u8> {
        let mut code = self.take(3)?;
        if code < 4 {
            return Ok(1 << code);
        }
        code = code << 1 | self.take(1)?;
        if code < 13 {
            return Ok([3, 5, 10, 12, 15][code as usize - 8]);
        }
        code = code << 1 | self.take(1)?;
        if code < 31 {
            return Ok([6, 7, 9, 11, 13][code as usize - 26]);
        }
        code = code << 1 | self.take(1)?;
        Ok(if code == 62 { 0 } else { 14 })
    }
}

/// The power of two that a length fits into.
fn log2_up(n: usize) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

fn quadrant(
    bits: &mut Bits,
    a: &mut [i64],
    start: usize,
    stride: usize,
    height: usize,
    width: usize,
    planes: u32,
) -> Parsed<()> {
    let levels = log2_up(height.max(width));
    for bit in (0..planes).rev() {
        let count = height.div_ceil(2) * width.div_ceil(2);
        let blocks = match bits.take(4)? {
            0 => (0..count).map(|_| Ok(bits.take(4)? as u8)).collect::<Parsed<Vec<u8>>>()?,
            15 => {
                let mut blocks = vec![bits.pattern()?];
                let (mut nx, mut ny) = (1, 1);
                let (mut rest_x, mut rest_y) = (height, width);
                let mut c = 1usize << levels;
                for _ in 1..levels {
                    c >>= 1;
                    halve(&mut nx, &mut rest_x, c);
                    halve(&mut ny, &mut rest_y, c);
                    blocks = expand(&blocks, nx, ny);
                    // The deepest corner comes first.
                    for block in blocks.iter_mut().rev().filter(|b| **b != 0) {
                        *block = bits.pattern()?;
                    }
                }
                blocks
            }
            other => return damaged(format!("HCOMPRESS code {other}")),
        };
        if blocks.len() < count {
            return damaged("an HCOMPRESS tile with too few blocks");
        }
        let across = width.div_ceil(2);
        for y in 0..height {
            for x in 0..width {
                let block = blocks[y / 2 * across + x / 2];
                let set = block >> (3 - (y % 2 * 2 + x % 2)) & 1;
                a[start + y * stride + x] |= i64::from(set) << bit;
            }
        }
    }
    Ok(())
}

/// The size of the next finer level of a length that is not a power of two.
fn halve(n: &mut usize, rest: &mut usize, c: usize) {
    *n <<= 1;
    if *rest <= c {
        *n -= 1;
    } else {
        *rest -= c;
    }
}

/// Each pattern as the two by two pixels that it stands for.
fn expand(blocks: &[u8], nx: usize, ny: usize) -> Vec<u8> {
    let across = ny.div_ceil(2);
    let mut out = vec![0; nx * ny];
    for y in 0..nx {
        for x in 0..ny {
            let block = blocks.get(y / 2 * across + x / 2).copied().unwrap_or(0);
            out[y * ny + x] = block >> (3 - (y % 2 * 2 + x % 2)) & 1;
        }
    }
    out
}

/// First halves to even places, second halves to odd ones.
fn interleave(a: &mut [i64], start: usize, n: usize, step: usize, scratch: &mut Vec<i64>) {
    scratch.clear();
    scratch.extend((0..n).map(|i| a[start + i * step]));
    let half = n.div_ceil(2);
    for i in 0..n {
        a[start + i * step] = scratch[if i % 2 == 0 { i / 2 } else { half + i / 2 }];
    }
}

fn round(v: i64, up: i64, down: i64, mask: i64) -> i64 {
    v.wrapping_add(if v >= 0 { up } else { down }) & mask
}

/// Undoes the H-transform, coarse to fine. Low bits that the forward transform dropped because sums and
/// differences share their parity are put back from those that were kept.
fn inverse(a: &mut [i64], nx: usize, ny: usize) {
    let levels = log2_up(nx.max(ny));
    if levels == 0 {
        a[0] >>= 1;
        return;
    }
    let mut bit0 = 1i64 << (levels - 1);
    let mut bit1 = bit0 << 1;
    let (mut mask0, mut mask1) = (-bit0, -bit1);
    let (mut up0, mut up1) = (bit0 >> 1, bit1 >> 1);
    let (mut down0, mut down1) = (up0 - 1, up1 - 1);
    let bit2 = bit0 << 2;
    a[0] = round(a[0], bit2 >> 1, (bit2 >> 1) - 1, -bit2);
    let (mut top_x, mut top_y) = (1, 1);
    let (mut rest_x, mut rest_y) = (nx, ny);
    let mut c = 1usize << levels;
    let mut scratch = Vec::new();
    for k in (0..levels).rev() {
        c >>= 1;
        halve(&mut top_x, &mut rest_x, c);
        halve(&mut top_y, &mut rest_y, c);
        let shift = if k == 0 { 2 } else { 1 };
        if k == 0 {
            down0 = 0;
        }
        (0..top_x).for_each(|i| interleave(a, ny * i, top_y, 1, &mut scratch));
        (0..top_y).for_each(|j| interleave(a, j, top_x, ny, &mut scratch));
        for i in (0..top_x).step_by(2) {
            let pair_x = i + 1 < top_x;
            for j in (0..top_y).step_by(2) {
                let at = ny * i + j;
                let pair_y = j + 1 < top_y;
                let h0 = a[at];
                if pair_x && pair_y {
                    let hc = round(a[at + ny + 1], up0, down0, mask0);
                    let low0 = hc & bit0;
                    let lift = |h: i64| if h >= 0 { h.wrapping_sub(low0) } else { h.wrapping_add(low0) };
                    let hx = lift(round(a[at + ny], up1, down1, mask1));
                    let hy = lift(round(a[at + 1], up1, down1, mask1));
                    let low1 = (hc ^ hx ^ hy) & bit1;
                    let h0 = if h0 >= 0 {
                        h0.wrapping_add(low0).wrapping_sub(low1)
                    } else if low0 == 0 {
                        h0.wrapping_add(low1)
                    } else {
                        h0.wrapping_add(low0).wrapping_sub(low1)
                    };
                    let (sum, difference) = (h0.wrapping_add(hx), h0.wrapping_sub(hx));
                    a[at + ny + 1] = sum.wrapping_add(hy).wrapping_add(hc) >> shift;
                    a[at + ny] = sum.wrapping_sub(hy).wrapping_sub(hc) >> shift;
                    a[at + 1] = difference.wrapping_add(hy).wrapping_sub(hc) >> shift;
                    a[at] = difference.wrapping_sub(hy).wrapping_add(hc) >> shift;
                } else if pair_x || pair_y {
                    // A row or column without a partner has one difference only.
                    let other = if pair_x { at + ny } else { at + 1 };
                    let h = round(a[other], up1, down1, mask1);
                    let low1 = h & bit1;
                    let h0 = if h0 >= 0 { h0.wrapping_sub(low1) } else { h0.wrapping_add(low1) };
                    a[other] = h0.wrapping_add(h) >> shift;
                    a[at] = h0.wrapping_sub(h) >> shift;
                } else {
                    a[at] = h0 >> shift;
                }
            }
        }
        bit1 = bit0;
        bit0 >>= 1;
        mask1 = mask0;
        mask0 >>= 1;
        up1 = up0;
        up0 >>= 1;
        down1 = down0;
        down0 = up0 - 1;
    }
}
