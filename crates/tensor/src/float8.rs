//! 8-bit floats of tensor cores: e4m3 (`torch.float8_e4m3fn`), with a sign, 4 bits of exponent and 3 of mantissa.
//!
//! There is no infinity; the largest value is 448. Conversion saturates, like `cvt.rn.satfinite` on GPUs: larger values
//! become 448. Values below 2^-6 are spaced by 2^-9.

/// A float of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct F8(pub u8);

impl F8 {
    const LARGEST: u8 = 0x7e;
    const NAN: u8 = 0x7f;

    /// The nearest, ties to even; at most 448 in magnitude.
    pub fn from_f32(x: f32) -> F8 {
        /// The bits of 2^-6, the smallest normal number, and how many more bits the mantissa of f32 has.
        const NORMAL: u32 = 0x3c80_0000;
        const MORE: u32 = 20;
        let (sign, size) = ((x.to_bits() >> 24) as u8 & 0x80, x.to_bits() & 0x7fff_ffff);
        let bits = match size {
            _ if x.is_nan() => F8::NAN,
            // Half a step is added, or just less where the last bit that stays is even; exponents are counted from 7, not from 127.
            NORMAL.. => {
                let rounded = size + (1 << (MORE - 1)) - 1 + (size >> MORE & 1);
                ((rounded >> MORE) - ((127 - 7) << 3)).min(F8::LARGEST.into()) as u8
            }
            _ => (f32::from_bits(size) * 512.0).round_ties_even() as u8,
        };
        F8(sign | bits)
    }

    pub fn from_le_bytes([bits]: [u8; 1]) -> F8 {
        F8(bits)
    }

    pub fn to_le_bytes(self) -> [u8; 1] {
        [self.0]
    }

    pub fn to_f32(self) -> f32 {
        let (exponent, fraction) = (i32::from(self.0 >> 3 & 15), f32::from(self.0 & 7));
        let size = match (exponent, self.0 & 0x7f) {
            (_, F8::NAN) => f32::NAN,
            (0, _) => fraction * f32::exp2(-9.0),
            _ => (1.0 + fraction / 8.0) * f32::exp2((exponent - 7) as f32),
        };
        if self.0 & 0x80 == 0 { size } else { -size }
    }
}

#[cfg(test)]
mod tests {
    use super::F8;

    /// Values of `torch.float8_e4m3fn` by their bits.
    const TABLE: [(u8, f32); 16] = [
        (0x00, 0.0),
        (0x01, 0.001953125),
        (0x07, 0.013671875),
        (0x08, 0.015625),
        (0x09, 0.017578125),
        (0x0f, 0.029296875),
        (0x10, 0.03125),
        (0x30, 0.5),
        (0x37, 0.9375),
        (0x38, 1.0),
        (0x39, 1.125),
        (0x40, 2.0),
        (0x77, 240.0),
        (0x78, 256.0),
        (0x7d, 416.0),
        (0x7e, 448.0),
    ];

    #[test]
    fn bits_are_those_of_float8_e4m3fn() {
        for (bits, value) in TABLE {
            assert_eq!(F8(bits).to_f32(), value, "{bits:#x}");
            assert_eq!(F8(bits | 0x80).to_f32(), -value, "{bits:#x} with a sign");
        }
        assert!(F8(0x7f).to_f32().is_nan() && F8(0xff).to_f32().is_nan());
    }

    #[test]
    fn every_value_is_rounded_to_itself() {
        for bits in (0..=u8::MAX).filter(|b| b & 0x7f != 0x7f) {
            assert_eq!(F8::from_f32(F8(bits).to_f32()), F8(bits), "{bits:#x}");
        }
        assert_eq!(F8::from_f32(f32::NAN).0 & 0x7f, 0x7f);
    }

    #[test]
    fn between_two_values_the_nearer_one_is_taken_and_halfway_the_even_one() {
        for low in 0..0x7e_u8 {
            let (a, b) = (F8(low).to_f32(), F8(low + 1).to_f32());
            let middle = 0.5 * (a + b);
            let even = if low & 1 == 0 { low } else { low + 1 };
            for sign in [1.0, -1.0] {
                let bits = |x: f32| F8::from_f32(sign * x).0 & 0x7f;
                assert_eq!(bits(middle), even, "halfway between {a} and {b}");
                assert_eq!(bits(f32::from_bits(middle.to_bits() - 1)), low, "below {middle}");
                assert_eq!(bits(f32::from_bits(middle.to_bits() + 1)), low + 1, "above {middle}");
            }
        }
    }

    #[test]
    fn large_values_saturate() {
        for x in [449.0, 464.0, 480.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!((F8::from_f32(x).to_f32(), F8::from_f32(-x).to_f32()), (448.0, -448.0), "{x}");
        }
        assert_eq!(F8::from_f32(-0.0).0, 0x80);
        assert_eq!(F8::from_f32(f32::MIN_POSITIVE).0, 0);
    }
}
