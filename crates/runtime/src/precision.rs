//! The precision of computations.

use crate::device::Device;
use crate::session::CompileError;
use clearshot_cpu::lower::takes_bf16;
use clearshot_cpu::simd::Level;
use clearshot_cpu::simd::factors::Bf16;
use clearshot_cuda::{CudaError, Gpu, Math};
use clearshot_graph::passes::eighths::Eighth;
use clearshot_graph::{Graph, Op};
use clearshot_tensor::DType;
use std::fmt;
use std::str::FromStr;

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// The fastest that is safe on the device: bf16 where the GPU has it; fp16 where it has not and the
    /// graph, if it trains, scales its loss; else fp32. On the CPU fp32, but bf16 for the products of networks whose convolutions
    /// multiply in 8 bits, where the processor has such.
    #[default]
    Auto,
    F32,
    /// fp32, whose products round their operands to TF32 where the GPU has it.
    Tf32,
    Bf16,
    F16,
    /// bf16, but e4m3 for the convolutions of 3 x 3 pixels that read norms: inference on GPUs of compute capability 9.0. A graph that has
    /// none is computed in bf16, and its session says so. Never what [`Precision::Auto`] is.
    Fp8,
    /// The products in 8 bits of a quantised graph: on a GPU of compute capability 9.0 bf16, but whole numbers for the convolutions of
    /// 3 x 3 pixels that read norms and have known ranges, for inference; on the CPU what [`Precision::Auto`] is there.
    Int8,
}

/// The precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The type of images and of what products read; none for fp32 throughout. On the CPU images stay fp32, and only products and
    /// attention multiply in it.
    pub narrow: Option<DType>,
    pub math: Math,
    /// What convolutions that can multiply of 8 bits.
    pub eighth: Option<Eighth>,
}

impl Arithmetic {
    pub const F32: Arithmetic = Arithmetic { narrow: None, math: Math { tf32: false }, eighth: None };

    /// What a user would have asked for by name.
    pub fn precision(&self) -> Precision {
        match (self.narrow, self.math.tf32) {
            _ if self.eighth == Some(Eighth::Float) => Precision::Fp8,
            _ if self.eighth == Some(Eighth::Whole) => Precision::Int8,
            (Some(DType::F16), _) => Precision::F16,
            (Some(_), _) => Precision::Bf16,
            (None, true) => Precision::Tf32,
            (None, false) => Precision::F32,
        }
    }

    /// As users name it.
    pub fn name(&self) -> &'static str {
        self.precision().name()
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let eighth = match self.eighth {
            Some(Eighth::Float) => "fp8 (e4m3) convolutions and ",
            Some(Eighth::Whole) => "int8 convolutions and ",
            None => "",
        };
        match (self.narrow, self.math.tf32) {
            (Some(dtype), _) if self.eighth.is_some() => {
                write!(f, "{eighth}{dtype}, with fp32 sums and statistics")
            }
            (Some(dtype), _) => write!(f, "{dtype} with fp32 weights, sums and statistics"),
            (None, true) => f.write_str("fp32 with TF32 products"),
            (None, false) => f.write_str("fp32"),
        }
    }
}

