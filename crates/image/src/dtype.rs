//! Pixel types as files store them. Values are bytes in native order; formats refuse complex numbers with an error that
//! names the type. Widths without a type of their own (1 and 12 bits) are widened when read.

use crate::error::{Parsed, instead, unsupported, unsupported_instead};
use crate::image::Rescale;
use half::f16;
use rayon::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

use DType::*;

impl DType {
    pub const ALL: [DType; 11] = [U8, I8, U16, I16, U32, I32, U64, I64, F16, F32, F64];

    pub fn bytes(self) -> usize {
        match self {
            U8 | I8 => 1,
            U16 | I16 | F16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 => 8,
        }
    }

    pub fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    pub fn is_float(self) -> bool {
        matches!(self, F16 | F32 | F64)
    }

    pub fn is_signed(self) -> bool {
        !matches!(self, U8 | U16 | U32 | U64)
    }

    /// numpy's name.
    pub fn name(self) -> &'static str {
        match self {
            U8 => "uint8",
            I8 => "int8",
            U16 => "uint16",
            I16 => "int16",
            U32 => "uint32",
            I32 => "int32",
            U64 => "uint64",
            I64 => "int64",
            F16 => "float16",
            F32 => "float32",
            F64 => "float64",
        }
    }

    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// From numpy's short name with a byte order before it, `>u2` say.
    pub(crate) fn from_numpy(name: &str) -> Parsed<(DType, Order)> {
        let (order, kind) = name.split_at(name.chars().next().map_or(0, char::len_utf8));
        let dtype = match kind {
            "b1" | "u1" => U8,
            "i1" => I8,
            "u2" => U16,
            "i2" => I16,
            "u4" => U32,
            "i4" => I32,
            "u8" => U64,
            "i8" => I64,
            "f2" => F16,
            "f4" => F32,
            "f8" => F64,
            "c8" | "c16" | "c32" => {
                return unsupported_instead(format!("complex pixels ({name})"), instead::COMPLEX);
            }
            _ => return unsupported(format!("pixels of type {name}")),
        };
        Ok((dtype, if order == ">" { Order::Big } else { Order::Little }))
    }

    /// The smallest and largest value of an integer type.
    pub fn range(self) -> Option<(f64, f64)> {
        match self {
            F16 | F32 | F64 => None,
            U8 | U16 | U32 | U64 => Some((0.0, 2f64.powi(self.bits() as i32) - 1.0)),
            I8 | I16 | I32 | I64 => {
                let half = 2f64.powi(self.bits() as i32 - 1);
                Some((-half, half - 1.0))
            }
        }
    }

    /// The values of `bytes`, one `f64` each; 64-bit integers beyond 2^53 are rounded.
    pub fn decode(self, bytes: &[u8], out: &mut Vec<f64>) {
        macro_rules! each {
            ($t:ty, $n:literal, $map:expr) => {
                out.extend(bytes.as_chunks::<$n>().0.iter().map(|b| $map(<$t>::from_ne_bytes(*b))))
            };
        }
        match self {
            U8 => out.extend(bytes.iter().map(|&b| f64::from(b))),
            I8 => out.extend(bytes.iter().map(|&b| f64::from(b as i8))),
            U16 => each!(u16, 2, f64::from),
            I16 => each!(i16, 2, f64::from),
            U32 => each!(u32, 4, f64::from),
            I32 => each!(i32, 4, f64::from),
            U64 => each!(u64, 8, |v| v as f64),
            I64 => each!(i64, 8, |v| v as f64),
            F16 => each!(f16, 2, f64::from),
            F32 => each!(f32, 4, f64::from),
            F64 => each!(f64, 8, |v| v),
        }
    }

    /// The values that are meant by `bytes`, rounded to 32 bits, on all threads.
    pub fn decode_f32(self, bytes: &[u8], rescale: Option<Rescale>) -> Vec<f32> {
        let width = self.bytes();
        let mut out = vec![0f32; bytes.len() / width];
        out.par_chunks_mut(PIECE).zip(bytes.par_chunks(PIECE * width)).for_each(|(out, bytes)| {
            // The common types directly; the others through f64.
            match (self, rescale) {
                (U8, None) => out.iter_mut().zip(bytes).for_each(|(o, &b)| *o = f32::from(b)),
                (U16, None) => {
                    let values = bytes.as_chunks::<2>().0.iter().map(|b| f32::from(u16::from_ne_bytes(*b)));
                    out.iter_mut().zip(values).for_each(|(o, v)| *o = v);
                }
                (F32, None) => {
                    let values = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b));
                    out.iter_mut().zip(values).for_each(|(o, v)| *o = v);
                }
                _ => {
                    let mut values = Vec::with_capacity(out.len());
                    self.decode(bytes, &mut values);
                    rescale.iter().for_each(|r| r.apply(&mut values));
                    out.iter_mut().zip(values).for_each(|(o, v)| *o = v as f32);
                }
            }
        });
        out
    }

    /// Meant values as bytes of this type, on all threads, and how many were clipped or not a number; see
    /// [`DType::encode`].
    pub fn encode_f32(self, values: &[f32], rescale: Option<Rescale>) -> (Vec<u8>, usize) {
        let width = self.bytes();
        let mut out = vec![0u8; values.len() * width];
        let changed = out
            .par_chunks_mut(PIECE * width)
            .zip(values.par_chunks(PIECE))
            .map(|(out, values)| {
                let stored = |v: f32| rescale.map_or(f64::from(v), |r| r.stored(f64::from(v)));
                if self == U16 {
                    let mut changed = 0;
                    for (o, &v) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                        // Adding 1.5 * 2^52 and taking it off rounds as `round_ties_even` does, without a call.
                        let r = (stored(v) + 6_755_399_441_055_744.0) - 6_755_399_441_055_744.0;
                        changed += usize::from(!((0.0..=65_535.0).contains(&r)));
                        *o = (r as u16).to_ne_bytes();
                    }
                    return changed;
                }
                let wide: Vec<f64> = values.iter().map(|&v| stored(v)).collect();
                let mut bytes = Vec::with_capacity(out.len());
                let changed = self.encode(&wide, &mut bytes);
                out.copy_from_slice(&bytes);
                changed
            })
            .sum();
        (out, changed)
    }

    /// Values as bytes of this type: integers are rounded to the nearest (ties to even) and clipped to the
    /// type's range, NaN becomes zero. Returns how many values were clipped or not a number.
    pub fn encode(self, values: &[f64], out: &mut Vec<u8>) -> usize {
        let mut changed = 0;
        macro_rules! integer {
            ($t:ty) => {{
                let (low, high) = self.range().unwrap_or((0.0, 0.0));
                for &v in values {
                    let r = v.round_ties_even();
                    changed += usize::from(!(r >= low && r <= high));
                    // `as` saturates, and makes zero of NaN.
                    out.extend_from_slice(&(r as $t).to_ne_bytes());
                }
            }};
        }
        match self {
            U8 => integer!(u8),
            I8 => integer!(i8),
            U16 => integer!(u16),
            I16 => integer!(i16),
            U32 => integer!(u32),
            I32 => integer!(i32),
            U64 => integer!(u64),
            I64 => integer!(i64),
            F16 => values.iter().for_each(|&v| out.extend_from_slice(&f16::from_f64(v).to_ne_bytes())),
            F32 => values.iter().for_each(|&v| out.extend_from_slice(&(v as f32).to_ne_bytes())),
            F64 => values.iter().for_each(|&v| out.extend_from_slice(&v.to_ne_bytes())),
        }
        changed
    }
}

