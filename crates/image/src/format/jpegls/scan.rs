//! A scan of JPEG-LS (annex A of ITU-T T.87): each sample is predicted from its neighbours to the left and above, and the
//! difference is Golomb-coded with a parameter that adapts to the gradients around it; flat regions are coded as runs.

use super::Preset;
use crate::error::{Parsed, damaged};

/// How the components of a scan follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interleave {
    None,
    Lines,
    Pixels,
}

/// A scan's parameters, with the names that the standard gives them where it does.
pub struct Coding {
    interleave: Interleave,
    /// NEAR: how far a sample may be from the original.
    near: i32,
    /// MAXVAL.
    largest: i32,
    thresholds: [i32; 3],
    reset: i64,
    /// RANGE, and its bits.
    range: i32,
    range_bits: u32,
    /// LIMIT: the longest code.
    limit: u32,
}

impl Coding {
    pub fn new(bits: u32, near: i32, preset: Preset, interleave: Interleave) -> Parsed<Coding> {
        let largest = if preset.largest == 0 { (1 << bits) - 1 } else { preset.largest };
        if largest >= 1 << bits || largest < 1 || near > 255.min(largest / 2) {
            return damaged(format!("JPEG-LS values up to {largest} of {bits} bits, to within {near}"));
        }
        // C.2.4.1.1.
        let clamp = |value: i32, low: i32| if value > largest || value < low { low } else { value };
        let usual = if largest >= 128 {
            let factor = (largest.min(4095) + 128) / 256;
            [factor + 2 + 3 * near, 4 * factor + 3 + 5 * near, 17 * factor + 4 + 7 * near]
        } else {
            let factor = 256 / (largest + 1);
            [2.max(3 / factor + 3 * near), 3.max(7 / factor + 5 * near), 4.max(21 / factor + 7 * near)]
        };
        let mut thresholds = [0; 3];
        let mut low = near + 1;
        for i in 0..3 {
            let chosen = preset.thresholds[i];
            thresholds[i] = if chosen == 0 { clamp(usual[i], low) } else { chosen };
            if thresholds[i] < low || thresholds[i] > largest.max(low) {
                return damaged(format!("JPEG-LS thresholds {:?}", preset.thresholds));
            }
            low = thresholds[i];
        }
        let reset = if preset.reset == 0 { 64 } else { i64::from(preset.reset) };
        if reset < 3 {
            return damaged(format!("JPEG-LS with a reset of {reset}"));
        }
        let range = (largest + 2 * near) / (2 * near + 1) + 1;
        let bits_of = |n: i32| 32 - (n - 1).leading_zeros();
        let sample_bits = bits_of(largest + 1).max(2);
        Ok(Coding {
            interleave,
            near,
            largest,
            thresholds,
            reset,
            range,
            range_bits: bits_of(range),
            limit: 2 * (sample_bits + sample_bits.max(8)),
        })
    }

    /// Which of nine classes a slope is in, -4 to 4.
    fn class(&self, slope: i32) -> i32 {
        let size = slope.abs();
        let [t1, t2, t3] = self.thresholds;
        let class = match size {
            _ if size <= self.near => 0,
            _ if size < t1 => 1,
            _ if size < t2 => 2,
            _ if size < t3 => 3,
            _ => 4,
        };
        class * slope.signum()
    }

    /// A prediction and its coded error as a sample.
    fn sample(&self, predicted: i32, error: i32) -> i32 {
        let step = 2 * self.near + 1;
        let mut value = predicted + error * step;
        if value < -self.near {
            value += self.range * step;
        } else if value > self.largest + self.near {
            value -= self.range * step;
        }
        value.clamp(0, self.largest)
    }
}

/// Bits of a scan; a byte behind 0xFF has seven, and one with its highest bit set there is a marker.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 48 {
            let Some(&byte) = self.data.get(self.at) else { return };
            let stuffed = self.at > 0 && self.data[self.at - 1] == 0xFF;
            let next = self.data.get(self.at + 1).copied().unwrap_or(0xFF);
            if byte == 0xFF && next & 0x80 != 0 {
                return;
            }
            let width = if stuffed { 7 } else { 8 };
            self.held = self.held << width | u64::from(byte);
            self.count += width;
            self.at += 1;
        }
    }

    /// `n` bits, 32 at most.
    fn take(&mut self, n: u32) -> Parsed<u32> {
        if self.count < n {
            self.fill();
            if self.count < n {
                return damaged("JPEG-LS data cut off");
            }
        }
        self.count -= n;
        Ok((self.held >> self.count & ((1 << n) - 1)) as u32)
    }

    /// How many zeros there are before the next one, which is taken with them.
    fn zeros(&mut self, most: u32) -> Parsed<u32> {
        let mut sum = 0;
        loop {
            if self.count == 0 {
                self.fill();
                if self.count == 0 {
                    return damaged("JPEG-LS data cut off");
                }
            }
            let window = self.held << (64 - self.count);
            let zeros = window.leading_zeros().min(self.count);
            sum += zeros;
            self.count -= zeros;
            if sum > most {
                return damaged("a JPEG-LS code that is too long");
            }
            if self.count > 0 {
                self.count -= 1;
                return Ok(sum);
            }
        }
    }

    /// A Golomb code with parameter `k` that is at most `limit` bits long (A.5.3).
    fn golomb(&mut self, k: u32, limit: u32, range_bits: u32) -> Parsed<i32> {
        let escape = limit - range_bits - 1;
        let zeros = self.zeros(escape)?;
        let value = match zeros < escape {
            true => u64::from(zeros) << k | u64::from(self.take(k)?),
            false => u64::from(self.take(range_bits)?) + 1,
        };
        match i32::try_from(value) {
            Ok(value) if value < 1 << 20 => Ok(value),
            _ => damaged("a JPEG-LS error beyond the values' range"),
        }
    }
}

