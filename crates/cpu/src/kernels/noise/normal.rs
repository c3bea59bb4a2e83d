//! Box-Muller, to the bit what [`clearshot_tensor::noise::normals`] gives.
//!
//! The same operations in the same order, written without branches, which is what lets the compiler
//! make vectors of a loop over it; the definition's code takes six times as long.

use clearshot_tensor::noise::unit;

/// Two normal values from two words.
#[inline(always)]
pub fn pair(a: u32, b: u32) -> (f32, f32) {
    let radius = (-2.0 * ln_unit(unit(a))).sqrt();
    let (sin, cos) = sin_cos_turn(unit(b));
    (radius * cos, radius * sin)
}

/// ln x for x in (0, 1).
#[inline(always)]
fn ln_unit(x: f32) -> f32 {
    let shifted = x.to_bits().wrapping_sub(0x3F35_04F3);
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007F_FFFF).wrapping_add(0x3F35_04F3));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = 0.222_221_98_f32.mul_add(z, 0.285_714_3).mul_add(z, 0.4).mul_add(z, 0.666_666_7);
    let ln_m = (p * z).mul_add(s, 2.0 * s);
    (e as f32).mul_add(std::f32::consts::LN_2, ln_m)
}

/// Sine and cosine of 2 pi u for u in (0, 1).
#[inline(always)]
fn sin_cos_turn(u: f32) -> (f32, f32) {
    let quarter = (u * 4.0).round_ties_even();
    let r = (u * 4.0 - quarter) * std::f32::consts::FRAC_PI_2;
    let z = r * r;
    let s = (-1.950_789e-4_f32).mul_add(z, 8.332_151e-3).mul_add(z, -0.166_666_54);
    let s = (s * z).mul_add(r, r);
    let c = 2.443_315_7e-5_f32.mul_add(z, -1.388_731_6e-3).mul_add(z, 4.166_664_6e-2);
    let c = c.mul_add(z, -0.5).mul_add(z, 1.0);
    // SAFETY: a whole number from 0 to 4.
    let turns: i32 = unsafe { quarter.to_int_unchecked() };
    // Quarter turns exchange the two and change signs.
    let (sin, cos) = if turns & 1 == 0 { (s, c) } else { (c, s) };
    (flip(sin, turns), flip(cos, turns + 1))
}

/// x, with the other sign where bit 1 of `turns` is set.
#[inline(always)]
fn flip(x: f32, turns: i32) -> f32 {
    f32::from_bits(x.to_bits() ^ (turns as u32 & 2) << 30)
}
