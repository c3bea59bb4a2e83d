//! Types of pixels, as files store them. Values are bytes in the machine's order; complex numbers are
//! refused by the formats, by name. Widths that no type has (1, 12 bits) are widened when they are read.

use half::f16;

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
