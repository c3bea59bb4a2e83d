//! What a card can do at the most, measured: how fast memory is copied and matrices are multiplied. Kernels'
//! times mean something beside these; figures of data sheets are not reached by anyone.

use crate::context::Context;
use crate::error::CudaError;
use crate::lower::{Math, largest_product};
use crate::tune;
use clearshot_tensor::DType;
use cudarc::driver::result;

/// A card's measured rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Operations a second of a large matrix product in the type that was asked for.
    pub flops: f64,
    /// Bytes a second, read and written, of a large copy.
    pub bytes: f64,
}

/// Measures a GPU, for products of `dtype`.
///
/// # Errors
/// If the GPU cannot be used or has not a gibibyte free.
pub fn ceilings(ordinal: usize, dtype: DType, math: Math) -> Result<Ceilings, CudaError> {
    let cx = Context::get(ordinal)?;
    let _turn = cx.turn();
    let size = 1usize << 28;
    let (from, to) = (tune::sample(&cx, size)?, tune::sample(&cx, size)?);
    let copy = cx.time(&mut || {
        // SAFETY: two buffers of that size.
        Ok(unsafe { result::memcpy_dtod_async(to.start(), from.start(), size, cx.stream) }?)
    })?;
    let (flops, product) = largest_product(&cx, dtype, math)?;
    Ok(Ceilings {
        flops: flops / (f64::from(product) * 1e-3),
        bytes: 2.0 * size as f64 / (f64::from(copy) * 1e-3),
    })
}
