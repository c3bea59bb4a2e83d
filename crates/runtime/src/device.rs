//! What graphs run on.

use clearshot_cpu::lower::Machine;
use clearshot_cpu::simd::Level;
use std::fmt;

/// A device that graphs can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu { threads: usize, level: Level },
}

impl Device {
    /// The CPU, by default with as many threads as it runs at once.
    pub fn cpu(threads: Option<usize>) -> Device {
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        Device::Cpu { threads: threads.max(1), level: Level::detect() }
    }

    pub(crate) fn machine(&self) -> Machine {
        let Device::Cpu { threads, level } = *self;
        Machine { level, threads: threads.max(1) }
    }

    /// Every device of this machine.
    pub fn all() -> Vec<Device> {
        vec![Device::cpu(None)]
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Device::Cpu { threads, level } = self;
        let level = match level {
            Level::Portable => "portable code",
            Level::Avx2 => "AVX2 + FMA",
            Level::Avx512 => "AVX-512",
        };
        write!(f, "cpu: {threads} threads, {level}")
    }
}

/// The most memory that this process has had, where the system tells it.
pub fn peak_bytes() -> Option<usize> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// The memory that can be had without driving others out, where the system tells it.
pub fn available_bytes() -> Option<usize> {
    kibibytes("/proc/meminfo", "MemAvailable:")
}

/// The number of a line of one of Linux's tables, in bytes.
fn kibibytes(table: &str, key: &str) -> Option<usize> {
    let text = std::fs::read_to_string(table).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