/// Values that a thread takes at a time.
const PIECE: usize = 1 << 16;

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Reverses the bytes of every value of `width` bytes.
pub(crate) fn swap_bytes(bytes: &mut [u8], width: usize) {
    match width {
        2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|b| b.reverse()),
        4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|b| b.reverse()),
        8 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|b| b.reverse()),
        _ => {}
    }
}

/// The order of bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    pub const NATIVE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    pub fn u16(self, b: &[u8]) -> u16 {
        let b = [b[0], b[1]];
        if self == Order::Little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) }
    }

    pub fn u32(self, b: &[u8]) -> u32 {
        let b = [b[0], b[1], b[2], b[3]];
        if self == Order::Little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) }
    }

    pub fn u64(self, b: &[u8]) -> u64 {
        let b = [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]];
        if self == Order::Little { u64::from_le_bytes(b) } else { u64::from_be_bytes(b) }
    }

    pub fn put16(self, v: u16) -> [u8; 2] {
        if self == Order::Little { v.to_le_bytes() } else { v.to_be_bytes() }
    }

    pub fn put32(self, v: u32) -> [u8; 4] {
        if self == Order::Little { v.to_le_bytes() } else { v.to_be_bytes() }
    }

    pub fn put64(self, v: u64) -> [u8; 8] {
        if self == Order::Little { v.to_le_bytes() } else { v.to_be_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_precision_is_double_precision_rounded() {
        let values: Vec<f32> = (0..70_001u32)
            .map(|i| match i % 7 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -1.5e9,
                _ => (i as f32 - 300.0) * 0.5,
            })
            .collect();
        let rescale = Rescale { slope: 2.0, intercept: -10.0, blank: Some(3) };
        for dtype in DType::ALL {
            for rescale in [None, Some(rescale)] {
                let (bytes, changed) = dtype.encode_f32(&values, rescale);
                let stored: Vec<f64> = values
                    .iter()
                    .map(|&v| match rescale {
                        Some(_) if v.is_nan() => 3.0,
                        Some(r) => (f64::from(v) - r.intercept) / r.slope,
                        None => v.into(),
                    })
                    .collect();
                let mut wide = Vec::new();
                assert_eq!((dtype.encode(&stored, &mut wide), &wide), (changed, &bytes), "{dtype}");
                let mut meant = Vec::new();
                dtype.decode(&bytes, &mut meant);
                rescale.iter().for_each(|r| r.apply(&mut meant));
                let single = dtype.decode_f32(&bytes, rescale);
                let same = single
                    .iter()
                    .zip(&meant)
                    .all(|(s, m)| s.to_bits() == (*m as f32).to_bits() || (s.is_nan() && m.is_nan()));
                assert!(same && single.len() == meant.len(), "{dtype}");
            }
        }
    }

    #[test]
    fn blank_values_round_trip() {
        for (dtype, blank) in [(U8, 255), (I16, -32_768), (U16, 0), (I32, -7)] {
            let rescale = Some(Rescale { slope: -0.25, intercept: 10.0, blank: Some(blank) });
            let mut stored = Vec::new();
            dtype.encode(&[1.0, blank as f64, 100.0], &mut stored);
            let meant = dtype.decode_f32(&stored, rescale);
            assert!(meant[1].is_nan() && meant[2] == -15.0, "{dtype}: {meant:?}");
            assert_eq!(dtype.encode_f32(&meant, rescale), (stored, 0), "{dtype}");
        }
    }

    #[test]
    fn names_of_numpy() {
        assert_eq!(DType::from_numpy(">u2").ok(), Some((U16, Order::Big)));
        assert_eq!(DType::from_numpy("|b1").ok(), Some((U8, Order::Little)));
        for wrong in ["<c16", "", "é", "u2", "<U8"] {
            assert!(DType::from_numpy(wrong).is_err(), "{wrong}");
        }
    }
}
