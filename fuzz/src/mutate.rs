//! Changes of files that are the same for the same number: what a target is run with where nothing measures coverage.

use clearshot_tensor::noise::Key;

/// A stream of whole numbers that follows from a seed.
struct Numbers {
    key: Key,
    at: u64,
}

impl Numbers {
    fn next(&mut self) -> usize {
        let word = self.key.block(self.at / 4)[(self.at % 4) as usize];
        self.at += 1;
        word as usize
    }

    /// Below `n`, which is above zero.
    fn below(&mut self, n: usize) -> usize {
        self.next() % n
    }
}

/// Numbers at which readers go wrong.
const ODD: [u64; 12] =
    [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, u64::MAX];

/// Files larger than this are not made larger.
const MOST: usize = 1 << 17;

/// The input of a round: one of the seeds, changed in one to four places.
pub fn input(seeds: &[Vec<u8>], seed: u64, round: u64) -> Vec<u8> {
    let key = Key { seed: seed ^ (round << 20), step: round as u32, stream: 0xF2 };
    let mut numbers = Numbers { key, at: 0 };
    let mut bytes = seeds[numbers.below(seeds.len())].clone();
    for _ in 0..=numbers.below(4) {
        change(&mut bytes, seeds, &mut numbers);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], numbers: &mut Numbers) {
    if bytes.is_empty() {
        bytes.push(numbers.next() as u8);
        return;
    }
    // Half of the damage is done where headers usually are.
    let span = if numbers.below(2) == 0 { bytes.len().min(600) } else { bytes.len() };
    let at = numbers.below(span);
    let count = 1 + numbers.below(64.min(bytes.len() - at));
    match numbers.below(9) {
        0 | 1 => bytes[at] ^= 1 << numbers.below(8),
        2 => bytes[at] = numbers.next() as u8,
        3 => {
            let odd = ODD[numbers.below(ODD.len())];
            let width = [1, 2, 4, 8][numbers.below(4)].min(bytes.len() - at);
            let wide =
                if numbers.below(2) == 0 { odd.to_le_bytes() } else { odd.reverse_bits().to_be_bytes() };
            bytes[at..at + width].copy_from_slice(&wide[..width]);
        }
        4 => bytes.truncate(at),
        5 => drop(bytes.drain(at..at + count)),
        6 if bytes.len() < MOST => {
            let copy = bytes[at..at + count].to_vec();
            let to = numbers.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        7 if bytes.len() < MOST => {
            let other = &seeds[numbers.below(seeds.len())];
            let from = numbers.below(other.len().max(1)).min(other.len());
            let end = (from + count).min(other.len());
            bytes.splice(at..at, other[from..end].iter().copied());
        }
        // Digits are where texts say how much.
        _ => match bytes[at..].iter().position(u8::is_ascii_digit) {
            Some(next) => bytes[at + next] = b'0' + numbers.below(10) as u8,
            None => bytes[at] = b' ' + numbers.below(95) as u8,
        },
    }
}
