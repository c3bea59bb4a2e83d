//! Counter-based noise: Philox 4x32-10 and the numbers made from it.
//!
//! A value is a pure function of (key, counter), so noise does not depend on threads, tiles, batch
//! or device, and resuming needs no generator state. Everything below the 32-bit words uses only
//! additions, multiplications and fused multiply-adds in a fixed order, so a GPU kernel that does the
//! same operations gives the same bits.
//!
//! One Philox block gives four words, hence four uniform or four normal values: element `i` of a
//! stream is word `i % 4` of block `i / 4`.

/// The key of a stream: who draws (`seed`), when (`step`), and which of several draws (`stream`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub seed: u64,
    pub step: u32,
    pub stream: u32,
}

impl Key {
    /// The key as the four words that a graph's key input holds.
    pub fn words(self) -> [i32; 4] {
        [self.seed as u32 as i32, (self.seed >> 32) as u32 as i32, self.step as i32, self.stream as i32]
    }

    pub fn from_words(words: [i32; 4]) -> Key {
        let [lo, hi, step, stream] = words.map(|w| w as u32);
        Key { seed: u64::from(lo) | u64::from(hi) << 32, step, stream }
    }

    /// Four random words for block `index` of this stream.
    #[inline(always)]
    pub fn block(self, index: u64) -> [u32; 4] {
        philox(
            [index as u32, (index >> 32) as u32, self.step, self.stream],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }

    /// Blocks `first..` of the stream, in a third of the time that they take one by one.
    pub fn fill_blocks(self, first: u64, out: &mut [[u32; 4]]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.fill_blocks_wide(first, out) };
        }
        self.fill_each_block(first, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn fill_blocks_wide(self, first: u64, out: &mut [[u32; 4]]) {
        self.fill_each_block(first, out);
    }

    #[inline(always)]
    fn fill_each_block(self, first: u64, out: &mut [[u32; 4]]) {
        for (k, block) in out.iter_mut().enumerate() {
            *block = self.block(first + k as u64);
        }
    }

    /// Element `i` of the stream, uniform in (0, 1).
    pub fn uniform(self, i: u64) -> f32 {
        unit(self.block(i / 4)[(i % 4) as usize])
    }

    /// Element `i` of the stream, standard normal.
    pub fn normal(self, i: u64) -> f32 {
        normals(self.block(i / 4))[(i % 4) as usize]
    }

    /// Fills `out` with elements `start..` of the stream.
    pub fn fill_uniform(self, start: u64, out: &mut [f32]) {
        self.fill(start, out, |words| words.map(unit));
    }

    /// Fills `out` with elements `start..` of the stream.
    pub fn fill_normal(self, start: u64, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.fill_normal_fused(start, out) };
        }
        self.fill(start, out, normals);
    }

    /// The same bits, with fused operations as instructions in place of calls.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn fill_normal_fused(self, start: u64, out: &mut [f32]) {
        self.fill(start, out, normals);
    }

    #[inline(always)]
    fn fill(self, start: u64, out: &mut [f32], make: impl Fn([u32; 4]) -> [f32; 4]) {
        // Whole blocks, eight at a time so that they become vectors, and what is left.
        let ahead = ((4 - start % 4) % 4).min(out.len() as u64) as usize;
        let (first, rest) = out.split_at_mut(ahead);
        self.fill_each(start, first, &make);
        let mut next = start + ahead as u64;
        let mut eights = rest.chunks_exact_mut(32);
        for eight in &mut eights {
            // Not by `array::from_fn`: its closure is a function of its own, without the instructions of this one.
            for (k, four) in eight.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *four = make(self.block(next / 4 + k as u64));
            }
            next += 32;
        }
        self.fill_each(next, eights.into_remainder(), &make);
    }

    #[inline(always)]
    fn fill_each(self, start: u64, out: &mut [f32], make: &impl Fn([u32; 4]) -> [f32; 4]) {
        let mut done = 0;
        while done < out.len() {
            let i = start + done as u64;
            let skip = (i % 4) as usize;
            let values = make(self.block(i / 4));
            let n = (4 - skip).min(out.len() - done);
            out[done..done + n].copy_from_slice(&values[skip..skip + n]);
            done += n;
        }
    }
}