impl Precision {
    /// As users name it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Auto => "auto",
            Precision::F32 => "fp32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "fp16",
            Precision::Fp8 => "fp8",
            Precision::Int8 => "int8",
        }
    }

    /// Refuses what no graph is computed in on a device, before there is a graph.
    ///
    /// # Errors
    /// If the device has no such arithmetic.
    pub fn check(self, device: &Device) -> Result<(), CompileError> {
        match (self, device) {
            (Precision::Tf32 | Precision::F16 | Precision::Fp8, Device::Cpu { .. }) => {
                Err(CompileError::Precision(self))
            }
            (Precision::Fp8 | Precision::Int8, Device::Cuda { ordinal }) => {
                let gpus = clearshot_cuda::gpus().map_err(CudaError::from)?;
                let gpu = gpus.iter().find(|gpu| gpu.ordinal == *ordinal);
                gpu.map_or(Ok(()), |gpu| self.needs_eighths(gpu))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// If the GPU has no products of 8 bits.
    fn needs_eighths(self, gpu: &Gpu) -> Result<(), CompileError> {
        match gpu.has_eighths() {
            true => Ok(()),
            false => {
                Err(CompileError::NoEighths { asked: self, name: gpu.name.clone(), have: gpu.capability })
            }
        }
    }

    /// What a GPU computes a graph in.
    ///
    /// # Errors
    /// If it cannot do what is asked.
    pub(crate) fn choose(self, graph: &Graph, gpu: &Gpu) -> Result<Arithmetic, CompileError> {
        let math = Math { tf32: gpu.has_tf32() };
        let narrow = |dtype| Arithmetic { narrow: Some(dtype), math, eighth: None };
        let trains = trains(graph);
        let scaled = graph.nodes.iter().any(|n| matches!(n.op, Op::LossScale(_)));
        Ok(match self {
            Precision::F32 => Arithmetic::F32,
            Precision::Tf32 => Arithmetic { narrow: None, math, eighth: None },
            Precision::Fp8 | Precision::Int8 if trains => return Err(CompileError::EighthTrains(self)),
            Precision::Int8 if !is_quantised(graph) => return Err(CompileError::NotQuantised),
            Precision::Fp8 | Precision::Int8 => {
                self.needs_eighths(gpu)?;
                let of = if self == Precision::Fp8 { Eighth::Float } else { Eighth::Whole };
                Arithmetic { eighth: Some(of), ..narrow(DType::BF16) }
            }
            Precision::Bf16 => narrow(DType::BF16),
            Precision::F16 => narrow(DType::F16),
            Precision::Auto if gpu.has_bf16() => narrow(DType::BF16),
            Precision::Auto if !trains || scaled => narrow(DType::F16),
            Precision::Auto => Arithmetic::F32,
        })
    }
}

/// What the CPU computes a graph in, and with it the proof that its products can multiply bf16 where they do: where that is asked for, and
/// where nothing is asked for and convolutions multiply in 8 bits.
///
/// # Errors
/// If the processor, or a CPU at all, cannot do what is asked.
pub(crate) fn on_cpu(
    asked: Precision,
    graph: &Graph,
    level: Level,
) -> Result<(Arithmetic, Option<Bf16>), CompileError> {
    const BF16: Arithmetic = Arithmetic { narrow: Some(DType::BF16), ..Arithmetic::F32 };
    match (asked, Bf16::detect(level)) {
        (Precision::Tf32 | Precision::F16 | Precision::Fp8, _) => Err(CompileError::Precision(asked)),
        (Precision::Int8, _) if !is_quantised(graph) => Err(CompileError::NotQuantised),
        (Precision::Int8, _) => on_cpu(Precision::Auto, graph, level),
        (Precision::Bf16, _) if trains(graph) => Err(CompileError::TrainsInF32),
        (Precision::Bf16, None) => Err(CompileError::NoBf16),
        (Precision::Bf16, found) => Ok((BF16, found)),
        (Precision::Auto, Some(found)) if is_rounded(graph) && !trains(graph) => Ok((BF16, Some(found))),
        (Precision::Auto | Precision::F32, _) => Ok((Arithmetic::F32, None)),
    }
}

/// Whether there are convolutions in 8 bits, and products beside them.
fn is_rounded(graph: &Graph) -> bool {
    is_quantised(graph) && (0..graph.nodes.len()).any(|i| takes_bf16(graph, i))
}

/// Whether there are convolutions in 8 bits.
fn is_quantised(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| matches!(&n.op, Op::Conv(c) if c.int8.is_some()))
}

fn trains(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| matches!(n.op, Op::Adam(_) | Op::Sgd(_)))
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(s: &str) -> Result<Precision, String> {
        let all = [
            Precision::Auto,
            Precision::F32,
            Precision::Tf32,
            Precision::Bf16,
            Precision::F16,
            Precision::Fp8,
            Precision::Int8,
        ];
        all.into_iter().find(|p| p.name() == s).ok_or_else(|| {
            format!("no precision `{s}`; there are auto, fp32, tf32, bf16, fp16, fp8 and int8")
        })
    }
}