/// The parameter of a Golomb code for errors of which `n` have the sum `sum`.
fn parameter(sum: i64, n: i64) -> u32 {
    (0..24).find(|&k| n << k >= sum).unwrap_or(24)
}

/// What is learned in a context: sums of errors without and with sign, the correction, and how many there were.
#[derive(Clone, Copy)]
struct Context {
    a: i64,
    b: i64,
    c: i32,
    n: i64,
}

impl Context {
    fn update(&mut self, error: i32, coding: &Coding) {
        self.b += i64::from(error * (2 * coding.near + 1));
        self.a += i64::from(error.abs());
        if self.n == coding.reset {
            (self.a, self.b, self.n) = (self.a >> 1, self.b >> 1, self.n >> 1);
        }
        self.n += 1;
        if self.b <= -self.n {
            self.b = (self.b + self.n).max(1 - self.n);
            self.c = (self.c - 1).max(-128);
        } else if self.b > 0 {
            self.b = (self.b - self.n).min(0);
            self.c = (self.c + 1).min(127);
        }
    }
}

/// The contexts of interrupted runs: the sum of errors, how many, and how many were below zero.
#[derive(Clone, Copy)]
struct RunContext {
    a: i64,
    n: i64,
    below: i64,
}

/// Logarithms of the lengths that runs are counted in.
const RUNS: [u32; 32] =
    [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 9, 10, 11, 12, 13, 14, 15];

struct Decoder<'a> {
    coding: &'a Coding,
    bits: Bits<'a>,
    contexts: Vec<Context>,
    runs: [RunContext; 2],
}

/// A component's line and the one above, each with a sample more at either end.
struct Lines {
    above: Vec<i32>,
    line: Vec<i32>,
    run_index: usize,
}

impl Lines {
    fn new(width: usize) -> Lines {
        Lines { above: vec![0; width + 2], line: vec![0; width + 2], run_index: 0 }
    }

    /// Makes the line the one above, and gives both their ends.
    fn advance(&mut self) {
        std::mem::swap(&mut self.above, &mut self.line);
        let last = self.above.len() - 1;
        self.above[last] = self.above[last - 1];
        self.line[0] = self.above[1];
    }

    /// The neighbours of a place, which counts from 1: left, above, above left, above right.
    fn around(&self, x: usize) -> [i32; 4] {
        [self.line[x - 1], self.above[x], self.above[x - 1], self.above[x + 1]]
    }
}

/// Decodes the `components` of a picture into `out`, in which `samples` lie together; returns how many bytes that took.
pub fn decode(
    coding: &Coding,
    data: &[u8],
    width: usize,
    components: &[usize],
    samples: usize,
    out: &mut [u16],
) -> Parsed<usize> {
    let a = i64::from((coding.range + 32) / 64).max(2);
    let mut decoder = Decoder {
        coding,
        bits: Bits { data, at: 0, held: 0, count: 0 },
        contexts: vec![Context { a, b: 0, c: 0, n: 1 }; 365],
        runs: [RunContext { a, n: 1, below: 0 }; 2],
    };
    let mut lines: Vec<Lines> = components.iter().map(|_| Lines::new(width)).collect();
    for row in out.chunks_exact_mut(width * samples) {
        lines.iter_mut().for_each(Lines::advance);
        match coding.interleave {
            Interleave::Pixels => decoder.pixels(&mut lines, width)?,
            _ => lines.iter_mut().try_for_each(|l| decoder.line(l, width))?,
        }
        for (l, &component) in lines.iter().zip(components) {
            let places = row.iter_mut().skip(component).step_by(samples);
            places.zip(&l.line[1..]).for_each(|(to, &v)| *to = v as u16);
        }
    }
    // Markers end a scan; the last byte may have been padded, and a stuffed byte may follow it.
    let rest = &data[decoder.bits.at.saturating_sub(decoder.bits.count as usize / 8)..];
    let ends = |w: &[u8]| w[0] == 0xFF && w[1] & 0x80 != 0;
    Ok(data.len() - rest.len() + rest.windows(2).position(ends).unwrap_or(rest.len()))
}

