//! The devices that graphs run on.

use clearshot_cpu::simd::Level;
use clearshot_cpu::simd::bytes::Products;
use clearshot_cpu::simd::factors::Bf16;
use clearshot_cuda::{Unavailable, gpus};
use std::fmt;
use std::str::FromStr;

/// A device that graphs can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu {
        threads: usize,
        level: Level,
    },
    /// An NVIDIA GPU by its number.
    Cuda {
        ordinal: usize,
    },
}

impl Device {
    /// The CPU, by default with as many threads as it runs at once.
    pub fn cpu(threads: Option<usize>) -> Device {
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        Device::Cpu { threads: threads.max(1), level: Level::detect() }
    }

    /// A GPU by its number.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn cuda(ordinal: usize) -> Result<Device, Unavailable> {
        let gpus = gpus()?;
        if gpus.iter().any(|g| g.ordinal == ordinal) {
            Ok(Device::Cuda { ordinal })
        } else {
            Err(Unavailable::NoSuchDevice { asked: ordinal, count: gpus.len() })
        }
    }

    /// The first GPU that can be used, else the CPU.
    pub fn best() -> Device {
        match gpus() {
            Ok(gpus) => Device::Cuda { ordinal: gpus[0].ordinal },
            Err(_) => Device::cpu(None),
        }
    }

    /// Whether it has an instruction for products of bf16, without which a CPU does not compute in it.
    pub fn has_bf16_products(&self) -> bool {
        matches!(self, Device::Cpu { level, .. } if Bf16::detect(*level).is_some())
    }

    /// Whether it has an instruction for products of bytes, which models in 8 bits are fast by; a GPU's are not used.
    pub fn has_byte_products(&self) -> bool {
        matches!(self, Device::Cpu { level, .. } if Products::of(*level).has_instruction())
    }

    /// Every device of this machine.
    pub fn all() -> Vec<Device> {
        let gpus = gpus().unwrap_or_default().into_iter().map(|g| Device::Cuda { ordinal: g.ordinal });
        std::iter::once(Device::cpu(None)).chain(gpus).collect()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu { threads, level } => {
                let level = match level {
                    Level::Portable => "portable code",
                    Level::Avx2(_) => "AVX2 + FMA",
                    Level::Avx512(_) => "AVX-512",
                };
                write!(f, "cpu: {threads} threads, {level}")
            }
            Device::Cuda { ordinal } => {
                write!(f, "cuda:{ordinal}")?;
                match gpus().ok().and_then(|all| all.into_iter().find(|g| g.ordinal == *ordinal)) {
                    Some(gpu) => write!(f, ": {gpu}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A device as users name it: `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// A GPU if there is one that can be used, else the CPU.
    Auto,
    Cpu,
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(s: &str) -> Result<DeviceName, String> {
        match s {
            "auto" => Ok(DeviceName::Auto),
            "cpu" => Ok(DeviceName::Cpu),
            "cuda" => Ok(DeviceName::Cuda(0)),
            _ => s
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(DeviceName::Cuda)
                .ok_or_else(|| format!("no device `{s}`; there are cpu, cuda, cuda:N and auto")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => f.write_str("auto"),
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl DeviceName {
    /// The device, with so many threads if it is the CPU.
    ///
    /// # Errors
    /// If a GPU is asked for and there is none: why.
    pub fn device(self, threads: Option<usize>) -> Result<Device, Unavailable> {
        Ok(match self {
            DeviceName::Cpu => Device::cpu(threads),
            DeviceName::Cuda(ordinal) => Device::cuda(ordinal)?,
            DeviceName::Auto => match Device::best() {
                Device::Cpu { .. } => Device::cpu(threads),
                gpu => gpu,
            },
        })
    }
}