/// Philox 4x32 with 10 rounds (Salmon et al., 2011).
#[inline(always)]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// The middle of one of 2^23 equal parts of the unit interval: never 0, never 1.
#[inline(always)]
pub fn unit(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// Box-Muller: two normal values from two words.
#[inline(always)]
pub fn normal_pair(a: u32, b: u32) -> (f32, f32) {
    let radius = (-2.0 * ln_unit(unit(a))).sqrt();
    let (sin, cos) = sin_cos_turn(unit(b));
    (radius * cos, radius * sin)
}

/// The four normal values of a block.
#[inline(always)]
pub fn normals(words: [u32; 4]) -> [f32; 4] {
    let (a, b) = normal_pair(words[0], words[1]);
    let (c, d) = normal_pair(words[2], words[3]);
    [a, b, c, d]
}

/// ln x for x in (0, 1), to about 1e-7 relative.
#[inline(always)]
fn ln_unit(x: f32) -> f32 {
    // x = m 2^e with m in [1/sqrt 2, sqrt 2); ln m = 2 atanh((m - 1) / (m + 1)) as an odd polynomial.
    let bits = x.to_bits();
    let shifted = bits.wrapping_sub(0x3F35_04F3);
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007F_FFFF).wrapping_add(0x3F35_04F3));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = 0.222_221_98_f32.mul_add(z, 0.285_714_3);
    let p = p.mul_add(z, 0.4);
    let p = p.mul_add(z, 0.666_666_7);
    let ln_m = (p * z).mul_add(s, 2.0 * s);
    (e as f32).mul_add(std::f32::consts::LN_2, ln_m)
}

/// Sine and cosine of 2 pi u for u in (0, 1).
#[inline(always)]
fn sin_cos_turn(u: f32) -> (f32, f32) {
    // The nearest quarter turn, then polynomials on [-pi/4, pi/4].
    let quarter = (u * 4.0).round_ties_even();
    let r = (u * 4.0 - quarter) * std::f32::consts::FRAC_PI_2;
    let z = r * r;
    let s = (-1.950_789e-4_f32).mul_add(z, 8.332_151e-3);
    let s = s.mul_add(z, -0.166_666_54);
    let s = (s * z).mul_add(r, r);
    let c = 2.443_315_7e-5_f32.mul_add(z, -1.388_731_6e-3);
    let c = c.mul_add(z, 4.166_664_6e-2);
    let c = c.mul_add(z, -0.5);
    let c = c.mul_add(z, 1.0);
    // SAFETY: a whole number from 0 to 4. (The checked conversion keeps loops from becoming vectors.)
    let turns: i32 = unsafe { quarter.to_int_unchecked() };
    // Quarter turns exchange the two and change signs; without branches, for the same reason.
    let (sin, cos) = if turns & 1 == 0 { (s, c) } else { (c, s) };
    (flip(sin, turns), flip(cos, turns + 1))
}

/// x, with the other sign where bit 1 of `turns` is set.
#[inline(always)]
fn flip(x: f32, turns: i32) -> f32 {
    f32::from_bits(x.to_bits() ^ (turns as u32 & 2) << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u32::MAX;
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn polynomials_match_the_library() {
        for i in 0..100_000u32 {
            let u = unit(i.wrapping_mul(42_949).wrapping_mul(9));
            let (ln, exact) = (ln_unit(u), f64::from(u).ln());
            assert!((f64::from(ln) - exact).abs() <= 3e-7 * exact.abs().max(1e-3), "ln {u}: {ln} {exact}");
            let (s, c) = sin_cos_turn(u);
            let angle = f64::from(u) * std::f64::consts::TAU;
            assert!((f64::from(s) - angle.sin()).abs() < 3e-7 && (f64::from(c) - angle.cos()).abs() < 3e-7);
        }
    }

    #[test]
    fn moments_are_those_of_the_normal_law() {
        let key = Key { seed: 7, step: 3, stream: 1 };
        let n = 1 << 18;
        let mut x = vec![0.0; n];
        key.fill_normal(5, &mut x);
        let moment = |p: i32| x.iter().map(|&v| f64::from(v).powi(p)).sum::<f64>() / n as f64;
        // Four standard errors of each moment's estimate.
        let tolerance = |variance: f64| 4.0 * (variance / n as f64).sqrt();
        assert!(moment(1).abs() < tolerance(1.0));
        assert!((moment(2) - 1.0).abs() < tolerance(2.0));
        assert!(moment(3).abs() < tolerance(15.0));
        assert!((moment(4) - 3.0).abs() < tolerance(96.0));
    }

    #[test]
    fn a_fill_is_its_elements() {
        let key = Key { seed: u64::MAX - 1, step: 0, stream: 9 };
        let mut x = [0.0; 111];
        key.fill_normal(3, &mut x);
        assert!(x.iter().enumerate().all(|(i, &v)| v == key.normal(3 + i as u64)));
        key.fill_uniform(2, &mut x);
        assert!(x.iter().enumerate().all(|(i, &v)| v == key.uniform(2 + i as u64)));
        assert_eq!(Key::from_words(key.words()), key);
    }
}