impl Decoder<'_> {
    /// A line of one component.
    fn line(&mut self, lines: &mut Lines, width: usize) -> Parsed<()> {
        let mut x = 1;
        while x <= width {
            let around = lines.around(x);
            let context = self.context(around);
            if context != 0 {
                lines.line[x] = self.regular(context, around)?;
                x += 1;
                continue;
            }
            let run = self.run(&mut lines.run_index, width + 1 - x)?;
            lines.line[x..x + run].fill(around[0]);
            x += run;
            if x <= width {
                let [left, above, ..] = lines.around(x);
                let flat = (left - above).abs() <= self.coding.near;
                let (predicted, sign) = if flat { (left, 1) } else { (above, sign_of(above - left)) };
                let error = self.interruption(usize::from(flat), lines.run_index)?;
                lines.line[x] = self.coding.sample(predicted, sign * error);
                lines.run_index = lines.run_index.saturating_sub(1);
                x += 1;
            }
        }
        Ok(())
    }

    /// A line of all components, pixel by pixel: they run together.
    fn pixels(&mut self, lines: &mut [Lines], width: usize) -> Parsed<()> {
        let mut x = 1;
        while x <= width {
            if lines.iter().any(|l| self.context(l.around(x)) != 0) {
                for l in lines.iter_mut() {
                    let around = l.around(x);
                    l.line[x] = self.regular(self.context(around), around)?;
                }
                x += 1;
                continue;
            }
            let mut index = lines[0].run_index;
            let run = self.run(&mut index, width + 1 - x)?;
            for l in lines.iter_mut() {
                let left = l.line[x - 1];
                l.line[x..x + run].fill(left);
            }
            x += run;
            if x <= width {
                for l in lines.iter_mut() {
                    let [left, above, ..] = l.around(x);
                    let error = self.interruption(0, index)?;
                    l.line[x] = self.coding.sample(above, sign_of(above - left) * error);
                }
                index = index.saturating_sub(1);
                x += 1;
            }
            lines[0].run_index = index;
        }
        Ok(())
    }

    /// The context of the slopes around a sample, below zero where their signs are turned over; 0 is a run.
    fn context(&self, [left, above, above_left, above_right]: [i32; 4]) -> i32 {
        let class = |slope: i32| self.coding.class(slope);
        81 * class(above_right - above) + 9 * class(above - above_left) + class(above_left - left)
    }

    /// A sample among slopes.
    fn regular(&mut self, context: i32, [left, above, above_left, _]: [i32; 4]) -> Parsed<i32> {
        let sign = sign_of(context);
        let learned = &mut self.contexts[context.unsigned_abs() as usize];
        let predicted = if above_left >= left.max(above) {
            left.min(above)
        } else if above_left <= left.min(above) {
            left.max(above)
        } else {
            left + above - above_left
        };
        let predicted = (predicted + sign * learned.c).clamp(0, self.coding.largest);
        let k = parameter(learned.a, learned.n);
        let code = self.bits.golomb(k, self.coding.limit, self.coding.range_bits)?;
        // Signs by turns; where nearly all errors are below zero, those come first.
        let turned = self.coding.near == 0 && k == 0 && 2 * learned.b <= -learned.n;
        let error = match (code % 2 == 1, turned) {
            (false, false) => code / 2,
            (true, false) => -(code + 1) / 2,
            (true, true) => code / 2,
            (false, true) => -code / 2 - 1,
        };
        learned.update(error, self.coding);
        Ok(self.coding.sample(predicted, sign * error))
    }

    /// How many samples a run has, of the `left` that the line still has.
    fn run(&mut self, index: &mut usize, left: usize) -> Parsed<usize> {
        let mut run = 0;
        while self.bits.take(1)? == 1 {
            let length = 1 << RUNS[*index];
            let count = length.min(left - run);
            run += count;
            if count == length {
                *index = (*index + 1).min(31);
            }
            if run == left {
                return Ok(run);
            }
        }
        run += self.bits.take(RUNS[*index])? as usize;
        if run >= left {
            return damaged("a JPEG-LS run beyond its line");
        }
        Ok(run)
    }

    /// The error of the sample that ends a run; `kind` is 1 where its neighbours are alike.
    fn interruption(&mut self, kind: usize, run_index: usize) -> Parsed<i32> {
        let learned = &mut self.runs[kind];
        let sum = learned.a + if kind == 1 { learned.n >> 1 } else { 0 };
        let k = parameter(sum, learned.n);
        let limit = self.coding.limit - RUNS[run_index] - 1;
        let code = self.bits.golomb(k, limit, self.coding.range_bits)?;
        let mapped = code + kind as i32;
        let odd = mapped % 2 == 1;
        let size = (mapped + i32::from(odd)) / 2;
        let error = if (k != 0 || 2 * learned.below >= learned.n) == odd { -size } else { size };
        learned.below += i64::from(error < 0);
        learned.a += i64::from((code + 1 - kind as i32) >> 1);
        if learned.n == self.coding.reset {
            (learned.a, learned.n, learned.below) = (learned.a >> 1, learned.n >> 1, learned.below >> 1);
        }
        learned.n += 1;
        Ok(error)
    }
}

/// 1 for zero, too.
fn sign_of(value: i32) -> i32 {
    if value < 0 { -1 } else { 1 }
}
