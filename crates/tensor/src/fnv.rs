//! A hash that is the same on every machine and in every version of the standard library: 64-bit FNV-1a. For names of
//! stored or drawn values; not for security.

/// The hash of bytes that come in pieces. How they are cut makes no difference.
#[derive(Clone, Copy, Debug)]
pub struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Fnv1a(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    pub fn of(bytes: &[u8]) -> u64 {
        let mut hash = Fnv1a::default();
        hash.add(bytes);
        hash.finish()
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    }

    pub fn finish(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authors_values() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(Fnv1a::of(text.as_bytes()), hash, "{text}");
        }
        let mut pieces = Fnv1a::default();
        pieces.add(b"foo");
        pieces.add(b"bar");
        assert_eq!(pieces.finish(), Fnv1a::of(b"foobar"));
    }
}
